// Elementwise ops of two operands, apart from the comparisons.

#include <cmath>

#include "cpu/elementwise.h"

namespace nbx::cpu {
namespace {

/// Integers wrap, so they are computed unsigned; bools are closed under these.
template <class T>
NBX_INLINE T add(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    return a | b;
  } else if constexpr (kIsInteger<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class T>
NBX_INLINE T subtract(T a, T b) {
  if constexpr (kIsInteger<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
  } else {
    return a - b;
  }
}
template <class T>
NBX_INLINE T multiply(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    return a & b;
  } else if constexpr (kIsInteger<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

/// True where the machine's division would trap: by zero, or the least number by -1.
template <class T>
NBX_INLINE bool overflows(T a, T b) {
  return std::is_signed_v<T> && b == static_cast<T>(-1) && a == std::numeric_limits<T>::min();
}

/// Integer quotients and remainders round towards negative infinity; by zero they are 0.
template <class T>
NBX_INLINE T floor_divide(T a, T b) {
  if constexpr (kIsInteger<T>) {
    if (b == 0) return 0;
    if (overflows(a, b)) return a;
    const T quotient = a / b;
    return quotient - static_cast<T>(a % b != 0 && (a < 0) != (b < 0));
  } else {
    if (b == T{0}) return a / b;
    const T rest = std::fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != T{0} && (b < T{0}) != (rest < T{0})) quotient -= T{1};
    if (quotient == T{0}) return std::copysign(T{0}, a / b);
    // The division above may have come out a hair off a whole number.
    const T whole = std::floor(quotient);
    return quotient - whole > T(0.5) ? whole + T{1} : whole;
  }
}

/// Takes the sign of the divisor.
template <class T>
NBX_INLINE T remainder(T a, T b) {
  if constexpr (kIsInteger<T>) {
    if (b == 0 || overflows(a, b)) return 0;
    const T rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  } else {
    const T rest = std::fmod(a, b);
    if (rest == T{0}) return std::copysign(T{0}, b);
    return (rest < T{0}) != (b < T{0}) ? rest + b : rest;
  }
}

/// Takes the sign of the dividend.
template <class T>
NBX_INLINE T truncated_remainder(T a, T b) {
  if constexpr (kIsInteger<T>) {
    return b == 0 || overflows(a, b) ? T{0} : a % b;
  } else {
    return std::fmod(a, b);
  }
}

template <class T>
T integer_power(T base, T exponent) {
  if (exponent < 0) {
    // Fractions truncate to zero, except those of 1 and -1.
    if (base == 1) return 1;
    if (base == static_cast<T>(-1)) return exponent % 2 == 0 ? T{1} : base;
    return 0;
  }
  auto power = static_cast<std::uint64_t>(base);
  std::uint64_t result = 1;
  for (auto left = static_cast<std::uint64_t>(exponent); left != 0; left >>= 1) {
    if ((left & 1) != 0) result *= power;
    power *= power;
  }
  return static_cast<T>(result);
}
template <class T>
T power(T base, T exponent) {
  if constexpr (kIsInteger<T>) {
    return integer_power(base, exponent);
  } else if constexpr (kIsField<T>) {
    if (exponent == T(0)) return T(1);
    if (base == T(0) && exponent.imag() == 0 && exponent.real() > 0) return T(0);
    return std::pow(base, exponent);
  } else {
    return std::pow(base, exponent);
  }
}

/// NaN wins.
template <class T>
NBX_INLINE T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
NBX_INLINE T minimum(T a, T b) {
  return a < b || a != a ? a : b;
}

template <class T>
T log_add_exp(T a, T b) {
  if (a == b) return a + T(0.693147180559945309417);
  const T high = a > b ? a : b;
  const T low = a > b ? b : a;
  if (a != a || b != b) return a + b;
  return high + std::log1p(std::exp(low - high));
}

/// Shifts past the width push every bit out; a negative count is such a shift.
template <class T>
NBX_INLINE T left_shift(T a, T count) {
  const bool outside = static_cast<std::uint64_t>(count) > 63;
  const auto bits = static_cast<std::uint64_t>(a);
  return outside ? T{0} : static_cast<T>(bits << (static_cast<std::uint64_t>(count) & 63));
}
template <class T>
NBX_INLINE T right_shift(T a, T count) {
  const bool outside = static_cast<std::uint64_t>(count) > 63;
  const T all_out = a < 0 ? static_cast<T>(-1) : T{0};
  return outside ? all_out : static_cast<T>(a >> (static_cast<std::uint64_t>(count) & 63));
}

using WideIntegerTypes = Types<std::int64_t, std::uint64_t>;

NBX_BINARY("add", Add, AllTypes, Cost::kCheap, add(a, b))
NBX_BINARY("sub", Sub, NumberTypes, Cost::kCheap, subtract(a, b))
NBX_BINARY("mul", Mul, AllTypes, Cost::kCheap, multiply(a, b))
NBX_BINARY("div", Div, FieldTypes, Cost::kCheap, a / b)
NBX_BINARY("floor_divide", FloorDivide, RealTypes, Cost::kLibrary, floor_divide(a, b))
NBX_BINARY("remainder", Remainder, RealTypes, Cost::kLibrary, remainder(a, b))
NBX_BINARY("fmod", Fmod, RealTypes, Cost::kLibrary, truncated_remainder(a, b))
NBX_BINARY("pow", Pow, NumberTypes, Cost::kLibrary, power(a, b))
NBX_BINARY("atan2", Atan2, FloatTypes, Cost::kLibrary, std::atan2(a, b))
NBX_BINARY("hypot", Hypot, FloatTypes, Cost::kLibrary, std::hypot(a, b))
NBX_BINARY("copysign", CopySign, FloatTypes, Cost::kCheap, std::copysign(a, b))
NBX_BINARY("logaddexp", LogAddExp, FloatTypes, Cost::kLibrary, log_add_exp(a, b))
NBX_BINARY("maximum", Maximum, RealAndBoolTypes, Cost::kCheap, maximum(a, b))
NBX_BINARY("minimum", Minimum, RealAndBoolTypes, Cost::kCheap, minimum(a, b))
NBX_BINARY("bitwise_and", BitwiseAnd, IntegerTypes, Cost::kCheap, a& b)
NBX_BINARY("bitwise_or", BitwiseOr, IntegerTypes, Cost::kCheap, a | b)
NBX_BINARY("bitwise_xor", BitwiseXor, IntegerTypes, Cost::kCheap, a ^ b)
NBX_BINARY("left_shift", LeftShift, WideIntegerTypes, Cost::kCheap, left_shift(a, b))
NBX_BINARY("right_shift", RightShift, WideIntegerTypes, Cost::kCheap, right_shift(a, b))

}  // namespace
}  // namespace nbx::cpu
