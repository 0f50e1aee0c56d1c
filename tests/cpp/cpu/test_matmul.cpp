// Dense products against sums in double (exact integers for the integer types).
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <random>
#include <vector>

#include "cpu/kernel_testing.h"
#include "cpu/pool.h"
#include "cpu/target.h"

namespace nbx::testing {
namespace {

using Shape = std::vector<std::int64_t>;
const cpu::Simd kLevels[] = {cpu::Simd::kPortable, cpu::Simd::kAvx2, cpu::Simd::kAvx512};

struct Size {
  std::int64_t m, n, k;
};

Owned make(DType dtype, const Shape& shape, bool scattered, std::mt19937& rng) {
  Owned tensor = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
  tensor.randomise(rng);
  return tensor;
}

double relative_step(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-13;
    case DType::float32:
      return 1e-6;
    case DType::float16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

/// The elements in row-major order.
std::vector<double> numbers(Owned& tensor) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.number(i));
  return values;
}

/// Row i of `a` times column j of `b`: the sum, and the sum of magnitudes that bounds its error.
struct Sum {
  double value = 0.0;
  double magnitude = 0.0;
};
Sum dot(const std::vector<double>& a, std::int64_t a_first, const std::vector<double>& b,
        std::int64_t b_first, std::int64_t b_step, std::int64_t k) {
  Sum sum;
  const double* x = a.data() + a_first;
  const double* y = b.data() + b_first;
  for (std::int64_t p = 0; p < k; ++p) {
    const double term = x[p] * y[p * b_step];
    sum.value += term;
    sum.magnitude += std::fabs(term);
  }
  return sum;
}

void check_product(DType dtype, const Size& size, bool scattered, bool with_bias,
                   std::mt19937& rng) {
  const auto [m, n, k] = size;
  Owned a = make(dtype, {m, k}, scattered, rng);
  Owned b = make(dtype, {k, n}, scattered, rng);
  Owned bias = make(dtype, {m, n}, scattered, rng);
  Owned out = make(dtype, {m, n}, scattered, rng);
  call_kernel("matmul:dense",
              {out.view(), a.view(), b.view(), with_bias ? bias.view() : absent_view()});
  const std::vector<double> left = numbers(a);
  const std::vector<double> right = numbers(b);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      Sum sum = dot(left, i * k, right, j, n, k);
      if (with_bias) sum.value += bias.number(i * n + j);
      const double bound = relative_step(dtype) * std::fabs(sum.value) +
                           (dtype == DType::float64 ? 1e-14 : 1e-6) * (sum.magnitude + 4.0) +
                           (dtype == DType::float16 ? 3e-8 : 0.0);
      ASSERT_NEAR(out.number(i * n + j), sum.value, bound)
          << facts_of(dtype).name << " " << m << "x" << n << "x" << k << " scattered " << scattered
          << " at " << i << ", " << j;
    }
  }
}

TEST(MatmulTest, FloatsInAnyLayout) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const int threads = cpu::set_thread_count(3);
  for (const cpu::Simd level : kLevels) {
    const cpu::Simd before = cpu::limit_simd(level);
    for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
      for (const Size& size : {Size{1, 1, 1}, Size{0, 3, 2}, Size{3, 0, 2}, Size{2, 3, 0},
                               Size{1, 67, 301}, Size{3, 40, 64}, Size{5, 33, 7}, Size{13, 31, 64},
                               Size{29, 97, 53}, Size{61, 71, 523}, Size{4, 32, 288}}) {
        for (const bool scattered : {false, true}) {
          check_product(dtype, size, scattered, size.m % 2 == 1, rng);
        }
      }
    }
    cpu::limit_simd(before);
  }
  cpu::set_thread_count(threads);
}

TEST(MatmulTest, TransposedRightOperand) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const cpu::Simd level : kLevels) {
    const cpu::Simd before = cpu::limit_simd(level);
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (const Size& size : {Size{1, 70, 300}, Size{2, 33, 64}, Size{3, 5, 17}, Size{4, 129, 95},
                               Size{17, 64, 576}, Size{30, 65, 1024}}) {
        const auto [m, n, k] = size;
        Owned a = make(dtype, {m, k}, false, rng);
        Owned weights = make(dtype, {n, k}, false, rng);
        Owned out = make(dtype, {m, n}, false, rng);
        const std::int64_t shape[] = {k, n};
        const std::int64_t strides[] = {1, k};
        const TensorView transposed{weights.view().data, shape, strides, 2, dtype};
        call_kernel("matmul:dense", {out.view(), a.view(), transposed, absent_view()});
        const std::vector<double> left = numbers(a);
        const std::vector<double> right = numbers(weights);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            const Sum sum = dot(left, i * k, right, j * k, 1, k);
            ASSERT_NEAR(out.number(i * n + j), sum.value,
                        relative_step(dtype) * std::fabs(sum.value) + 1e-6 * sum.magnitude + 3e-8);
          }
        }
      }
    }
    cpu::limit_simd(before);
  }
}

TEST(MatmulTest, IntegersWrapExactly) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const bool scattered : {false, true}) {
    Owned a = make(DType::int64, {7, 37}, scattered, rng);
    Owned b = make(DType::int64, {37, 19}, scattered, rng);
    Owned out = make(DType::int64, {7, 19}, scattered, rng);
    call_kernel("matmul:dense", {out.view(), a.view(), b.view(), absent_view()});
    Owned a8 = make(DType::int8, {7, 37}, scattered, rng);
    Owned b8 = make(DType::int8, {37, 19}, scattered, rng);
    Owned out8 = make(DType::int8, {7, 19}, scattered, rng);
    call_kernel("matmul:dense", {out8.view(), a8.view(), b8.view(), absent_view()});
    for (std::int64_t i = 0; i < 7; ++i) {
      for (std::int64_t j = 0; j < 19; ++j) {
        std::uint64_t sum = 0;
        std::int64_t sum8 = 0;
        for (std::int64_t p = 0; p < 37; ++p) {
          sum += a.get<std::uint64_t>(i * 37 + p) * b.get<std::uint64_t>(p * 19 + j);
          sum8 += a8.get<std::int8_t>(i * 37 + p) * b8.get<std::int8_t>(p * 19 + j);
        }
        ASSERT_EQ(out.get<std::uint64_t>(i * 19 + j), sum);
        ASSERT_EQ(out8.get<std::int8_t>(i * 19 + j), static_cast<std::int8_t>(sum8));
      }
    }
  }
}

TEST(MatmulTest, BoolIsAnyOfBoth) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  Owned a = make(DType::bool_, {5, 3}, true, rng);
  Owned b = make(DType::bool_, {3, 20}, true, rng);
  Owned out = make(DType::bool_, {5, 20}, true, rng);
  call_kernel("matmul:dense", {out.view(), a.view(), b.view(), absent_view()});
  for (std::int64_t i = 0; i < 100; ++i) {
    bool any = false;
    for (std::int64_t p = 0; p < 3; ++p) {
      any = any || (a.number(i / 20 * 3 + p) != 0 && b.number(p * 20 + i % 20) != 0);
    }
    ASSERT_EQ(out.get<std::uint8_t>(i), any ? 1 : 0);
  }
}

template <class C>
void check_complex(DType dtype, double bound, std::mt19937& rng) {
  Owned a = make(dtype, {6, 31}, true, rng);
  Owned b = make(dtype, {31, 18}, true, rng);
  Owned out = make(dtype, {6, 18}, true, rng);
  call_kernel("matmul:dense", {out.view(), a.view(), b.view(), absent_view()});
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t j = 0; j < 18; ++j) {
      std::complex<double> sum = 0.0;
      for (std::int64_t p = 0; p < 31; ++p) {
        sum +=
            std::complex<double>(a.get<C>(i * 31 + p)) * std::complex<double>(b.get<C>(p * 18 + j));
      }
      ASSERT_LT(std::abs(std::complex<double>(out.get<C>(i * 18 + j)) - sum), bound);
    }
  }
}

TEST(MatmulTest, Complex) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  check_complex<std::complex<float>>(DType::complex64, 1e-3, rng);
  check_complex<std::complex<double>>(DType::complex128, 1e-11, rng);
}

TEST(MatmulTest, BatchesBroadcast) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  Owned a = make(DType::float32, {3, 1, 5, 17}, true, rng);
  Owned b = make(DType::float32, {2, 17, 9}, true, rng);
  Owned out = make(DType::float32, {3, 2, 5, 9}, true, rng);
  const std::int64_t a_shape[] = {3, 2, 5, 17};
  std::int64_t a_strides[4];
  std::copy_n(a.view().strides, 4, a_strides);
  a_strides[1] = 0;
  const std::int64_t b_shape[] = {3, 2, 17, 9};
  const TensorView b_view = b.view();
  const std::int64_t b_strides[] = {0, b_view.strides[0], b_view.strides[1], b_view.strides[2]};
  call_kernel("matmul:dense", {out.view(),
                               {a.view().data, a_shape, a_strides, 4, DType::float32},
                               {b_view.data, b_shape, b_strides, 4, DType::float32},
                               absent_view()});
  for (std::int64_t i = 0; i < out.count(); ++i) {
    const std::int64_t column = i % 9, row = i / 9 % 5, second = i / 45 % 2, first = i / 90;
    double sum = 0.0;
    for (std::int64_t p = 0; p < 17; ++p) {
      sum += a.number((first * 5 + row) * 17 + p) * b.number((second * 17 + p) * 9 + column);
    }
    ASSERT_NEAR(out.number(i), sum, 1e-4);
  }
}

TEST(MatmulTest, TheThreadCountDoesNotShow) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const int threads = cpu::thread_count();
  for (const Size& size : {Size{1, 301, 700}, Size{130, 95, 700}, Size{700, 20, 301}}) {
    Owned a = make(DType::float32, {size.m, size.k}, false, rng);
    Owned b = make(DType::float32, {size.k, size.n}, false, rng);
    std::vector<float> first;
    for (const int count : {1, 2, 3, 7}) {
      cpu::set_thread_count(count);
      Owned out(DType::float32, {size.m, size.n});
      call_kernel("matmul:dense", {out.view(), a.view(), b.view(), absent_view()});
      std::vector<float> values;
      for (std::int64_t i = 0; i < out.count(); ++i) values.push_back(out.get<float>(i));
      if (first.empty()) first = values;
      ASSERT_EQ(values, first) << count << " threads";
    }
  }
  cpu::set_thread_count(threads);
}

}  // namespace
}  // namespace nbx::testing
