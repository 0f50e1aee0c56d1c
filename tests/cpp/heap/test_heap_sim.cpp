// The heap over simulated devices: failing drivers, other processes, work that runs late.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "sim_heap.h"

namespace nbx {
namespace {

using testing::fresh_seed;

using testing::kMega;

class SimHeap : public testing::SimHeap {
 protected:
  Block take(std::uint64_t bytes, Stream& stream) { return heap.allocate(bytes, 64, stream, root); }
  Block take(std::uint64_t bytes) { return take(bytes, default_stream(device)); }
  void give(const Block& block, std::uint64_t bytes, Stream& stream, Ticket ticket) {
    heap.free(block, bytes, root, stream.id(), ticket);
  }
};

TEST_F(SimHeap, EveryFailingCallLeavesWholeBooks) {
  std::mt19937_64 random(fresh_seed("EveryFailingCallLeavesWholeBooks"));
  Stream stream(device, 0, false);
  for (const Primitive primitive :
       {Primitive::k_range_reserve, Primitive::k_page_create, Primitive::k_page_map,
        Primitive::k_page_access, Primitive::k_page_unmap, Primitive::k_page_release,
        Primitive::k_completed_ticket, Primitive::k_wait_ticket, Primitive::k_memory_info}) {
    for (std::uint64_t call = 1; call <= 8; ++call) {
      for (const Status status : {kAllocationRefused, Status{719}}) {
        sim::Fault fault;
        fault.primitive = primitive;
        fault.first_call = call;
        fault.status = status;
        sim::add_fault(0, fault);
        std::vector<std::pair<Block, std::uint64_t>> held;
        for (int i = 0; i < 40; ++i) {
          const std::uint64_t bytes = 1 + random() % (4 * kMega);
          try {
            held.emplace_back(take(bytes), bytes);
            // Work that the block waits for when it is freed.
            ASSERT_EQ(table.fill(0, held.back().first.address, 1, 1, 1, 0), kSuccess);
          } catch (const Error& error) {
            ASSERT_TRUE(error.kind() == ErrorKind::kDevice ||
                        error.kind() == ErrorKind::kOutOfMemory);
          }
          if (random() % 2 == 0 && !held.empty()) {
            give(held.back().first, held.back().second, stream, stream.submitted());
            held.pop_back();
          }
          expect_identity();
        }
        for (const auto& [block, bytes] : held) give(block, bytes, stream, stream.submitted());
        sim::clear_faults(0);
        ASSERT_EQ(table.synchronize(0), kSuccess);
        heap.trim();
        ASSERT_EQ(root.granted(), 0u);
        ASSERT_EQ(sim::books(0).used_bytes, used);
      }
    }
  }
}

TEST_F(SimHeap, BlocksOfManyGigabytesAreCountedWhole) {
  constexpr std::uint64_t kGiga = std::uint64_t{1} << 30;
  sim::set_memory(0, 64 * kGiga);
  sim::set_backing(0, sim::Backing::kNone);
  {
    Stream& stream = default_stream(device);
    Heap large(device, &root.tree_lock());
    // So that the thread counts ahead.
    large.free(large.allocate(4096, 64, stream, root), 4096, root, stream.id(), 0);
    // Sizes that are 0, or small, in a half or a quarter of a word.
    for (const std::uint64_t bytes : {4 * kGiga, 8 * kGiga, 4 * kGiga + 64, 32 * kGiga + 4096}) {
      const Block block = large.allocate(bytes, 64, stream, root);
      EXPECT_EQ(root.granted(), block.granted);
      EXPECT_EQ(large.statistics().live, block.granted);
      large.free(block, bytes, root, stream.id(), 0);
      EXPECT_EQ(root.granted(), 0u) << bytes;
      EXPECT_EQ(root.statistics().objects, 0u);
      EXPECT_EQ(large.statistics().live, 0u);
    }
  }
  sim::set_backing(0, sim::Backing::kReal);
}

TEST_F(SimHeap, NoBlockHasTwoOwnersWhileThreadsGrowTheHeap) {
  const std::uint64_t seed = fresh_seed("NoBlockHasTwoOwnersWhileThreadsGrowTheHeap");
  sim::set_memory(0, 4096 * kMega);
  sim::set_backing(0, sim::Backing::kNone);
  std::atomic<std::uint64_t> lost{0};
  // Heaps that are new: they grow most while they are small.
  for (std::uint64_t round = 0; round < 80; ++round) {
    Stream& stream = default_stream(device);
    Heap shared(device, &root.tree_lock());
    const auto work = [&](std::uint64_t number) {
      std::mt19937_64 random(seed + 4 * round + number);
      std::vector<std::pair<Block, std::uint64_t>> held(3000);
      const auto give = [&](const Block& block, std::uint64_t bytes) {
        try {
          shared.require_live(block);
          shared.free(block, bytes, root, stream.id(), 0);
        } catch (const Error&) {
          lost.fetch_add(1);  // it went with a window that another thread opened
        }
      };
      for (int step = 0; step < 3000; ++step) {
        auto& [block, bytes] = held[random() % held.size()];
        if (bytes != 0) give(block, bytes);
        bytes = 1 + random() % 300000;
        block = shared.allocate(bytes, 64, stream, root);
      }
      for (const auto& [block, bytes] : held) {
        if (bytes != 0) give(block, bytes);
      }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t number = 0; number < 4; ++number) threads.emplace_back(work, number);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(lost.load(), 0u) << "round " << round;
    ASSERT_EQ(shared.statistics().live, 0u);
  }
  EXPECT_EQ(root.granted(), 0u);
  sim::set_backing(0, sim::Backing::kReal);
}

TEST_F(SimHeap, ADriverThatAlignsLessIsCorrected) {
  sim::Fault fault;
  fault.primitive = Primitive::k_allocate;
  fault.call_count = 100;
  fault.misalignment = 16;
  sim::add_fault(0, fault);
  for (const std::uint64_t bytes : {std::uint64_t{100}, 3 * kMega}) {
    const Block block = take(bytes);
    EXPECT_EQ(block.address % 256, 0u);
    EXPECT_EQ(table.fill(0, block.address, 7, 1, bytes, 0), kSuccess);
    EXPECT_EQ(table.synchronize(0), kSuccess);
    EXPECT_EQ(table.last_error(0), kSuccess);
    give(block, bytes, default_stream(device), 0);
  }
}

TEST_F(SimHeap, MemoryOfAnotherProcessIsNamed) {
  sim::set_memory(0, used + 64 * kMega);
  sim::set_pressure(0, 48 * kMega);
  try {
    static_cast<void>(take(32 * kMega));
    FAIL() << "admitted";
  } catch (const Error& error) {
    std::int64_t external = -1;
    for (const auto& [name, value] : error.figures()) {
      if (name == "external") external = std::get<std::int64_t>(value);
    }
    EXPECT_EQ(external, static_cast<std::int64_t>(48 * kMega + used));
  }
  sim::set_pressure(0, 0);
  const Block block = take(32 * kMega);
  expect_identity();
  give(block, 32 * kMega, default_stream(device), 0);
}

TEST_F(SimHeap, LateWorkNeverWritesIntoABlockOfAnotherStream) {
  sim::set_memory(0, used + 16 * kMega);
  StreamHandle handles[2] = {};
  for (StreamHandle& handle : handles) ASSERT_EQ(table.stream_create(0, 0, &handle), kSuccess);
  Stream first(device, handles[0], true);
  Stream second(device, handles[1], true);
  const Block old = take(12 * kMega, first);
  ASSERT_EQ(table.fill(0, old.address, 0xff, 1, 12 * kMega, first.handle()), kSuccess);
  give(old, 12 * kMega, first, first.submitted());
  EXPECT_EQ(heap.statistics().pending, 12 * kMega);
  // Only the freed block's memory can serve this: the heap waits for the fill that is queued.
  const Block block = take(12 * kMega, second);
  ASSERT_EQ(table.fill(0, block.address, 0x11, 1, 12 * kMega, second.handle()), kSuccess);
  ASSERT_EQ(table.synchronize(0), kSuccess);
  std::vector<unsigned char> bytes(12 * kMega);
  ASSERT_EQ(table.copy(0, reinterpret_cast<DeviceAddress>(bytes.data()), block.address,
                       bytes.size(), CopyKind::kDeviceToHost, second.handle()),
            kSuccess);
  ASSERT_EQ(table.stream_synchronize(0, second.handle()), kSuccess);
  for (const unsigned char byte : bytes) ASSERT_EQ(byte, 0x11);
  expect_identity();
  give(block, 12 * kMega, second, second.submitted());
}

TEST_F(SimHeap, NothingIsRefusedThatASynchronizedDeviceCouldServe) {
  std::mt19937_64 random(fresh_seed("NothingIsRefusedThatASynchronizedDeviceCouldServe"));
  sim::set_memory(0, used + 64 * kMega);
  StreamHandle handles[2] = {};
  for (StreamHandle& handle : handles) ASSERT_EQ(table.stream_create(0, 0, &handle), kSuccess);
  Stream streams[] = {{device, handles[0], true}, {device, handles[1], true}};
  struct Held {
    Block block;
    std::uint64_t bytes;
    std::size_t stream;
  };
  std::vector<Held> held;
  int refused = 0;
  for (int step = 0; step < 800; ++step) {
    const std::size_t s = random() % 2;
    if (random() % 100 < 55) {
      const std::uint64_t bytes = 1 + random() % (6 * kMega);
      try {
        held.push_back({take(bytes, streams[s]), bytes, s});
        ASSERT_EQ(table.fill(0, held.back().block.address, 3, 1, 1, handles[s]), kSuccess);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
        ++refused;
        // No refusal may be followed by a success without a free in between.
        ASSERT_EQ(table.synchronize(0), kSuccess);
        ASSERT_THROW(static_cast<void>(take(bytes, streams[s])), Error);
        ASSERT_LT(heap.statistics().largest_hole, bytes);
      }
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const Held& gone = held.back();
      give(gone.block, gone.bytes, streams[gone.stream], streams[gone.stream].submitted());
      held.pop_back();
    }
    if (step % 20 == 0) expect_identity();
  }
  EXPECT_GT(refused, 0);
  for (const Held& entry : held) {
    give(entry.block, entry.bytes, streams[entry.stream], streams[entry.stream].submitted());
  }
  heap.trim();
  ASSERT_EQ(table.synchronize(0), kSuccess);
  heap.trim();
  EXPECT_EQ(sim::books(0).used_bytes, used);
}

}  // namespace
}  // namespace nbx
