// Errors of work that ran after its call had returned.
#pragma once

#include "core/error.h"
#include "device/device.h"

namespace nbx {

/// Keeps the first error of queued work on this device until somebody waits for the device.
void record_fault(Device& device, Error error) noexcept;

/// Throws the kept error, once, with the device's name before its text. Costs one load when there
/// is none. Called after every wait and before new work is queued.
void raise_fault(Device& device);

/// For forks: holds the kept errors still.
void fault_lock() noexcept;
void fault_unlock() noexcept;

}  // namespace nbx
