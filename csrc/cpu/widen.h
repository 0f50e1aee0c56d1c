// Vectors of narrow elements from memory, widened to floats or 32-bit integers.
//
// The compilers turn generic vector conversions between widths into one move per lane, so on x86
// the instruction is named; code for the baseline goes through the lanes.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "cpu/target.h"

namespace nbx::cpu {

// clang checks the operands against the function's own target, which is the baseline.
#if NBX_X86 && !defined(__clang__)
#define NBX_WIDEN(instruction, vector, from, bytes_per_lane)                   \
  if constexpr (kWidth == 16) {                                                \
    __asm__(instruction " %1, %0"                                              \
            : "=v"(vector)                                                     \
            : "m"(*static_cast<const char (*)[16 * (bytes_per_lane)]>(from))); \
    return;                                                                    \
  } else if constexpr (kWidth == 8) {                                          \
    __asm__(instruction " %1, %0"                                              \
            : "=x"(vector)                                                     \
            : "m"(*static_cast<const char (*)[8 * (bytes_per_lane)]>(from)));  \
    return;                                                                    \
  }
#else
#define NBX_WIDEN(instruction, vector, from, bytes_per_lane)
#endif

template <int kWidth>
NBX_INLINE void widen_unsigned_bytes(typename Vector<kWidth>::I& vector, const void* from) {
  NBX_WIDEN("vpmovzxbd", vector, from, 1)
  const auto* bytes = static_cast<const std::uint8_t*>(from);
  std::int32_t lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = bytes[i];
  load(vector, lanes);
}

template <int kWidth>
NBX_INLINE void widen_signed_bytes(typename Vector<kWidth>::I& vector, const void* from) {
  NBX_WIDEN("vpmovsxbd", vector, from, 1)
  const auto* bytes = static_cast<const std::int8_t*>(from);
  std::int32_t lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = bytes[i];
  load(vector, lanes);
}

template <int kWidth>
NBX_INLINE void widen(typename Vector<kWidth>::F& vector, const Float16* from) {
  NBX_WIDEN("vcvtph2ps", vector, static_cast<const void*>(from), 2)
  float lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = to_float(from[i]);
  load(vector, lanes);
}

template <int kWidth>
NBX_INLINE void widen_bits(typename Vector<kWidth>::U& vector, const void* from) {
  NBX_WIDEN("vpmovzxwd", vector, from, 2)
  std::uint16_t halves[kWidth];
  std::memcpy(halves, from, sizeof(halves));
  std::uint32_t lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = halves[i];
  load(vector, lanes);
}

template <int kWidth>
NBX_INLINE void widen(typename Vector<kWidth>::F& vector, const BFloat16* from) {
  typename Vector<kWidth>::U bits;
  widen_bits<kWidth>(bits, from);
  bits = bits << 16;
  bit_cast_to(vector, bits);
}

template <int kWidth>
NBX_INLINE void widen(typename Vector<kWidth>::F& vector, const float* from) {
  load(vector, from);
}

NBX_INLINE float widen_one(float value) { return value; }
NBX_INLINE float widen_one(Float16 value) { return to_float(value); }
NBX_INLINE float widen_one(BFloat16 value) { return to_float(value); }

/// The first two halves at `from`, of which eight bytes are readable.
template <int kWidth>
NBX_INLINE void widen_pair(const void* from, float& first, float& second) {
#if NBX_X86
  if constexpr (kWidth > 4) {
    Vector<4>::F wide;
    __asm__("vcvtph2ps %1, %0" : "=x"(wide) : "m"(*static_cast<const char (*)[8]>(from)));
    first = wide[0];
    second = wide[1];
    return;
  }
#endif
  Float16 halves[2];
  std::memcpy(halves, from, sizeof(halves));
  first = to_float(halves[0]);
  second = to_float(halves[1]);
}

/// The same two, in the first two of four floats in memory.
template <int kWidth>
NBX_INLINE void stage_pair(const void* from, float* staged) {
#if NBX_X86
  if constexpr (kWidth > 4) {
    Vector<4>::F wide;
    __asm__("vcvtph2ps %1, %0" : "=x"(wide) : "m"(*static_cast<const char (*)[8]>(from)));
    store(staged, wide);
    return;
  }
#endif
  widen_pair<kWidth>(from, staged[0], staged[1]);
}

#undef NBX_WIDEN

}  // namespace nbx::cpu
