// Attention against a direct evaluation in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "cpu/kernel_testing.h"
#include "cpu/pool.h"
#include "cpu/target.h"

namespace nbx::testing {
namespace {

const cpu::Simd kLevels[] = {cpu::Simd::kPortable, cpu::Simd::kAvx2, cpu::Simd::kAvx512};

enum class Mask { kNone, kBool, kFloat };

struct Case {
  std::int64_t batch, heads, key_heads, queries, keys, width, value_width;
  bool causal;
  std::int64_t window;  // -1: none
  std::int64_t length;  // -1: all keys
  Mask mask;
};

struct Operands {
  Owned q, k, v, mask, out;
};

/// The operands' elements in row-major order.
struct Numbers {
  std::vector<double> q, k, v, mask;
};

std::vector<double> numbers(Owned& tensor) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.number(i));
  return values;
}

Operands operands(const Case& c, DType dtype, bool scattered, std::mt19937& rng) {
  const auto make = [&](DType type, std::vector<std::int64_t> shape) {
    Owned tensor = scattered ? Owned::scattered(type, shape, rng) : Owned(type, shape);
    tensor.randomise(rng);
    return tensor;
  };
  return {make(dtype, {c.batch, c.heads, c.queries, c.width}),
          make(dtype, {c.batch, c.key_heads, c.keys, c.width}),
          make(dtype, {c.batch, c.key_heads, c.keys, c.value_width}),
          make(c.mask == Mask::kBool ? DType::bool_ : dtype, {c.batch, 1, c.queries, c.keys}),
          make(dtype, {c.batch, c.heads, c.queries, c.value_width})};
}

void run(const Case& c, Operands& o, double scale) {
  const std::int64_t shape[] = {c.batch, c.heads, c.queries, c.keys};
  const TensorView mask = o.mask.view();
  const std::int64_t strides[] = {mask.strides[0], 0, mask.strides[2], mask.strides[3]};
  const TensorView broadcast{mask.data, shape, strides, 4, mask.dtype};
  call_kernel("attention:forward",
              {o.out.view(), o.q.view(), o.k.view(), o.v.view(),
               c.mask == Mask::kNone ? absent_view() : broadcast},
              {real_scalar(scale), integer_scalar(c.causal ? 1 : 0), integer_scalar(c.window),
               c.length < 0 ? Scalar{} : integer_scalar(c.length)});
}

double at(const std::vector<double>& values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

/// One row of the result, in double.
std::vector<double> expected_row(const Case& c, const Numbers& o, double scale, std::int64_t batch,
                                 std::int64_t head, std::int64_t query) {
  const std::int64_t length = c.length < 0 ? c.keys : c.length;
  const std::int64_t key_head = batch * c.key_heads + head / (c.heads / c.key_heads);
  const std::int64_t position = length - c.queries + query;
  std::vector<double> scores(static_cast<std::size_t>(length));
  double top = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < length; ++j) {
    double score = 0.0;
    for (std::int64_t i = 0; i < c.width; ++i) {
      score += at(o.q, ((batch * c.heads + head) * c.queries + query) * c.width + i) *
               at(o.k, (key_head * c.keys + j) * c.width + i);
    }
    score *= scale;
    const std::int64_t mask_index = (batch * c.queries + query) * c.keys + j;
    const bool hidden = (c.causal && j > position) || (c.window >= 0 && j <= position - c.window) ||
                        (c.mask == Mask::kBool && at(o.mask, mask_index) == 0.0);
    if (c.mask == Mask::kFloat) score += at(o.mask, mask_index);
    scores[static_cast<std::size_t>(j)] = hidden ? -std::numeric_limits<double>::infinity() : score;
    top = std::max(top, scores[static_cast<std::size_t>(j)]);
  }
  std::vector<double> row(static_cast<std::size_t>(c.value_width), 0.0);
  if (std::isinf(top)) return row;
  double total = 0.0;
  for (std::int64_t j = 0; j < length; ++j) {
    const double weight = std::exp(scores[static_cast<std::size_t>(j)] - top);
    total += weight;
    for (std::int64_t i = 0; i < c.value_width; ++i) {
      row[static_cast<std::size_t>(i)] +=
          weight * at(o.v, (key_head * c.keys + j) * c.value_width + i);
    }
  }
  for (double& value : row) value /= total;
  return row;
}

void check(const Case& c, DType dtype, bool scattered, std::mt19937& rng) {
  Operands o = operands(c, dtype, scattered, rng);
  const Numbers given{numbers(o.q), numbers(o.k), numbers(o.v), numbers(o.mask)};
  const double scale = 0.1;
  run(c, o, scale);
  const double bound = dtype == DType::float64   ? 1e-11
                       : dtype == DType::float32 ? 2e-5
                       : dtype == DType::float16 ? 5e-3
                                                 : 4e-2;
  for (std::int64_t row = 0; row < c.batch * c.heads * c.queries; ++row) {
    const std::vector<double> want = expected_row(c, given, scale, row / c.queries / c.heads,
                                                  row / c.queries % c.heads, row % c.queries);
    for (std::int64_t i = 0; i < c.value_width; ++i) {
      ASSERT_NEAR(o.out.number(row * c.value_width + i), want[static_cast<std::size_t>(i)], bound)
          << facts_of(dtype).name << " row " << row << " of queries " << c.queries << ", keys "
          << c.keys << ", scattered " << scattered;
    }
  }
}

const Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1, false, -1, -1, Mask::kNone},
    {1, 9, 3, 1, 301, 64, 64, true, -1, 300, Mask::kNone},   // decoding, keys in chunks
    {2, 6, 3, 1, 700, 16, 24, true, 290, 611, Mask::kBool},  // with a window across chunks
    {1, 6, 2, 40, 140, 64, 64, true, -1, -1, Mask::kNone},   // prefill behind a cache
    {1, 3, 1, 67, 67, 33, 17, true, -1, -1, Mask::kFloat},
    {2, 2, 2, 5, 130, 8, 40, false, -1, -1, Mask::kBool},
    {1, 4, 2, 7, 5, 8, 8, true, -1, -1, Mask::kNone},  // the first rows see nothing
    {1, 2, 1, 131, 131, 20, 20, true, 9, -1, Mask::kNone},
    {1, 2, 1, 3, 8, 4, 4, true, 0, -1, Mask::kNone},   // a window of nothing
    {1, 2, 1, 3, 8, 4, 4, false, -1, 0, Mask::kNone},  // no keys
    {0, 2, 1, 3, 8, 4, 4, false, -1, -1, Mask::kNone},
};

TEST(AttentionTest, MatchesDouble) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const int threads = cpu::set_thread_count(3);
  for (const cpu::Simd level : kLevels) {
    const cpu::Simd before = cpu::limit_simd(level);
    for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
      for (const Case& c : kCases) {
        check(c, dtype, false, rng);
        check(c, dtype, true, rng);
      }
    }
    cpu::limit_simd(before);
  }
  cpu::set_thread_count(threads);
}

TEST(AttentionTest, TheThreadCountDoesNotShow) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  const int threads = cpu::thread_count();
  for (const Case& c : {kCases[1], kCases[2], kCases[3]}) {
    std::vector<double> first;
    for (const int count : {1, 2, 5}) {
      cpu::set_thread_count(count);
      std::mt19937 rng(seed);
      Operands o = operands(c, DType::float32, false, rng);
      run(c, o, 0.125);
      std::vector<double> values;
      for (std::int64_t i = 0; i < o.out.count(); ++i) values.push_back(o.out.number(i));
      if (first.empty()) first = values;
      ASSERT_EQ(values, first) << count << " threads";
    }
  }
  cpu::set_thread_count(threads);
}

TEST(AttentionTest, NotANumberReachesItsRowsOnly) {
  std::mt19937 rng(3);
  const Case c{1, 2, 1, 3, 40, 8, 8, true, -1, -1, Mask::kNone};
  for (const DType dtype : {DType::float32, DType::float64}) {
    Operands o = operands(c, dtype, false, rng);
    o.k.set_number(39 * 8 + 2, std::nan(""));  // the last key, which only the last query sees
    run(c, o, 0.5);
    for (std::int64_t i = 0; i < o.out.count(); ++i) {
      ASSERT_EQ(std::isnan(o.out.number(i)), i / 8 % 3 == 2) << i;
    }
  }
}

TEST(AttentionTest, LengthsBeyondTheCacheAreRefused) {
  std::mt19937 rng(4);
  Case c{1, 2, 1, 3, 8, 4, 4, true, -1, 9, Mask::kNone};
  Operands o = operands(c, DType::float32, false, rng);
  EXPECT_THROW(run(c, o, 1.0), Error);
}

}  // namespace
}  // namespace nbx::testing
