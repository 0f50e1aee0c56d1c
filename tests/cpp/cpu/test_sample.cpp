// Sampling against the probabilities that its rules define, evaluated naively.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "cpu/kernel_testing.h"

namespace nbx::testing {
namespace {

constexpr std::int64_t kIds = 12;

/// Probability of every id; a quadratic count of who comes before stands in for sorting.
std::vector<double> probabilities(const std::vector<double>& logits, double temperature, int top_k,
                                  double top_p) {
  const std::size_t n = logits.size();
  double top = -std::numeric_limits<double>::infinity();
  for (const double x : logits) top = std::max(top, x);
  std::vector<double> p(n);
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    int above = 0;
    for (const double x : logits) above += x > logits[i] ? 1 : 0;
    p[i] = top_k > 0 && above >= top_k ? 0.0 : std::exp((logits[i] - top) / temperature);
    sum += p[i];
  }
  std::vector<double> kept(n, 0.0);
  double kept_sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    double before = 0.0;
    for (std::size_t j = 0; j < n; ++j) {
      if (p[j] > p[i] || (p[j] == p[i] && j < i)) before += p[j];
    }
    if (before == 0.0 || before < top_p * sum) kept[i] = p[i];
    kept_sum += kept[i];
  }
  for (double& value : kept) value /= kept_sum;
  return kept;
}

std::vector<std::int64_t> sample(const std::vector<double>& logits,
                                 const std::vector<double>& uniforms, double temperature, int top_k,
                                 double top_p) {
  const auto rows = static_cast<std::int64_t>(uniforms.size());
  Owned x(DType::float64, {rows, kIds});
  Owned u(DType::float64, {rows});
  Owned ids(DType::int64, {rows});
  for (std::int64_t i = 0; i < rows * kIds; ++i) {
    x.set_number(i, logits[static_cast<std::size_t>(i % kIds)]);
  }
  for (std::int64_t i = 0; i < rows; ++i) u.set_number(i, uniforms[static_cast<std::size_t>(i)]);
  call_kernel("sample:logits", {ids.view(), x.view(), u.view()},
              {real_scalar(temperature), integer_scalar(top_k), real_scalar(top_p)});
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < rows; ++i) result.push_back(ids.get<std::int64_t>(i));
  return result;
}

TEST(SampleTest, EachIdOwnsItsShareOfTheUnitInterval) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> real(-2.0, 2.0);
  for (const double temperature : {0.5, 1.0, 2.0}) {
    for (const int top_k : {0, 1, 4, 40}) {
      for (const double top_p : {0.0, 0.3, 0.8, 1.0}) {
        std::vector<double> logits(kIds);
        for (double& x : logits) x = real(rng);
        logits[5] = logits[2];
        logits[7] = -std::numeric_limits<double>::infinity();
        const std::vector<double> p = probabilities(logits, temperature, top_k, top_p);
        // Just inside both ends of the stretch that belongs to every id.
        std::vector<double> uniforms;
        std::vector<std::int64_t> expected;
        double begin = 0.0;
        for (std::int64_t i = 0; i < kIds; ++i) {
          const double share = p[static_cast<std::size_t>(i)];
          if (share > 1e-9) {
            uniforms.push_back(begin + share * 1e-4);
            uniforms.push_back(begin + share * (1.0 - 1e-4));
            expected.push_back(i);
            expected.push_back(i);
          }
          begin += share;
        }
        ASSERT_EQ(sample(logits, uniforms, temperature, top_k, top_p), expected)
            << "temperature " << temperature << " k " << top_k << " p " << top_p;
      }
    }
  }
}

TEST(SampleTest, NoTemperatureTakesTheFirstGreatest) {
  std::vector<double> logits(kIds, 1.0);
  logits[4] = logits[9] = 3.0;
  EXPECT_EQ(sample(logits, {0.99, 0.0}, 0.0, 0, 1.0), (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(sample(logits, {0.99}, -1.0, 3, 0.5), (std::vector<std::int64_t>{4}));
}

TEST(SampleTest, InfinityWinsAndNonsenseIsRefused) {
  std::vector<double> logits(kIds, 1.0);
  logits[6] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sample(logits, {0.9}, 1.0, 0, 1.0), (std::vector<std::int64_t>{6}));
  logits[3] = std::nan("");
  EXPECT_THROW(sample(logits, {0.9}, 1.0, 0, 1.0), Error);
  const std::vector<double> none(kIds, -std::numeric_limits<double>::infinity());
  EXPECT_THROW(sample(none, {0.9}, 1.0, 0, 1.0), Error);
  EXPECT_THROW(sample(std::vector<double>(kIds, 1.0), {0.9}, 1.0, -2, 1.0), Error);
  EXPECT_THROW(sample(std::vector<double>(kIds, 1.0), {0.9}, 1.0, 0, -0.5), Error);
}

}  // namespace
}  // namespace nbx::testing
