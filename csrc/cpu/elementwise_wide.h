// Functions of floats computed in double: within 0.6 units in the last place, branch-free, so that
// loops over them vectorise. Each is a polynomial for a short range and exact steps around it; the
// coefficients are fits at Chebyshev nodes, good to 2^-32 or better.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/target.h"

namespace nbx::cpu::wide {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kLn2 = 0.693147180559945309417;
inline constexpr double kPi = 3.14159265358979323846;
inline constexpr double kWhole = 0x1.8p52;  // added and taken away, it rounds to a whole number

NBX_INLINE double clamp(double x, double low, double high) {
  const double above = x < low ? low : x;
  return above > high ? high : above;
}

// ---- logarithms --------------------------------------------------------------------------------

/// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)].
NBX_INLINE double log_near_one(double f) {
  // A division in float and one step of Newton's: half the time of one in double, to 2^-45.
  const double near = 1.0F / static_cast<float>(2.0 + f);
  const double s = f * (near * (2.0 - (2.0 + f) * near));
  const double z = s * s;
  double p = 0x1.91a04d3a48bbbp-3;
  p = p * z + 0x1.c62002d078c63p-3;
  p = p * z + 0x1.24943aef997a9p-2;
  p = p * z + 0x1.999996250952dp-2;
  p = p * z + 0x1.55555556744c8p-1;
  return s * (p * z + 2.0);
}

/// x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)), for normal x above 0.
NBX_INLINE double split(double x, double& exponent) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t above = bits - 0x3fe6a09e667f3bcdU;
  const std::uint64_t biased = (above + (std::uint64_t{1024} << 52)) >> 52;
  exponent = std::bit_cast<double>(biased | 0x4330000000000000U) - (0x1p52 + 1024.0);
  return std::bit_cast<double>(bits - (above & 0xfff0000000000000U));
}

/// What a logarithm of `x` is, given its value for finite x above 0.
NBX_INLINE double log_result(double x, double value) {
  const double ended = x == kInfinity ? x : value;
  const double defined = x > 0.0 ? ended : std::numeric_limits<double>::quiet_NaN();
  return x == 0.0 ? -kInfinity : defined;
}

/// log(x) * `unit`, exact for powers of two where `power_unit`, which is log(2) * unit, is 1.
NBX_INLINE double log_in(double x, double unit, double power_unit) {
  double exponent;
  const double f = split(x, exponent) - 1.0;
  return log_result(x, exponent * power_unit + log_near_one(f) * unit);
}
NBX_INLINE double log2(double x) { return log_in(x, 1.44269504088896340736, 1.0); }
NBX_INLINE double log10(double x) {
  return log_in(x, 0.434294481903251827651, 0.301029995663981195214);
}
NBX_INLINE double log1p(double x) {
  const double sum = 1.0 + x;
  double exponent;
  const double mantissa = split(sum, exponent);
  const double f = exponent == 0.0 ? x : mantissa - 1.0;
  return log_result(sum, exponent * kLn2 + log_near_one(f));
}

/// log(1 + x) for x from 0 to 1.
NBX_INLINE double log1p_of_share(double x) {
  const bool upper = x > 0.414213562373095048802;
  const double f = upper ? x * 0.5 - 0.5 : x;
  return log_near_one(f) + (upper ? kLn2 : 0.0);
}

// ---- exponentials ------------------------------------------------------------------------------

/// e^x = scale * (1 + rest), for |x| up to 700.
NBX_INLINE double exp_rest(double x, double& scale) {
  const double shifted = x * 1.44269504088896340736 + kWhole;
  const double t = x - (shifted - kWhole) * kLn2;
  double p = 0x1.a136e89bf4ef3p-16;
  p = p * t + 0x1.a151a73e79d6ap-13;
  p = p * t + 0x1.6c166bc555aedp-10;
  p = p * t + 0x1.1110c61c70c05p-7;
  p = p * t + 0x1.55555565cf43fp-5;
  p = p * t + 0x1.555555675b64ep-3;
  p = p * t + 0.5;
  scale =
      std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) << 52) + 0x3ff0000000000000U);
  return p * t * t + t;
}
/// Past 200 either way a float result is infinity or 0.
NBX_INLINE double exp(double x) {
  double scale;
  const double rest = exp_rest(clamp(x, -200.0, 200.0), scale);
  return rest * scale + scale;
}
NBX_INLINE double expm1(double x) {
  double scale;
  const double rest = exp_rest(clamp(x, -200.0, 200.0), scale);
  return rest * scale + (scale - 1.0);
}
NBX_INLINE double exp2(double x) { return exp(x * kLn2); }

/// log(1 + e^x) without overflow.
NBX_INLINE double log1p_exp(double x) {
  return (x > 0.0 ? x : 0.0) + log1p_of_share(exp(-std::fabs(x)));
}

// ---- angles ------------------------------------------------------------------------------------

/// Past these the quarter turns are no longer counted exactly.
inline constexpr float kFarAngle = 0x1p20F;

/// Sine and cosine of an angle up to kFarAngle, apart from the quadrant, and the quadrant.
NBX_INLINE std::uint64_t sine_cosine(double x, double& sine, double& cosine) {
  const double shifted = x * 0.636619772367581343076 + kWhole;
  const double turns = shifted - kWhole;
  // The first part has 33 bits, so that its product with the turns is exact.
  const double r = (x - turns * 0x1.921fb544p+0) - turns * 0x1.0b4611a626331p-34;
  const double z = r * r;
  double s = 0x1.6dbc0f8abdbb5p-19;
  s = s * z - 0x1.a013a1920ffe2p-13;
  s = s * z + 0x1.11110dead1819p-7;
  s = s * z - 0x1.555555545c4edp-3;
  double c = -0x1.2522f9f7ea1c0p-22;
  c = c * z + 0x1.a015c06f0afc9p-16;
  c = c * z - 0x1.6c16bf51f2a25p-10;
  c = c * z + 0x1.5555555502380p-5;
  c = c * z - 0.5;
  sine = r * (s * z + 1.0);
  cosine = c * z + 1.0;
  return std::bit_cast<std::uint64_t>(shifted);
}
NBX_INLINE double in_quadrant(double even, double odd, std::uint64_t quadrant) {
  const double value = (quadrant & 1) != 0 ? odd : even;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) ^ ((quadrant & 2) << 62));
}
NBX_INLINE double sin(double x) {
  double s;
  double c;
  const std::uint64_t quadrant = sine_cosine(x, s, c);
  return in_quadrant(s, c, quadrant);
}
NBX_INLINE double cos(double x) {
  double s;
  double c;
  const std::uint64_t quadrant = sine_cosine(x, s, c);
  return in_quadrant(c, s, quadrant + ((quadrant & 1) << 1));
}
NBX_INLINE double tan(double x) {
  double s;
  double c;
  const std::uint64_t quadrant = sine_cosine(x, s, c);
  const double above = (quadrant & 1) != 0 ? -c : s;
  return above / ((quadrant & 1) != 0 ? s : c);
}

/// The angle in [0, pi / 2] whose tangent is y / x, for both from 0 to infinity.
NBX_INLINE double angle(double y, double x) {
  const bool steep = y > x;
  const double great = steep ? y : x;
  const double small = steep ? x : y;
  const bool endless = great == kInfinity;
  const double equal = small == kInfinity ? 1.0 : 0.0;
  const double low = endless ? equal : small;
  const double high = endless || great == 0.0 ? 1.0 : great;
  // Past half of pi / 4, the angle is measured from there.
  const bool diagonal = low > high * 0.414213562373095048802;
  const double t = (diagonal ? low - high : low) / (diagonal ? low + high : high);
  const double z = t * t;
  double p = -0x1.4b78330a3306cp-5;
  p = p * z + 0x1.2454a65b6d034p-4;
  p = p * z - 0x1.71d74ac778d68p-4;
  p = p * z + 0x1.c6f6dc40eb459p-4;
  p = p * z - 0x1.2491c258b06d3p-3;
  p = p * z + 0x1.9999982cbd750p-3;
  p = p * z - 0x1.5555555504670p-2;
  const double first = t * (p * z) + t + (diagonal ? kPi / 4 : 0.0);
  const double whole = steep ? kPi / 2 - first : first;
  return x != x || y != y ? std::numeric_limits<double>::quiet_NaN() : whole;
}

}  // namespace nbx::cpu::wide

namespace nbx::cpu::math {

NBX_INLINE float exp2(float x) { return static_cast<float>(wide::exp2(x)); }
NBX_INLINE float expm1(float x) { return x == 0.0F ? x : static_cast<float>(wide::expm1(x)); }
NBX_INLINE float log2(float x) { return static_cast<float>(wide::log2(x)); }
NBX_INLINE float log10(float x) { return static_cast<float>(wide::log10(x)); }
NBX_INLINE float log1p(float x) { return x == 0.0F ? x : static_cast<float>(wide::log1p(x)); }

/// Of angles up to wide::kFarAngle.
NBX_INLINE float near_sin(float x) { return static_cast<float>(wide::sin(x)); }
NBX_INLINE float near_cos(float x) { return static_cast<float>(wide::cos(x)); }
NBX_INLINE float near_tan(float x) { return static_cast<float>(wide::tan(x)); }
NBX_INLINE bool is_far_angle(float x) { return std::fabs(x) > wide::kFarAngle; }

NBX_INLINE float atan(float x) {
  return std::copysign(static_cast<float>(wide::angle(std::fabs(x), 1.0)), x);
}
NBX_INLINE float atan2(float y, float x) {
  const double acute = wide::angle(std::fabs(y), std::fabs(x));
  const double result = std::copysign(1.0F, x) < 0.0F ? wide::kPi - acute : acute;
  return std::copysign(static_cast<float>(result), y);
}
NBX_INLINE float asin(float x) {
  const double magnitude = std::fabs(x);
  const double side = std::sqrt((1.0 - magnitude) * (1.0 + magnitude));
  return std::copysign(static_cast<float>(wide::angle(magnitude, side)), x);
}
NBX_INLINE float acos(float x) {
  const double magnitude = std::fabs(x);
  const double acute = wide::angle(std::sqrt((1.0 - magnitude) * (1.0 + magnitude)), magnitude);
  return static_cast<float>(x < 0.0F ? wide::kPi - acute : acute);
}

NBX_INLINE float sinh(float x) {
  const double m = wide::expm1(std::fabs(x));
  return std::copysign(static_cast<float>(0.5 * (m + m / (m + 1.0))), x);
}
NBX_INLINE float cosh(float x) {
  const double e = wide::exp(std::fabs(x));
  return static_cast<float>(0.5 * (e + 1.0 / e));
}
NBX_INLINE float asinh(float x) {
  const double a = std::fabs(x);
  const double result = wide::log1p(a + a * a / (1.0 + std::sqrt(a * a + 1.0)));
  return std::copysign(
      std::fabs(x) > std::numeric_limits<float>::max() ? std::fabs(x) : static_cast<float>(result),
      x);
}
NBX_INLINE float acosh(float x) {
  const double t = x - 1.0;
  const double result = wide::log1p(t + std::sqrt(t * (t + 2.0)));
  return x < 1.0F ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(result);
}
NBX_INLINE float atanh(float x) {
  const double a = std::fabs(x);
  return std::copysign(static_cast<float>(0.5 * wide::log1p(2.0 * a / (1.0 - a))), x);
}

NBX_INLINE float hypot(float a, float b) {
  const double x = a;
  const double y = b;
  const float length = static_cast<float>(std::sqrt(x * x + y * y));
  constexpr float kGreatest = std::numeric_limits<float>::max();
  const bool endless = std::fabs(a) > kGreatest || std::fabs(b) > kGreatest;
  return endless ? std::numeric_limits<float>::infinity() : length;
}
NBX_INLINE float logaddexp(float a, float b) {
  const double high = a > b ? a : b;
  const double low = a > b ? b : a;
  const double sum = high + wide::log1p_of_share(wide::exp(low - high));
  return static_cast<float>(a == b ? a + wide::kLn2 : sum);
}
NBX_INLINE float log1p_exp(float x) { return static_cast<float>(wide::log1p_exp(x)); }
/// x * tanh(log(1 + e^x))
NBX_INLINE float mish(float x) {
  const double e = wide::exp(x > 60.0F ? 60.0 : x);
  const double n = e * (e + 2.0);
  const auto result = static_cast<float>(x * (n / (n + 2.0)));
  return x < -std::numeric_limits<float>::max() ? std::numeric_limits<float>::quiet_NaN() : result;
}

NBX_INLINE float power(float x, float y) {
  const double magnitude = std::fabs(x);
  const double product = y * wide::log2(magnitude);
  const double bounded = wide::clamp(magnitude == 1.0 ? 0.0 : product, -250.0, 250.0);
  const auto result = static_cast<float>(wide::exp2(bounded));
  const bool whole = std::floor(y) == y;
  const bool odd = whole && std::floor(y * 0.5F) * 2.0F != y;
  const float turned = odd ? std::copysign(result, x) : result;
  const bool undefined = x < 0.0F && !whole && x >= -std::numeric_limits<float>::max();
  const float defined = undefined ? std::numeric_limits<float>::quiet_NaN() : turned;
  return y == 0.0F || x == 1.0F ? 1.0F : defined;
}

/// Whether the quotient is too large for `near_fmod`, or not a number.
NBX_INLINE bool is_far_quotient(float a, float b) {
  const float divisor = std::fabs(b);
  return !(std::fabs(a) < divisor * 0x1p28F) || divisor > std::numeric_limits<float>::max();
}
/// Exact: the quotient has at most 29 bits and the divisor 24, so the product fits in a double.
NBX_INLINE float near_fmod(float a, float b) {
  const double x = a;
  const double y = b;
  const auto quotient = static_cast<double>(static_cast<std::int32_t>(x / y));
  const double rest = x - quotient * y;
  // Rounded up, the quotient is one too large.
  const double back = rest + std::copysign(y, x);
  const bool beyond = rest != 0.0 && (rest < 0.0) != (x < 0.0);
  return std::copysign(static_cast<float>(beyond ? back : rest), a);
}

}  // namespace nbx::cpu::math
