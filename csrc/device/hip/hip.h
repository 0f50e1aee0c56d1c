// AMD's devices through the HIP runtime, opened at run time.
#pragma once

#include "device/primitives.h"
#include "device/probe.h"

namespace nbx::hip {

/// The table exists without the library too: its calls are refused then.
[[nodiscard]] const Primitives* primitives();
/// Opens libamdhip64 and counts its devices, once per process.
[[nodiscard]] const Probe& probe();

}  // namespace nbx::hip
