// Looks for the libraries and devices of the GPU vendors.
#pragma once

#include <cstdint>
#include <string>

#include "device/device.h"

namespace nbx {

struct Probe {
  Availability availability;
  std::int32_t devices;
  std::string reason;
};

/// Opens the vendor's library and counts its devices, once per process. A device that this version
/// cannot drive is reported as kNoDevice with that reason.
[[nodiscard]] const Probe& probe_cuda();
[[nodiscard]] const Probe& probe_hip();
[[nodiscard]] const Probe& probe_metal();

}  // namespace nbx
