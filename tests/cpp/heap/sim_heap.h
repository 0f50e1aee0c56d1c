// A heap on the first simulated device, whose memory and faults are as before at the end.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/sim/sim.h"
#include "fake_device.h"
#include "heap/heap.h"

namespace nbx::testing {

constexpr std::uint64_t kMega = 1 << 20;
constexpr std::uint64_t kPage = 2 * kMega;

class SimHeap : public ::testing::Test {
 protected:
  Device& device = open_device(DeviceKind::kSim, 0);
  const Primitives& table = device.primitives();
  const std::uint64_t total = sim::books(0).total_bytes;
  const std::uint64_t used = sim::books(0).used_bytes;
  Account root{"sim:0", nullptr};
  Heap heap{device, &root.tree_lock()};

  ~SimHeap() override {
    sim::clear_faults(0);
    sim::set_pressure(0, 0);
    sim::set_memory(0, total);
  }

  void fill(DeviceAddress address, std::uint32_t pattern, std::uint64_t bytes) {
    if (bytes == 0) return;
    ASSERT_EQ(table.fill(0, address, pattern, 4, bytes / 4, 0), kSuccess);
  }
  std::vector<std::uint32_t> words_at(DeviceAddress address, std::uint64_t bytes) {
    std::vector<std::uint32_t> words(bytes / 4);
    EXPECT_EQ(table.copy(0, reinterpret_cast<DeviceAddress>(words.data()), address,
                         words.size() * 4, CopyKind::kDeviceToHost, 0),
              kSuccess);
    EXPECT_EQ(table.stream_synchronize(0, 0), kSuccess);
    return words;
  }
  void expect_words(DeviceAddress address, std::uint32_t pattern, std::uint64_t bytes) {
    const std::vector<std::uint32_t> words = words_at(address, bytes);
    ASSERT_EQ(static_cast<std::size_t>(std::count(words.begin(), words.end(), pattern)),
              words.size());
  }
  /// The heap, the account and the driver say the same.
  void expect_identity() {
    const HeapStatistics s = heap.statistics();
    ASSERT_EQ(s.live, root.granted());
    ASSERT_EQ(s.asleep, root.statistics().asleep);
    ASSERT_EQ(s.mapped, s.live + s.parked + s.pending + s.asleep_held);
    ASSERT_EQ(s.mapped, sim::books(0).used_bytes - used);
  }
  void expect_nothing_left() {
    ASSERT_EQ(table.synchronize(0), kSuccess);
    heap.trim();
    expect_identity();
    const AccountStatistics figures = root.statistics();
    EXPECT_EQ(figures.granted, 0u);
    EXPECT_EQ(figures.requested, 0u);
    EXPECT_EQ(figures.asleep, 0u);
    EXPECT_EQ(figures.objects, 0u);
    EXPECT_EQ(heap.statistics().asleep_contents, 0u);
    EXPECT_EQ(sim::books(0).used_bytes, used);
  }
};

}  // namespace nbx::testing
