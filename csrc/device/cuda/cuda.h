// NVIDIA's devices through the driver's own interface, opened at run time.
#pragma once

#include "device/primitives.h"
#include "device/probe.h"

namespace nbx::cuda {

/// The table exists without the library too: its calls are refused then.
[[nodiscard]] const Primitives* primitives();
/// Opens libcuda and counts its devices, once per process.
[[nodiscard]] const Probe& probe();

}  // namespace nbx::cuda
