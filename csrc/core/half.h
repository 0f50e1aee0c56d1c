// Floating-point types narrower than float: storage types and conversions that round to nearest
// even. Free of branches, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace nbx {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
/// 4 exponent bits, 3 of mantissa, no infinities; the greatest value is 448, NaN is 0x7f.
struct Float8E4m3fn {
  std::uint8_t bits;
};
/// 5 exponent bits, 2 of mantissa, infinities and NaNs as IEEE types have them.
struct Float8E5m2 {
  std::uint8_t bits;
};

[[nodiscard]] inline float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[nodiscard]] inline float to_float(Float16 value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffU) << 13;
  // The product moves the exponent's bias from 15 to 127 and normalises subnormal numbers.
  std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  bits |= magnitude >= 0x0f800000U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(bits | sign);
}

[[nodiscard]] inline float to_float(Float8E4m3fn value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x80U) << 24;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fU) << 20;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p120F);
  bits = magnitude == 0x07f00000U ? 0x7fc00000U : bits;
  return std::bit_cast<float>(bits | sign);
}

[[nodiscard]] inline float to_float(Float8E5m2 value) noexcept {
  return to_float(Float16{static_cast<std::uint16_t>(value.bits << 8)});
}

namespace detail {

struct SplitFloat {
  std::uint32_t sign;       // in bit 31
  std::uint32_t magnitude;  // the other bits
};
[[nodiscard]] inline SplitFloat split(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {bits & 0x80000000U, bits & 0x7fffffffU};
}

/// Drops `dropped` mantissa bits and moves the exponent's bias down to `bias`.
template <int dropped, std::uint32_t bias>
[[nodiscard]] inline std::uint32_t narrow_normal(std::uint32_t magnitude) noexcept {
  const std::uint32_t half_less_one = (1U << (dropped - 1)) - 1U;
  const std::uint32_t odd = (magnitude >> dropped) & 1U;
  return (magnitude - ((127U - bias) << 23) + half_less_one + odd) >> dropped;
}

/// Numbers below the narrow type's normal range, in units of its least subnormal: the float adder
/// rounds them where `magic` has that unit as its last place.
[[nodiscard]] inline std::uint32_t narrow_subnormal(std::uint32_t magnitude, float magic) noexcept {
  const float sum = std::bit_cast<float>(magnitude) + magic;
  return std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(magic);
}

}  // namespace detail

template <class Narrow>
[[nodiscard]] Narrow from_float(float value) noexcept;

template <>
[[nodiscard]] inline BFloat16 from_float<BFloat16>(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded)};
}

template <>
[[nodiscard]] inline Float16 from_float<Float16>(float value) noexcept {
  const auto [sign, magnitude] = detail::split(value);
  const std::uint32_t normal = detail::narrow_normal<13, 15>(magnitude);
  const std::uint32_t subnormal = detail::narrow_subnormal(magnitude, 0x1p-1F);
  const std::uint32_t special =
      magnitude > 0x7f800000U ? (((magnitude >> 13) & 0x3ffU) | 0x7e00U) : 0x7c00U;
  std::uint32_t bits = magnitude < 0x38800000U ? subnormal : normal;
  bits = magnitude >= 0x47800000U ? special : bits;
  return {static_cast<std::uint16_t>(bits | (sign >> 16))};
}

template <>
[[nodiscard]] inline Float8E4m3fn from_float<Float8E4m3fn>(float value) noexcept {
  const auto [sign, magnitude] = detail::split(value);
  const std::uint32_t normal = detail::narrow_normal<20, 7>(magnitude);
  const std::uint32_t subnormal = detail::narrow_subnormal(magnitude, 0x1p14F);
  std::uint32_t bits = magnitude < 0x3c800000U ? subnormal : normal;
  // Past the tie above 448 there is only NaN.
  bits = magnitude > 0x43e80000U ? 0x7fU : bits;
  return {static_cast<std::uint8_t>(bits | (sign >> 24))};
}

template <>
[[nodiscard]] inline Float8E5m2 from_float<Float8E5m2>(float value) noexcept {
  const auto [sign, magnitude] = detail::split(value);
  const std::uint32_t normal = detail::narrow_normal<21, 15>(magnitude);
  const std::uint32_t subnormal = detail::narrow_subnormal(magnitude, 0x1p7F);
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7eU : 0x7cU;
  std::uint32_t bits = magnitude < 0x38800000U ? subnormal : normal;
  bits = magnitude >= 0x47800000U ? special : bits;
  return {static_cast<std::uint8_t>(bits | (sign >> 24))};
}

/// Rounds to float so that a second rounding to a type of at most 22 bits of precision comes out
/// as one rounding would: towards zero, with the last bit set when anything was dropped.
[[nodiscard]] inline float round_to_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const auto back = static_cast<double>(nearest);
  const double magnitude = value < 0 ? -value : value;
  const double back_magnitude = back < 0 ? -back : back;
  const std::uint32_t away = back_magnitude > magnitude ? 1U : 0U;
  const bool exact = back == value || value != value;
  const std::uint32_t odd = (bits - away) | 1U;
  return std::bit_cast<float>(exact ? bits : odd);
}

template <class Narrow>
[[nodiscard]] Narrow from_double(double value) noexcept {
  return from_float<Narrow>(round_to_odd(value));
}

}  // namespace nbx
