// What is found when the library and the devices of a GPU vendor are looked for.
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

/// Opens Metal and counts its devices, once per process. They cannot be driven by this version, and
/// are reported as kNoDevice with that reason.
[[nodiscard]] const Probe& probe_metal();

}  // namespace nbx
