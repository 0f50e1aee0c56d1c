// Complaints about other allocators that only show inside the heap: who waits for whose lock, what
// caches may hold, and which ceiling counts.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "device/sim/sim.h"
#include "fake_device.h"
#include "heap/heap.h"
#include "storage/storage.h"

namespace nbx {
namespace {

using testing::driver;
using testing::fake_device;

constexpr std::uint64_t kMega = 1 << 20;

// answers: 25
TEST(Complaints, AHitTakesNoLockAndCallsNoDriver) {
  Device& device = fake_device(false);
  Account root("fake:0", nullptr);
  Heap heap(device, &root.tree_lock());
  Stream& stream = default_stream(device);
  const auto pair = [&](std::uint64_t bytes) {
    const Block block = heap.allocate(bytes, 64, stream, root);
    heap.free(block, bytes, root, stream.id(), 0);
  };
  for (int i = 0; i < 100; ++i) pair(i % 2 == 0 ? 1000 : 40000);
  const std::uint64_t allocations = driver().allocations;
  const std::uint64_t calls = heap.statistics().driver_calls;
  {
    // Whoever needs the lock would stand still here for ever.
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    for (int i = 0; i < 100; ++i) pair(i % 2 == 0 ? 1000 : 40000);
  }
  EXPECT_EQ(driver().allocations, allocations);
  EXPECT_EQ(heap.statistics().driver_calls, calls);
}

// answers: 27
TEST(Complaints, OneDevicesLocksStopNoOther) {
  Account busy_root("sim:0", nullptr);
  Account root("sim:1", nullptr);
  Heap busy(open_device(DeviceKind::kSim, 0), &busy_root.tree_lock());
  Heap heap(open_device(DeviceKind::kSim, 1), &root.tree_lock());
  Stream& stream = default_stream(open_device(DeviceKind::kSim, 1));
  const auto other = create_stream(open_device(DeviceKind::kSim, 1), 0);
  busy.before_fork();  // takes every lock of the heap
  for (int i = 0; i < 4; ++i) {
    const Block block = heap.allocate(8 * kMega, 64, stream, root);
    heap.free(block, 8 * kMega, root, other->id(), other->submitted());
    static_cast<void>(heap.trim());
  }
  const HeapStatistics figures = heap.statistics();
  busy.after_fork(false);
  EXPECT_EQ(figures.live, 0u);
  EXPECT_GT(figures.driver_calls, 0u);
}

// answers: 28
TEST(Complaints, CachesOfThreadsHoldAShareOfTheBudgetAndGiveItUp) {
  constexpr std::uint64_t kLimit = 64 * kMega;
  constexpr int kThreads = 4;
  Device& device = fake_device(false);
  driver().capacity = kLimit;
  Account root("fake:0", nullptr);
  root.set_limit(kLimit);
  Heap heap(device, &root.tree_lock());
  Stream& stream = default_stream(device);
  std::atomic<int> grown{0}, freed{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (const std::uint64_t bytes : {100u, 3000u, 50000u, 100000u, 200000u}) {
        std::vector<Block> blocks;
        for (int i = 0; i < 40; ++i) blocks.push_back(heap.allocate(bytes, 64, stream, root));
        for (const Block& block : blocks) heap.free(block, bytes, root, stream.id(), 0);
      }
      // Whoever grows the heap takes back what all threads keep.
      ++grown;
      while (grown != kThreads) std::this_thread::yield();
      for (int i = 0; i < 10; ++i) {
        heap.free(heap.allocate(100, 64, stream, root), 100, root, stream.id(), 0);
      }
      ++freed;
      while (!done) std::this_thread::yield();
    });
  }
  while (freed != kThreads) std::this_thread::yield();
  const std::uint64_t kept = heap.statistics().kept;
  EXPECT_GT(kept, 0u);
  EXPECT_LE(kept, kThreads * (kLimit / 256)) << "a share of the budget for each thread";
  // The whole budget, while the threads live on with what they kept.
  const Block all = heap.allocate(kLimit - 8192, 64, stream, root);
  heap.free(all, kLimit - 8192, root, stream.id(), 0);
  done = true;
  for (std::thread& thread : threads) thread.join();
}

Status own_ceiling(std::int32_t /*ordinal*/, std::uint64_t* bytes) {
  *bytes = 24 * kMega;
  return kSuccess;
}

// answers: 45
TEST(Complaints, ACeilingOfTheSystemBelowItsMemoryIsTheBudget) {
  const Device& plain = fake_device(false);
  static Primitives table = plain.primitives();
  table.budget = &own_ceiling;  // as where half of a shared memory may be locked
  static Device device(table, 9001, plain.properties());
  DeviceMemory memory(device);
  EXPECT_EQ(memory.root.limit(), 24 * kMega);
  const auto held = Storage::allocate(memory, 20 * kMega);
  const std::uint64_t allocations = driver().allocations;
  try {
    static_cast<void>(Storage::allocate(memory, 5 * kMega));
    ADD_FAILURE() << "beyond the ceiling";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
  }
  EXPECT_EQ(driver().allocations, allocations) << "refused before the driver is asked";
}

}  // namespace
}  // namespace nbx
