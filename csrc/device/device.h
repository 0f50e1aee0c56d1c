// One opened device, and the registry of the kinds that this build knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/primitives.h"

namespace nbx {

class Device {
 public:
  Device(const Primitives& primitives, std::int32_t ordinal, DeviceProperties properties)
      : primitives_(primitives), ordinal_(ordinal), properties_(properties) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const Primitives& primitives() const noexcept { return primitives_; }
  [[nodiscard]] DeviceKind kind() const noexcept { return primitives_.kind; }
  [[nodiscard]] std::int32_t ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] const DeviceProperties& properties() const noexcept { return properties_; }
  [[nodiscard]] bool host_readable() const noexcept { return properties_.host_readable; }
  /// "cpu", "sim:0", "cuda:1": the ordinal is left out for the cpu.
  [[nodiscard]] std::string name() const;
  /// Throws Error(kDevice) naming the call, the device and the driver's text unless status is 0.
  void check(Status status, const char* call) const {
    if (status != kSuccess) [[unlikely]]
      fail(status, call);
  }
  /// Throws Error(kUnsupported) naming the primitive unless the table has it.
  void require(Primitive primitive) const;
  /// Free and total bytes as the driver reports them; throws as `require` and `check` do.
  [[nodiscard]] MemoryInfo memory_info() const;

 private:
  [[noreturn]] void fail(Status status, const char* call) const;

  const Primitives& primitives_;
  std::int32_t ordinal_;
  DeviceProperties properties_;
};

/// The three states of a kind, and why.
enum class Availability : std::uint8_t { kLibraryAbsent, kNoDevice, kReady };

struct KindReport {
  DeviceKind kind;
  const char* name;
  Availability availability;
  std::int32_t device_count;
  std::string reason;  // empty when ready
};

/// Every kind that this build knows, in the order in which a default device is chosen
/// (cuda, hip, metal, cpu; sim is never a default).
[[nodiscard]] std::vector<KindReport> report_kinds();

/// The opened device; opened on first use and never closed before exit, so the reference stays
/// valid. Throws Error(kDevice) with the reason: unknown kind, library absent, no device, or
/// ordinal out of range (with the count).
[[nodiscard]] Device& open_device(DeviceKind kind, std::int32_t ordinal);

/// Parses "cpu", "sim", "sim:1", "cuda:0"; throws Error(kValue) listing the known names.
struct DeviceName {
  DeviceKind kind;
  std::int32_t ordinal;
};
[[nodiscard]] DeviceName parse_device(const std::string& text);

/// The device used when the caller names none: the calling thread's, if it set one, else NBX_DEVICE
/// if set, else the first ready kind.
[[nodiscard]] Device& default_device();
/// Sets the calling thread's default device (null: none of its own) and returns the former one.
Device* set_thread_default(Device* device) noexcept;

}  // namespace nbx
