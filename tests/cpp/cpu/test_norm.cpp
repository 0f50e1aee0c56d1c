// Norms, softmax and gated activations against sums in double.
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

using Shape = std::vector<std::int64_t>;

const DType kFloats[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
const cpu::Simd kLevels[] = {cpu::Simd::kPortable, cpu::Simd::kAvx2, cpu::Simd::kAvx512};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-12;
    case DType::float32:
      return 4e-6;
    case DType::float16:
      return 1.5e-3;
    default:
      return 1e-2;
  }
}

void expect_close(Owned& out, const std::vector<double>& expected, const char* what) {
  for (std::int64_t i = 0; i < out.count(); ++i) {
    const double want = expected[static_cast<std::size_t>(i)];
    const double got = out.number(i);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << what << " element " << i;
    } else {
      ASSERT_NEAR(got, want, tolerance(out.dtype()) * std::max(1.0, std::fabs(want)))
          << what << " element " << i << " of " << facts_of(out.dtype()).name;
    }
  }
}

Owned make(DType dtype, const Shape& shape, bool scattered, std::mt19937& rng) {
  Owned tensor = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
  tensor.randomise(rng);
  return tensor;
}

/// Calls body(dtype, shape, scattered, rng) for every case, under every instruction set.
template <class Body>
void for_cases(const Body& body) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const int threads = cpu::set_thread_count(3);
  for (const cpu::Simd level : kLevels) {
    const cpu::Simd before = cpu::limit_simd(level);
    for (const DType dtype : kFloats) {
      for (const Shape& shape : {Shape{1}, Shape{576}, Shape{3, 7}, Shape{2, 5, 131}, Shape{0, 4},
                                 Shape{4, 0}, Shape{13, 1009}}) {
        for (const bool scattered : {false, true}) body(dtype, shape, scattered, rng);
      }
    }
    cpu::limit_simd(before);
  }
  cpu::set_thread_count(threads);
}

TEST(NormTest, RmsAndLayer) {
  for_cases([](DType dtype, const Shape& shape, bool scattered, std::mt19937& rng) {
    const std::int64_t width = shape.back();
    Owned in = make(dtype, shape, scattered, rng);
    Owned weight = make(dtype, {width}, scattered, rng);
    Owned bias = make(dtype, {width}, scattered, rng);
    for (const bool layer : {false, true}) {
      for (const bool plain : {false, true}) {
        Owned out = make(dtype, shape, scattered, rng);
        const double eps = 1e-5;
        const TensorView w = plain ? absent_view() : weight.view();
        if (layer) {
          call_kernel("norm:layer", {out.view(), in.view(), w, plain ? absent_view() : bias.view()},
                      {real_scalar(eps)});
        } else {
          call_kernel("norm:rms", {out.view(), in.view(), w}, {real_scalar(eps)});
        }
        std::vector<double> expected;
        for (std::int64_t row = 0; width > 0 && row < in.count(); row += width) {
          double mean = 0;
          for (std::int64_t j = 0; layer && j < width; ++j) mean += in.number(row + j);
          mean /= static_cast<double>(width);
          double squares = 0;
          for (std::int64_t j = 0; j < width; ++j) {
            squares += std::pow(in.number(row + j) - mean, 2);
          }
          const double root = std::sqrt(squares / static_cast<double>(width) + eps);
          for (std::int64_t j = 0; j < width; ++j) {
            double value = (in.number(row + j) - mean) / root;
            if (!plain) value *= weight.number(j);
            if (!plain && layer) value += bias.number(j);
            expected.push_back(value);
          }
        }
        expect_close(out, expected, layer ? "layer" : "rms");
      }
    }
  });
}

TEST(NormTest, RmsAddEqualsTheTwoOps) {
  for_cases([](DType dtype, const Shape& shape, bool scattered, std::mt19937& rng) {
    Owned in = make(dtype, shape, scattered, rng);
    Owned residual = make(dtype, shape, scattered, rng);
    Owned weight = make(dtype, {shape.back()}, scattered, rng);
    Owned sum = make(dtype, shape, scattered, rng);
    Owned out = make(dtype, shape, scattered, rng);
    Owned apart = make(dtype, shape, scattered, rng);
    call_kernel("norm:rms_add", {out.view(), sum.view(), in.view(), residual.view(), weight.view()},
                {real_scalar(1e-6)});
    call_kernel("norm:rms", {apart.view(), sum.view(), weight.view()}, {real_scalar(1e-6)});
    for (std::int64_t i = 0; i < out.count(); ++i) {
      const double expected = in.number(i) + residual.number(i);
      ASSERT_NEAR(sum.number(i), expected, tolerance(dtype) * std::max(1.0, std::fabs(expected)));
      ASSERT_EQ(out.number(i), apart.number(i));
    }
  });
}

std::vector<double> softmax_of(Owned& in, std::int64_t width, bool logarithm) {
  std::vector<double> expected;
  for (std::int64_t row = 0; width > 0 && row < in.count(); row += width) {
    double top = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < width; ++j) top = std::max(top, in.number(row + j));
    double sum = 0;
    for (std::int64_t j = 0; j < width; ++j) sum += std::exp(in.number(row + j) - top);
    for (std::int64_t j = 0; j < width; ++j) {
      const double x = in.number(row + j) - top;
      expected.push_back(logarithm ? x - std::log(sum) : std::exp(x) / sum);
    }
  }
  return expected;
}

TEST(SoftmaxTest, MatchesDouble) {
  for_cases([](DType dtype, const Shape& shape, bool scattered, std::mt19937& rng) {
    Owned in = make(dtype, shape, scattered, rng);
    Owned out = make(dtype, shape, scattered, rng);
    call_kernel("norm:softmax", {out.view(), in.view()});
    expect_close(out, softmax_of(in, shape.back(), false), "softmax");
    call_kernel("norm:log_softmax", {out.view(), in.view()});
    expect_close(out, softmax_of(in, shape.back(), true), "log_softmax");
  });
}

TEST(SoftmaxTest, LargeAndInfiniteInputs) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::float32, DType::float64}) {
    Owned in(dtype, {4, 19});
    for (std::int64_t i = 0; i < in.count(); ++i) {
      const std::int64_t row = i / 19;
      in.set_number(i, row == 0   ? 1000.0 + static_cast<double>(i % 3)
                       : row == 1 ? (i % 19 == 18 ? 3.0 : -infinity)
                       : row == 2 ? -infinity
                                  : (i % 19 == 4 ? std::nan("") : 0.5));
    }
    Owned out(dtype, {4, 19});
    call_kernel("norm:softmax", {out.view(), in.view()});
    for (std::int64_t j = 0; j < 19; ++j) {
      ASSERT_TRUE(std::isfinite(out.number(j)));
      ASSERT_EQ(out.number(19 + j), j == 18 ? 1.0 : 0.0);
      ASSERT_TRUE(std::isnan(out.number(38 + j)));
      ASSERT_TRUE(std::isnan(out.number(57 + j)));
    }
  }
}

TEST(ActivationTest, GatesMatchDouble) {
  for_cases([](DType dtype, const Shape& shape, bool scattered, std::mt19937& rng) {
    Owned gate = make(dtype, shape, scattered, rng);
    Owned up = make(dtype, shape, scattered, rng);
    Owned out = make(dtype, shape, scattered, rng);
    for (int kind = 0; kind < 3; ++kind) {
      if (kind == 0) {
        call_kernel("activation:silu_mul", {out.view(), gate.view(), up.view()});
      } else {
        call_kernel("activation:gelu_mul", {out.view(), gate.view(), up.view()},
                    {integer_scalar(kind - 1)});
      }
      std::vector<double> expected;
      for (std::int64_t i = 0; i < out.count(); ++i) {
        const double g = gate.number(i);
        const double factor =
            kind == 0   ? 1 / (1 + std::exp(-g))
            : kind == 1 ? 0.5 * (1 + std::erf(g / std::sqrt(2.0)))
                        : 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        expected.push_back(g * factor * up.number(i));
      }
      expect_close(out, expected, "gate");
    }
  });
}

TEST(ActivationTest, ExtremeGates) {
  Owned gate(DType::float32, {6});
  Owned up(DType::float32, {6});
  Owned out(DType::float32, {6});
  const double gates[] = {-1e30, -200.0, -104.0, 104.0, 1e30, 0.0};
  for (int i = 0; i < 6; ++i) {
    gate.set_number(i, gates[i]);
    up.set_number(i, 2.0);
  }
  call_kernel("activation:silu_mul", {out.view(), gate.view(), up.view()});
  for (int i = 0; i < 6; ++i) {
    const double want = gates[i] > 0 ? 2.0 * gates[i] : 0.0;
    ASSERT_NEAR(out.number(i), want, 1e-6 * std::max(1.0, want));
  }
}

TEST(NormTest, IntegersAreRefusedByName) {
  Owned in(DType::int32, {2, 3});
  Owned out(DType::float32, {2, 3});
  try {
    call_kernel("norm:softmax", {out.view(), in.view()});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kType);
    EXPECT_NE(std::string(error.what()).find("int32"), std::string::npos);
  }
}

}  // namespace
}  // namespace nbx::testing
