// Functions of one number, branch-free in float so that loops over them vectorise; in double they
// are the C library's. Each float function states its greatest error in units in the last place.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/target.h"

namespace nbx::cpu::math {

/// Within 1.5 units; subnormal results included.
NBX_INLINE float exponential(float x) {
  // Past these the result is infinity or 0 whatever the argument.
  const float low = x < -104.0F ? -104.0F : x;
  const float argument = low > 89.0F ? 89.0F : low;
  // The sum's last bits are the whole part of x / ln 2.
  const float shifted = argument * 0x1.715476p+0F + 0x1.8p23F;
  const float whole = shifted - 0x1.8p23F;
  const float coarse = argument - whole * 0x1.62e4p-1F;
  const float r = coarse - whole * 0x1.7f7d1cp-20F;
  float p = 0x1.a1b42cp-13F;
  p = p * r + 0x1.6d950ap-10F;
  p = p * r + 0x1.11108p-7F;
  p = p * r + 0x1.555482p-5F;
  p = p * r + 0x1.555556p-3F;
  p = p * r + 0.5F;
  p = (p * r) * r + r + 1.0F;
  // Two halves of the power of two, so that neither leaves the range of a float.
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
  const std::int32_t half = exponent >> 1;
  const float result = p * std::bit_cast<float>((half + 127) << 23) *
                       std::bit_cast<float>((exponent - half + 127) << 23);
  return x == x ? result : x;
}
NBX_INLINE double exponential(double x) { return std::exp(x); }

/// Within 2 units.
NBX_INLINE float logarithm(float x) {
  const bool tiny = x < std::numeric_limits<float>::min();
  const float lifted = x * 0x1p23F;
  const auto bits = std::bit_cast<std::uint32_t>(tiny ? lifted : x);
  // The mantissa is taken from [sqrt(1/2), sqrt(2)).
  const auto exponent = static_cast<std::int32_t>(bits - 0x3f3504f3U) >> 23;
  const float mantissa = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(exponent) << 23));
  const float power = static_cast<float>(exponent) - (tiny ? 23.0F : 0.0F);
  const float f = mantissa - 1.0F;
  const float s = f / (2.0F + f);
  const float z = s * s;
  float p = 0x1.e30f9p-3F;
  p = p * z + 0x1.24384ep-2F;
  p = p * z + 0x1.999a7cp-2F;
  p = p * z + 0x1.555554p-1F;
  p = p * z;
  // log(1 + f) = f - s (f - z p), which keeps the leading term exact.
  const float rest = power * -2.12194440e-4F - s * (f - p);
  float result = rest + f + power * 0.693359375F;
  result = x == 0.0F ? -std::numeric_limits<float>::infinity() : result;
  result = x == std::numeric_limits<float>::infinity() ? x : result;
  return x < 0.0F || x != x ? std::numeric_limits<float>::quiet_NaN() : result;
}
NBX_INLINE double logarithm(double x) { return std::log(x); }

/// Within 2.5 units.
NBX_INLINE float hyperbolic_tangent(float x) {
  const float magnitude = std::fabs(x);
  const float z = x * x;
  float p = -0x1.7e67320p-8F;
  p = p * z + 0x1.53f596p-6F;
  p = p * z - 0x1.b87f94p-5F;
  p = p * z + 0x1.110910p-3F;
  p = p * z - 0x1.55553cp-2F;
  const float small = magnitude * z * p + magnitude;
  const float large = 1.0F - 2.0F / (exponential(2.0F * magnitude) + 1.0F);
  return std::copysign(magnitude < 0.6F ? small : large, x);
}
NBX_INLINE double hyperbolic_tangent(double x) { return std::tanh(x); }

/// 1 / (1 + exp(-x)), relatively accurate in both tails; within 3 units.
template <class T>
NBX_INLINE T sigmoid(T x) {
  const T decay = exponential(-std::fabs(x));
  const T share = T{1} / (T{1} + decay);
  return x < T{0} ? decay * share : share;
}

/// exp(-|x|^2) as 1 - erf(|x|) for |x| of at least 0.9, to an absolute error of 1e-8.
NBX_INLINE float error_tail(float magnitude) {
  const float x = magnitude > 4.0F ? 4.0F : magnitude;
  float p = 0x1.5ecde4p-16F;
  p = p * x - 0x1.c54d7ap-12F;
  p = p * x + 0x1.10aa1p-8F;
  p = p * x - 0x1.9b195ep-6F;
  p = p * x + 0x1.bb5652p-4F;
  p = p * x + 0x1.444b42p-1F;
  p = p * x + 0x1.212698p+0F;
  p = p * x - 0x1.65ac7ap-13F;
  return magnitude > 4.0F ? 0.0F : exponential(-p);
}
NBX_INLINE float error_core(float x) {
  const float z = x * x;
  float p = -0x1.3bb75p-11F;
  p = p * z + 0x1.47a764p-8F;
  p = p * z - 0x1.b69ee6p-6F;
  p = p * z + 0x1.ce1bep-4F;
  p = p * z - 0x1.8126eep-2F;
  p = p * z + 0x1.06eba6p-3F;
  return x * p + x;
}
/// Within 2 units.
NBX_INLINE float error_function(float x) {
  const float magnitude = std::fabs(x);
  const float large = std::copysign(1.0F - error_tail(magnitude), x);
  const float result = magnitude < 0.9F ? error_core(x) : large;
  return x == x ? result : x;
}
NBX_INLINE double error_function(double x) { return std::erf(x); }

/// 1 + erf(x) without cancellation in the negative tail.
NBX_INLINE float one_plus_error(float x) {
  const float magnitude = std::fabs(x);
  const float tail = error_tail(magnitude);
  const float large = x < 0.0F ? tail : 2.0F - tail;
  const float result = magnitude < 0.9F ? 1.0F + error_core(x) : large;
  return x == x ? result : x;
}
NBX_INLINE double one_plus_error(double x) { return std::erfc(-x); }

}  // namespace nbx::cpu::math
