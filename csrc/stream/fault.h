// Errors of work that ran after its call had returned.
#pragma once

#include <string>

#include "core/error.h"
#include "device/device.h"

namespace nbx {

/// Keeps the first error of queued work on this device until somebody waits for the device.
void record_fault(Device& device, Error error) noexcept;

/// Throws the kept error, once, with the device's name before its text. Costs one load when there
/// is none. Called after every wait and before new work is queued.
void raise_fault(Device& device);

/// What a kernel needs to report a wrong index: where it writes `site << 48 | index` (48 bits of it),
/// and the number of the place in the program. The next `raise_fault` of the device then throws
/// Error(kIndex) "op: index N is out of bounds for what".
struct FaultSite {
  DeviceAddress word;  // 0 where the device cannot write the host's memory
  std::int32_t number;
};
/// Sites are kept for ever: ask once for a plan. Past 32767 of them they share the last number.
[[nodiscard]] FaultSite fault_site(Device& device, const std::string& op, const std::string& what);

/// For forks: holds the kept errors still.
void fault_lock() noexcept;
void fault_unlock() noexcept;

}  // namespace nbx
