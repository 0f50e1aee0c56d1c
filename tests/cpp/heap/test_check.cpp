// Check mode: a corpus of bugs, each of which is found, and correct programs, of which nothing is
// said.
#include "heap/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/sim/sim.h"
#include "fake_device.h"
#include "storage/storage.h"
#include "stream/callback.h"
#include "stream/fault.h"

namespace nbx {
namespace {

using testing::fresh_seed;

constexpr std::uint64_t kBytes = 5000;

class Checks : public ::testing::Test {
 protected:
  Device& device = open_device(DeviceKind::kSim, 1);
  const Primitives& table = device.primitives();
  Account root{"sim:1", nullptr};
  Heap heap{device, &root.tree_lock()};
  Checker checker{heap, device};
  Account& tag = root.child("kv");
  std::shared_ptr<Stream> a = create_stream(device, 0);
  std::shared_ptr<Stream> b = create_stream(device, 0);

  ~Checks() override {
    device.check(table.synchronize(1), "synchronize");
    checker.flush();
    try {
      raise_fault(device);
    } catch (const Error&) {
      // What a test provoked, for the next wait of a caller.
    }
  }
  Block take(Stream& stream, std::uint64_t bytes = kBytes) {
    return checker.allocate(bytes, 64, stream, tag);
  }
  void give(const Block& block, std::vector<BlockUse> uses, std::uint64_t bytes = kBytes) {
    checker.free(block, bytes, tag, uses.data(), uses.size());
  }
  void write(DeviceAddress address, std::uint64_t bytes, Stream& stream) {
    device.check(table.fill(1, address, 0x33, 1, bytes, stream.handle()), "fill");
  }
  /// As the launch floor does it.
  void launch(const Block& block, Stream& stream, bool writes) {
    checker.check_launch(block.address, kBytes, stream, writes);
    write(block.address, kBytes, stream);
    checker.note_launch(block.address, kBytes, stream, writes);
  }
  void expect_report(const std::string& text, std::size_t count = 1) {
    const auto reports = checker.reports();
    ASSERT_EQ(reports.size(), count);
    EXPECT_NE(reports.back().find(text), std::string::npos) << reports.back();
  }
  template <class Call>
  void expect_refusal(const std::string& text, const Call& call) {
    try {
      call();
      ADD_FAILURE() << "allowed: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
};

TEST_F(Checks, AWritePastTheEndIsNamedWithItsOffset) {
  const Block block = take(*a);
  write(block.address + kBytes + 3, 1, *a);
  give(block, {a->use()});
  expect_report("a byte past the end of block");
  EXPECT_NE(checker.reports()[0].find("tag 'sim:1/kv' was written, at offset 5003"),
            std::string::npos)
      << checker.reports()[0];
  EXPECT_NE(checker.reports()[0].find("of 5000 bytes"), std::string::npos);
  EXPECT_THROW(a->synchronize(), Error) << "the next wait raises it";
  a->synchronize();
}

TEST_F(Checks, AWriteBeforeTheStartIsNamedWithItsOffset) {
  const Block block = take(*a);
  write(block.address - 2, 2, *a);
  give(block, {a->use()});
  expect_report("a byte before block");
  EXPECT_NE(checker.reports()[0].find("offset -2"), std::string::npos) << checker.reports()[0];
}

TEST_F(Checks, FreshMemoryIsPoisonedAndDiffersEachTime) {
  std::vector<unsigned char> seen;
  for (int i = 0; i < 2; ++i) {
    const Block block = take(*a);
    unsigned char bytes[2] = {};
    device.check(table.copy(1, reinterpret_cast<DeviceAddress>(bytes), block.address, 2,
                            CopyKind::kDeviceToHost, a->handle()),
                 "copy");
    a->synchronize();
    EXPECT_EQ(bytes[0], bytes[1]);
    EXPECT_NE(bytes[0], 0);
    seen.push_back(bytes[0]);
    give(block, {a->use()});
  }
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_TRUE(checker.reports().empty());
}

TEST_F(Checks, ADoubleFreeIsNamed) {
  const Block block = take(*a);
  give(block, {a->use()});
  give(block, {a->use()});
  expect_report("double free");
  checker.flush();
  EXPECT_EQ(root.granted(), 0u);
}

TEST_F(Checks, ADoubleFreeIsNotAFreeOfTheNextBlockThere) {
  const Block old = take(*a);
  give(old, {a->use()});
  checker.flush();
  const Block block = take(*a);
  ASSERT_EQ(block.address, old.address);
  give(old, {a->use()});
  expect_report("double free");
  give(block, {a->use()});
  expect_report("double free");
}

TEST_F(Checks, AForeignPointerIsNamed) {
  Block block = take(*a);
  Block foreign = block;
  foreign.address += 1 << 30;
  give(foreign, {a->use()});
  expect_report("the pointer is foreign");
  give(block, {a->use()});
}

TEST_F(Checks, AnInteriorPointerIsNamed) {
  const Block block = take(*a);
  Block inside = block;
  inside.address += 128;
  give(inside, {a->use()});
  expect_report("at offset 128: an interior pointer");
  give(block, {a->use()});
}

TEST_F(Checks, ABlockOfAnotherHeapIsNamed) {
  Heap other(device);
  Checker guard(other, device);
  const Block block = guard.allocate(kBytes, 64, *a, root);
  give(block, {a->use()});
  expect_report("belongs to another heap, of sim:1");
  const BlockUse use = a->use();
  guard.free(block, kBytes, root, &use, 1);
  EXPECT_TRUE(guard.reports().empty());
}

TEST_F(Checks, AWriteIntoFreedMemoryIsFoundBeforeItIsHandedOutAgain) {
  const Block block = take(*a);
  give(block, {a->use()});
  write(block.address + 77, 1, *b);
  b->synchronize();
  checker.verify();
  expect_report("freed memory was written");
  EXPECT_NE(checker.reports()[0].find("at offset 77"), std::string::npos);
}

TEST_F(Checks, ALaunchOnFreedMemoryIsRefused) {
  const Block block = take(*a);
  launch(block, *a, true);
  give(block, {a->use()});
  expect_refusal("use after free", [&] { launch(block, *a, false); });
}

TEST_F(Checks, AStreamThatDoesNotWaitForTheWriterIsRefused) {
  const Block block = take(*a);
  launch(block, *a, true);
  expect_refusal("does not wait for stream", [&] { launch(block, *b, false); });
  b->wait_stream(*a);
  launch(block, *b, false);
  expect_refusal("still reads it", [&] { launch(block, *a, true); });
  give(block, {a->use(), b->use()});
  EXPECT_TRUE(checker.reports().empty());
}

TEST_F(Checks, TwoReadersAndTwoHalvesNeedNoOrder) {
  const Block block = take(*a);
  launch(block, *a, true);
  b->wait_stream(*a);
  const HostWork reader{[](void*) {}, [](void*) {}, nullptr};
  for (Stream* stream : {a.get(), b.get()}) {
    checker.check_launch(block.address, kBytes, *stream, false);
    device.check(table.launch_host(1, &reader, 0.0, stream->handle()), "launch_host");
    checker.note_launch(block.address, kBytes, *stream, false);
  }
  a->synchronize();
  b->synchronize();
  checker.check_launch(block.address, 2000, *a, true);
  write(block.address, 2000, *a);
  checker.note_launch(block.address, 2000, *a, true);
  checker.check_launch(block.address + 2000, 3000, *b, true);
  write(block.address + 2000, 3000, *b);
  checker.note_launch(block.address + 2000, 3000, *b, true);
  give(block, {a->use(), b->use()});
  EXPECT_TRUE(checker.reports().empty());
}

TEST_F(Checks, WorkThatWasRefusedLeavesNoTrace) {
  const Block block = take(*a);
  const Block other = take(*b);
  launch(block, *b, true);
  checker.check_launch(other.address, kBytes, *a, true);  // the first operand passes
  expect_refusal("does not wait", [&] { checker.check_launch(block.address, kBytes, *a, false); });
  give(other, {});  // nothing used it
  give(block, {b->use()});
  EXPECT_TRUE(checker.reports().empty());
}

TEST_F(Checks, AFreeWithoutTheConsumersUseIsFound) {
  const Block block = take(*a);
  launch(block, *a, true);
  b->wait_stream(*a);
  launch(block, *b, false);
  give(block, {a->use()});
  expect_report("missing record_use");
}

TEST_F(Checks, AConsumerThatTheFreeingStreamWaitsForNeedsNoRecord) {
  const Block block = take(*a);
  launch(block, *a, true);
  b->wait_stream(*a);
  launch(block, *b, false);
  a->wait_stream(*b);
  give(block, {a->use()});
  EXPECT_TRUE(checker.reports().empty());
}

TEST_F(Checks, AFreeInsideACallbackIsCheckedLater) {
  const Block block = take(*a);
  write(block.address + kBytes, 1, *a);
  const BlockUse use = a->use();
  {
    const CallbackScope callback;
    const std::uint64_t before = sim::call_count(1, Primitive::k_copy);
    checker.free(block, kBytes, tag, &use, 1);
    EXPECT_EQ(sim::call_count(1, Primitive::k_copy), before);
    EXPECT_TRUE(checker.reports().empty());
  }
  checker.verify();
  expect_report("past the end");
}

TEST_F(Checks, TheQuarantineGivesWayUnderPressure) {
  const std::uint64_t total = sim::books(1).total_bytes;
  const std::uint64_t used = sim::books(1).used_bytes;
  sim::set_memory(1, used + (8 << 20));
  for (int i = 0; i < 20; ++i) {
    const Block block = take(*a, 3 << 20);
    give(block, {a->use()}, 3 << 20);
  }
  EXPECT_TRUE(checker.reports().empty());
  checker.flush();
  EXPECT_EQ(root.granted(), 0u);
  sim::set_memory(1, total);
}

TEST_F(Checks, EmptyBlocksAndRefusalsPassThrough) {
  const Block empty = take(*a, 0);
  EXPECT_EQ(empty.address, 0u);
  give(empty, {a->use()}, 0);
  EXPECT_THROW(static_cast<void>(checker.allocate(1, 3, *a, tag)), Error);
  EXPECT_TRUE(checker.reports().empty());
  EXPECT_EQ(root.granted(), 0u);
}

TEST_F(Checks, AFreeThatWaitsLetsHostWorkFree) {
  struct Meeting {
    std::atomic<bool> inside{false}, released{false};
    std::function<void()> free;
  } meeting;
  const Block other = take(*b);
  meeting.free = [&] { give(other, {}); };
  const Block waited = take(*b);
  const HostWork work{[](void* given) {
                        const CallbackScope scope;
                        auto& m = *static_cast<Meeting*>(given);
                        m.inside = true;
                        while (!m.released) std::this_thread::yield();
                        m.free();
                      },
                      [](void*) {}, &meeting};
  device.check(table.launch_host(1, &work, 1.0, a->handle()), "launch_host");
  std::thread runner([&] { a->synchronize(); });
  while (!meeting.inside) std::this_thread::yield();
  const std::uint64_t before = sim::call_count(1, Primitive::k_wait_ticket);
  std::thread releaser([&] {
    while (sim::call_count(1, Primitive::k_wait_ticket) == before) std::this_thread::yield();
    meeting.released = true;
  });
  give(waited, {a->use()});
  runner.join();
  releaser.join();
  EXPECT_TRUE(checker.reports().empty());
  checker.flush();
  EXPECT_EQ(root.granted(), 0u);
}

TEST_F(Checks, ThreadsAllocateFreeAndVerifyTogether) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const auto own = create_stream(device, 0);
      for (int round = 0; round < 60; ++round) {
        const Block block = take(*own, 100 + 1000 * static_cast<std::uint64_t>(i));
        checker.check_launch(block.address, 100, *own, true);
        write(block.address, 100, *own);
        checker.note_launch(block.address, 100, *own, true);
        give(block, {own->use()}, 100 + 1000 * static_cast<std::uint64_t>(i));
      }
    });
  }
  std::thread looker([&] {
    while (!done) checker.verify();
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  looker.join();
  checker.flush();
  EXPECT_TRUE(checker.reports().empty()) << checker.reports().front();
  EXPECT_EQ(root.granted(), 0u);
}

TEST_F(Checks, TwoLiveBlocksThatOverlapAreNamed) {
  const Block first = take(*a);
  // Given back behind the checker's back, so that the heap hands it out again.
  heap.free(first, kBytes + 2 * Checker::kGuard, tag, a->id(), a->submitted());
  const Block second = take(*a);
  ASSERT_EQ(second.address, first.address);
  expect_report("two live blocks overlap");
  EXPECT_NE(checker.reports()[0].find("at 0x"), std::string::npos);
  give(second, {a->use()});
  give(first, {a->use()});
  expect_report("a double free", 2);
}

TEST_F(Checks, WorkOnMemoryOfAnEndedEpochIsRefused) {
  const Block block = take(*a);
  Heap next(device, &root.tree_lock());
  Checker later(next, device);
  checker.end_epoch(7);
  // By the tensor's own handle, and by an address that the new epoch is given.
  expect_refusal("stale epoch", [&] { checker.check_launch(block.address, kBytes, *a, false); });
  expect_refusal("epoch 7 of sim:1, which ended",
                 [&] { later.check_launch(block.address + 8, 16, *a, true); });
  const Block fresh = later.allocate(kBytes, 64, *a, tag);
  later.check_launch(fresh.address, kBytes, *a, true);
  // A handle of the old epoch is no block of the new one.
  later.free(block, kBytes, tag, nullptr, 0);
  ASSERT_EQ(later.reports().size(), 1u);
  EXPECT_NE(later.reports()[0].find("of epoch 7 of sim:1, which ended: a stale handle"),
            std::string::npos)
      << later.reports()[0];
  const BlockUse use = a->use();
  later.free(fresh, kBytes, tag, &use, 1);
  give(block, {a->use()});  // its own epoch takes it back without a word
  EXPECT_TRUE(checker.reports().empty());
}

TEST(CheckMode, HostMemoryIsLookedAtInPlace) {
  Device& cpu = open_device(DeviceKind::kCpu, 0);
  Account root("cpu", nullptr);
  Heap heap(cpu, &root.tree_lock());
  Checker checker(heap, cpu);
  const Block block = checker.allocate(100, 64, default_stream(cpu), root);
  EXPECT_EQ(block.address % 64, 0u);
  reinterpret_cast<unsigned char*>(block.address)[100] = 1;
  const BlockUse use{};
  checker.free(block, 100, root, &use, 1);
  ASSERT_EQ(checker.reports().size(), 1u);
  EXPECT_NE(checker.reports()[0].find("at offset 100"), std::string::npos);
  EXPECT_THROW(raise_fault(cpu), Error);
}

TEST(CheckMode, StoragesGoThroughItWhenTheVariableIsSet) {
  Device& device = open_device(DeviceKind::kSim, 1);
  {
    const DeviceMemory unchecked(device);
    EXPECT_EQ(unchecked.checker, nullptr);
  }
  ASSERT_EQ(setenv("NBX_MEMORY_CHECK", "1", 1), 0);
  {
    DeviceMemory memory(device);
    ASSERT_NE(memory.checker, nullptr);
    auto storage = Storage::allocate(memory, 1000);
    device.check(device.primitives().fill(1, storage->address() + 1000, 1, 1, 1, 0), "fill");
    storage->touch(default_stream(device));
    storage = {};
    EXPECT_EQ(memory.checker->reports().size(), 1u);
    EXPECT_THROW(raise_fault(device), Error);
  }
  ASSERT_EQ(unsetenv("NBX_MEMORY_CHECK"), 0);
}

// ---- programs ------------------------------------------------------------------------------

/// A random program on three streams that orders what it does; with a bug somewhere in it if asked.
class Program : public Checks {
 protected:
  enum class Bug {
    kNone,
    kOverrun,
    kDoubleFree,
    kInterior,
    kForeign,
    kLateWrite,
    kUnordered,
    kUnrecorded,
    kOverlap,
    kOtherHeap,
    kStaleEpoch
  };
  struct Held {
    Block block;
    std::vector<Stream*> users;  // the last one wrote
  };
  std::shared_ptr<Stream> c = create_stream(device, 0);

  /// The number of findings.
  std::size_t run(Bug bug, std::mt19937_64& random) {
    Stream* streams[] = {a.get(), b.get(), c.get()};
    std::vector<Held> held;
    std::size_t refused = 0;
    const std::size_t before = checker.reports().size();
    constexpr int kSteps = 40;
    const int at = 10 + static_cast<int>(random() % 20);
    for (int step = 0; step < kSteps; ++step) {
      Stream& stream = *streams[random() % 3];
      if (held.size() < 3 || random() % 2 == 0) {
        held.push_back({take(stream), {&stream}});
        launch(held.back().block, stream, true);
      }
      Held& used = held[random() % held.size()];
      if (step == at && bug != Bug::kNone) {
        refused += plant(bug, used, random);
        if (bug == Bug::kDoubleFree || bug == Bug::kLateWrite || bug == Bug::kUnrecorded ||
            bug == Bug::kOverlap) {
          std::swap(used, held.back());
          held.pop_back();
        }
        continue;
      }
      for (Stream* user : used.users) stream.wait_stream(*user);
      launch(used.block, stream, true);
      used.users.push_back(&stream);
      if (held.size() > 6) {
        release(held.front());
        held.erase(held.begin());
      }
    }
    for (const Held& entry : held) release(entry);
    checker.verify();
    checker.flush();
    return checker.reports().size() - before + refused;
  }

 private:
  void release(const Held& held) {
    std::vector<BlockUse> uses;
    for (Stream* user : held.users) uses.push_back(user->use());
    give(held.block, uses);
  }
  std::size_t plant(Bug bug, const Held& held, std::mt19937_64& random) {
    Block wrong = held.block;
    switch (bug) {
      case Bug::kOverrun:
        write(held.block.address + kBytes + random() % 200, 1, *held.users.back());
        break;
      case Bug::kDoubleFree:
        release(held);
        release(held);
        break;
      case Bug::kInterior:
        wrong.address += 1 + random() % (kBytes - 1);
        give(wrong, {});
        break;
      case Bug::kForeign:
        wrong.address = 0x1234;
        give(wrong, {});
        break;
      case Bug::kLateWrite:
        release(held);
        write(held.block.address + random() % kBytes, 1, *a);
        break;
      case Bug::kUnordered: {
        const auto stranger = create_stream(device, 0);
        launch(held.block, *held.users.back(), true);
        try {
          launch(held.block, *stranger, true);
        } catch (const Error&) {
          return 1;
        }
        break;
      }
      case Bug::kUnrecorded: {
        const auto consumer = create_stream(device, 0);
        for (Stream* user : held.users) consumer->wait_stream(*user);
        launch(held.block, *consumer, false);
        release(held);
        break;
      }
      case Bug::kOverlap: {
        // Behind the checker's back, so that the heap hands it out once more.
        Stream& owner = *held.users.front();
        heap.free(held.block, kBytes + 2 * Checker::kGuard, tag, owner.id(), 0);
        std::vector<Block> taken;
        const std::size_t before = checker.reports().size();
        for (int i = 0; i < 400 && checker.reports().size() == before; ++i) {
          taken.push_back(take(owner));
        }
        for (const Block& block : taken) give(block, {owner.use()});
        break;
      }
      case Bug::kOtherHeap: {
        Heap other(device, &root.tree_lock());
        Checker strange(other, device);
        const Block block = strange.allocate(kBytes, 64, *a, tag);
        give(block, {a->use()});
        const BlockUse use = a->use();
        strange.free(block, kBytes, tag, &use, 1);
        break;
      }
      case Bug::kStaleEpoch: {
        Heap former(device, &root.tree_lock());
        Checker ended(former, device);
        const Block block = ended.allocate(kBytes, 64, *a, tag);
        ended.end_epoch(1);
        std::size_t refused = 0;
        try {
          checker.check_launch(block.address, kBytes, *a, false);
        } catch (const Error&) {
          ++refused;
        }
        give(block, {a->use()});
        const BlockUse use = a->use();
        ended.free(block, kBytes, tag, &use, 1);
        return refused;
      }
      case Bug::kNone:
        break;
    }
    return 0;
  }
};

TEST_F(Program, CorrectOnesAreLeftAlone) {
  std::mt19937_64 random(fresh_seed("CorrectOnesAreLeftAlone"));
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(run(Bug::kNone, random), 0u)
        << (checker.reports().empty() ? "" : checker.reports().back());
  }
  EXPECT_EQ(root.granted(), 0u);
}

TEST_F(Program, EveryPlantedBugIsFound) {
  std::mt19937_64 random(fresh_seed("EveryPlantedBugIsFound"));
  for (const Bug bug :
       {Bug::kOverrun, Bug::kDoubleFree, Bug::kInterior, Bug::kForeign, Bug::kLateWrite,
        Bug::kUnordered, Bug::kUnrecorded, Bug::kOverlap, Bug::kOtherHeap, Bug::kStaleEpoch}) {
    for (int round = 0; round < 4; ++round) {
      ASSERT_GE(run(bug, random), 1u) << "bug " << static_cast<int>(bug);
    }
  }
}

}  // namespace
}  // namespace nbx
