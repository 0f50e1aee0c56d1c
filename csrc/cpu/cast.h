// Conversions between element types, a block at a time.
//
// Kernels hold a block of elements in a carrier: one of seven types in which arithmetic happens.
// A loader converts any element type to a carrier, a storer converts back; so conversions and ops
// add up instead of multiplying.
//
// Rules: float to integer truncates towards zero, saturates, and takes NaN to 0; integer to
// integer wraps; anything to bool is "not zero"; complex to real drops the imaginary part; floats
// narrow by one rounding to nearest even, overflowing as their type says.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/half.h"
#include "launch/kernel.h"

namespace nbx::cpu {

/// Elements of a block.
inline constexpr std::int64_t kBlock = 1024;

/// A packed pair of 4-bit integers, low nibble first.
struct Int4Pair {
  std::uint8_t bits;
};

// clang-format off
#define NBX_CARRIERS(X)                        \
  X(kBool, std::uint8_t, bool_)                \
  X(kInt64, std::int64_t, int64)               \
  X(kUint64, std::uint64_t, uint64)            \
  X(kFloat32, float, float32)                  \
  X(kFloat64, double, float64)                 \
  X(kComplex64, std::complex<float>, complex64)\
  X(kComplex128, std::complex<double>, complex128)
// clang-format on

enum class Carrier : std::uint8_t {
#define NBX_ENUMERATE(name, type, dtype) name,
  NBX_CARRIERS(NBX_ENUMERATE)
#undef NBX_ENUMERATE
};
inline constexpr int kCarrierCount = 7;

template <class T>
inline constexpr Carrier kCarrierOf = Carrier::kBool;
#define NBX_CARRIER(name, type, dtype) \
  template <>                          \
  inline constexpr Carrier kCarrierOf<type> = Carrier::name;
NBX_CARRIERS(NBX_CARRIER)
#undef NBX_CARRIER

/// The carrier of an `op_dtype` scalar. Throws Error(kType) naming the kernel unless the type is
/// one of those that kernels compute in.
[[nodiscard]] Carrier carrier_of(DType op_dtype, const char* kernel);
/// The carrier that holds every value of an element type.
[[nodiscard]] Carrier natural_carrier(DType dtype) noexcept;
/// The element type whose memory is a block of this carrier.
[[nodiscard]] DType storage_of(Carrier carrier) noexcept;

/// Converts `count` elements that lie `stride` elements apart into a contiguous block.
using Loader = void (*)(const std::byte* source, std::int64_t stride, std::int64_t count,
                        void* block);
/// Converts a contiguous block into `count` elements that lie `stride` elements apart.
using Storer = void (*)(const void* block, std::byte* target, std::int64_t stride,
                        std::int64_t count);
/// Packed types load and store contiguously, from a whole byte on.
[[nodiscard]] Loader loader_for(DType from, Carrier to) noexcept;
[[nodiscard]] Storer storer_for(Carrier from, DType to) noexcept;

/// `count` elements at element offset `offset` of contiguous or packed memory.
[[nodiscard]] inline std::byte* element_address(std::byte* data, DType dtype,
                                                std::int64_t offset) noexcept {
  return data + offset * bits_of(dtype) / 8;
}

/// The number as one carrier element; integers are exact, real numbers lose their imaginary part.
template <class T>
[[nodiscard]] T scalar_as(const Scalar& scalar) noexcept;

/// Writes the number into one element of `target`'s carrier type.
void scalar_to(const Scalar& scalar, Carrier carrier, void* target) noexcept;

/// The DType of an `op_dtype` scalar, which is scalar 0. Throws Error(kValue) if it is no code.
[[nodiscard]] DType op_dtype_of(const KernelCall& call, const char* kernel);

/// Throws Error(kValue) unless the call has this many tensors and at least this many scalars.
void require_operands(const KernelCall& call, const char* kernel, std::size_t tensors,
                      std::size_t scalars);

}  // namespace nbx::cpu
