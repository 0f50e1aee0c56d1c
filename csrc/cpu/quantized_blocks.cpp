// The inner loops over quantised blocks: decoding, encoding, products with a few vectors.
#include <algorithm>
#include <cmath>

#include "core/half.h"
#include "cpu/matmul.h"
#include "cpu/quantized.h"
#include "cpu/target.h"
#include "cpu/widen.h"

namespace nbx::cpu {
namespace {

void put_half(std::byte* to, float value) noexcept {
  const auto half = from_float<Float16>(value);
  std::memcpy(to, &half, sizeof(half));
}

// Each format loads kWidth weights at a time: part p of a block, p < 32 / kWidth.
struct Q41 {
  static constexpr Format kFormat = Format::q4_1;

  template <int kWidth>
  struct Block {
    float scale;
    float offset;
    const std::byte* codes;

    NBX_INLINE explicit Block(const std::byte* block) : codes(block + 4) {
      widen_pair<kWidth>(block, scale, offset);
    }
    NBX_INLINE Block(const std::byte* block, const float* staged)
        : scale(staged[0]), offset(staged[1]), codes(block + 4) {}
    // Low and high nibbles of kWidth bytes: the weights at `part * kWidth` and 16 further on.
    NBX_INLINE void load_two(int part, typename Vector<kWidth>::F& low,
                             typename Vector<kWidth>::F& high) const {
      using F = typename Vector<kWidth>::F;
      using I = typename Vector<kWidth>::I;
      I wide;
      widen_unsigned_bytes<kWidth>(wide, codes + part * kWidth);
      low = __builtin_convertvector(wide & 15, F) * scale + offset;
      high = __builtin_convertvector(wide >> 4, F) * scale + offset;
    }
  };
};

struct Q80 {
  static constexpr Format kFormat = Format::q8_0;

  template <int kWidth>
  struct Block {
    float scale;
    const std::byte* codes;

    NBX_INLINE explicit Block(const std::byte* block) : codes(block + 2) {
      float unused;
      widen_pair<kWidth>(block, scale, unused);
    }
    NBX_INLINE Block(const std::byte* block, const float* staged)
        : scale(staged[0]), codes(block + 2) {}
    NBX_INLINE void load_two(int part, typename Vector<kWidth>::F& low,
                             typename Vector<kWidth>::F& high) const {
      using F = typename Vector<kWidth>::F;
      using I = typename Vector<kWidth>::I;
      I wide;
      widen_signed_bytes<kWidth>(wide, codes + part * kWidth);
      low = __builtin_convertvector(wide, F) * scale;
      widen_signed_bytes<kWidth>(wide, codes + part * kWidth + 16);
      high = __builtin_convertvector(wide, F) * scale;
    }
  };
};

template <class Kind, int kWidth>
NBX_INLINE void decode_as(const std::byte* blocks, std::int64_t count, float* weights) {
  using F = typename Vector<kWidth>::F;
  for (std::int64_t b = 0; b < count; ++b) {
    const typename Kind::template Block<kWidth> block(blocks + b * facts_of(Kind::kFormat).bytes);
    NBX_UNROLL
    for (int part = 0; part < 16 / kWidth; ++part) {
      F low;
      F high;
      block.load_two(part, low, high);
      store(weights + b * 32 + part * kWidth, low);
      store(weights + b * 32 + part * kWidth + 16, high);
    }
  }
}

constexpr std::int64_t kStaged = 16;  // blocks whose scales are widened at a time

template <int kWidth, int kTokens, class Block>
NBX_INLINE void add_block(const Block& block, const float* x, std::int64_t x_stride,
                          typename Vector<kWidth>::F (&sums)[kTokens][2]) {
  using F = typename Vector<kWidth>::F;
  NBX_UNROLL
  for (int part = 0; part < 16 / kWidth; ++part) {
    F low;
    F high;
    block.load_two(part, low, high);
    NBX_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      F v;
      load(v, x + t * x_stride + part * kWidth);
      sums[t][0] += v * low;
      load(v, x + t * x_stride + part * kWidth + 16);
      sums[t][1] += v * high;
    }
  }
}

template <class Kind, int kWidth, int kTokens>
NBX_INLINE void multiply_as(const BlockProduct& job) {
  using F = typename Vector<kWidth>::F;
  constexpr std::int64_t kBytes = facts_of(Kind::kFormat).bytes;
  for (std::int64_t row = 0; row < job.row_count; ++row) {
    const std::byte* blocks = job.rows + row * job.row_bytes;
    F sums[kTokens][2] = {};
    for (std::int64_t first = 0; first < job.blocks; first += kStaged) {
      const std::int64_t end = std::min(first + kStaged, job.blocks);
      // Scales come through memory, whose loads broadcast for free.
      float staged[kStaged][4];
      for (std::int64_t b = first; b < end; ++b) {
        stage_pair<kWidth>(blocks + b * kBytes, staged[b - first]);
      }
      for (std::int64_t b = first; b < end; ++b) {
        __builtin_prefetch(blocks + b * kBytes + kPrefetchBytes);
        const typename Kind::template Block<kWidth> block(blocks + b * kBytes, staged[b - first]);
        add_block<kWidth, kTokens>(block, job.x + b * 32, job.x_stride, sums);
      }
    }
    NBX_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const F sum = sums[t][0] + sums[t][1];
      job.out[t * job.out_stride + row] = sum_lanes<kWidth>(sum);
    }
  }
}

template <class Kind, int kWidth>
NBX_INLINE void multiply_few_as(const BlockProduct& job) {
  switch (job.tokens) {
    case 1:
      return multiply_as<Kind, kWidth, 1>(job);
    case 2:
      return multiply_as<Kind, kWidth, 2>(job);
    case 3:
      return multiply_as<Kind, kWidth, 3>(job);
    default:
      static_assert(kFewTokens == 4);
      return multiply_as<Kind, kWidth, 4>(job);
  }
}

template <int kWidth>
NBX_INLINE void decode_q4_1_body(const std::byte* blocks, std::int64_t count, float* weights) {
  decode_as<Q41, kWidth>(blocks, count, weights);
}
template <int kWidth>
NBX_INLINE void decode_q8_0_body(const std::byte* blocks, std::int64_t count, float* weights) {
  decode_as<Q80, kWidth>(blocks, count, weights);
}
template <int kWidth>
NBX_INLINE void multiply_q4_1_body(const BlockProduct& job) {
  multiply_few_as<Q41, kWidth>(job);
}
template <int kWidth>
NBX_INLINE void multiply_q8_0_body(const BlockProduct& job) {
  multiply_few_as<Q80, kWidth>(job);
}
NBX_VECTORISED(decode_q4_1, (const std::byte* blocks, std::int64_t count, float* weights),
               (blocks, count, weights))
NBX_VECTORISED(decode_q8_0, (const std::byte* blocks, std::int64_t count, float* weights),
               (blocks, count, weights))
NBX_VECTORISED(multiply_q4_1, (const BlockProduct& job), (job))
NBX_VECTORISED(multiply_q8_0, (const BlockProduct& job), (job))

void encode_q4_1(const float* weights, std::byte* block) {
  const auto ends = std::minmax_element(weights, weights + 32);
  const float low = *ends.first;
  const float scale = (*ends.second - low) / 15.0F;
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  put_half(block, scale);
  put_half(block + 2, low);
  const auto code = [&](int i) {
    const float shifted = (weights[i] - low) * inverse + 0.5F;
    return static_cast<unsigned>(std::clamp(shifted, 0.0F, 15.0F));
  };
  for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<std::byte>(code(i) | code(i + 16) << 4);
}

void encode_q8_0(const float* weights, std::byte* block) {
  float greatest = 0.0F;
  for (int i = 0; i < 32; ++i) greatest = std::max(greatest, std::fabs(weights[i]));
  const float scale = greatest / 127.0F;
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  put_half(block, scale);
  for (int i = 0; i < 32; ++i) {
    const float code = std::clamp(std::round(weights[i] * inverse), -127.0F, 127.0F);
    block[2 + i] = static_cast<std::byte>(static_cast<int>(code));
  }
}

}  // namespace

void decode_blocks(Format format, const std::byte* blocks, std::int64_t count, float* weights) {
  switch (format) {
    case Format::q4_1:
      return decode_q4_1(blocks, count, weights);
    case Format::q8_0:
      return decode_q8_0(blocks, count, weights);
  }
}

void encode_blocks(Format format, const float* weights, std::int64_t count, std::byte* blocks) {
  for (std::int64_t b = 0; b < count; ++b) {
    std::byte* to = blocks + b * facts_of(format).bytes;
    switch (format) {
      case Format::q4_1:
        encode_q4_1(weights + b * 32, to);
        break;
      case Format::q8_0:
        encode_q8_0(weights + b * 32, to);
        break;
    }
  }
}

void multiply_blocks(Format format, const BlockProduct& job) {
  switch (format) {
    case Format::q4_1:
      return multiply_q4_1(job);
    case Format::q8_0:
      return multiply_q8_0(job);
  }
}

}  // namespace nbx::cpu
