// Aligned host memory whose large blocks go back to the system when they are freed.
#pragma once

#include <cstddef>

#include "device/primitives.h"

namespace nbx::cpu {

inline constexpr std::size_t kAlignment = 64;

[[nodiscard]] Status allocate_host(std::size_t bytes, void** pointer) noexcept;
[[nodiscard]] Status free_host(void* pointer) noexcept;

/// Writes the lowest `pattern_bytes` (1, 2 or 4) of `pattern`, `count` times.
void fill_pattern(std::byte* destination, std::uint32_t pattern, std::uint32_t pattern_bytes,
                  std::size_t count) noexcept;

}  // namespace nbx::cpu
