// Elementwise ops of one operand, apart from the activations.

#include <cmath>

#include "cpu/elementwise.h"
#include "cpu/elementwise_math.h"
#include "cpu/elementwise_wide.h"

namespace nbx::cpu {
namespace {

/// Integers wrap, so they are computed unsigned.
template <class T>
NBX_INLINE T negate(T x) {
  if constexpr (kIsInteger<T>) {
    return static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(x));
  } else {
    return -x;
  }
}

template <class T>
NBX_INLINE T absolute(T x) {
  if constexpr (kIsField<T>) {
    return T(std::abs(x));
  } else if constexpr (kIsInteger<T>) {
    return x < 0 ? negate(x) : x;
  } else {
    return std::fabs(x);
  }
}

template <class T>
NBX_INLINE T sign(T x) {
  if constexpr (kIsField<T>) {
    return x == T(0) ? T(0) : x / std::abs(x);  // without the zeros' signs
  } else if constexpr (kIsInteger<T>) {
    return static_cast<T>((x > 0) - (x < 0));
  } else {
    const T unit = x > T{0} ? T{1} : x < T{0} ? T{-1} : T{0};
    return x == x ? unit : x;
  }
}

template <class T>
NBX_INLINE T square(T x) {
  if constexpr (kIsInteger<T>) {
    return static_cast<T>(static_cast<Wrapping<T>>(x) * static_cast<Wrapping<T>>(x));
  } else {
    return x * x;
  }
}

template <class T>
T exponential_of(T x) {
  return std::exp(x);
}
template <class T>
NBX_INLINE T exponential(T x) {
  if constexpr (kIsField<T>) {
    return exponential_of(x);
  } else {
    return math::exponential(x);
  }
}

template <class T>
NBX_INLINE T logarithm(T x) {
  if constexpr (kIsField<T>) {
    return std::log(x);
  } else {
    return math::logarithm(x);
  }
}

template <class T>
NBX_INLINE T hyperbolic_tangent(T x) {
  if constexpr (kIsField<T>) {
    // The C library gives the zero the sign of sin(2 b), the array API that of b.
    if (std::isinf(x.real()) && std::isfinite(x.imag())) {
      using Part = typename T::value_type;
      return T(std::copysign(Part(1), x.real()), std::copysign(Part(0), x.imag()));
    }
    return std::tanh(x);
  } else {
    return math::hyperbolic_tangent(x);
  }
}

template <class T>
T exponential_minus_one(T x) {
  if constexpr (kIsField<T>) {
    // exp(a + ib) - 1 = expm1(a) cos b - 2 sin^2(b / 2) + i exp(a) sin b
    using Part = typename T::value_type;
    const Part infinity = std::numeric_limits<Part>::infinity();
    if (x.imag() == 0) return T(x.real() == 0 ? 0 : std::expm1(x.real()), x.imag());
    if (x.real() == -infinity && !std::isfinite(x.imag())) return T(-1, 0);
    if (x.real() == infinity && !std::isfinite(x.imag())) return T(infinity, x.imag() - x.imag());
    const auto half = std::sin(x.imag() / 2);
    return T(std::expm1(x.real()) * std::cos(x.imag()) - 2 * half * half,
             std::exp(x.real()) * std::sin(x.imag()));
  } else {
    return std::expm1(x);
  }
}

template <class T>
T logarithm_of_one_plus(T x) {
  if constexpr (kIsField<T>) {
    // |1 + z|^2 - 1 = 2 a + |z|^2 keeps small z exact.
    const auto a = x.real();
    const auto b = x.imag();
    const auto magnitude = a * 2 + (a * a + b * b);
    using Part = typename T::value_type;
    const Part real = std::abs(magnitude) < Part(0.5) ? std::log1p(magnitude) / 2
                                                      : std::log(std::hypot(1 + a, b));
    return T(real, std::atan2(b, 1 + a));
  } else {
    return std::log1p(x);
  }
}

template <class T>
T power_of_two(T x) {
  if constexpr (kIsField<T>) {
    using Part = typename T::value_type;
    return std::exp(x * Part(0.693147180559945309417));
  } else {
    return std::exp2(x);
  }
}

template <class T>
T binary_logarithm(T x) {
  if constexpr (kIsField<T>) {
    using Part = typename T::value_type;
    return std::log(x) * Part(1.44269504088896340736);
  } else {
    return std::log2(x);
  }
}

/// Vectorised for float, the C library's or the given form for the others.
#define NBX_FLOAT_FORM(name, general)         \
  template <class T>                          \
  NBX_INLINE T name##_of(T x) {               \
    if constexpr (std::is_same_v<T, float>) { \
      return math::name(x);                   \
    } else {                                  \
      return general(x);                      \
    }                                         \
  }
NBX_FLOAT_FORM(exp2, power_of_two)
NBX_FLOAT_FORM(expm1, exponential_minus_one)
NBX_FLOAT_FORM(log2, binary_logarithm)
NBX_FLOAT_FORM(log10, std::log10)
NBX_FLOAT_FORM(log1p, logarithm_of_one_plus)
NBX_FLOAT_FORM(asin, std::asin)
NBX_FLOAT_FORM(acos, std::acos)
NBX_FLOAT_FORM(atan, std::atan)
NBX_FLOAT_FORM(sinh, std::sinh)
NBX_FLOAT_FORM(cosh, std::cosh)
NBX_FLOAT_FORM(asinh, std::asinh)
NBX_FLOAT_FORM(acosh, std::acosh)
NBX_FLOAT_FORM(atanh, std::atanh)
#undef NBX_FLOAT_FORM

/// Rounding of integers and of both parts of complex numbers.
template <class T, class Function>
NBX_INLINE T round_with(T x, const Function& function) {
  if constexpr (kIsField<T>) {
    return T(function(x.real()), function(x.imag()));
  } else if constexpr (kIsInteger<T>) {
    return x;
  } else {
    return function(x);
  }
}

template <class T>
NBX_INLINE bool is_nan(T x) {
  if constexpr (kIsField<T>) {
    return x.real() != x.real() || x.imag() != x.imag();
  } else {
    return x != x;
  }
}
template <class T>
NBX_INLINE bool is_infinite(T x) {
  if constexpr (kIsField<T>) {
    return is_infinite(x.real()) || is_infinite(x.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::fabs(x) > std::numeric_limits<T>::max();
  } else {
    return false;
  }
}
template <class T>
NBX_INLINE bool is_finite(T x) {
  if constexpr (kIsField<T>) {
    return is_finite(x.real()) && is_finite(x.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::fabs(x) <= std::numeric_limits<T>::max();
  } else {
    return true;
  }
}

NBX_UNARY("neg", Neg, Narrowed<NumberTypes>, Cost::kCheap, negate(x))
NBX_UNARY("abs", Abs, Narrowed<NumberTypes>, Cost::kCheap, absolute(x))
NBX_UNARY("sign", Sign, Narrowed<NumberTypes>, Cost::kCheap, sign(x))
NBX_UNARY("square", Square, Narrowed<NumberTypes>, Cost::kCheap, square(x))
NBX_UNARY("reciprocal", Reciprocal, FieldTypes, Cost::kCheap, T{1} / x)
NBX_UNARY("sqrt", Sqrt, FieldTypes, Cost::kCheap, std::sqrt(x))
NBX_UNARY("rsqrt", Rsqrt, FieldTypes, Cost::kCheap, T{1} / std::sqrt(x))
NBX_UNARY("exp", Exp, FieldTypes, Cost::kMath, exponential(x))
NBX_UNARY("exp2", Exp2, FieldTypes, Cost::kMath, exp2_of(x))
NBX_UNARY("expm1", Expm1, FieldTypes, Cost::kMath, expm1_of(x))
NBX_UNARY("log", Log, FieldTypes, Cost::kMath, logarithm(x))
NBX_UNARY("log2", Log2, FieldTypes, Cost::kMath, log2_of(x))
NBX_UNARY("log10", Log10, FieldTypes, Cost::kMath, log10_of(x))
NBX_UNARY("log1p", Log1p, FieldTypes, Cost::kMath, log1p_of(x))
NBX_FAR_OP("sin", Sin, 1, FieldTypes, (T x), math::is_far_angle(x), std::sin(x), math::near_sin(x))
NBX_FAR_OP("cos", Cos, 1, FieldTypes, (T x), math::is_far_angle(x), std::cos(x), math::near_cos(x))
NBX_FAR_OP("tan", Tan, 1, FieldTypes, (T x), math::is_far_angle(x), std::tan(x), math::near_tan(x))
NBX_UNARY("asin", Asin, FieldTypes, Cost::kMath, asin_of(x))
NBX_UNARY("acos", Acos, FieldTypes, Cost::kMath, acos_of(x))
NBX_UNARY("atan", Atan, FieldTypes, Cost::kMath, atan_of(x))
NBX_UNARY("sinh", Sinh, FieldTypes, Cost::kMath, sinh_of(x))
NBX_UNARY("cosh", Cosh, FieldTypes, Cost::kMath, cosh_of(x))
NBX_UNARY("tanh", Tanh, FieldTypes, Cost::kMath, hyperbolic_tangent(x))
NBX_UNARY("asinh", Asinh, FieldTypes, Cost::kMath, asinh_of(x))
NBX_UNARY("acosh", Acosh, FieldTypes, Cost::kMath, acosh_of(x))
NBX_UNARY("atanh", Atanh, FieldTypes, Cost::kMath, atanh_of(x))
NBX_UNARY("erf", Erf, FloatTypes, Cost::kMath, math::error_function(x))
NBX_UNARY("floor", Floor, RealTypes, Cost::kCheap,
          round_with(x, [](auto part) { return std::floor(part); }))
NBX_UNARY("ceil", Ceil, RealTypes, Cost::kCheap,
          round_with(x, [](auto part) { return std::ceil(part); }))
NBX_UNARY("trunc", Trunc, RealTypes, Cost::kCheap,
          round_with(x, [](auto part) { return std::trunc(part); }))
// Half goes to even: the current rounding mode is the default one.
NBX_UNARY("round", Round, NumberTypes, Cost::kCheap,
          round_with(x, [](auto part) { return std::nearbyint(part); }))
NBX_UNARY_PREDICATE("isnan", IsNan, AllTypes, Cost::kCheap, is_nan(x))
NBX_UNARY_PREDICATE("isinf", IsInf, AllTypes, Cost::kCheap, is_infinite(x))
NBX_UNARY_PREDICATE("isfinite", IsFinite, AllTypes, Cost::kCheap, is_finite(x))
NBX_UNARY_PREDICATE("logical_not", LogicalNot, Narrowed<AllTypes>, Cost::kCheap, x == T(0))
NBX_UNARY("bitwise_not", BitwiseNot, Narrowed<IntegerTypes>, Cost::kCheap,
          std::is_same_v<T, Bool> ? x ^ T{1} : ~x)

}  // namespace
}  // namespace nbx::cpu
