// Whether this process is a fork of the one that opened the devices.
#pragma once

namespace nbx {

/// Starts watching for forks; called before the first device is opened.
void watch_forks();
/// True in a child that was forked after `watch_forks`: drivers of the parent are not usable there.
[[nodiscard]] bool is_forked_child() noexcept;

}  // namespace nbx
