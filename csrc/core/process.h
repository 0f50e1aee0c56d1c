// Whether this process is a fork of the one that opened a device.
#pragma once

#include <cstdint>

namespace nbx {

/// Starts counting forks; called before the first device is opened.
void watch_forks();
/// How often this process and its ancestors were forked since `watch_forks`: a driver that was
/// opened under another number belongs to the parent.
[[nodiscard]] std::uint32_t fork_generation() noexcept;

}  // namespace nbx
