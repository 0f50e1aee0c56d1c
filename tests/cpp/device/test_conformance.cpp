// What every device that this machine can open must do, whatever its kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/error.h"
#include "device/device.h"
#include "device/gpu_fixture.h"
#include "device/host_status.h"

namespace nbx {
namespace {

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const DeviceName name = parse_device(GetParam());
    device_ = &open_device(name.kind, name.ordinal);
    seed_ = std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", static_cast<int>(seed_ & 0x7fffffff));
  }
  void TearDown() override {
    if (HasFailure()) printf("seed %u\n", seed_);
  }

  const Primitives& table() const { return device_->primitives(); }
  std::int32_t ordinal() const { return device_->ordinal(); }

  DeviceAddress allocate(std::size_t bytes) {
    DeviceAddress address = 0;
    device_->check(table().allocate(ordinal(), bytes, &address), "allocate");
    return address;
  }
  void free(DeviceAddress address) { device_->check(table().free(ordinal(), address), "free"); }
  void copy(DeviceAddress to, DeviceAddress from, std::size_t bytes, CopyKind kind,
            StreamHandle stream = 0) {
    device_->check(table().copy(ordinal(), to, from, bytes, kind, stream), "copy");
  }
  void synchronize() { device_->check(table().synchronize(ordinal()), "synchronize"); }
  static DeviceAddress of(const void* pointer) {
    return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
  }
  std::vector<std::byte> random_bytes(std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random_() & 0xff);
    return bytes;
  }

  Device* device_ = nullptr;
  unsigned seed_ = 0;
  std::mt19937 random_;
};

TEST_P(Conformance, NamesAndProperties) {
  const DeviceProperties& properties = device_->properties();
  EXPECT_EQ(parse_device(device_->name()).kind, device_->kind());
  EXPECT_GT(std::strlen(properties.name), 0u);
  EXPECT_GT(std::strlen(properties.architecture), 0u);
  EXPECT_GE(properties.base_alignment, 64u);
  MemoryInfo info{};
  ASSERT_EQ(table().memory_info(ordinal(), &info), kSuccess);
  EXPECT_GT(info.total_bytes, 0u);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_STRNE(table().status_text(kAllocationRefused), table().status_text(kUnsupported));
}

TEST_P(Conformance, UnknownOrdinalsAreRefused) {
  DeviceAddress address = 0;
  EXPECT_NE(table().allocate(1000, 1, &address), kSuccess);
  EXPECT_NE(table().allocate(-1, 1, &address), kSuccess);
  EXPECT_EQ(address, 0u) << "results are written on success only";
}

TEST_P(Conformance, BlocksAreAlignedAndDoNotOverlap) {
  std::vector<std::pair<DeviceAddress, std::size_t>> blocks;
  for (int i = 0; i < 64; ++i) {
    const std::size_t bytes = 1 + random_() % (i % 8 == 0 ? 3'000'000 : 5'000);
    blocks.emplace_back(allocate(bytes), bytes);
    EXPECT_EQ(blocks.back().first % device_->properties().base_alignment, 0u);
  }
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_GE(blocks[i].first, blocks[i - 1].first + blocks[i - 1].second);
  }
  for (const auto& [address, bytes] : blocks) free(address);
  EXPECT_NE(table().free(ordinal(), blocks[0].first), kSuccess) << "a double free";
}

TEST_P(Conformance, RefusesWhatCannotFit) {
  DeviceAddress address = 0;
  EXPECT_EQ(table().allocate(ordinal(), std::size_t{1} << 60, &address), kAllocationRefused);
  EXPECT_EQ(address, 0u);
  EXPECT_EQ(table().allocate(ordinal(), 0, &address), kInvalidValue);
}

TEST_P(Conformance, CopiesThereAndBack) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, std::size_t{3'000'001}}) {
    const auto source = random_bytes(bytes);
    std::vector<std::byte> result(bytes);
    const DeviceAddress first = allocate(bytes);
    const DeviceAddress second = allocate(bytes);
    copy(first, of(source.data()), bytes, CopyKind::kHostToDevice);
    copy(second, first, bytes, CopyKind::kDeviceToDevice);
    copy(of(result.data()), second, bytes, CopyKind::kDeviceToHost);
    synchronize();
    EXPECT_EQ(source, result);
    free(first);
    free(second);
  }
}

TEST_P(Conformance, FillsPatternsOfOneTwoAndFourBytes) {
  for (const std::uint32_t width : {1u, 2u, 4u}) {
    const std::size_t count = 1001;
    const std::uint32_t pattern = static_cast<std::uint32_t>(random_());
    const DeviceAddress address = allocate(count * width);
    std::vector<std::byte> result(count * width);
    ASSERT_EQ(table().fill(ordinal(), address, pattern, width, count, 0), kSuccess);
    copy(of(result.data()), address, count * width, CopyKind::kDeviceToHost);
    synchronize();
    for (std::size_t i = 0; i < result.size(); ++i) {
      const auto expected = static_cast<std::byte>((pattern >> (8 * (i % width))) & 0xff);
      ASSERT_EQ(result[i], expected) << "width " << width << " byte " << i;
    }
    free(address);
  }
  EXPECT_EQ(table().fill(ordinal(), 64, 0, 3, 1, 0), kInvalidValue);
}

TEST_P(Conformance, WaitedTicketsAreComplete) {
  StreamHandle stream = 0;
  ASSERT_EQ(table().stream_create(ordinal(), 0, &stream), kSuccess);
  const auto source = random_bytes(100);
  const DeviceAddress address = allocate(100);
  copy(address, of(source.data()), 100, CopyKind::kHostToDevice, stream);
  Ticket submitted = 0;
  Ticket completed = 0;
  ASSERT_EQ(table().submitted_ticket(ordinal(), stream, &submitted), kSuccess);
  ASSERT_EQ(table().wait_ticket(ordinal(), stream, submitted), kSuccess);
  ASSERT_EQ(table().completed_ticket(ordinal(), stream, &completed), kSuccess);
  EXPECT_GE(completed, submitted);
  EXPECT_EQ(table().wait_ticket(ordinal(), stream, submitted + 1), kInvalidValue);
  ASSERT_EQ(table().stream_destroy(ordinal(), stream), kSuccess);
  EXPECT_EQ(table().stream_destroy(ordinal(), stream), kInvalidHandle);
  EXPECT_EQ(table().stream_synchronize(ordinal(), stream), kInvalidHandle);
  free(address);
}

TEST_P(Conformance, EventsOrderAndMeasure) {
  EventHandle start = 0;
  EventHandle end = 0;
  ASSERT_EQ(table().event_create(ordinal(), true, &start), kSuccess);
  ASSERT_EQ(table().event_create(ordinal(), true, &end), kSuccess);
  bool complete = false;
  ASSERT_EQ(table().event_query(ordinal(), start, &complete), kSuccess);
  EXPECT_TRUE(complete) << "nothing was marked";
  double seconds = -1.0;
  EXPECT_NE(table().event_elapsed(ordinal(), start, end, &seconds), kSuccess);
  const DeviceAddress address = allocate(1 << 20);
  ASSERT_EQ(table().event_record(ordinal(), start, 0), kSuccess);
  ASSERT_EQ(table().fill(ordinal(), address, 0, 4, 1 << 18, 0), kSuccess);
  ASSERT_EQ(table().event_record(ordinal(), end, 0), kSuccess);
  ASSERT_EQ(table().event_synchronize(ordinal(), end), kSuccess);
  ASSERT_EQ(table().event_query(ordinal(), end, &complete), kSuccess);
  EXPECT_TRUE(complete);
  ASSERT_EQ(table().event_elapsed(ordinal(), start, end, &seconds), kSuccess);
  EXPECT_GE(seconds, 0.0);
  ASSERT_EQ(table().event_destroy(ordinal(), start), kSuccess);
  ASSERT_EQ(table().event_destroy(ordinal(), end), kSuccess);
  EXPECT_EQ(table().event_record(ordinal(), end, 0), kInvalidHandle);
  free(address);
}

struct Counts {
  int runs = 0;
  int discards = 0;
};

TEST_P(Conformance, HostWorkRunsOnceAndIsDiscardedOnce) {
  Counts counts;
  const HostWork work{[](void* payload) { ++static_cast<Counts*>(payload)->runs; },
                      [](void* payload) { ++static_cast<Counts*>(payload)->discards; }, &counts};
  ASSERT_EQ(table().launch_host(ordinal(), &work, 1e-6, 0), kSuccess);
  synchronize();
  EXPECT_EQ(counts.runs, 1);
  EXPECT_EQ(counts.discards, 1);
  EXPECT_NE(table().launch_host(1000, &work, 0.0, 0), kSuccess);
  EXPECT_EQ(counts.runs, 1);
  EXPECT_EQ(counts.discards, 2) << "refused work is discarded too";
}

TEST_P(Conformance, HostMemoryIsReadableAndFreedOnce) {
  void* pointer = nullptr;
  ASSERT_EQ(table().host_allocate(ordinal(), 5000, &pointer), kSuccess);
  std::memset(pointer, 7, 5000);
  DeviceAddress address = 0;
  ASSERT_EQ(table().device_address(ordinal(), pointer, &address), kSuccess);
  const DeviceAddress memory = allocate(5000);
  copy(memory, address, 5000, CopyKind::kHostToDevice);
  synchronize();
  free(memory);
  EXPECT_EQ(table().host_free(ordinal(), pointer), kSuccess);
  EXPECT_EQ(table().host_free(ordinal(), pointer), kInvalidValue);
}

TEST_P(Conformance, ThreadsShareADevice) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([this, t, &wrong] {
      StreamHandle stream = 0;
      device_->check(table().stream_create(ordinal(), 0, &stream), "stream_create");
      for (int i = 0; i < 50; ++i) {
        const auto value = static_cast<std::uint32_t>(t * 1000) + static_cast<std::uint32_t>(i);
        const DeviceAddress address = allocate(4096);
        std::vector<std::uint32_t> result(1024);
        device_->check(table().fill(ordinal(), address, value, 4, 1024, stream), "fill");
        copy(of(result.data()), address, 4096, CopyKind::kDeviceToHost, stream);
        device_->check(table().stream_synchronize(ordinal(), stream), "stream_synchronize");
        wrong[t] += std::count(result.begin(), result.end(), value) == 1024 ? 0 : 1;
        free(address);
      }
      device_->check(table().stream_destroy(ordinal(), stream), "stream_destroy");
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Devices, Conformance, testing::ValuesIn(devices_to_test()),
                         [](const auto& parameter) {
                           std::string text = parameter.param;
                           std::replace(text.begin(), text.end(), ':', '_');
                           return text;
                         });

}  // namespace
}  // namespace nbx
