// random:uniform, random:normal, random:integers: Philox4x32-10, the same numbers on every device.
//
// Block b of a draw is the generator's function of key = seed and counter = offset + b, four 32-bit
// words. Element i takes one word, or two where it needs more bits: from block i / 4 or i / 2. So a
// draw does not depend on how it is cut into threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/half.h"
#include "cpu/cast.h"
#include "cpu/pool.h"
#include "launch/kernel.h"

namespace nbx::cpu {
namespace {

using Words = std::array<std::uint32_t, 4>;

constexpr std::int64_t kBlocksPerPiece = 2048;
constexpr double kWordUnit = 1.0 / 4294967296.0;  // 2^-32

struct Stream {
  std::uint64_t seed;
  std::uint64_t offset;

  [[nodiscard]] Words block(std::uint64_t index) const noexcept {
    const std::uint64_t low = offset + index;
    const std::uint32_t carry = low < offset ? 1 : 0;
    Words c{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), carry, 0};
    auto key0 = static_cast<std::uint32_t>(seed);
    auto key1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t first = std::uint64_t{0xD2511F53} * c[0];
      const std::uint64_t second = std::uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<std::uint32_t>(second >> 32) ^ c[1] ^ key0,
           static_cast<std::uint32_t>(second),
           static_cast<std::uint32_t>(first >> 32) ^ c[3] ^ key1,
           static_cast<std::uint32_t>(first)};
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    return c;
  }
};

[[nodiscard]] std::uint64_t wide(std::uint32_t high, std::uint32_t low) noexcept {
  return std::uint64_t{high} << 32 | low;
}

/// What a draw of this element type takes from a block: elements, and bits of a uniform number.
template <class T>
inline constexpr int kElements = sizeof(T) == 8 ? 2 : 4;
template <class T>
inline constexpr int kUniformBits = 24;
template <>
inline constexpr int kUniformBits<double> = 53;
template <>
inline constexpr int kUniformBits<Float16> = 11;
template <>
inline constexpr int kUniformBits<BFloat16> = 8;

template <class T>
[[nodiscard]] T rounded(double value) noexcept {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
    return static_cast<T>(value);
  } else {
    return from_float<T>(round_to_odd(value));
  }
}

template <class T>
[[nodiscard]] double exact(T value) noexcept {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(to_float(value));
  }
}

/// Number `lane` of a block, uniform in [0, 1).
template <class T>
[[nodiscard]] double unit(const Words& words, int lane) noexcept {
  constexpr int kBits = kUniformBits<T>;
  if constexpr (kElements<T> == 2) {
    const auto l = static_cast<std::size_t>(2 * lane);
    return std::ldexp(static_cast<double>(wide(words[l], words[l + 1]) >> (64 - kBits)), -kBits);
  } else {
    return static_cast<double>(words[static_cast<std::size_t>(lane)] >> (32 - kBits)) *
           (1.0 / static_cast<double>(1 << kBits));
  }
}

struct Draw {
  Stream stream;
  double first;   // low, mean
  double second;  // high, deviation
};

template <class T>
void uniform_block(const Draw& draw, const Words& words, T* out, std::int64_t count) noexcept {
  const double span = draw.second - draw.first;
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const double value = draw.first + unit<T>(words, static_cast<int>(lane)) * span;
    const T near = rounded<T>(value);
    // Rounding may reach the open end.
    out[lane] = exact(near) < draw.second || span == 0 ? near : rounded<T>(draw.first);
  }
}

/// Box-Muller in double precision; its first uniform number lies in (0, 1).
template <class T>
void normal_block(const Draw& draw, const Words& words, T* out, std::int64_t count) noexcept {
  double values[4] = {};
  for (std::size_t pair = 0; pair < kElements<T> / 2; ++pair) {
    double u;
    double turn;
    if constexpr (kElements<T> == 2) {
      u = (static_cast<double>(wide(words[0], words[1]) >> 12) + 0.5) * (kWordUnit / 1048576.0);
      turn = static_cast<double>(wide(words[2], words[3]) >> 11) * (kWordUnit / 2097152.0);
    } else {
      u = (static_cast<double>(words[2 * pair]) + 0.5) * kWordUnit;
      turn = static_cast<double>(words[2 * pair + 1]) * kWordUnit;
    }
    const double radius = std::sqrt(-2.0 * std::log(u));
    const double angle = 2.0 * std::numbers::pi * turn;
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  for (std::int64_t lane = 0; lane < count; ++lane) {
    out[lane] = rounded<T>(draw.first + draw.second * values[lane]);
  }
}

/// Calls `block(words, first element, elements)` for every block of a draw of `total` elements.
template <class Body>
void for_blocks(const Stream& stream, std::int64_t total, int elements, const Body& body) {
  const std::int64_t blocks = (total + elements - 1) / elements;
  parallel_for(blocks, kBlocksPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * elements;
      const std::int64_t count = std::min<std::int64_t>(elements, total - first);
      body(stream.block(static_cast<std::uint64_t>(b)), first, count);
    }
  });
}

template <class T, bool kNormal>
void fill(const Draw& draw, const TensorView& out) {
  T* data = out.as<T>();
  for_blocks(draw.stream, out.element_count(), kElements<T>,
             [&](const Words& words, std::int64_t first, std::int64_t count) {
               if constexpr (kNormal) {
                 normal_block(draw, words, data + first, count);
               } else {
                 uniform_block(draw, words, data + first, count);
               }
             });
}

const TensorView& checked_output(const KernelCall& call, const char* kernel) {
  require_operands(call, kernel, 1, 4);
  if (!is_contiguous(call.tensors[0])) {
    throw Error(ErrorKind::kValue, std::string(kernel) + ": expected a contiguous tensor");
  }
  return call.tensors[0];
}

[[nodiscard]] Stream stream_of(const KernelCall& call) noexcept {
  return {static_cast<std::uint64_t>(call.scalars[0].integer),
          static_cast<std::uint64_t>(call.scalars[1].integer)};
}

template <bool kNormal>
void floating(const KernelCall& call, const char* kernel) {
  const TensorView& out = checked_output(call, kernel);
  const Draw draw{stream_of(call), call.scalars[2].real, call.scalars[3].real};
  switch (out.dtype) {
    case DType::float32:
      return fill<float, kNormal>(draw, out);
    case DType::float64:
      return fill<double, kNormal>(draw, out);
    case DType::float16:
      return fill<Float16, kNormal>(draw, out);
    case DType::bfloat16:
      return fill<BFloat16, kNormal>(draw, out);
    default:
      throw Error(ErrorKind::kType, std::string(kernel) + ": got " + facts_of(out.dtype).name +
                                        ", expected float16, bfloat16, float32 or float64");
  }
}

void uniform(const KernelCall& call) { floating<false>(call, "random:uniform"); }
void normal(const KernelCall& call) { floating<true>(call, "random:normal"); }

/// The high half of a 64 by 64 bit product.
[[nodiscard]] std::uint64_t high_product(std::uint64_t a, std::uint64_t b) noexcept {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

/// low + floor(range * x / 2^64) for a 64-bit x: off uniform by less than range / 2^64.
void integers(const KernelCall& call) {
  const TensorView& out = checked_output(call, "random:integers");
  if (!is_integer(out.dtype) || itemsize_of(out.dtype) == 0) {
    throw Error(ErrorKind::kType, std::string("random:integers: got ") + facts_of(out.dtype).name +
                                      ", expected an integer dtype of 8 bits or more");
  }
  const auto low = static_cast<std::uint64_t>(call.scalars[2].integer);
  const std::uint64_t range = static_cast<std::uint64_t>(call.scalars[3].integer) - low;
  const Storer store = storer_for(Carrier::kInt64, out.dtype);
  for_blocks(stream_of(call), out.element_count(), 2,
             [&](const Words& words, std::int64_t first, std::int64_t count) {
               const std::int64_t values[2] = {
                   static_cast<std::int64_t>(low + high_product(wide(words[0], words[1]), range)),
                   static_cast<std::int64_t>(low + high_product(wide(words[2], words[3]), range))};
               store(values, element_address(out.data, out.dtype, first), 1, count);
             });
}

const HostKernelRegistration register_uniform{"random:uniform", &uniform};
const HostKernelRegistration register_normal{"random:normal", &normal};
const HostKernelRegistration register_integers{"random:integers", &integers};

}  // namespace
}  // namespace nbx::cpu
