// What tests of host kernels share: owned tensors in any layout, calls by name, naive conversions.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/tensor_view.h"
#include "launch/kernel.h"

namespace nbx::testing {

/// A fresh seed, printed with the failure; TEST_SEED repeats a run.
inline std::uint32_t fresh_seed() {
  const char* given = std::getenv("TEST_SEED");
  const std::uint32_t seed =
      given != nullptr ? static_cast<std::uint32_t>(std::stoul(given)) : std::random_device{}();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}
#define NBX_SEEDED_TRACE(seed) SCOPED_TRACE("TEST_SEED=" + std::to_string(seed))

/// Value of a narrow float from its fields, in double, written independently of the library.
inline double decode(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto fraction = bits & ((1U << mantissa_bits) - 1U);
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1U));
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0U ? -1.0 : 1.0;
  const int top = (1 << exponent_bits) - 1;
  if (exponent == top && has_infinity) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == top && fraction == (1U << mantissa_bits) - 1U) return std::nan("");
  const double one = exponent == 0 ? 0.0 : 1.0;
  const int power = (exponent == 0 ? 1 : exponent) - bias;
  return sign * std::ldexp(one + std::ldexp(static_cast<double>(fraction), -mantissa_bits), power);
}

struct NarrowFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};
inline NarrowFormat narrow_format(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return {5, 10, true};
    case DType::bfloat16:
      return {8, 7, true};
    case DType::float8_e4m3fn:
      return {4, 3, false};
    default:
      return {5, 2, true};
  }
}
inline bool is_narrow(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float8_e4m3fn ||
         dtype == DType::float8_e5m2;
}
inline double decode(std::uint32_t bits, DType dtype) {
  const NarrowFormat f = narrow_format(dtype);
  return decode(bits, f.exponent_bits, f.mantissa_bits, f.has_infinity);
}

/// A tensor that owns its elements: `shape` as a window of `storage` with any strides.
class Owned {
 public:
  Owned(DType dtype, std::vector<std::int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    strides_.resize(shape_.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      strides_[i] = stride;
      stride *= shape_[i];
    }
    allocate(stride);
  }

  /// The same shape in scattered memory: axes permuted, every other element, some reversed.
  static Owned scattered(DType dtype, std::vector<std::int64_t> shape, std::mt19937& rng) {
    Owned tensor(dtype, shape);
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), rng);
    std::int64_t stride = 1;
    std::int64_t first = 0;
    for (const std::size_t axis : order) {
      stride *= 1 + static_cast<std::int64_t>(rng() % 2);
      const bool reversed = rng() % 3 == 0;
      tensor.strides_[axis] = reversed ? -stride : stride;
      if (reversed && shape[axis] > 0) first += stride * (shape[axis] - 1);
      stride *= shape[axis] > 0 ? shape[axis] : 1;
    }
    tensor.allocate(stride);
    tensor.first_ = first;
    return tensor;
  }

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t count() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape_) count *= extent;
    return count;
  }
  [[nodiscard]] TensorView view() {
    return {bytes_.data() + first_ * bits_of(dtype_) / 8, shape_.data(), strides_.data(),
            static_cast<std::int32_t>(shape_.size()), dtype_};
  }
  /// Address of element number `index` in row-major order; of whole-byte types only.
  [[nodiscard]] std::byte* at(std::int64_t index) {
    std::int64_t offset = first_;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      offset += index % shape_[i] * strides_[i];
      index /= shape_[i];
    }
    return bytes_.data() + offset * itemsize_of(dtype_);
  }
  template <class T>
  [[nodiscard]] T get(std::int64_t index) {
    T value;
    std::memcpy(&value, at(index), sizeof(T));
    return value;
  }
  template <class T>
  void set(std::int64_t index, T value) {
    std::memcpy(at(index), &value, sizeof(T));
  }
  /// The element as a double (integers beyond 2^53 lose digits; complex ones their second part).
  [[nodiscard]] double number(std::int64_t index);
  /// Sets an element of a full-width type from a double; narrow ones keep their nearest below.
  void set_number(std::int64_t index, double value);
  /// Random finite numbers: integers of the whole range for integers, about [-4, 4] for floats.
  void randomise(std::mt19937& rng);

 private:
  void allocate(std::int64_t elements) {
    bytes_.assign(static_cast<std::size_t>(elements * bits_of(dtype_) / 8 + 16), std::byte{0x5a});
  }
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  std::int64_t first_ = 0;
  std::vector<std::byte> bytes_;
};

inline double Owned::number(std::int64_t index) {
  switch (dtype_) {
    case DType::bool_:
    case DType::uint8:
      return get<std::uint8_t>(index);
    case DType::int8:
      return get<std::int8_t>(index);
    case DType::int16:
      return get<std::int16_t>(index);
    case DType::uint16:
      return get<std::uint16_t>(index);
    case DType::int32:
      return get<std::int32_t>(index);
    case DType::uint32:
      return get<std::uint32_t>(index);
    case DType::int64:
      return static_cast<double>(get<std::int64_t>(index));
    case DType::uint64:
      return static_cast<double>(get<std::uint64_t>(index));
    case DType::float32:
    case DType::complex64:
      return get<float>(index);
    case DType::float64:
    case DType::complex128:
      return get<double>(index);
    case DType::float16:
    case DType::bfloat16:
      return decode(get<std::uint16_t>(index), dtype_);
    default:
      return decode(get<std::uint8_t>(index), dtype_);
  }
}

inline void Owned::set_number(std::int64_t index, double value) {
  switch (dtype_) {
    case DType::bool_:
      return set<std::uint8_t>(index, value != 0 ? 1 : 0);
    case DType::uint8:
      return set(index, static_cast<std::uint8_t>(value));
    case DType::int8:
      return set(index, static_cast<std::int8_t>(value));
    case DType::int16:
      return set(index, static_cast<std::int16_t>(value));
    case DType::uint16:
      return set(index, static_cast<std::uint16_t>(value));
    case DType::int32:
      return set(index, static_cast<std::int32_t>(value));
    case DType::uint32:
      return set(index, static_cast<std::uint32_t>(value));
    case DType::int64:
      return set(index, static_cast<std::int64_t>(value));
    case DType::uint64:
      return set(index, static_cast<std::uint64_t>(value));
    case DType::float32:
      return set(index, static_cast<float>(value));
    case DType::float64:
      return set(index, value);
    case DType::complex64:
      return set(index, std::complex<float>(static_cast<float>(value), 0.0F));
    case DType::complex128:
      return set(index, std::complex<double>(value, 0.0));
    case DType::bfloat16: {
      const auto narrow = static_cast<float>(value);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &narrow, sizeof(bits));
      return set(index, static_cast<std::uint16_t>(bits >> 16));
    }
    default: {
      // The nearest below in magnitude, by search over all bit patterns.
      const NarrowFormat f = narrow_format(dtype_);
      const std::uint32_t half = 1U << (f.exponent_bits + f.mantissa_bits);
      std::uint32_t best = 0;
      for (std::uint32_t step = half / 2; step > 0; step /= 2) {
        const double candidate = decode(best + step, dtype_);
        if (candidate <= std::fabs(value)) best += step;
      }
      const std::uint32_t bits = best | (value < 0 ? half : 0U);
      if (itemsize_of(dtype_) == 2) return set(index, static_cast<std::uint16_t>(bits));
      return set(index, static_cast<std::uint8_t>(bits));
    }
  }
}

inline void Owned::randomise(std::mt19937& rng) {
  std::uniform_real_distribution<double> real(-4.0, 4.0);
  for (std::int64_t i = 0; i < count(); ++i) {
    if (dtype_ == DType::bool_) {
      set<std::uint8_t>(i, rng() % 2);
    } else if (is_integer(dtype_)) {
      const std::uint64_t word = (static_cast<std::uint64_t>(rng()) << 32) | rng();
      std::memcpy(at(i), &word, static_cast<std::size_t>(itemsize_of(dtype_)));
    } else {
      set_number(i, real(rng));
      if (dtype_ == DType::complex64) {
        set(i, std::complex<float>(get<float>(i), static_cast<float>(real(rng))));
      }
      if (dtype_ == DType::complex128) set(i, std::complex<double>(get<double>(i), real(rng)));
    }
  }
}

inline Scalar integer_scalar(std::int64_t value) {
  return {ScalarKind::kInteger, false, value, static_cast<double>(value), 0.0};
}
inline Scalar real_scalar(double value) { return {ScalarKind::kReal, false, 0, value, 0.0}; }
inline Scalar dtype_scalar(DType dtype) { return integer_scalar(static_cast<int>(dtype)); }
inline TensorView absent_view() { return {nullptr, nullptr, nullptr, 0, DType::bool_}; }

inline void call_kernel(const std::string& name, const std::vector<TensorView>& tensors,
                        const std::vector<Scalar>& scalars = {}) {
  const HostKernel kernel = find_host_kernel(name);
  ASSERT_NE(kernel, nullptr) << name;
  kernel(KernelCall{tensors.data(), tensors.size(), scalars.data(), scalars.size(), nullptr});
}

}  // namespace nbx::testing
