// Instruction sets: code is compiled for several and one is chosen when the program runs.
//
// Vector code is written once, with the compilers' vector types, as an always-inline template over
// the vector width; NBX_VECTORISED compiles it for every set. Vectors pass by reference only, since
// passing them by value has a different ABI under each set.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/inline.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define NBX_X86 1
#else
#define NBX_X86 0
#endif

#if NBX_X86
#define NBX_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#if defined(__clang__)
#define NBX_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#else
#define NBX_AVX512 \
  __attribute__((  \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")))
#endif
#endif

#if defined(__clang__)
#define NBX_UNROLL _Pragma("unroll")
#else
#define NBX_UNROLL _Pragma("GCC unroll 16")
#endif

// Plain loops that the compiler vectorises by itself, cloned per set where the linker can choose.
#if NBX_X86 && !defined(__clang__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define NBX_TARGET_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define NBX_TARGET_CLONES
#endif

namespace nbx::cpu {

enum class Simd : std::uint8_t { kPortable, kAvx2, kAvx512 };

/// The set in use: the best of this processor unless limited.
[[nodiscard]] Simd simd_level() noexcept;
/// Uses no better set than `level`, for tests and comparisons; returns the former one.
Simd limit_simd(Simd level) noexcept;

/// Vectors of `kWidth` lanes.
template <int kWidth>
struct Vector;
#define NBX_VECTOR(width)                                              \
  template <>                                                          \
  struct Vector<width> {                                               \
    typedef float F __attribute__((vector_size((width) * 4)));         \
    typedef std::int32_t I __attribute__((vector_size((width) * 4)));  \
    typedef std::uint32_t U __attribute__((vector_size((width) * 4))); \
  };
NBX_VECTOR(4)
NBX_VECTOR(8)
NBX_VECTOR(16)
#undef NBX_VECTOR

/// Any vector from any address, and back.
template <class V>
NBX_INLINE void load(V& vector, const void* from) {
  std::memcpy(&vector, from, sizeof(V));
}
template <class V>
NBX_INLINE void store(void* to, const V& vector) {
  std::memcpy(to, &vector, sizeof(V));
}
template <class To, class From>
NBX_INLINE void bit_cast_to(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&to, &from, sizeof(To));
}
/// Sum of the lanes, in a fixed order (pairs of halves).
template <int kWidth>
NBX_INLINE float sum_lanes(const typename Vector<kWidth>::F& vector) {
  if constexpr (kWidth == 4) {
    return (vector[0] + vector[2]) + (vector[1] + vector[3]);
  } else {
    typename Vector<kWidth / 2>::F low;
    typename Vector<kWidth / 2>::F high;
    std::memcpy(&low, &vector, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&vector) + sizeof(low), sizeof(high));
    const typename Vector<kWidth / 2>::F sum = low + high;
    return sum_lanes<kWidth / 2>(sum);
  }
}

}  // namespace nbx::cpu

/// Defines `name` over `name##_body<width>`, an always-inline template with the same parameters.
#if NBX_X86
#define NBX_VECTORISED(name, parameters, arguments)                       \
  NBX_AVX512 void name##_avx512 parameters { name##_body<16> arguments; } \
  NBX_AVX2 void name##_avx2 parameters { name##_body<8> arguments; }      \
  void name##_portable parameters { name##_body<4> arguments; }           \
  void name parameters {                                                  \
    switch (::nbx::cpu::simd_level()) {                                   \
      case ::nbx::cpu::Simd::kAvx512:                                     \
        return name##_avx512 arguments;                                   \
      case ::nbx::cpu::Simd::kAvx2:                                       \
        return name##_avx2 arguments;                                     \
      default:                                                            \
        return name##_portable arguments;                                 \
    }                                                                     \
  }
#else
#define NBX_VECTORISED(name, parameters, arguments) \
  void name parameters { name##_body<4> arguments; }
#endif
