// The devices of a driver that is named by NBX_CUDA_LIBRARY or NBX_HIP_LIBRARY: a stub's, or a real
// one's. Without one there are none.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/host_status.h"

namespace nbx {

inline const char* driver_library() {
  const char* const cuda = std::getenv("NBX_CUDA_LIBRARY");
  return cuda != nullptr ? cuda : std::getenv("NBX_HIP_LIBRARY");
}

inline std::vector<std::string> driver_devices() {
  std::vector<std::string> names;
  if (driver_library() == nullptr) return names;
  const bool is_cuda = std::getenv("NBX_CUDA_LIBRARY") != nullptr;
  for (const KindReport& report : report_kinds()) {
    if (report.kind != (is_cuda ? DeviceKind::kCuda : DeviceKind::kHip)) continue;
    for (std::int32_t i = 0; i < report.device_count; ++i) {
      names.push_back(report.name + (":" + std::to_string(i)));
    }
  }
  return names;
}

inline std::vector<std::string> devices_to_test() {
  if (driver_library() != nullptr) return driver_devices();
  return {"cpu", "sim:0", "sim:1"};
}

/// What the stub is told and asked; null on a real driver.
struct Stub {
  using Function = void (*)(const unsigned* grid, const unsigned* block, void** arguments);
  std::uint64_t (*calls)(const char* symbol) = nullptr;
  void (*fail)(const char* symbol, std::uint64_t call, int code) = nullptr;
  void (*function)(const char* name, Function function) = nullptr;
  std::uint64_t (*launches)() = nullptr;
  void (*geometry)(unsigned* seven) = nullptr;
  int (*attribute_of_launch)(int id) = nullptr;
  std::uint64_t (*used)(int device) = nullptr;
  void (*break_device)(int device, int code) = nullptr;

  Stub() {
    void* const library = dlopen(driver_library(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return;
    find(library, "stub_calls", &calls);
    find(library, "stub_fail", &fail);
    find(library, "stub_function", &function);
    find(library, "stub_launches", &launches);
    find(library, "stub_geometry", &geometry);
    find(library, "stub_attribute_of_launch", &attribute_of_launch);
    find(library, "stub_used", &used);
    find(library, "stub_break", &break_device);
  }

 private:
  template <class F>
  static void find(void* library, const char* name, F* result) {
    *result = reinterpret_cast<F>(dlsym(library, name));
    ASSERT_NE(*result, nullptr) << name << " is no part of the driver: these tests need a stub";
  }
};

/// A device of a stub, left as it was found.
class GpuTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const DeviceName name = parse_device(GetParam());
    device_ = &open_device(name.kind, name.ordinal);
    stub_ = std::make_unique<Stub>();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_NE(stub_->used, nullptr);
    used_ = stub_->used(ordinal());
  }
  void TearDown() override {
    if (stub_ != nullptr && stub_->used != nullptr) {
      EXPECT_EQ(stub_->used(ordinal()), used_);
    }
  }

  [[nodiscard]] const Primitives& table() const { return device_->primitives(); }
  [[nodiscard]] std::int32_t ordinal() const { return device_->ordinal(); }
  [[nodiscard]] std::int32_t other() const { return 1 - ordinal(); }
  [[nodiscard]] bool is_cuda() const { return device_->kind() == DeviceKind::kCuda; }
  /// The vendor's name of a function, as "MemAlloc" or "Malloc".
  [[nodiscard]] const char* symbol(const char* cuda, const char* hip) const {
    return is_cuda() ? cuda : hip;
  }
  static DeviceAddress of(const void* pointer) {
    return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
  }

  DeviceAddress allocate(std::size_t bytes) const {
    DeviceAddress address = 0;
    EXPECT_EQ(table().allocate(ordinal(), bytes, &address), kSuccess);
    return address;
  }
  void free(DeviceAddress address) const { EXPECT_EQ(table().free(ordinal(), address), kSuccess); }
  StreamHandle new_stream() const {
    StreamHandle stream = 0;
    EXPECT_EQ(table().stream_create(ordinal(), 0, &stream), kSuccess);
    return stream;
  }
  void destroy(StreamHandle stream) const {
    EXPECT_EQ(table().stream_destroy(ordinal(), stream), kSuccess);
  }
  Ticket submitted(StreamHandle stream) const {
    Ticket ticket = 0;
    EXPECT_EQ(table().submitted_ticket(ordinal(), stream, &ticket), kSuccess);
    return ticket;
  }
  Ticket completed(StreamHandle stream) const {
    Ticket ticket = 0;
    EXPECT_EQ(table().completed_ticket(ordinal(), stream, &ticket), kSuccess);
    return ticket;
  }
  void fill(DeviceAddress address, std::uint32_t value, std::size_t count,
            StreamHandle stream) const {
    EXPECT_EQ(table().fill(ordinal(), address, value, 4, count, stream), kSuccess);
  }
  std::uint32_t word_at(DeviceAddress address, StreamHandle stream) const {
    std::uint32_t value = 0;
    EXPECT_EQ(table().copy(ordinal(), of(&value), address, 4, CopyKind::kDeviceToHost, stream),
              kSuccess);
    EXPECT_EQ(table().stream_synchronize(ordinal(), stream), kSuccess);
    return value;
  }

  Device* device_ = nullptr;
  std::unique_ptr<Stub> stub_;
  std::uint64_t used_ = 0;
};

inline std::string device_test_name(const testing::TestParamInfo<std::string>& parameter) {
  std::string text = parameter.param;
  for (char& c : text) {
    if (c == ':') c = '_';
  }
  return text;
}

}  // namespace nbx
