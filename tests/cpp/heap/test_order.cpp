// Who may have a block that work of some stream still uses: one test for each way it went wrong
// elsewhere, on a simulated device whose work runs as late as it may.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sim_heap.h"
#include "stream/event.h"

namespace nbx {
namespace {

using testing::fresh_seed;

using testing::kMega;

constexpr std::uint64_t kBlock = 4 * kMega;

class Order : public testing::SimHeap {
 protected:
  std::shared_ptr<Stream> a = create_stream(device, 0);
  std::shared_ptr<Stream> b = create_stream(device, 0);
  std::shared_ptr<Stream> c = create_stream(device, 0);

  ~Order() override {
    sim::clear_faults(0);
    device.check(table.synchronize(0), "synchronize");
  }
  Block take(Stream& stream, std::uint64_t bytes = kBlock) {
    return heap.allocate(bytes, 64, stream, root);
  }
  void give(const Block& block, const BlockUse& use, std::uint64_t bytes = kBlock) {
    heap.free(block, bytes, root, use.stream, use.ticket);
  }
  void give(const Block& block, std::vector<BlockUse> uses) {
    heap.free_after(block, kBlock, root, uses.data(), uses.size());
  }
  void fill(const Block& block, std::uint32_t value, Stream& stream) {
    device.check(table.fill(0, block.address, value, 1, kBlock, stream.handle()), "fill");
  }
  /// Late work: a second of the virtual clock.
  void delay(Stream& stream, double seconds = 1.0) {
    const HostWork work{[](void*) {}, [](void*) {}, nullptr};
    device.check(table.launch_host(0, &work, seconds, stream.handle()), "launch_host");
  }
  std::vector<unsigned char> read(const Block& block, Stream& stream) {
    std::vector<unsigned char> bytes(kBlock);
    device.check(table.copy(0, reinterpret_cast<DeviceAddress>(bytes.data()), block.address,
                            bytes.size(), CopyKind::kDeviceToHost, stream.handle()),
                 "copy");
    stream.synchronize();
    return bytes;
  }
  void expect_bytes(const Block& block, unsigned char value, Stream& stream) {
    const auto bytes = read(block, stream);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), value),
              static_cast<std::ptrdiff_t>(bytes.size()));
  }
  void only_policy(bool ordered, bool waits) {
    HeapOptions options;
    options.reuse_ordered = ordered;
    options.reuse_waits = waits;
    heap.set_options(options);
  }
  /// Room for one block: whoever wants another must have the first.
  void leave_room_for(std::uint64_t bytes) { sim::set_memory(0, used + bytes); }
  /// Calls of any kind that reached the driver.
  static std::uint64_t calls() {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kPrimitiveCount; ++i) {
      sum += sim::call_count(0, static_cast<Primitive>(i));
    }
    return sum;
  }
};

// ---- the three policies, one at a time -----------------------------------------------------

TEST_F(Order, ABlockServesAStreamThatWaitsForItsWorkAlready) {
  only_policy(true, false);
  const Block old = take(*a);
  delay(*a);
  fill(old, 0xaa, *a);
  give(old, a->use());
  b->wait_stream(*a);
  const std::uint64_t before = heap.statistics().created_bytes;
  const Block block = take(*b);
  EXPECT_EQ(block.address, old.address) << "followed";
  EXPECT_EQ(heap.statistics().created_bytes, before);
  EXPECT_EQ(heap.statistics().inserted_waits, 0u);
  fill(block, 0x11, *b);
  expect_bytes(block, 0x11, *b);
  give(block, b->use());
}

TEST_F(Order, WithoutTheFollowingPolicyAnotherBlockIsMade) {
  only_policy(false, false);
  const Block old = take(*a);
  delay(*a);
  give(old, a->use());
  b->wait_stream(*a);
  const Block block = take(*b);
  EXPECT_NE(block.address, old.address);
  give(block, b->use());
}

TEST_F(Order, ABlockServesAnyStreamOnceItsWorkIsOver) {
  only_policy(false, false);
  const Block old = take(*a);
  fill(old, 0xaa, *a);
  delay(*a);
  give(old, a->use());
  sim::advance(2.0);
  const std::uint64_t before = heap.statistics().created_bytes;
  const Block block = take(*b);
  EXPECT_EQ(block.address, old.address) << "its work had completed";
  EXPECT_EQ(heap.statistics().created_bytes, before);
  EXPECT_EQ(heap.statistics().inserted_waits, 0u);
  give(block, b->use());
}

TEST_F(Order, AWaitIsInsertedInsteadOfAskingTheDriver) {
  only_policy(false, true);
  const Block old = take(*a);
  delay(*a);
  fill(old, 0xaa, *a);
  give(old, a->use());
  const std::uint64_t before = heap.statistics().created_bytes;
  const Block block = take(*b);
  EXPECT_EQ(block.address, old.address);
  EXPECT_EQ(heap.statistics().created_bytes, before);
  EXPECT_EQ(heap.statistics().inserted_waits, 1u);
  fill(block, 0x11, *b);
  expect_bytes(block, 0x11, *b);
  give(block, b->use());
}

TEST_F(Order, AnInsertedWaitIsKnownAfterwards) {
  const Block first = take(*a);
  const Block second = take(*a);
  delay(*a);
  give(first, a->use());
  give(second, a->use());
  const Block one = take(*b);
  EXPECT_EQ(heap.statistics().inserted_waits, 1u);
  const Block two = take(*b);
  EXPECT_EQ(heap.statistics().inserted_waits, 1u) << "the first wait covers the second block";
  give(one, b->use());
  give(two, b->use());
}

TEST_F(Order, InsertedWaitsNeverFormARing) {
  std::mt19937_64 random(fresh_seed("InsertedWaitsNeverFormARing"));
  Stream* streams[] = {a.get(), b.get(), c.get()};
  leave_room_for(6 * kBlock);
  std::vector<std::pair<Block, Stream*>> held;
  for (int step = 0; step < 300; ++step) {
    Stream& stream = *streams[random() % 3];
    if (held.size() < 6) {
      const Block block = take(stream);
      delay(stream, 1e-3);
      fill(block, static_cast<std::uint32_t>(step & 0xff), stream);
      held.emplace_back(block, &stream);
    }
    if (held.size() == 6 || random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      give(held.back().first, held.back().second->use());
      held.pop_back();
    }
  }
  EXPECT_GT(heap.statistics().inserted_waits, 0u);
  for (const auto& [block, stream] : held) give(block, stream->use());
  // A ring would never end.
  for (Stream* stream : streams) stream->synchronize();
}

// ---- knowledge -----------------------------------------------------------------------------

TEST_F(Order, WhatAStreamWaitsForIsPassedOn) {
  delay(*a);
  const BlockUse use = a->use();
  EXPECT_FALSE(is_ordered(b->id(), use));
  b->wait_stream(*a);
  EXPECT_TRUE(is_ordered(b->id(), use));
  delay(*a);
  EXPECT_FALSE(is_ordered(b->id(), a->use())) << "later work is not covered";
  EXPECT_FALSE(is_ordered(c->id(), use));
  c->wait_stream(*b);
  EXPECT_TRUE(is_ordered(c->id(), use)) << "b waits for it";
  EXPECT_FALSE(is_ordered(c->id(), use, 0)) << "not by work submitted before the wait";
}

TEST_F(Order, AMarkPassesOnWhatWasKnownWhenItWasMade) {
  Event event(device, false);
  delay(*b);
  event.record(*b);
  delay(*a);
  b->wait_stream(*a);  // after the mark
  event.block(*c);
  EXPECT_FALSE(is_ordered(c->id(), a->use())) << "the mark is older than the wait";
  event.record(*b);
  event.block(*c);
  EXPECT_TRUE(is_ordered(c->id(), a->use()));
}

TEST_F(Order, KnowledgeOfManyStreamsIsKept) {
  std::vector<std::shared_ptr<Stream>> many;
  for (int i = 0; i < 50; ++i) {
    many.push_back(create_stream(device, 0));
    delay(*many.back());
    b->wait_stream(*many.back());
  }
  for (const auto& stream : many) EXPECT_TRUE(is_ordered(b->id(), stream->use()));
  c->wait_stream(*b);
  for (const auto& stream : many) EXPECT_TRUE(is_ordered(c->id(), stream->use()));
}

TEST_F(Order, ABlockThatFollowedWaitsForItsFirstWorkAgain) {
  // Freed by its second stream before that did anything: the first one's work is still to come.
  const Block old = take(*a);
  delay(*a);
  fill(old, 0xaa, *a);
  give(old, a->use());
  b->wait_stream(*a);
  const Block second = take(*b);
  ASSERT_EQ(second.address, old.address);
  give(second, BlockUse{b->id(), 0});
  only_policy(false, false);
  const Block third = take(*c);
  EXPECT_NE(third.address, old.address);
  give(third, c->use());
}

// ---- what went wrong elsewhere -------------------------------------------------------------

TEST_F(Order, ReuseIsDecidedByOrderAndNotByWhenSomebodyPolls) {
  // The clock stands still: no poll finds anything complete, and yet memory does not grow.
  const Block first = take(*a);
  give(first, a->use());
  const std::uint64_t before = heap.statistics().created_bytes;
  for (int step = 0; step < 50; ++step) {
    Stream& stream = step % 2 == 0 ? *a : *b;
    stream.wait_stream(step % 2 == 0 ? *b : *a);
    const Block block = take(stream);
    fill(block, static_cast<std::uint32_t>(step), stream);
    give(block, stream.use());
  }
  EXPECT_EQ(heap.statistics().created_bytes, before);
  EXPECT_EQ(heap.statistics().inserted_waits, 0u);
}

TEST_F(Order, AUseOfAnotherStreamIsWaitedForAtReuse) {
  const Block old = take(*a);
  fill(old, 0xaa, *a);
  b->wait_stream(*a);
  delay(*b);
  std::vector<unsigned char> copy(kBlock);
  device.check(table.copy(0, reinterpret_cast<DeviceAddress>(copy.data()), old.address, kBlock,
                          CopyKind::kDeviceToHost, b->handle()),
               "copy");
  give(old, {a->use(), b->use()});
  leave_room_for(kBlock);
  const Block block = take(*a);
  fill(block, 0x11, *a);
  device.check(table.synchronize(0), "synchronize");
  EXPECT_EQ(std::count(copy.begin(), copy.end(), 0xaa), static_cast<std::ptrdiff_t>(kBlock))
      << "the reader was overtaken";
  give(block, a->use());
}

TEST_F(Order, AFreeIsNeverEagerWhileAConsumerIsBehind) {
  const Block old = take(*a);
  fill(old, 0xaa, *a);
  b->wait_stream(*a);
  delay(*b);
  give(old, {a->use(), b->use()});
  a->synchronize();
  EXPECT_EQ(heap.statistics().pending, kBlock);
  EXPECT_EQ(heap.trim(), 0u) << "b is behind";
  EXPECT_EQ(heap.statistics().pending, kBlock);
  b->synchronize();
  EXPECT_EQ(heap.trim(), kBlock);
}

TEST_F(Order, MemoryOfAnIdleStreamFlowsBack) {
  const Block old = take(*a);
  fill(old, 1, *a);
  give(old, a->use());
  a->synchronize();
  leave_room_for(kBlock);
  // All of it, for a stream that never heard of the other one.
  const Block block = take(*b);
  EXPECT_EQ(block.address, old.address);
  EXPECT_EQ(heap.statistics().inserted_waits, 0u);
  give(block, b->use());
}

TEST_F(Order, AFreeMakesNoDriverCall) {
  const Block block = take(*a);
  const Block other = take(*a);
  fill(block, 1, *a);
  const BlockUse use = a->use();
  const BlockUse elsewhere = b->use();
  const std::uint64_t before = calls();
  give(block, use);
  give(other, {use, elsewhere});
  EXPECT_EQ(calls(), before);
}

TEST_F(Order, TakingBackAnOwnBlockMakesNoDriverCall) {
  Block block = take(*a);
  fill(block, 1, *a);
  give(block, a->use());
  const std::uint64_t before = calls();
  for (int i = 0; i < 100; ++i) {
    block = take(*a);
    give(block, BlockUse{a->id(), 1});
  }
  EXPECT_EQ(calls(), before);
}

TEST_F(Order, EventsArePooled) {
  b->wait_stream(*a);
  const std::uint64_t before = sim::call_count(0, Primitive::k_event_create);
  for (int i = 0; i < 20; ++i) {
    delay(*a);
    b->wait_stream(*a);
    ASSERT_TRUE(insert_wait(c->id(), b->id()));
  }
  EXPECT_EQ(sim::call_count(0, Primitive::k_event_create), before);
}

TEST_F(Order, FreesFromOtherThreadsAndForOtherStreamsFindTheBlock) {
  std::mt19937_64 random(fresh_seed("FreesFromOtherThreadsAndForOtherStreamsFindTheBlock"));
  Stream* streams[] = {a.get(), b.get(), c.get()};
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<Block, Stream*>> made;
    for (int i = 0; i < 12; ++i) {
      Stream* stream = streams[random() % 3];
      made.emplace_back(take(*stream), stream);
      fill(made.back().first, 1, *stream);
    }
    std::shuffle(made.begin(), made.end(), random);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < made.size(); i += 4) give(made[i].first, made[i].second->use());
      });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(heap.statistics().live, 0u);
    ASSERT_EQ(root.granted(), 0u);
  }
}

TEST_F(Order, AFreedHandleIsNotTheNextBlockAtItsAddress) {
  const Block old = take(*a);
  give(old, BlockUse{a->id(), 0});
  const Block block = take(*a);
  ASSERT_EQ(block.address, old.address);
  EXPECT_THROW(heap.require_live(old), Error);
  heap.require_live(block);
  give(old, BlockUse{a->id(), 0});
  heap.require_live(block);
  EXPECT_EQ(heap.statistics().live, kBlock);
  give(block, a->use());
}

// ---- streams that go -----------------------------------------------------------------------

TEST_F(Order, AStreamsDeathLeavesItsMemoryToTheDevice) {
  const Block old = take(*a);
  delay(*a);
  fill(old, 0xaa, *a);
  give(old, a->use());
  a.reset();
  only_policy(true, false);
  const std::uint64_t synchronized = sim::call_count(0, Primitive::k_synchronize);
  const Block early = take(*b);
  EXPECT_NE(early.address, old.address) << "the work that was left behind is still to come";
  sim::advance(2.0);
  const Block block = take(*b);
  EXPECT_EQ(block.address, old.address);
  EXPECT_EQ(sim::call_count(0, Primitive::k_synchronize), synchronized)
      << "an event tells when a dead stream's work is over";
  fill(block, 0x11, *b);
  expect_bytes(block, 0x11, *b);
  give(early, b->use());
  give(block, b->use());
}

TEST_F(Order, AWaitForADeadStreamsWorkWaitsForThatWorkAlone) {
  delay(*b, 100.0);
  const Block old = take(*a);
  delay(*a);
  fill(old, 0xaa, *a);
  const BlockUse use = a->use();
  a.reset();
  const double before = sim::seconds();
  wait_for(use);
  EXPECT_LT(sim::seconds() - before, 50.0);
  EXPECT_EQ(known_completed(use.stream), use.ticket);
  give(old, use);
}

TEST_F(Order, AThousandStreamsComeAndGo) {
  const std::uint64_t created = heap.statistics().created_bytes;
  for (int i = 0; i < 1000; ++i) {
    const auto stream = create_stream(device, 0);
    const Block block = take(*stream);
    fill(block, static_cast<std::uint32_t>(i & 0xff), *stream);
    give(block, stream->use());
    sim::advance(1e-3);
  }
  EXPECT_LE(heap.statistics().created_bytes - created, 2 * kBlock);
  EXPECT_EQ(sim::books(0).streams, 3u);
}

TEST_F(Order, AHandleThatTheDriverReusesIsAnotherStream) {
  const StreamId first = stream_id(device, 12345);
  EXPECT_EQ(stream_id(device, 12345), first) << "streams of others are known by their handle";
  retire_stream(first);
  EXPECT_NE(stream_id(device, 12345), first);
}

// ---- callbacks and finalizers --------------------------------------------------------------

struct Freeing {
  Heap& heap;
  Account& root;
  Block block;
  BlockUse use;
  std::atomic<int>* freed;
};

TEST_F(Order, AFreeInsideHostWorkNeitherBlocksNorCallsTheDriver) {
  std::atomic<int> freed{0};
  for (int i = 0; i < 8; ++i) {
    auto payload = std::make_unique<Freeing>(Freeing{heap, root, take(*a), {}, &freed});
    fill(payload->block, 1, *a);
    payload->use = a->use();
    const HostWork work{
        [](void* given) {
          auto& p = *static_cast<Freeing*>(given);
          const std::uint64_t before = calls();
          p.heap.free(p.block, kBlock, p.root, p.use.stream, p.use.ticket);
          EXPECT_EQ(calls(), before);
          ++*p.freed;
        },
        [](void* given) { const std::unique_ptr<Freeing> owned(static_cast<Freeing*>(given)); },
        payload.get()};
    static_cast<void>(payload.release());
    device.check(table.launch_host(0, &work, 0.0, b->handle()), "launch_host");
    if (i == 3) b->synchronize();
  }
  // The heap itself waits for the stream whose work frees, and holds whatever it holds meanwhile.
  leave_room_for(8 * kBlock);
  const Block block = take(*c, 6 * kBlock);
  EXPECT_EQ(freed.load(), 8);
  give(block, c->use(), 6 * kBlock);
}

TEST_F(Order, ThreadsFreeWhileAnotherIsInsideTheDriver) {
  // Work that ends only when another thread could free: a free that waits for the allocating
  // thread would never end.
  struct Meeting {
    std::atomic<bool> inside{false};
    std::atomic<bool> freed{false};
  } meeting;
  const HostWork work{[](void* given) {
                        auto& m = *static_cast<Meeting*>(given);
                        m.inside = true;
                        while (!m.freed) std::this_thread::yield();
                      },
                      [](void*) {}, &meeting};
  leave_room_for(2 * kBlock);
  const Block held = take(*b);
  const Block old = take(*a);
  device.check(table.launch_host(0, &work, 1.0, a->handle()), "launch_host");
  give(old, a->use());
  only_policy(false, false);
  std::thread other([&] {
    while (!meeting.inside) std::this_thread::yield();
    give(held, b->use());
    meeting.freed = true;
  });
  const Block block = take(*c, 2 * kBlock);
  other.join();
  give(block, c->use(), 2 * kBlock);
}

}  // namespace
}  // namespace nbx
