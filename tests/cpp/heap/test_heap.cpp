#include "heap/heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "fake_device.h"

namespace nbx {
namespace {

using testing::driver;
using testing::fake_device;
using testing::fresh_seed;

constexpr std::uint64_t kMega = 1 << 20;

std::int64_t figure(const Error& error, const std::string& name) {
  for (const auto& [key, value] : error.figures()) {
    if (key == name) return std::get<std::int64_t>(value);
  }
  ADD_FAILURE() << "no figure " << name << " in: " << error.what();
  return -1;
}

class HeapTest : public ::testing::TestWithParam<bool> {
 protected:
  Device& device = fake_device(GetParam());
  Account root{"fake", nullptr};
  Account& account = root.child("device");
  Heap heap{device, &root.tree_lock()};
  Stream stream{device, 0, false};

  Block take(std::uint64_t bytes, std::uint64_t alignment = 64) {
    return heap.allocate(bytes, alignment, stream, account);
  }
  void give(const Block& block, std::uint64_t requested) {
    heap.free(block, requested, account, stream.id(), 0);
  }
  void expect_identity() {
    const HeapStatistics s = heap.statistics();
    ASSERT_EQ(s.live, account.granted());
    ASSERT_EQ(s.live_blocks, account.statistics().objects);
    ASSERT_EQ(s.mapped, s.live + s.parked + s.pending);
    ASSERT_EQ(s.mapped, driver().used);
    ASSERT_EQ(driver().bad_frees, 0u);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, HeapTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "host" : "device"; });

TEST_P(HeapTest, RandomOperationsMatchANaiveModel) {
  std::mt19937_64 random(fresh_seed("RandomOperationsMatchANaiveModel"));
  struct Held {
    Block block;
    std::uint64_t requested;
  };
  std::vector<Held> held;
  std::map<DeviceAddress, std::uint64_t> ranges;  // the model: address -> granted
  std::uint64_t granted = 0;
  std::uint64_t requested = 0;
  for (int step = 0; step < 20000; ++step) {
    const bool grow = held.size() < 400 && random() % 100 < (step / 2000 % 2 == 0 ? 60 : 40);
    if (grow || held.empty()) {
      const std::uint64_t scale = std::uint64_t{1} << (random() % 22);
      const std::uint64_t bytes = 1 + random() % scale;
      const std::uint64_t alignment = std::uint64_t{1} << (random() % 13);
      const Block block = take(bytes, alignment);
      ASSERT_GE(block.granted, bytes);
      ASSERT_LT(block.granted, bytes + 256);
      ASSERT_EQ(block.address % alignment, 0u);
      ASSERT_EQ(block.address % 64, 0u);
      const auto above = ranges.lower_bound(block.address);
      if (above != ranges.end()) {
        ASSERT_LE(block.address + block.granted, above->first);
      }
      if (above != ranges.begin()) {
        ASSERT_LE(std::prev(above)->first + std::prev(above)->second, block.address);
      }
      Block found;
      ASSERT_TRUE(heap.find(block.address + random() % block.granted, &found));
      ASSERT_EQ(found.id, block.id);
      ASSERT_EQ(found.generation, block.generation);
      ranges[block.address] = block.granted;
      held.push_back({block, bytes});
      granted += block.granted;
      requested += bytes;
    } else {
      const std::size_t pick = random() % held.size();
      const Held gone = held[pick];
      held[pick] = held.back();
      held.pop_back();
      give(gone.block, gone.requested);
      ranges.erase(gone.block.address);
      granted -= gone.block.granted;
      requested -= gone.requested;
      Block found;
      ASSERT_FALSE(heap.find(gone.block.address, &found));
      ASSERT_THROW(heap.require_live(gone.block), Error);
    }
    ASSERT_EQ(account.granted(), granted);
    ASSERT_EQ(account.statistics().requested, requested);
    if (step % 16 == 0) expect_identity();
  }
  for (const Held& entry : held) give(entry.block, entry.requested);
  heap.trim();
  expect_identity();
  EXPECT_EQ(driver().used, 0u);
  EXPECT_TRUE(driver().held.empty());
}

TEST_P(HeapTest, ZeroBytesHoldNothing) {
  const Block block = take(0);
  EXPECT_EQ(block.address, 0u);
  EXPECT_EQ(block.granted, 0u);
  EXPECT_EQ(account.statistics().objects, 1u);
  give(block, 0);
  EXPECT_EQ(account.statistics().objects, 0u);
  EXPECT_EQ(driver().allocations, 0u);
}

TEST_P(HeapTest, NeighboursMergeBackIntoOneHole) {
  const Block first = take(1000);
  const std::uint64_t hole = heap.statistics().largest_hole + first.granted;
  std::vector<Block> blocks{first};
  for (int i = 0; i < 100; ++i) blocks.push_back(take(64 + 64 * static_cast<unsigned>(i)));
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(fresh_seed("NeighboursMerge")));
  const std::uint64_t calls = heap.statistics().driver_calls;
  for (const Block& block : blocks) give(block, block.granted);
  heap.recall();
  EXPECT_EQ(heap.statistics().largest_hole, hole);
  EXPECT_EQ(heap.statistics().driver_calls, calls);
}

TEST_P(HeapTest, RefusesABadAlignment) {
  for (const std::uint64_t alignment : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{8192}}) {
    EXPECT_THROW(static_cast<void>(take(64, alignment)), Error) << alignment;
  }
  EXPECT_EQ(account.granted(), 0u);
}

TEST_P(HeapTest, FreeingTwiceOrAForeignBlockChangesNothing) {
  const Block block = take(100);
  const Block other = take(100);
  give(block, 100);
  give(block, 100);
  Block foreign = other;
  foreign.id = 123456789;
  give(foreign, 100);
  EXPECT_EQ(account.granted(), other.granted);
  expect_identity();
  EXPECT_NO_THROW(heap.require_live(other));
  for (const Block& bad : {block, foreign, Block{}}) {
    try {
      heap.require_live(bad);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kValue);
    }
  }
  const Block again = take(100);  // may reuse the record: the old handle stays void
  EXPECT_THROW(heap.require_live(block), Error);
  give(block, 100);
  EXPECT_EQ(account.granted(), other.granted + again.granted);
}

TEST_P(HeapTest, RefusalCarriesEveryFigureAndHoldsNothing) {
  driver().capacity = 64 * kMega;
  const Block block = take(40 * kMega);
  try {
    static_cast<void>(take(40 * kMega));
    FAIL() << "admitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_EQ(figure(error, "requested"), 40 * static_cast<std::int64_t>(kMega));
    EXPECT_EQ(figure(error, "live"), 40 * static_cast<std::int64_t>(kMega));
    EXPECT_EQ(figure(error, "driver_free"), 24 * static_cast<std::int64_t>(kMega));
    EXPECT_EQ(figure(error, "driver_total"), 64 * static_cast<std::int64_t>(kMega));
    EXPECT_EQ(figure(error, "shortfall"), 16 * static_cast<std::int64_t>(kMega));
    EXPECT_EQ(figure(error, "pending"), 0);
    EXPECT_EQ(figure(error, "external"), 0);
    EXPECT_EQ(figure(error, "parked"), figure(error, "pool_cached"));
  }
  expect_identity();
  give(block, 40 * kMega);
  const Block served = take(60 * kMega);  // an unused segment is exchanged for a larger one
  EXPECT_EQ(served.granted, 60 * kMega);
  expect_identity();
}

TEST_P(HeapTest, SizesThatWouldWrapAreRefused) {
  for (const std::uint64_t bytes :
       {~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 56) + 1}) {
    EXPECT_THROW(static_cast<void>(take(bytes)), Error);
  }
  EXPECT_EQ(account.granted(), 0u);
  EXPECT_EQ(account.statistics().objects, 0u);
}

TEST_P(HeapTest, ABudgetHoldsToTheByte) {
  root.set_limit(10 * 4096);
  std::vector<Block> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(take(4096));
  try {
    static_cast<void>(take(1));
    FAIL() << "admitted";
  } catch (const Error& error) {
    EXPECT_EQ(figure(error, "budget"), 40960);
    EXPECT_GT(figure(error, "shortfall"), 0);
    EXPECT_NE(std::string(error.what()).find("fake"), std::string::npos);
  }
  give(blocks.back(), 4096);
  blocks.back() = take(4096);
  EXPECT_EQ(root.granted(), 40960u);
  expect_identity();
}

TEST_P(HeapTest, AFailedDriverCallAtAnyPointLeavesWholeBooks) {
  for (const Status status : {kAllocationRefused, Status{719}}) {
    for (int call = 0; call < 12; ++call) {
      Device& fresh = fake_device(GetParam());
      Account tree("fake", nullptr);
      Heap tested(fresh, &tree.tree_lock());
      driver().fail_status = status;
      driver().fail_allocation = call;
      std::vector<std::pair<Block, std::uint64_t>> blocks;
      int refused = 0;
      for (int i = 0; i < 60; ++i) {
        const std::uint64_t bytes = std::uint64_t{40000} << (i % 8);
        try {
          blocks.emplace_back(tested.allocate(bytes, 64, stream, tree), bytes);
        } catch (const Error& error) {
          ++refused;
          EXPECT_EQ(error.kind(), ErrorKind::kDevice) << "a refused call is tried once more";
        }
        const HeapStatistics s = tested.statistics();
        ASSERT_EQ(s.live, tree.granted());
        ASSERT_EQ(s.mapped, driver().used);
      }
      const bool failed = driver().fail_allocation < 0;
      EXPECT_EQ(refused, failed && status != kAllocationRefused ? 1 : 0) << "call " << call;
      for (const auto& [block, bytes] : blocks) tested.free(block, bytes, tree, kNoStream, 0);
      tested.trim();
      EXPECT_EQ(driver().used, 0u);
      EXPECT_EQ(tree.granted(), 0u);
    }
  }
}

TEST_P(HeapTest, ADriverThatAlignsLessIsCorrected) {
  driver().misalignment = 8;
  for (const std::uint64_t alignment : {std::uint64_t{64}, std::uint64_t{4096}}) {
    for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{4096}, 4 * kMega}) {
      const Block block = take(bytes, alignment);
      EXPECT_EQ(block.address % alignment, 0u);
      const auto segment = std::prev(driver().held.upper_bound(block.address));
      EXPECT_LE(block.address + bytes, segment->first + segment->second);
    }
  }
  expect_identity();
}

TEST_P(HeapTest, FourThreadsShareOneHeap) {
  std::vector<std::thread> threads;
  const std::uint64_t seed = fresh_seed("FourThreadsShareOneHeap");
  std::mutex exchange_mutex;
  std::vector<std::pair<Block, std::uint64_t>> exchange;  // freed by another thread than the taker
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      Account& own = account.child("thread" + std::to_string(t % 2));
      std::vector<std::pair<Block, std::uint64_t>> held;
      for (int i = 0; i < 4000; ++i) {
        if (held.size() < 32 && random() % 2 == 0) {
          const std::uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 3 * kMega : 20000);
          held.emplace_back(heap.allocate(bytes, 64, stream, own), bytes);
        } else if (!held.empty()) {
          heap.free(held.back().first, held.back().second, own, kNoStream, 0);
          held.pop_back();
        }
        if (i % 64 == 0) {
          const std::uint64_t bytes = 1 + random() % 5000;
          const Block block = heap.allocate(bytes, 64, stream, account);
          const std::lock_guard<std::mutex> guard(exchange_mutex);
          exchange.emplace_back(block, bytes);
          std::swap(exchange[random() % exchange.size()], exchange.back());
          heap.free(exchange.back().first, exchange.back().second, account, kNoStream, 0);
          exchange.pop_back();
        }
        if (i % 512 == 0) heap.trim();
      }
      for (const auto& [block, bytes] : held) heap.free(block, bytes, own, kNoStream, 0);
    });
  }
  for (auto& thread : threads) thread.join();
  expect_identity();
  EXPECT_EQ(heap.statistics().live, 0u);
  heap.trim();
  EXPECT_EQ(driver().used, 0u);
}

TEST_P(HeapTest, PeaksFollowAndReset) {
  const Block block = take(3 * kMega);
  give(block, 3 * kMega);
  EXPECT_EQ(heap.statistics().peak_live, 3 * kMega);
  heap.trim();
  heap.reset_peak();
  EXPECT_EQ(heap.statistics().peak_live, 0u);
  EXPECT_EQ(heap.statistics().peak_mapped, 0u);
}

class HostHeap : public HeapTest {};
INSTANTIATE_TEST_SUITE_P(Host, HostHeap, ::testing::Values(true));

TEST_P(HostHeap, LargeBlocksGoBackToTheSystem) {
  std::vector<Block> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(take(8 * kMega));
  EXPECT_EQ(driver().held.size(), 20u);
  for (const Block& block : blocks) give(block, 8 * kMega);
  EXPECT_LE(driver().used, 16 * kMega);
  // What stays is used again before the system is asked.
  const std::uint64_t calls = heap.statistics().driver_calls;
  give(take(8 * kMega), 8 * kMega);
  EXPECT_EQ(heap.statistics().driver_calls, calls);
}

TEST_P(HostHeap, SmallBlocksNeverPinALargeSegment) {
  give(take(8 * kMega), 8 * kMega);
  const Block small = take(100);
  heap.trim();
  EXPECT_LE(driver().used, kMega);
  give(small, 100);
}

class StreamHeap : public HeapTest {
 protected:
  Stream other{device, 2, false};
  StreamId id(StreamHandle handle) { return stream_id(device, handle); }
  /// Fills the device, so that only what is freed can serve.
  void fill() { driver().capacity = driver().used; }
};
INSTANTIATE_TEST_SUITE_P(Device, StreamHeap, ::testing::Values(false));

TEST_P(StreamHeap, AFreedBlockIsReusableOnItsStreamAtOnce) {
  const Block block = take(2 * kMega);
  fill();
  heap.free(block, 2 * kMega, account, stream.id(), 5);
  EXPECT_EQ(heap.statistics().pending, 2 * kMega);
  const Block again = take(2 * kMega);
  EXPECT_EQ(again.address, block.address);
  EXPECT_EQ(driver().waits, 0u);
  // Dropped without new work: the old work may still run.
  heap.free(again, 2 * kMega, account, stream.id(), 0);
  EXPECT_EQ(heap.statistics().pending, 2 * kMega);
}

TEST_P(StreamHeap, AnotherStreamGetsItOnceTheTicketIsComplete) {
  const Block block = take(2 * kMega);
  heap.free(block, 2 * kMega, account, stream.id(), 5);
  const Block elsewhere = heap.allocate(2 * kMega, 64, other, account);
  EXPECT_NE(elsewhere.address, block.address);
  driver().completed[0] = 5;
  fill();
  const Block reused = heap.allocate(2 * kMega, 64, other, account);
  EXPECT_EQ(reused.address, block.address);
  EXPECT_EQ(driver().waits, 0u);
}

TEST_P(StreamHeap, PressureWaitsForPendingWorkBeforeRefusing) {
  const Block block = take(2 * kMega);
  fill();
  heap.free(block, 2 * kMega, account, stream.id(), 5);
  const Block reused = heap.allocate(2 * kMega, 64, other, account);
  EXPECT_EQ(reused.address, block.address);
  EXPECT_EQ(driver().waits, 1u);
  expect_identity();
}

TEST_P(StreamHeap, WorkOfSeveralStreamsMustAllBeComplete) {
  const Block block = take(2 * kMega);
  const BlockUse uses[] = {{id(0), 5}, {id(2), 7}, {id(3), 1}};
  heap.free_after(block, 2 * kMega, account, uses, 3);
  EXPECT_EQ(heap.statistics().pending, 2 * kMega);
  driver().completed[0] = 5;
  driver().completed[2] = 6;
  driver().completed[3] = 9;
  heap.trim();
  EXPECT_EQ(heap.statistics().pending, 2 * kMega);
  driver().completed[2] = 7;
  EXPECT_EQ(heap.trim(), 2 * kMega);
  EXPECT_EQ(driver().used, 0u);
}

TEST_P(StreamHeap, AStreamThatIsGoneCostsOneSynchronization) {
  const Block block = take(2 * kMega);
  heap.free(block, 2 * kMega, account, id(9), 5);
  driver().gone[9] = true;
  EXPECT_EQ(heap.trim(), 2 * kMega);
  EXPECT_EQ(driver().synchronizations, 1u);
}

TEST_P(StreamHeap, PendingBlocksAreNeverGivenToAnotherStreamEarly) {
  std::mt19937_64 random(fresh_seed("PendingBlocksAreNeverGivenToAnotherStreamEarly"));
  Stream streams[] = {{device, 0, false}, {device, 1, false}, {device, 2, false}};
  struct Held {
    Block block;
    std::uint64_t bytes;
    std::size_t stream;
  };
  std::vector<Held> held;
  Ticket submitted[3] = {1, 1, 1};
  // The model: work that may still touch each freed byte range.
  struct Freed {
    DeviceAddress begin, end;
    std::size_t stream;
    Ticket ticket;
  };
  std::vector<Freed> freed;
  driver().capacity = 96 * kMega;
  for (int step = 0; step < 6000; ++step) {
    const std::size_t s = random() % 3;
    if (random() % 8 == 0) {
      Ticket& completed = driver().completed[s];
      completed = std::max<Ticket>(completed, submitted[s] - random() % 2);
    }
    if (held.size() < 60 && random() % 100 < 55) {
      const std::uint64_t bytes = 1 + random() % kMega;
      const Block block = heap.allocate(bytes, 64, streams[s], account);
      for (const Freed& range : freed) {
        const bool overlaps =
            range.begin < block.address + block.granted && block.address < range.end;
        if (overlaps && range.stream != s) {
          ASSERT_LE(range.ticket, driver().completed[range.stream]) << "step " << step;
        }
      }
      held.push_back({block, bytes, s});
    } else if (!held.empty()) {
      const std::size_t pick = random() % held.size();
      const Held gone = held[pick];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
      std::vector<BlockUse> uses;
      for (std::size_t user = 0; user < 3; ++user) {
        if (user != gone.stream && random() % 4 != 0) continue;
        const Ticket ticket = ++submitted[user];
        uses.push_back({streams[user].id(), ticket});
        freed.push_back(
            {gone.block.address, gone.block.address + gone.block.granted, user, ticket});
      }
      heap.free_after(gone.block, gone.bytes, account, uses.data(), uses.size());
    }
    if (step % 50 == 0) {
      expect_identity();
      freed.erase(
          std::remove_if(freed.begin(), freed.end(),
                         [](const Freed& f) { return f.ticket <= driver().completed[f.stream]; }),
          freed.end());
    }
  }
}

}  // namespace
}  // namespace nbx
