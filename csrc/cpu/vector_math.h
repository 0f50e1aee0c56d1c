// Functions of float vectors, always inline, for code compiled by NBX_VECTORISED.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/target.h"

namespace nbx::cpu {

/// exp in place, within 2 units in the last place; overflow gives infinity, underflow 0.
template <int kWidth>
NBX_INLINE void exp_in_place(typename Vector<kWidth>::F& x) {
  using F = typename Vector<kWidth>::F;
  using I = typename Vector<kWidth>::I;
  const F input = x;
  const F zero = {};
  x = x < zero - 104.0F ? zero - 104.0F : x;
  x = x > zero + 88.8F ? zero + 88.8F : x;
  const F shifted = x * 1.44269504F + 12582912.0F;
  const F whole = shifted - 12582912.0F;
  F r = x - whole * 0.693359375F;
  r = r + whole * 2.12194440e-4F;
  F p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // The power of two in two halves, so that neither leaves the range of a float.
  I bits;
  bit_cast_to(bits, shifted);
  const I exponent = bits - 0x4b400000;
  const I first = exponent >> 1;
  const I second = exponent - first;
  F scale1;
  F scale2;
  bit_cast_to(scale1, (first + 127) << 23);
  bit_cast_to(scale2, (second + 127) << 23);
  p = p * scale1 * scale2;
  p = input > zero + 88.7228394F ? zero + std::numeric_limits<float>::infinity() : p;
  p = input < zero - 103.98F ? zero : p;
  x = input == input ? p : input;
}

/// Largest lane.
template <int kWidth>
NBX_INLINE float maximum_lane(const typename Vector<kWidth>::F& vector) {
  float lanes[kWidth];
  store(lanes, vector);
  float best = lanes[0];
  for (int i = 1; i < kWidth; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

/// A vector of the first `count` values, the rest `fill`.
template <int kWidth>
NBX_INLINE void load_partial(typename Vector<kWidth>::F& vector, const float* from,
                             std::int64_t count, float fill) {
  float lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = i < count ? from[i] : fill;
  load(vector, lanes);
}
template <int kWidth>
NBX_INLINE void store_partial(float* to, std::int64_t count,
                              const typename Vector<kWidth>::F& vector) {
  float lanes[kWidth];
  store(lanes, vector);
  for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

/// Largest of `count` floats, NaN skipped; -infinity if there is none.
template <int kWidth>
NBX_INLINE float maximum_of(const float* x, std::int64_t count) {
  using F = typename Vector<kWidth>::F;
  F best = F{} - std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  F v;
  for (; i + kWidth <= count; i += kWidth) {
    load(v, x + i);
    best = v > best ? v : best;
  }
  float result = maximum_lane<kWidth>(best);
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// out = exp(x - shift) over `count` floats; returns the sum. `out` may be `x`.
template <int kWidth>
NBX_INLINE float exp_and_sum(float* out, const float* x, std::int64_t count, float shift) {
  using F = typename Vector<kWidth>::F;
  F sum = {};
  F v;
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    load(v, x + i);
    v = v - shift;
    exp_in_place<kWidth>(v);
    store(out + i, v);
    sum = sum + v;
  }
  if (i < count) {
    load_partial<kWidth>(v, x + i, count - i, -std::numeric_limits<float>::infinity());
    v = v - shift;
    exp_in_place<kWidth>(v);
    store_partial<kWidth>(out + i, count - i, v);
    for (int lane = 0; lane < kWidth; ++lane) v[lane] = lane < count - i ? v[lane] : 0.0F;
    sum = sum + v;
  }
  return sum_lanes<kWidth>(sum);
}

/// Sum of f(x) for f identity (kSquare false) or (x - shift)^2, in kWidth * 4 fixed lanes.
template <int kWidth, bool kSquare>
NBX_INLINE float sum_of(const float* x, std::int64_t count, float shift) {
  using F = typename Vector<kWidth>::F;
  F sums[4] = {};
  std::int64_t i = 0;
  F v;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    NBX_UNROLL
    for (int u = 0; u < 4; ++u) {
      load(v, x + i + u * kWidth);
      v = v - shift;
      if constexpr (kSquare) {
        sums[u] += v * v;
      } else {
        sums[u] += v;
      }
    }
  }
  float rest = 0.0F;
  for (; i < count; ++i) {
    const float value = x[i] - shift;
    rest += kSquare ? value * value : value;
  }
  const F total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum_lanes<kWidth>(total) + rest;
}

/// Inner product in kWidth * 4 fixed lanes.
template <int kWidth>
NBX_INLINE float dot(const float* x, const float* y, std::int64_t count) {
  using F = typename Vector<kWidth>::F;
  F sums[4] = {};
  F a;
  F b;
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    NBX_UNROLL
    for (int u = 0; u < 4; ++u) {
      load(a, x + i + u * kWidth);
      load(b, y + i + u * kWidth);
      sums[u] += a * b;
    }
  }
  for (; i + kWidth <= count; i += kWidth) {
    load(a, x + i);
    load(b, y + i);
    sums[0] += a * b;
  }
  float rest = 0.0F;
  for (; i < count; ++i) rest += x[i] * y[i];
  const F total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum_lanes<kWidth>(total) + rest;
}

}  // namespace nbx::cpu
