// Sizes and addresses in whole units.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nbx {

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// What threads write by themselves lies this far apart, in bytes: two cache lines, as processors
/// fetch neighbouring lines in pairs.
inline constexpr std::size_t kApart = 128;

}  // namespace nbx
