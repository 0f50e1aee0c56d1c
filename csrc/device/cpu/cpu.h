// The CPU as a device: host memory, work complete on return.
#pragma once

#include "device/primitives.h"

namespace nbx::cpu {

[[nodiscard]] const Primitives* primitives();

/// Free and total bytes of this process's memory: the machine's, or less where a control group or
/// the system limits it.
[[nodiscard]] MemoryInfo host_memory() noexcept;

}  // namespace nbx::cpu
