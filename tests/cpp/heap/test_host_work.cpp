// Host work of a stream that allocates while another thread waits for that stream: nobody may stand
// still for somebody who stands still for him.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "heap/reserved.h"
#include "sim_heap.h"
#include "stream/callback.h"

namespace nbx {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{4} << 20;

class HostWorkTest : public testing::SimHeap {
 protected:
  Account& weights = root.child("weights");
  std::shared_ptr<Stream> a = create_stream(device, 0);
  std::shared_ptr<Stream> b = create_stream(device, 0);
  std::atomic<bool> inside{false};    // the host work has begun
  std::atomic<bool> released{false};  // it may go on

  ~HostWorkTest() override {
    sim::clear_faults(0);
    EXPECT_EQ(table.synchronize(0), kSuccess);
  }
  Block take(Stream& stream, std::uint64_t blocks, Account& account) {
    return heap.allocate(blocks * kBlock, 64, stream, account);
  }
  void give(const Block& block, std::uint64_t blocks, const BlockUse& use, Account& account) {
    heap.free(block, blocks * kBlock, account, use.stream, use.ticket);
  }
  /// Queues host work on `a`. It begins, waits until it is released, then does `work`.
  void queue(std::function<void()> work) {
    work_ = std::move(work);
    const HostWork host{[](void* given) {
                          auto& test = *static_cast<HostWorkTest*>(given);
                          const CallbackScope scope;
                          test.inside = true;
                          while (!test.released) std::this_thread::yield();
                          test.work_();
                        },
                        [](void*) {}, this};
    device.check(table.launch_host(0, &host, 1.0, a->handle()), "launch_host");
  }
  /// A thread that runs the host work, as a driver's thread does on a card.
  std::thread run_it() {
    std::thread runner([&] { a->synchronize(); });
    while (!inside) std::this_thread::yield();
    return runner;
  }
  /// Lets the work go on once another thread is inside the primitive.
  std::thread release_when_inside(Primitive primitive) {
    const std::uint64_t before = sim::call_count(0, primitive);
    return std::thread([this, primitive, before] {
      while (sim::call_count(0, primitive) == before) std::this_thread::yield();
      released = true;
    });
  }

 private:
  std::function<void()> work_;
};

TEST_F(HostWorkTest, AllocatesWhileAnotherThreadsRequestWaitsForIt) {
  sim::set_memory(0, used + 4 * kBlock);
  const Block held = take(*b, 1, root);
  const Block old = take(*a, 1, root);
  bool served = false;
  queue([&] {
    const Block block = take(*b, 2, root);
    served = block.address != 0;
    give(block, 2, {}, root);
  });
  give(old, 1, a->use(), root);
  heap.set_options(HeapOptions{0.0, false, false});
  std::thread runner = run_it();
  std::thread releaser = release_when_inside(Primitive::k_wait_ticket);
  // Three of the four: the freed block is needed, which the host work keeps.
  const Block block = take(*b, 3, root);
  runner.join();
  releaser.join();
  EXPECT_TRUE(served);
  give(block, 3, {}, root);
  give(held, 1, {}, root);
}

TEST_F(HostWorkTest, IsRefusedByNameWhereItWouldHaveToWait) {
  sim::set_memory(0, used + 2 * kBlock);
  const Block held = take(*b, 1, root);
  const Block old = take(*a, 1, root);
  std::string text;
  queue([&] {
    try {
      static_cast<void>(take(*b, 2, root));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
      text = error.what();
    }
  });
  give(old, 1, a->use(), root);
  released = true;
  a->synchronize();
  EXPECT_NE(text.find("host work"), std::string::npos) << text;
  EXPECT_EQ(root.statistics().granted, kBlock);
  give(held, 1, {}, root);
}

TEST_F(HostWorkTest, AllocatesWhileAReclaimerWaitsForIt) {
  sim::set_memory(0, used + 4 * kBlock);
  Block cached = take(*b, 2, root);
  bool served = false;
  queue([&] {
    const Block block = take(*b, 1, root);
    served = block.address != 0;
    give(block, 1, {}, root);
  });
  std::thread runner = run_it();
  heap.add_reclaimer(1.0, [&](std::uint64_t) {
    a->synchronize();  // as a reclaimer does that copies to the host
    give(cached, 2, {}, root);
    return 2 * kBlock;
  });
  std::thread releaser = release_when_inside(Primitive::k_stream_synchronize);
  const Block block = take(*b, 4, root);
  runner.join();
  releaser.join();
  EXPECT_TRUE(served);
  give(block, 4, {}, root);
}

TEST_F(HostWorkTest, IsToldThatMemoryMovesWhereTheMoverCannotGiveWay) {
  const Block block = take(*a, 1, weights);
  std::string text;
  queue([&] {
    try {
      give(take(*b, 1, root), 1, {}, root);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      text = error.what();
    }
  });
  std::thread runner = run_it();
  std::thread releaser = release_when_inside(Primitive::k_synchronize);
  EXPECT_EQ(heap.sleep(weights, true).blocks, 1u);
  runner.join();
  releaser.join();
  EXPECT_NE(text.find("before the work is queued"), std::string::npos) << text;
  EXPECT_EQ(root.statistics().granted, 0u);  // what was admitted for it is given back
  EXPECT_EQ(heap.wake(weights).blocks, 1u);
  give(block, 1, {}, weights);
}

TEST_F(HostWorkTest, FreesBlocksOfASleepingTagMeanwhile) {
  const Block block = take(*a, 1, weights);
  const Block other = take(*b, 1, weights);
  queue([&] { give(block, 1, {}, weights); });
  std::thread runner = run_it();
  std::thread releaser = release_when_inside(Primitive::k_synchronize);
  EXPECT_EQ(heap.sleep(weights, true).blocks, 2u);
  runner.join();
  releaser.join();
  EXPECT_EQ(heap.statistics().asleep_blocks, 1u);
  EXPECT_EQ(heap.wake(weights).blocks, 1u);
  give(other, 1, {}, weights);
  EXPECT_EQ(heap.statistics().live, 0u);
}

TEST_F(HostWorkTest, ReclaimersAreAskedByOneThreadAtATime) {
  sim::set_memory(0, used + 8 * kBlock);
  std::vector<Block> cache;
  for (int i = 0; i < 8; ++i) cache.push_back(take(*b, 1, root));
  std::atomic<int> running{0};
  std::atomic<int> together{0};
  heap.add_reclaimer(1.0, [&](std::uint64_t) -> std::uint64_t {
    if (running.fetch_add(1) != 0) ++together;
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    std::uint64_t freed = 0;
    if (!cache.empty()) {
      give(cache.back(), 1, {}, root);
      cache.pop_back();
      freed = kBlock;
    }
    running.fetch_sub(1);
    return freed;
  });
  // The reclaimer is asked until it has nothing left; no thread may be refused before that.
  heap.add_reclaimer(2.0, [&](std::uint64_t) -> std::uint64_t {
    std::uint64_t freed = 0;
    for (; !cache.empty(); cache.pop_back(), freed += kBlock) give(cache.back(), 1, {}, root);
    return freed;
  });
  std::vector<std::thread> threads;
  std::vector<Block> taken(4);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    threads.emplace_back([&, i] { taken[i] = take(*b, 2, root); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together.load(), 0);
  for (const Block& block : taken) give(block, 2, {}, root);
  EXPECT_EQ(heap.statistics().live, 0u);
}

TEST_F(HostWorkTest, ReservedBlocksGrowAndShrinkAroundIt) {
  ReservedBlock reserved(heap, 8 * kBlock, weights, Lifetime::kTransient);
  reserved.commit(2 * kBlock);
  reserved.open_view(0, kBlock);
  std::string text;
  queue([&] {
    try {
      give(take(*b, 1, root), 1, {}, root);
    } catch (const Error& error) {
      text = error.what();
    }
  });
  const BlockUse use = a->use();
  reserved.close_view(0, kBlock, &use, 1);
  std::thread runner = run_it();
  std::thread releaser = release_when_inside(Primitive::k_wait_ticket);
  EXPECT_EQ(reserved.decommit(0), 0u);
  runner.join();
  releaser.join();
  EXPECT_NE(text.find("before the work is queued"), std::string::npos) << text;
  EXPECT_EQ(root.statistics().granted, 0u);
}

}  // namespace
}  // namespace nbx
