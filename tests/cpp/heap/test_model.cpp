// The heap on virtual memory against a naive map of intervals, with a pattern in every live block.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "sim_heap.h"

namespace nbx {
namespace {

using testing::fresh_seed;

using testing::kMega;
using testing::kPage;

class Model : public testing::SimHeap {
 protected:
  struct Held {
    Block block;
    std::uint64_t bytes = 0;
    std::uint32_t pattern = 0;
  };

  Stream stream{device, 0, false};
  std::map<DeviceAddress, Held> live;
  std::uint32_t next_pattern = 1;

  void take(std::uint64_t bytes, std::uint64_t alignment, Lifetime lifetime) {
    Held held{heap.allocate(bytes, alignment, stream, root, lifetime), bytes, next_pattern++};
    const DeviceAddress address = held.block.address;
    ASSERT_EQ(address % alignment, 0u);
    ASSERT_EQ(address % 256, 0u);
    ASSERT_GE(held.block.granted, bytes);
    const auto above = live.lower_bound(address);
    if (above != live.end()) {
      ASSERT_LE(address + held.block.granted, above->first) << "overlap";
    }
    if (above != live.begin()) {
      const auto below = std::prev(above);
      ASSERT_LE(below->first + below->second.block.granted, address) << "overlap";
    }
    // Its ends say whose it is: pages that lie under two blocks at once would show.
    const std::uint64_t whole = bytes / 4 * 4, end = std::min<std::uint64_t>(whole, 4096);
    fill(address, held.pattern, end);
    fill(address + whole - end, held.pattern, end);
    live.emplace(address, held);
  }
  void give(std::map<DeviceAddress, Held>::iterator found) {
    heap.free(found->second.block, found->second.bytes, root, stream.id(), stream.submitted());
    live.erase(found);
  }
  std::map<DeviceAddress, Held>::iterator any(std::mt19937_64* random) {
    auto found = live.begin();
    std::advance(found, static_cast<std::ptrdiff_t>((*random)() % live.size()));
    return found;
  }
  void expect_patterns() {
    for (const auto& [address, held] : live) {
      const std::uint64_t bytes = held.bytes / 4 * 4;
      if (bytes == 0) continue;
      ASSERT_EQ(words_at(address, 4)[0], held.pattern);
      ASSERT_EQ(words_at(address + bytes - 4, 4)[0], held.pattern);
    }
  }
  void expect_identity() {
    const HeapStatistics s = heap.statistics();
    std::uint64_t granted = 0;
    for (const auto& [address, held] : live) granted += held.block.granted;
    ASSERT_EQ(s.live, granted);
    ASSERT_EQ(s.live_blocks, live.size());
    SimHeap::expect_identity();
  }
  /// A refusal must mean that no memory is left: live bytes pin whole pages, and the rest is less
  /// than the request, wherever the pages are.
  void expect_honest_refusal(std::uint64_t bytes) {
    std::map<std::uint64_t, bool> pinned;
    for (const auto& [address, held] : live) {
      const std::uint64_t last = (address + held.block.granted - 1) / kPage;
      for (std::uint64_t page = address / kPage; page <= last; ++page) pinned[page] = true;
    }
    const sim::Books books = sim::books(0);
    const std::uint64_t room = books.total_bytes - std::min(books.total_bytes, used) -
                               books.pressure_bytes - pinned.size() * kPage;
    ASSERT_LT(room / kPage, (bytes + kPage - 1) / kPage)
        << room << " bytes of whole pages were there for " << bytes;
  }
  void expect_nothing_left() {
    while (!live.empty()) give(live.begin());
    SimHeap::expect_nothing_left();
  }
  std::uint64_t size(std::mt19937_64* random, std::uint64_t largest) {
    const std::uint64_t kind = (*random)() % 8;
    if (kind == 0) return 1 + (*random)() % 5000;
    if (kind < 4) return 1 + (*random)() % kMega;
    return 1 + (*random)() % largest;
  }
};

TEST_F(Model, RandomChurnInLittleMemory) {
  std::mt19937_64 random(fresh_seed("RandomChurnInLittleMemory"));
  sim::set_memory(0, used + 48 * kMega);
  int refused = 0;
  for (int step = 0; step < 1200; ++step) {
    if (random() % 100 < 55 || live.empty()) {
      const std::uint64_t bytes = size(&random, 9 * kMega);
      const std::uint64_t alignment = std::uint64_t{1} << (random() % 13);
      try {
        take(bytes, alignment, Lifetime::kTransient);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
        expect_honest_refusal(bytes);
        ASSERT_THROW(static_cast<void>(heap.allocate(bytes, alignment, stream, root)), Error)
            << "an identical request may not be served after a refusal";
        ++refused;
      }
    } else {
      give(any(&random));
    }
    if (HasFatalFailure()) return;
    if (step % 10 == 0) expect_identity();
    if (step % 100 == 0) expect_patterns();
    if (step % 400 == 0) heap.trim(random() % (8 * kMega));
  }
  EXPECT_GT(refused, 0);
  expect_patterns();
  EXPECT_GT(heap.statistics().stolen_bytes, 0u);
  expect_nothing_left();
}

TEST_F(Model, LargeHandlesAmongChurn) {
  std::mt19937_64 random(fresh_seed("LargeHandlesAmongChurn"));
  sim::set_memory(0, used + 160 * kMega);
  for (int step = 0; step < 1200; ++step) {
    if (random() % 100 < 55 || live.empty()) {
      const bool steady = random() % 6 == 0;
      const std::uint64_t bytes =
          steady ? 32 * kMega + random() % (16 * kMega) : size(&random, 6 * kMega);
      try {
        take(bytes, 64, steady ? Lifetime::kSteady : Lifetime::kTransient);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
        ASSERT_THROW(static_cast<void>(heap.allocate(bytes, 64, stream, root)), Error);
      }
    } else {
      give(any(&random));
    }
    if (HasFatalFailure()) return;
    if (step % 10 == 0) expect_identity();
    if (step % 100 == 0) expect_patterns();
  }
  expect_patterns();
  expect_nothing_left();
}

TEST_F(Model, OtherProcessesComeAndGo) {
  std::mt19937_64 random(fresh_seed("OtherProcessesComeAndGo"));
  sim::set_memory(0, used + 64 * kMega);
  for (int step = 0; step < 1200; ++step) {
    if (step % 40 == 0) {
      const sim::Books books = sim::books(0);
      const std::uint64_t free = books.total_bytes - books.used_bytes;
      sim::set_pressure(0, free == 0 ? 0 : random() % free);
    }
    if (random() % 100 < 55 || live.empty()) {
      const std::uint64_t bytes = size(&random, 8 * kMega);
      try {
        take(bytes, 64, Lifetime::kTransient);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
        expect_honest_refusal(bytes);
      }
    } else {
      give(any(&random));
    }
    if (HasFatalFailure()) return;
    if (step % 10 == 0) expect_identity();
  }
  sim::set_pressure(0, 0);
  expect_patterns();
  expect_nothing_left();
}

TEST_F(Model, MemoryOfExactlyTheBlocks) {
  sim::set_memory(0, used + 8 * kPage);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i) take(kPage, 64, Lifetime::kTransient);
    EXPECT_THROW(take(256, 64, Lifetime::kTransient), Error);
    give(std::next(live.begin(), 1));
    give(std::next(live.begin(), 3));
    give(std::next(live.begin(), 5));
    // Three pages in three places are one block elsewhere.
    take(3 * kPage, 64, Lifetime::kTransient);
    expect_patterns();
    expect_identity();
    while (!live.empty()) give(live.begin());
    take(8 * kPage, 64, Lifetime::kSteady);
    expect_identity();
    expect_nothing_left();
  }
}

TEST_F(Model, ARefusedReservationIsTriedSmallerAndSeveralRangesServe) {
  // The first range is as small as the request; each larger block needs another one.
  sim::Fault fault;
  fault.primitive = Primitive::k_range_reserve;
  fault.call_count = 60;
  fault.status = kAllocationRefused;
  sim::add_fault(0, fault);
  EXPECT_THROW(take(3 * kMega, 64, Lifetime::kTransient), Error) << "no addresses at all";
  expect_identity();
  sim::clear_faults(0);
  fault.call_count = 4;
  for (int i = 0; i < 6; ++i) {
    sim::add_fault(0, fault);
    take((5 + 2 * static_cast<std::uint64_t>(i)) * kMega, 4096, Lifetime::kTransient);
    sim::clear_faults(0);
  }
  expect_patterns();
  expect_identity();
  expect_nothing_left();
}

TEST_F(Model, TrimKeepsWhatItIsToldTo) {
  for (int i = 0; i < 12; ++i) take(3 * kMega, 64, Lifetime::kTransient);
  for (int i = 0; i < 6; ++i) give(std::next(live.begin(), i));
  ASSERT_EQ(table.synchronize(0), kSuccess);
  heap.trim(8 * kMega);
  EXPECT_LE(heap.statistics().parked, 8 * kMega + 6 * kPage) << "but pages that live blocks share";
  expect_patterns();
  expect_identity();
  heap.trim();
  EXPECT_LT(heap.statistics().parked, 12 * kPage);
  expect_identity();
  expect_nothing_left();
}

/// One workload with every kind of growth in it, failing each call of each primitive in turn, and
/// each call whatever it is.
TEST_F(Model, AFailureAtAnyDriverCallLeavesWholeBooks) {
  int failed = 0;
  const auto attempt = [&](std::uint64_t bytes, Lifetime lifetime) {
    try {
      const Block block = heap.allocate(bytes, 64, stream, root, lifetime);
      live.emplace(block.address, Held{block, bytes, 0});
    } catch (const Error&) {
      ++failed;
    }
    expect_identity();
  };
  const auto workload = [&] {
    for (int i = 0; i < 6; ++i) attempt(3 * kMega, Lifetime::kTransient);
    while (live.size() > 3) {
      const Held gone = live.begin()->second;
      heap.free(gone.block, gone.bytes, root, stream.id(), 0);
      live.erase(live.begin());
    }
    attempt(14 * kMega, Lifetime::kTransient);  // steals
    try {
      heap.trim(kMega);
    } catch (const Error&) {
      ++failed;
    }
    expect_identity();
    attempt(20 * kMega, Lifetime::kSteady);  // does not fit
  };
  const auto calls_so_far = [](const sim::Fault& fault) {
    std::uint64_t calls = 0;
    for (std::size_t i = 0; i < kPrimitiveCount; ++i) {
      const auto primitive = static_cast<Primitive>(i);
      if (fault.every_primitive || primitive == fault.primitive) {
        calls += sim::call_count(0, primitive);
      }
    }
    return calls;
  };
  const auto sweep = [&](sim::Fault fault) {
    for (const Status status : {kAllocationRefused, Status{719}}) {
      fault.status = status;
      bool reached = true;
      for (fault.first_call = 1; reached && !HasFatalFailure(); ++fault.first_call) {
        sim::set_memory(0, used + 32 * kMega);
        const std::uint64_t before = calls_so_far(fault);
        sim::add_fault(0, fault);
        workload();
        reached = calls_so_far(fault) - before >= fault.first_call;
        sim::clear_faults(0);
        static_cast<void>(table.last_error(0));
        for (auto& [address, held] : live) {
          ASSERT_EQ(table.fill(0, address, 1, 4, 1024, 0), kSuccess);
          ASSERT_EQ(table.synchronize(0), kSuccess) << "at call " << fault.first_call;
        }
        sim::set_memory(0, total);
        expect_nothing_left();
      }
    }
  };
  for (const Primitive primitive :
       {Primitive::k_range_reserve, Primitive::k_page_create, Primitive::k_page_map,
        Primitive::k_page_access, Primitive::k_page_unmap, Primitive::k_page_release,
        Primitive::k_synchronize}) {
    sweep(sim::Fault{primitive});
  }
  sim::Fault any{Primitive::k_page_map};
  any.every_primitive = true;
  sweep(any);
  EXPECT_GT(failed, 50);
}

}  // namespace
}  // namespace nbx
