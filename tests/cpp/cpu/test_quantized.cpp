// Quantised blocks against a decoder written from the format's description, in double.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "cpu/kernel_testing.h"
#include "cpu/pool.h"
#include "cpu/quantized.h"
#include "cpu/target.h"

namespace nbx::testing {
namespace {

using cpu::Format;
const cpu::Simd kLevels[] = {cpu::Simd::kPortable, cpu::Simd::kAvx2, cpu::Simd::kAvx512};
const Format kFormats[] = {Format::q4_1, Format::q8_0};

std::int64_t bytes_for(Format format, std::int64_t weights) {
  return weights / 32 * (format == Format::q4_1 ? 20 : 34);
}

double half_at(Owned& blocks, std::int64_t at) {
  const unsigned low = blocks.get<std::uint8_t>(at);
  const unsigned high = blocks.get<std::uint8_t>(at + 1);
  return decode(low | high << 8, DType::float16);
}

/// Weight k of a row that begins at byte `at`.
double weight(Owned& blocks, Format format, std::int64_t at, std::int64_t k) {
  const std::int64_t block = at + bytes_for(format, 32) * (k / 32);
  const std::int64_t i = k % 32;
  if (format == Format::q8_0) {
    return half_at(blocks, block) * blocks.get<std::int8_t>(block + 2 + i);
  }
  const unsigned byte = blocks.get<std::uint8_t>(block + 4 + i % 16);
  return half_at(blocks, block) * (i < 16 ? byte & 15U : byte >> 4) + half_at(blocks, block + 2);
}

/// Random blocks with scales and offsets of either sign, some subnormal.
Owned random_blocks(Format format, std::int64_t rows, std::int64_t weights, std::mt19937& rng) {
  const std::int64_t row_bytes = bytes_for(format, weights);
  Owned blocks(DType::uint8, {rows, row_bytes});
  blocks.randomise(rng);
  const std::int64_t halves = format == Format::q4_1 ? 2 : 1;
  for (std::int64_t at = 0; at < rows * row_bytes; at += bytes_for(format, 32)) {
    for (std::int64_t h = 0; h < halves; ++h) {
      const unsigned exponent = rng() % 8 == 0 ? 0 : 5 + rng() % 8;
      const unsigned half = (rng() % 2) << 15 | exponent << 10 | rng() % 1024;
      blocks.set<std::uint8_t>(at + 2 * h, static_cast<std::uint8_t>(half & 255U));
      blocks.set<std::uint8_t>(at + 2 * h + 1, static_cast<std::uint8_t>(half >> 8));
    }
  }
  return blocks;
}

Scalar code(Format format) { return integer_scalar(static_cast<int>(format)); }

double step(DType dtype) {
  return dtype == DType::float32 ? 2e-6 : dtype == DType::float16 ? 1e-3 : 8e-3;
}

TEST(QuantizedTest, MatmulOfAnyRowCount) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const int threads = cpu::set_thread_count(3);
  for (const cpu::Simd level : kLevels) {
    const cpu::Simd before = cpu::limit_simd(level);
    for (const Format format : kFormats) {
      for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
        for (const std::int64_t m : {0, 1, 2, 3, 4, 5, 31}) {
          for (const std::int64_t k : {0, 32, 288}) {
            const std::int64_t n = 71;
            Owned blocks = random_blocks(format, n, k, rng);
            Owned a = Owned::scattered(dtype, {m, k}, rng);
            a.randomise(rng);
            Owned bias(dtype, {m, n});
            bias.randomise(rng);
            Owned out(dtype, {m, n});
            const bool with_bias = m % 2 == 0;
            call_kernel(
                "matmul:quantized",
                {out.view(), a.view(), blocks.view(), with_bias ? bias.view() : absent_view()},
                {code(format)});
            std::vector<double> left;
            for (std::int64_t i = 0; i < m * k; ++i) left.push_back(a.number(i));
            std::vector<double> right;
            for (std::int64_t i = 0; i < n * k; ++i) {
              right.push_back(weight(blocks, format, i / k * bytes_for(format, k), i % k));
            }
            for (std::int64_t i = 0; i < m; ++i) {
              for (std::int64_t j = 0; j < n; ++j) {
                double sum = with_bias ? bias.number(i * n + j) : 0.0;
                double magnitude = std::fabs(sum);
                for (std::int64_t p = 0; p < k; ++p) {
                  const double term = left[static_cast<std::size_t>(i * k + p)] *
                                      right[static_cast<std::size_t>(j * k + p)];
                  sum += term;
                  magnitude += std::fabs(term);
                }
                ASSERT_NEAR(out.number(i * n + j), sum,
                            step(dtype) * std::fabs(sum) + 2e-6 * magnitude + 3e-8)
                    << m << " x " << k << " at " << i << ", " << j;
              }
            }
          }
        }
      }
    }
    cpu::limit_simd(before);
  }
  cpu::set_thread_count(threads);
}

TEST(QuantizedTest, DequantizeAndEmbedding) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const cpu::Simd level : kLevels) {
    const cpu::Simd before = cpu::limit_simd(level);
    for (const Format format : kFormats) {
      Owned blocks = random_blocks(format, 11, 96, rng);
      Owned all = Owned::scattered(DType::float32, {11, 96}, rng);
      call_kernel("quant:dequantize", {all.view(), blocks.view()}, {code(format)});
      Owned ids = Owned::scattered(DType::int64, {2, 3}, rng);
      const std::int64_t chosen[] = {10, 0, 3, 3, 7, 1};
      for (std::int64_t i = 0; i < 6; ++i) ids.set(i, chosen[i]);
      Owned out(DType::float64, {2, 3, 96});
      call_kernel("embedding:quantized", {out.view(), ids.view(), blocks.view()}, {code(format)});
      const std::int64_t row_bytes = bytes_for(format, 96);
      for (std::int64_t i = 0; i < all.count(); ++i) {
        const double want = weight(blocks, format, i / 96 * row_bytes, i % 96);
        ASSERT_NEAR(all.number(i), want, 1e-6 * std::fabs(want) + 1e-9);
      }
      for (std::int64_t i = 0; i < out.count(); ++i) {
        ASSERT_EQ(out.number(i), all.number(chosen[i / 96] * 96 + i % 96));
      }
      ids.set<std::int64_t>(4, 11);
      try {
        call_kernel("embedding:quantized", {out.view(), ids.view(), blocks.view()}, {code(format)});
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kIndex);
        EXPECT_NE(std::string(error.what()).find("11"), std::string::npos);
      }
    }
    cpu::limit_simd(before);
  }
}

TEST(QuantizedTest, QuantizeComesWithinHalfAStep) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const Format format : kFormats) {
    Owned in = Owned::scattered(DType::float32, {5, 160}, rng);
    in.randomise(rng);
    for (std::int64_t i = 0; i < 32; ++i) in.set(i, 0.0F);      // a block of zeros
    for (std::int64_t i = 160; i < 192; ++i) in.set(i, 1.75F);  // a constant block
    Owned blocks(DType::uint8, {5, bytes_for(format, 160)});
    call_kernel("quant:quantize", {blocks.view(), in.view()}, {code(format)});
    Owned out(DType::float32, {5, 160});
    call_kernel("quant:dequantize", {out.view(), blocks.view()}, {code(format)});
    for (std::int64_t block = 0; block < 25; ++block) {
      double low = 1e9;
      double high = -1e9;
      for (std::int64_t i = 0; i < 32; ++i) {
        low = std::min(low, in.number(block * 32 + i));
        high = std::max(high, in.number(block * 32 + i));
      }
      const double size = format == Format::q4_1 ? (high - low) / 15
                                                 : std::max(std::fabs(low), std::fabs(high)) / 127;
      // Half a step, and what rounding the scale and the offset to float16 adds.
      const double bound = size * 0.5 + std::max(std::fabs(low), std::fabs(high)) * 2e-3;
      for (std::int64_t i = 0; i < 32; ++i) {
        ASSERT_NEAR(out.number(block * 32 + i), in.number(block * 32 + i), bound);
      }
    }
    in.set(77, std::nanf(""));
    EXPECT_THROW(call_kernel("quant:quantize", {blocks.view(), in.view()}, {code(format)}), Error);
  }
}

TEST(QuantizedTest, WrongOperandsAreNamed) {
  Owned blocks(DType::uint8, {3, 40});
  Owned a(DType::float32, {2, 96});
  Owned out(DType::float32, {2, 3});
  const std::vector<TensorView> tensors{out.view(), a.view(), blocks.view(), absent_view()};
  EXPECT_THROW(call_kernel("matmul:quantized", tensors, {code(Format::q4_1)}), Error);
  EXPECT_THROW(call_kernel("matmul:quantized", tensors, {integer_scalar(99)}), Error);
}

}  // namespace
}  // namespace nbx::testing
