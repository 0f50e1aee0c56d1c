// The monotonic clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace nbx {

/// Nanoseconds since an arbitrary start; never goes back.
[[nodiscard]] inline std::uint64_t clock_nanoseconds() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace nbx
