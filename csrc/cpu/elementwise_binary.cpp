// Elementwise ops of two operands, apart from the comparisons.

#include <cmath>

#include "cpu/elementwise.h"
#include "cpu/elementwise_wide.h"

namespace nbx::cpu {
namespace {

/// Integers wrap, so they are computed unsigned; bools are closed under these.
#define NBX_WRAPPING(name, sign, of_bools)                                                 \
  template <class T>                                                                       \
  NBX_INLINE T name(T a, T b) {                                                            \
    if constexpr (std::is_same_v<T, Bool>) {                                               \
      return of_bools;                                                                     \
    } else if constexpr (kIsInteger<T>) {                                                  \
      return static_cast<T>(static_cast<Wrapping<T>>(a) sign static_cast<Wrapping<T>>(b)); \
    } else {                                                                               \
      return a sign b;                                                                     \
    }                                                                                      \
  }
NBX_WRAPPING(add, +, a | b)
NBX_WRAPPING(subtract, -, a ^ b)
NBX_WRAPPING(multiply, *, a& b)
#undef NBX_WRAPPING

/// True where the machine's division would trap: by zero, or the least number by -1.
template <class T>
NBX_INLINE bool overflows(T a, T b) {
  return std::is_signed_v<T> && b == static_cast<T>(-1) && a == std::numeric_limits<T>::min();
}

/// The remainder with the sign of the dividend, and what the divisions by rounding down make of it.
template <class T>
NBX_INLINE T floor_quotient(T a, T b, T rest) {
  const T below = rest != T{0} && (b < T{0}) != (rest < T{0}) ? T{1} : T{0};
  const T quotient = (a - rest) / b - below;
  // The division may have come out a hair off a whole number.
  const T whole = std::floor(quotient);
  const T nearest = quotient - whole > T(0.5) ? whole + T{1} : whole;
  const T result = quotient == T{0} ? std::copysign(T{0}, a / b) : nearest;
  return b == T{0} ? a / b : result;
}
template <class T>
NBX_INLINE T floor_remainder(T b, T rest) {
  const T result = (rest < T{0}) != (b < T{0}) ? rest + b : rest;
  return rest == T{0} ? std::copysign(T{0}, b) : result;
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
    // With infinities the quotient is not rounded, as the array API says.
    if (std::isinf(a) || std::isinf(b)) return a / b;
    return floor_quotient(a, b, std::fmod(a, b));
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
    return floor_remainder(b, std::fmod(a, b));
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
NBX_INLINE T power(T base, T exponent) {
  if constexpr (kIsInteger<T>) {
    return integer_power(base, exponent);
  } else if constexpr (kIsField<T>) {
    if (exponent == T(0)) return T(1);
    if (base == T(0) && exponent.imag() == 0 && exponent.real() > 0) return T(0);
    return std::pow(base, exponent);
  } else if constexpr (std::is_same_v<T, float>) {
    return math::power(base, exponent);
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
NBX_INLINE T log_add_exp(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return math::logaddexp(a, b);
  if (a == b) return a + T(0.693147180559945309417);
  const T high = a > b ? a : b;
  const T low = a > b ? b : a;
  if (a != a || b != b) return a + b;
  return high + std::log1p(std::exp(low - high));
}

template <class T>
NBX_INLINE T full_angle(T y, T x) {
  if constexpr (std::is_same_v<T, float>) return math::atan2(y, x);
  return std::atan2(y, x);
}
template <class T>
NBX_INLINE T length(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return math::hypot(a, b);
  return std::hypot(a, b);
}

/// Shifts past the width push every bit out; a negative count is such a shift.
template <class T>
inline constexpr Wrapping<T> kLastBit = sizeof(T) * 8 - 1;
template <class T>
NBX_INLINE T left_shift(T a, T count) {
  const auto places = static_cast<Wrapping<T>>(count);
  const auto shifted = static_cast<T>(static_cast<Wrapping<T>>(a) << (places & kLastBit<T>));
  return places > kLastBit<T> ? T{0} : shifted;
}
template <class T>
NBX_INLINE T right_shift(T a, T count) {
  const auto places = static_cast<Wrapping<T>>(count);
  // Every bit of what is left is the sign.
  return static_cast<T>(a >> (places > kLastBit<T> ? kLastBit<T> : places) >>
                        (std::is_unsigned_v<T> && places > kLastBit<T> ? 1 : 0));
}

using WideIntegerTypes = Narrowed<Types<std::int64_t, std::uint64_t>>;

NBX_BINARY("add", Add, Narrowed<AllTypes>, Cost::kCheap, add(a, b))
NBX_BINARY("sub", Sub, Narrowed<NumberTypes>, Cost::kCheap, subtract(a, b))
NBX_BINARY("mul", Mul, Narrowed<AllTypes>, Cost::kCheap, multiply(a, b))
NBX_BINARY("div", Div, FieldTypes, Cost::kCheap, a / b)
NBX_FAR_OP("floor_divide", FloorDivide, 2, RealTypes, (T a, T b), math::is_far_quotient(a, b),
           floor_divide(a, b), floor_quotient(a, b, math::near_fmod(a, b)))
NBX_FAR_OP("remainder", Remainder, 2, RealTypes, (T a, T b), math::is_far_quotient(a, b),
           remainder(a, b), floor_remainder(b, math::near_fmod(a, b)))
NBX_FAR_OP("fmod", Fmod, 2, RealTypes, (T a, T b), math::is_far_quotient(a, b),
           truncated_remainder(a, b), math::near_fmod(a, b))
NBX_BINARY("pow", Pow, NumberTypes, Cost::kMath, power(a, b))
NBX_BINARY("atan2", Atan2, FloatTypes, Cost::kMath, full_angle(a, b))
NBX_BINARY("hypot", Hypot, FloatTypes, Cost::kMath, length(a, b))
NBX_BINARY("copysign", CopySign, FloatTypes, Cost::kCheap, std::copysign(a, b))
NBX_BINARY("logaddexp", LogAddExp, FloatTypes, Cost::kMath, log_add_exp(a, b))
NBX_BINARY("maximum", Maximum, Narrowed<RealAndBoolTypes>, Cost::kCheap, maximum(a, b))
NBX_BINARY("minimum", Minimum, Narrowed<RealAndBoolTypes>, Cost::kCheap, minimum(a, b))
NBX_BINARY("bitwise_and", BitwiseAnd, Narrowed<IntegerTypes>, Cost::kCheap, a& b)
NBX_BINARY("bitwise_or", BitwiseOr, Narrowed<IntegerTypes>, Cost::kCheap, a | b)
NBX_BINARY("bitwise_xor", BitwiseXor, Narrowed<IntegerTypes>, Cost::kCheap, a ^ b)
NBX_BINARY("left_shift", LeftShift, WideIntegerTypes, Cost::kCheap, left_shift(a, b))
NBX_BINARY("right_shift", RightShift, WideIntegerTypes, Cost::kCheap, right_shift(a, b))

}  // namespace
}  // namespace nbx::cpu
