// Blocks that grow and shrink at an address of their own.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "heap/reserved.h"
#include "sim_heap.h"

namespace nbx {
namespace {

using testing::fresh_seed;

using testing::kMega;
using testing::kPage;

class Reserved : public testing::SimHeap {
 protected:
  const std::uint64_t ranges = sim::books(0).reserved_bytes;
  Account& kv = root.child("kv");
  Stream stream{device, 0, false};

  std::unique_ptr<ReservedBlock> reserve(std::uint64_t bytes,
                                         Lifetime lifetime = Lifetime::kTransient) {
    return std::make_unique<ReservedBlock>(heap, bytes, kv, lifetime);
  }
};

TEST_F(Reserved, GrowsAndShrinksInPlace) {
  auto block = reserve(64 * kMega);
  const DeviceAddress address = block->address();
  EXPECT_EQ(block->capacity(), 64 * kMega);
  EXPECT_EQ(block->committed(), 0u);
  EXPECT_EQ(sim::books(0).used_bytes, used) << "addresses only";
  EXPECT_EQ(kv.statistics().objects, 1u);
  EXPECT_EQ(block->commit(3 * kMega), 4 * kMega);
  fill(address, 7, 4 * kMega);
  EXPECT_EQ(block->commit(1), 4 * kMega) << "it has that much";
  EXPECT_EQ(block->commit(9 * kMega), 10 * kMega);
  EXPECT_EQ(block->address(), address);
  fill(address + 4 * kMega, 8, 6 * kMega);
  expect_words(address, 7, 4 * kMega);
  EXPECT_EQ(kv.granted(), 10 * kMega);
  expect_identity();
  EXPECT_EQ(block->decommit(3 * kMega), 4 * kMega);
  EXPECT_EQ(kv.granted(), 4 * kMega);
  expect_identity();
  expect_words(address, 7, 4 * kMega);
  EXPECT_EQ(block->commit(64 * kMega), 64 * kMega);
  expect_words(address, 7, 4 * kMega);
  block.reset();
  expect_nothing_left();
  EXPECT_GE(sim::books(0).reserved_bytes, ranges);
}

TEST_F(Reserved, SizesAreRefusedByName) {
  EXPECT_THROW(static_cast<void>(reserve(0)), Error);
  EXPECT_THROW(static_cast<void>(reserve(~std::uint64_t{0})), Error);
  auto block = reserve(3 * kMega);
  EXPECT_EQ(block->capacity(), 4 * kMega) << "whole pages";
  try {
    block->commit(5 * kMega);
    FAIL() << "committed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kValue);
    EXPECT_NE(std::string(error.what()).find("4194304"), std::string::npos);
  }
  Account other("elsewhere", nullptr);
  EXPECT_THROW(ReservedBlock(heap, kMega, other, Lifetime::kTransient), Error);
}

TEST_F(Reserved, ALiveViewIsNotCutOff) {
  auto block = reserve(32 * kMega);
  block->commit(8 * kMega);
  block->open_view(kMega, 5 * kMega);
  EXPECT_THROW(block->open_view(6 * kMega, 3 * kMega), Error) << "not committed";
  try {
    block->decommit(5 * kMega);
    FAIL() << "cut off";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kValue);
    EXPECT_NE(std::string(error.what()).find("1048576 to 6291456"), std::string::npos);
  }
  EXPECT_EQ(block->committed(), 8 * kMega);
  EXPECT_EQ(block->decommit(6 * kMega), 6 * kMega);
  block->commit(32 * kMega);
  block->close_view(kMega, 5 * kMega, nullptr, 0);
  EXPECT_EQ(block->decommit(0), 0u);
  expect_identity();
}

TEST_F(Reserved, ShrinkingWaitsForTheWorkOfViewsThatAreGone) {
  StreamHandle handle = 0;
  ASSERT_EQ(table.stream_create(0, 0, &handle), kSuccess);
  Stream other(device, handle, true);
  auto block = reserve(8 * kMega);
  block->commit(8 * kMega);
  block->open_view(0, 8 * kMega);
  ASSERT_EQ(table.fill(0, block->address(), 9, 4, 2 * kMega, handle), kSuccess);
  const BlockUse use{other.id(), other.submitted()};
  block->close_view(0, 8 * kMega, &use, 1);
  EXPECT_GT(sim::books(0).queued_work, 0u) << "closing a view waits for nothing";
  block->decommit(2 * kMega);
  EXPECT_EQ(sim::books(0).queued_work, 0u);
  expect_words(block->address(), 9, 2 * kMega);
}

TEST_F(Reserved, BudgetsAndMemoryRefuseAsAllocationsDo) {
  sim::set_memory(0, used + 32 * kMega);
  auto block = reserve(256 * kMega);
  kv.set_limit(8 * kMega);
  block->commit(6 * kMega);
  for (const std::uint64_t limit : {8 * kMega, kUnlimited}) {
    kv.set_limit(limit);
    try {
      block->commit(limit == kUnlimited ? 40 * kMega : 10 * kMega);
      FAIL() << "committed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    }
    EXPECT_EQ(block->committed(), 6 * kMega);
    EXPECT_EQ(kv.granted(), 6 * kMega);
    expect_identity();
  }
  // The pages of free blocks come here, and a reclaimer is asked.
  const Block free = heap.allocate(20 * kMega, 64, stream, root);
  Block held = heap.allocate(4 * kMega, 64, stream, root);
  heap.free(free, 20 * kMega, root, stream.id(), 0);
  EXPECT_EQ(block->commit(26 * kMega), 26 * kMega);
  EXPECT_GT(heap.statistics().stolen_bytes, 0u);
  const std::uint64_t number = heap.add_reclaimer(1.0, [&](std::uint64_t) {
    heap.free(held, 4 * kMega, root, stream.id(), 0);
    held = Block{};
    return 4 * kMega;
  });
  EXPECT_EQ(block->commit(32 * kMega), 32 * kMega);
  heap.remove_reclaimer(number);
  expect_identity();
  block.reset();
  expect_nothing_left();
}

TEST_F(Reserved, LargeHandlesAreCutAtTheirEnds) {
  auto block = reserve(1024 * kMega, Lifetime::kSteady);
  block->commit(2 * kPage * 16 + kPage);
  fill(block->address(), 3, kPage);
  EXPECT_EQ(block->decommit(kPage), kPage * 16) << "the page of 16 stays whole";
  EXPECT_EQ(block->commit(kPage * 17), kPage * 17);
  expect_words(block->address(), 3, kPage);
  expect_identity();
  block.reset();
  expect_nothing_left();
}

TEST_F(Reserved, EveryFailingCallLeavesWholeBooks) {
  for (const Primitive primitive :
       {Primitive::k_range_reserve, Primitive::k_page_create, Primitive::k_page_map,
        Primitive::k_page_access, Primitive::k_page_unmap, Primitive::k_page_release}) {
    for (std::uint64_t call = 1; call <= 6; ++call) {
      for (const Status status : {kAllocationRefused, Status{719}}) {
        sim::Fault fault;
        fault.primitive = primitive;
        fault.first_call = call;
        fault.status = status;
        sim::add_fault(0, fault);
        std::unique_ptr<ReservedBlock> block;
        for (const std::uint64_t bytes : {0u, 3u, 9u, 2u, 12u, 0u, 5u}) {
          try {
            if (block == nullptr) block = reserve(16 * kMega);
            const std::uint64_t before = block->committed();
            try {
              if (bytes * kMega > before) {
                block->commit(bytes * kMega);
              } else {
                block->decommit(bytes * kMega);
              }
            } catch (const Error& error) {
              ASSERT_EQ(block->committed(), before);
              throw;
            }
          } catch (const Error& error) {
            ASSERT_TRUE(error.kind() == ErrorKind::kDevice ||
                        error.kind() == ErrorKind::kOutOfMemory);
          }
          expect_identity();
          ASSERT_EQ(kv.granted(), block == nullptr ? 0u : block->committed());
        }
        sim::clear_faults(0);
        block.reset();
        expect_nothing_left();
      }
    }
  }
}

// ---- sleep ---------------------------------------------------------------------------------

TEST_F(Reserved, SleepsWithItsTagAndWakesAtItsAddress) {
  auto block = reserve(64 * kMega);
  auto empty = reserve(8 * kMega);
  block->commit(6 * kMega);
  fill(block->address(), 7, 6 * kMega);
  const Block other = heap.allocate(kMega, 64, stream, kv);
  fill(other.address, 5, kMega);
  const SleepReport slept = heap.sleep(kv, true);
  EXPECT_EQ(slept.blocks, 2u) << "what has no memory stays awake";
  EXPECT_EQ(slept.bytes, 7 * kMega);
  EXPECT_EQ(slept.contents, 7 * kMega);
  EXPECT_EQ(slept.moved, 8 * kMega);
  EXPECT_TRUE(block->is_asleep());
  EXPECT_FALSE(empty->is_asleep());
  EXPECT_EQ(block->committed(), 6 * kMega);
  EXPECT_EQ(kv.granted(), 0u);
  EXPECT_EQ(kv.statistics().asleep, 7 * kMega);
  EXPECT_EQ(heap.statistics().asleep_blocks, 2u);
  EXPECT_EQ(heap.statistics().asleep_contents, 7 * kMega);
  EXPECT_EQ(heap.sleeping(kv).bytes, 7 * kMega);
  EXPECT_EQ(heap.sleep(kv, true).blocks, 0u);
  expect_identity();
  EXPECT_EQ(heap.wake(kv).moved, 8 * kMega);
  EXPECT_FALSE(block->is_asleep());
  expect_words(block->address(), 7, 6 * kMega);
  expect_words(other.address, 5, kMega);
  expect_identity();
  heap.free(other, kMega, kv, stream.id(), stream.submitted());
  ASSERT_EQ(table.synchronize(0), kSuccess);
  EXPECT_EQ(heap.sleep(root, false).contents, 0u);
  EXPECT_EQ(heap.wake(root).blocks, 1u);
  block.reset();
  empty.reset();
  expect_nothing_left();
}

TEST_F(Reserved, ItsSizeStaysWhileItSleeps) {
  auto block = reserve(64 * kMega);
  block->commit(4 * kMega);
  fill(block->address(), 3, 4 * kMega);
  heap.sleep(kv, true);
  for (const bool more : {true, false}) {
    try {
      static_cast<void>(more ? block->commit(6 * kMega) : block->decommit(0));
      FAIL() << "changed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kValue);
      EXPECT_NE(std::string(error.what()).find("sim:0/kv is asleep"), std::string::npos);
    }
  }
  EXPECT_EQ(block->commit(3 * kMega), 4 * kMega) << "nothing to do";
  EXPECT_EQ(block->decommit(9 * kMega), 4 * kMega);
  heap.wake(kv);
  expect_words(block->address(), 3, 4 * kMega);
  EXPECT_EQ(block->commit(6 * kMega), 6 * kMega);
  // A block that ends in its sleep is gone, with its copy.
  heap.sleep(kv, true);
  block.reset();
  EXPECT_EQ(heap.sleeping(kv).blocks, 0u);
  EXPECT_EQ(heap.statistics().asleep_contents, 0u);
  expect_nothing_left();
}

TEST_F(Reserved, TheBudgetOfASleeperIsAskedForAgain) {
  root.set_limit(8 * kMega);
  auto block = reserve(64 * kMega, Lifetime::kSteady);
  block->commit(6 * kMega);
  fill(block->address(), 3, 6 * kMega);
  heap.sleep(kv, true);
  Block other = heap.allocate(4 * kMega, 64, stream, root);
  EXPECT_THROW(heap.wake(kv), Error);
  EXPECT_TRUE(block->is_asleep());
  expect_identity();
  // A reclaimer may wake the same tag, and end a block that wakes.
  auto second = reserve(4 * kMega);
  const std::uint64_t number = heap.add_reclaimer(1.0, [&](std::uint64_t) {
    EXPECT_EQ(heap.wake(kv).blocks, 0u) << "on its way";
    heap.free(other, 4 * kMega, root, stream.id(), stream.submitted());
    return 4 * kMega;
  });
  EXPECT_EQ(heap.wake(kv).blocks, 1u);
  heap.remove_reclaimer(number);
  expect_words(block->address(), 3, 6 * kMega);
  block.reset();
  second.reset();
  root.set_limit(kUnlimited);
  expect_nothing_left();
}

TEST_F(Reserved, ABlockThatEndsOnItsWayIsLetGoAtTheEnd) {
  for (const bool enough : {true, false}) {
    auto block = reserve(64 * kMega);
    block->commit(6 * kMega);
    heap.sleep(kv, true);
    Block other = heap.allocate(4 * kMega, 64, stream, root);
    root.set_limit(8 * kMega);
    const std::uint64_t number = heap.add_reclaimer(1.0, [&](std::uint64_t) -> std::uint64_t {
      block.reset();
      if (enough) heap.free(other, 4 * kMega, root, stream.id(), stream.submitted());
      return enough ? 4 * kMega : 0;
    });
    if (enough) {
      EXPECT_EQ(heap.wake(kv).blocks, 1u);
    } else {
      EXPECT_THROW(heap.wake(kv), Error);
      heap.free(other, 4 * kMega, root, stream.id(), stream.submitted());
    }
    heap.remove_reclaimer(number);
    root.set_limit(kUnlimited);
    EXPECT_EQ(heap.wake(kv).blocks, 0u);
    expect_nothing_left();
  }
}

TEST_F(Reserved, ABlockThatGrowsStaysAwakeAndMayBeCutInside) {
  root.set_limit(8 * kMega);
  auto block = reserve(64 * kMega);
  block->commit(4 * kMega);
  fill(block->address(), 9, 4 * kMega);
  auto spare = reserve(64 * kMega);
  spare->commit(4 * kMega);
  int asked = 0;
  const std::uint64_t number = heap.add_reclaimer(1.0, [&](std::uint64_t) -> std::uint64_t {
    if (asked++ == 0) {
      EXPECT_EQ(heap.sleep(kv, false).blocks, 1u) << "the other one";
      EXPECT_FALSE(block->is_asleep());
      block->decommit(2 * kMega);
    }
    return 4 * kMega;
  });
  EXPECT_EQ(block->commit(8 * kMega), 8 * kMega);
  heap.remove_reclaimer(number);
  expect_words(block->address(), 9, 2 * kMega);
  fill(block->address(), 4, 8 * kMega);
  expect_words(block->address(), 4, 8 * kMega);
  expect_identity();
  block.reset();
  spare.reset();
  root.set_limit(kUnlimited);
  expect_nothing_left();
}

TEST_F(Reserved, AFailureAtAnyCallLeavesItAsleepOrAwake) {
  sim::Fault fault{Primitive::k_copy};
  fault.status = Status{719};
  fault.every_primitive = true;
  int failed = 0;
  const auto attempt = [&] {
    auto block = reserve(64 * kMega);
    auto steady = reserve(128 * kMega, Lifetime::kSteady);
    block->commit(2 * kPage);
    steady->commit(kPage);
    fill(block->address() + kPage, 11, kMega / 16);
    fill(steady->address(), 12, kMega / 16);
    const Block other = heap.allocate(kMega / 2, 64, stream, kv);
    fill(other.address, 13, kMega / 16);
    ASSERT_EQ(table.synchronize(0), kSuccess);
    sim::add_fault(0, fault);
    for (int step = 0; step < 2; ++step) {
      try {
        static_cast<void>(step == 0 ? heap.sleep(kv, true) : heap.wake(kv));
      } catch (const Error&) {
        ++failed;
      }
      const std::uint64_t asleep = heap.sleeping(kv).blocks;
      ASSERT_TRUE(asleep == 0 || asleep == 3) << asleep << " at call " << fault.first_call;
      ASSERT_EQ(block->is_asleep(), asleep != 0);
      ASSERT_EQ(steady->is_asleep(), asleep != 0);
      expect_identity();
    }
    sim::clear_faults(0);
    static_cast<void>(table.last_error(0));
    ASSERT_EQ(table.synchronize(0), kSuccess);
    heap.wake(kv);
    expect_words(block->address() + kPage, 11, kMega / 16);
    expect_words(steady->address(), 12, kMega / 16);
    expect_words(other.address, 13, kMega / 16);
    // One of them ends while it may be asleep in part.
    sim::add_fault(0, fault);
    try {
      heap.sleep(kv, false);
    } catch (const Error&) {
      ++failed;
    }
    sim::clear_faults(0);
    static_cast<void>(table.last_error(0));
    ASSERT_EQ(table.synchronize(0), kSuccess);
    block.reset();
    steady.reset();
    heap.wake(kv);
    heap.free(other, kMega / 2, kv, stream.id(), stream.submitted());
    ASSERT_EQ(table.synchronize(0), kSuccess);
    expect_nothing_left();
  };
  for (fault.first_call = 1; fault.first_call <= 30 && !HasFatalFailure(); ++fault.first_call) {
    attempt();
  }
  EXPECT_GT(failed, 15);
  // Everything from one call on: what went cannot be taken back, and some pages never went.
  fault.call_count = 1000;
  for (fault.first_call = 6; fault.first_call <= 16 && !HasFatalFailure(); ++fault.first_call) {
    attempt();
  }
  fault.every_primitive = false;
  for (const Primitive primitive :
       {Primitive::k_page_unmap, Primitive::k_page_release, Primitive::k_page_create,
        Primitive::k_page_map, Primitive::k_page_access}) {
    fault.primitive = primitive;
    for (fault.first_call = 1; fault.first_call <= 2 && !HasFatalFailure(); ++fault.first_call) {
      attempt();
    }
  }
}

TEST_F(Reserved, SharesTheMemoryWithTheHeapAtRandom) {
  std::mt19937_64 random(fresh_seed("SharesTheMemoryWithTheHeapAtRandom"));
  sim::set_memory(0, used + 64 * kMega);
  std::vector<std::unique_ptr<ReservedBlock>> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(reserve(48 * kMega));
  std::vector<std::pair<Block, std::uint64_t>> held;
  std::vector<std::uint64_t> written(blocks.size(), 0);
  for (int step = 0; step < 150; ++step) {
    const std::size_t which = random() % blocks.size();
    ReservedBlock& block = *blocks[which];
    const auto pattern = static_cast<std::uint32_t>(which + 1);
    try {
      const std::uint64_t bytes = random() % (24 * kMega);
      switch (random() % 4) {
        case 0:
          block.commit(bytes);
          fill(block.address() + written[which], pattern, block.committed() - written[which]);
          written[which] = block.committed();
          break;
        case 1:
          // The fills above are no view's, so that only the device knows of them.
          ASSERT_EQ(table.synchronize(0), kSuccess);
          written[which] = block.decommit(bytes);
          break;
        case 2:
          held.emplace_back(heap.allocate(bytes / 4, 64, stream, root), bytes / 4);
          if (bytes >= 16) fill(held.back().first.address, 99, bytes / 16 * 4);
          break;
        default:
          if (held.empty()) break;
          std::swap(held[random() % held.size()], held.back());
          heap.free(held.back().first, held.back().second, root, stream.id(), stream.submitted());
          held.pop_back();
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    }
    expect_identity();
    if (step % 40 != 0) continue;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (written[i] == 0) continue;
      expect_words(blocks[i]->address(), static_cast<std::uint32_t>(i + 1), written[i]);
    }
  }
  for (const auto& [block, bytes] : held) {
    heap.free(block, bytes, root, stream.id(), stream.submitted());
  }
  ASSERT_EQ(table.synchronize(0), kSuccess);
  blocks.clear();
  expect_nothing_left();
}

TEST(ReservedOnTheHost, MemoryComesAndGoesUnderTheAddress) {
  Device& cpu = open_device(DeviceKind::kCpu, 0);
  Account root{"cpu", nullptr};
  Heap heap(cpu, &root.tree_lock());
  {
    ReservedBlock block(heap, 256 * kMega, root, Lifetime::kTransient);
    EXPECT_EQ(block.commit(5 * kMega), 6 * kMega);
    auto* bytes = reinterpret_cast<unsigned char*>(block.address());
    std::memset(bytes, 0x5a, 6 * kMega);
    EXPECT_EQ(block.commit(20 * kMega), 20 * kMega);
    EXPECT_EQ(bytes[6 * kMega - 1], 0x5a);
    EXPECT_EQ(bytes[20 * kMega - 1], 0);
    EXPECT_EQ(heap.statistics().mapped, heap.statistics().live + heap.statistics().parked);
    EXPECT_EQ(root.granted(), 20 * kMega);
    EXPECT_EQ(block.decommit(2 * kMega), 2 * kMega);
    EXPECT_EQ(block.commit(4 * kMega), 4 * kMega);
    EXPECT_EQ(bytes[0], 0x5a);
    EXPECT_EQ(bytes[3 * kMega], 0) << "what was given away does not come back";
  }
  EXPECT_EQ(root.granted(), 0u);
  heap.trim();
  EXPECT_EQ(heap.statistics().mapped, 0u);
}

TEST(ReservedElsewhere, DevicesWithoutVirtualMemoryAreNamed) {
  Device& fake = testing::fake_device(false);
  Account root{"fake", nullptr};
  Heap heap(fake, &root.tree_lock());
  try {
    const ReservedBlock block(heap, kMega, root, Lifetime::kTransient);
    FAIL() << "reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  }
}

}  // namespace
}  // namespace nbx
