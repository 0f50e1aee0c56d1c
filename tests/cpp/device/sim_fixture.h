// One simulated device for a test, left as it was found.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "device/device.h"
#include "device/host_status.h"
#include "device/sim/sim.h"

namespace nbx {

class SimTest : public testing::Test {
 protected:
  static constexpr std::int32_t kOrdinal = 1;
  static constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

  void SetUp() override {
    before_ = sim::books(kOrdinal);
    ASSERT_EQ(before_.queued_work, 0u);
  }
  void TearDown() override {
    sim::clear_faults(kOrdinal);
    sim::set_pressure(kOrdinal, 0);
    ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
    const sim::Books after = sim::books(kOrdinal);
    EXPECT_EQ(after.used_bytes, before_.used_bytes);
    EXPECT_EQ(after.reserved_bytes, before_.reserved_bytes);
    EXPECT_EQ(after.streams, before_.streams);
  }

  static const Primitives& table() { return device().primitives(); }
  static Device& device() { return open_device(DeviceKind::kSim, kOrdinal); }
  static DeviceAddress of(const void* pointer) {
    return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
  }
  static DeviceAddress allocate(std::size_t bytes) {
    DeviceAddress address = 0;
    EXPECT_EQ(table().allocate(kOrdinal, bytes, &address), kSuccess);
    return address;
  }
  static StreamHandle new_stream() {
    StreamHandle stream = 0;
    EXPECT_EQ(table().stream_create(kOrdinal, 0, &stream), kSuccess);
    return stream;
  }
  static EventHandle new_event() {
    EventHandle event = 0;
    EXPECT_EQ(table().event_create(kOrdinal, false, &event), kSuccess);
    return event;
  }
  static void fill(DeviceAddress address, std::uint32_t value, std::size_t count,
                   StreamHandle stream) {
    EXPECT_EQ(table().fill(kOrdinal, address, value, 4, count, stream), kSuccess);
  }
  static void read(void* to, DeviceAddress from, std::size_t bytes, StreamHandle stream) {
    EXPECT_EQ(table().copy(kOrdinal, of(to), from, bytes, CopyKind::kDeviceToHost, stream),
              kSuccess);
  }
  static void write(DeviceAddress to, const void* from, std::size_t bytes, StreamHandle stream) {
    EXPECT_EQ(table().copy(kOrdinal, to, of(from), bytes, CopyKind::kHostToDevice, stream),
              kSuccess);
  }

 private:
  sim::Books before_{};
};

}  // namespace nbx
