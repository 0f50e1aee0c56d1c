// Statuses of the devices that live in host memory (cpu, sim); numbers as CUDA's where it has them.
#pragma once

#include "device/primitives.h"

namespace nbx {

inline constexpr Status kInvalidValue = 1;
inline constexpr Status kForkedChild = 3;  // the device belongs to the parent process
inline constexpr Status kInvalidDevice = 101;
inline constexpr Status kInvalidImage = 200;
inline constexpr Status kInvalidHandle = 400;
inline constexpr Status kNotFound = 500;
inline constexpr Status kNotReady = 600;
inline constexpr Status kIllegalAddress = 700;  // sticky: work used memory that was not mapped
inline constexpr Status kPeerNotEnabled = 705;
inline constexpr Status kNotPermitted = 800;  // a wait inside host work
inline constexpr Status kCaptureInvalid = 901;
inline constexpr Status kSystemFailure = 999;

[[nodiscard]] const char* host_status_text(Status status) noexcept;

}  // namespace nbx
