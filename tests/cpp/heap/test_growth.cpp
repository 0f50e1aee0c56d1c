// Growth while work runs on: what it lets go of in the meantime serves first, and nobody waits.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "sim_heap.h"

namespace nbx {
namespace {

using testing::fresh_seed;
using testing::kPage;

constexpr std::uint64_t kHole = 32 * kPage;
constexpr std::uint64_t kWanted = 2 * kHole;

/// Two holes that lie apart, with work of two streams that still uses them.
class Growth : public testing::SimHeap {
 protected:
  std::array<std::shared_ptr<Stream>, 2> busy = {create_stream(device, 0),
                                                 create_stream(device, 0)};
  std::shared_ptr<Stream> third = create_stream(device, 0);
  std::array<Block, 2> apart;

  ~Growth() override {
    sim::clear_faults(0);
    device.check(table.synchronize(0), "synchronize");
  }
  Block take(std::uint64_t bytes, Stream& stream) { return heap.allocate(bytes, 64, stream, root); }
  void give(const Block& block, std::uint64_t bytes, const BlockUse& use) {
    heap.free(block, bytes, root, use.stream, use.ticket);
  }
  void make_holes(double seconds) {
    std::array<Block, 2> holes;
    for (std::size_t i = 0; i < 2; ++i) {
      holes[i] = take(kHole, *busy[i]);
      apart[i] = take(kPage, *third);
    }
    const HostWork work{[](void*) {}, [](void*) {}, nullptr};
    for (std::size_t i = 0; i < 2; ++i) {
      device.check(table.launch_host(0, &work, seconds, busy[i]->handle()), "launch_host");
      give(holes[i], kHole, busy[i]->use());
    }
    ASSERT_EQ(heap.statistics().pending, kWanted);
  }
  void finish(const Block& wanted) {
    give(wanted, kWanted, BlockUse{third->id(), 0});
    for (const Block& block : apart) give(block, kPage, BlockUse{third->id(), 0});
    expect_nothing_left();
  }
};

TEST_F(Growth, WorkThatEndsWhilePagesAreMadeGivesItsOwn) {
  make_holes(300e-6);  // the driver makes half a dozen pages in that time
  const HeapStatistics before = heap.statistics();
  const Block wanted = take(kWanted, *third);
  const HeapStatistics after = heap.statistics();
  EXPECT_LE(after.created_bytes - before.created_bytes, kHole / 2);
  EXPECT_GE(after.stolen_bytes - before.stolen_bytes, kWanted - kHole / 2);
  EXPECT_EQ(after.remaps - before.remaps, 1u) << "one allocation";
  EXPECT_EQ(after.inserted_waits, 0u);
  fill(wanted.address, 0x55, 16 * kPage);
  expect_words(wanted.address, 0x55, 16 * kPage);
  expect_identity();
  finish(wanted);
}

TEST_F(Growth, ItDoesNotWaitForWorkThatGoesOn) {
  make_holes(10.0);
  const HeapStatistics before = heap.statistics();
  const double start = sim::seconds();
  const Block wanted = take(kWanted, *third);
  EXPECT_LT(sim::seconds() - start, 1.0);
  EXPECT_EQ(heap.statistics().created_bytes - before.created_bytes, kWanted);
  EXPECT_EQ(heap.statistics().pending, kWanted) << "still in use";
  expect_identity();
  finish(wanted);
}

/// A driver takes as long for a page of 2 MiB as for one of 32 MiB.
TEST_F(Growth, LargeRunsLieOnFewPages) {
  const auto pages_for = [&](std::uint64_t granules) {
    const std::uint64_t before = sim::call_count(0, Primitive::k_page_create);
    const Block block = take(granules * kPage, *third);
    const std::uint64_t made = sim::call_count(0, Primitive::k_page_create) - before;
    give(block, granules * kPage, BlockUse{third->id(), 0});
    static_cast<void>(heap.trim(0));
    return made;
  };
  EXPECT_EQ(pages_for(1), 1u);
  EXPECT_EQ(pages_for(255), 255u);
  EXPECT_EQ(pages_for(256), 16u);
  EXPECT_EQ(pages_for(512 + 3), 32u + 3u);
  expect_nothing_left();
}

TEST_F(Growth, WithinTheSlackNothingMoves) {
  HeapOptions options;
  options.slack = 1.0;
  heap.set_options(options);
  make_holes(300e-6);
  const Block wanted = take(kWanted, *third);
  EXPECT_EQ(heap.statistics().stolen_bytes, 0u);
  finish(wanted);
}

TEST_F(Growth, PagesMadeBeforeARefusalServeTheNextAttempt) {
  make_holes(10.0);
  // Room for some of what it takes: refused half way, then the pages of the holes are waited for.
  sim::set_memory(0, sim::books(0).used_bytes + 10 * kPage);
  const Block wanted = take(kWanted, *third);
  EXPECT_LE(heap.statistics().mapped, kWanted + 12 * kPage);
  fill(wanted.address, 0x77, 16 * kPage);
  expect_words(wanted.address, 0x77, 16 * kPage);
  expect_identity();
  finish(wanted);
}

TEST_F(Growth, AFailureHalfWayLosesNothing) {
  for (const Primitive primitive :
       {Primitive::k_page_create, Primitive::k_page_map, Primitive::k_page_access,
        Primitive::k_page_unmap, Primitive::k_completed_ticket}) {
    for (const std::uint64_t call : {1, 2, 5, 11, 40}) {
      make_holes(300e-6);
      sim::Fault fault;
      fault.primitive = primitive;
      fault.first_call = call;
      fault.status = Status{719};
      sim::add_fault(0, fault);
      Block wanted;
      try {
        wanted = take(kWanted, *third);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kDevice);
      }
      sim::clear_faults(0);
      expect_identity();
      if (wanted.granted != 0) give(wanted, kWanted, BlockUse{third->id(), 0});
      for (const Block& block : apart) give(block, kPage, BlockUse{third->id(), 0});
      expect_nothing_left();
    }
  }
}

TEST_F(Growth, WindowsOfSeveralThreadsStayApart) {
  const std::uint64_t seed = fresh_seed("WindowsOfSeveralThreadsStayApart");
  sim::set_memory(0, used + 160 * kPage);
  std::mutex mutex;
  std::map<DeviceAddress, DeviceAddress> live;  // start and end, guarded by `mutex`
  std::atomic<int> shared{0}, served{0};
  const auto work = [&](std::uint64_t number) {
    std::mt19937_64 random(seed + number);
    const std::shared_ptr<Stream> stream = create_stream(device, 0);
    const HostWork nothing{[](void*) {}, [](void*) {}, nullptr};
    std::vector<std::pair<Block, std::uint64_t>> held;
    const auto give_any = [&] {
      std::swap(held[random() % held.size()], held.back());
      const auto [block, bytes] = held.back();
      held.pop_back();
      device.check(table.launch_host(0, &nothing, 1e-4, stream->handle()), "launch_host");
      {
        const std::lock_guard<std::mutex> guard(mutex);
        live.erase(block.address);
      }
      give(block, bytes, stream->use());
    };
    for (int step = 0; step < 400; ++step) {
      const std::uint64_t bytes = 1 + random() % (random() % 2 == 0 ? kPage : 24 * kPage);
      try {
        const Block block = take(bytes, *stream);
        held.emplace_back(block, bytes);
        ++served;
        const std::lock_guard<std::mutex> guard(mutex);
        const auto after = live.lower_bound(block.address);
        if (after != live.end() && after->first < block.address + bytes) ++shared;
        if (after != live.begin() && std::prev(after)->second > block.address) ++shared;
        live.emplace(block.address, block.address + bytes);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kOutOfMemory) ++shared;
      }
      if (held.size() > 4) give_any();
      if (random() % 16 == 0) heap.trim();  // so that it grows again
    }
    while (!held.empty()) give_any();
  };
  std::vector<std::thread> threads;
  for (std::uint64_t number = 0; number < 4; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared.load(), 0) << "blocks that lay in each other, or failures";
  EXPECT_GT(served.load(), 800);
  EXPECT_GT(heap.statistics().remaps, 0u);
  expect_nothing_left();
}

}  // namespace
}  // namespace nbx
