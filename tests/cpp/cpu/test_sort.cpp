// Sorting against a stable insertion of values in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "cpu/kernel_testing.h"

namespace nbx::testing {
namespace {

bool comes_before(double a, double b, bool descending) {
  if (std::isnan(a)) return descending && !std::isnan(b);
  if (std::isnan(b)) return !descending;
  return descending ? a > b : a < b;
}

/// Order of one row, by inserting each element behind those that it does not precede.
std::vector<std::int64_t> order_of(Owned& in, std::int64_t row, std::int64_t width,
                                   bool descending) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < width; ++i) {
    std::size_t at = order.size();
    while (at > 0 && comes_before(in.number(row * width + i),
                                  in.number(row * width + order[at - 1]), descending)) {
      --at;
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), i);
  }
  return order;
}

void expect_same(double a, double b) {
  if (std::isnan(b)) {
    ASSERT_TRUE(std::isnan(a));
  } else {
    ASSERT_EQ(a, b);
  }
}

TEST(SortTest, SortAndTopk) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                            DType::int8, DType::int32, DType::uint8, DType::bool_}) {
    for (const std::int64_t width : {0, 1, 2, 61}) {
      for (const bool scattered : {false, true}) {
        for (const bool descending : {false, true}) {
          const auto make = [&](DType type, std::int64_t last) {
            return scattered ? Owned::scattered(type, {3, last}, rng) : Owned(type, {3, last});
          };
          Owned in = make(dtype, width);
          in.randomise(rng);
          if (width > 10 && is_floating(dtype)) {
            for (int i = 0; i < 9; ++i) in.set_number(static_cast<int>(rng() % 180), 1.5);
            in.set_number(3, -std::numeric_limits<double>::infinity());
            if (itemsize_of(dtype) >= 4) in.set_number(5, std::nan(""));
            if (itemsize_of(dtype) >= 4) in.set_number(7, std::nan(""));
            in.set_number(8, 0.0);
            in.set_number(9, -0.0);
          }
          Owned values = make(dtype, width);
          Owned indices = make(DType::int64, width);
          call_kernel("sort:sort", {values.view(), indices.view(), in.view()},
                      {integer_scalar(descending ? 1 : 0), integer_scalar(1)});
          const std::int64_t k = std::min<std::int64_t>(width, 5);
          Owned top = make(dtype, k);
          Owned top_indices = make(DType::int64, k);
          call_kernel("sort:topk", {top.view(), top_indices.view(), in.view()},
                      {integer_scalar(k), integer_scalar(descending ? 1 : 0), integer_scalar(1)});
          for (std::int64_t row = 0; row < 3; ++row) {
            const std::vector<std::int64_t> order = order_of(in, row, width, descending);
            for (std::int64_t i = 0; i < width; ++i) {
              const std::int64_t want = order[static_cast<std::size_t>(i)];
              ASSERT_EQ(indices.get<std::int64_t>(row * width + i), want);
              expect_same(values.number(row * width + i), in.number(row * width + want));
              if (i >= k) continue;
              ASSERT_EQ(top_indices.get<std::int64_t>(row * k + i), want);
              expect_same(top.number(row * k + i), in.number(row * width + want));
            }
          }
        }
      }
    }
  }
}

TEST(SortTest, WideIntegersAreExact) {
  Owned in(DType::int64, {4});
  const std::int64_t base = std::int64_t{1} << 60;
  const std::int64_t given[] = {base + 2, base, -base, base + 1};
  for (int i = 0; i < 4; ++i) in.set(i, given[i]);
  Owned values(DType::int64, {4});
  Owned indices(DType::int64, {4});
  call_kernel("sort:sort", {values.view(), indices.view(), in.view()},
              {integer_scalar(0), integer_scalar(1)});
  const std::int64_t order[] = {2, 1, 3, 0};
  for (int i = 0; i < 4; ++i) ASSERT_EQ(indices.get<std::int64_t>(i), order[i]);
  Owned big(DType::uint64, {2});
  big.set<std::uint64_t>(0, ~std::uint64_t{0});
  big.set<std::uint64_t>(1, 1);
  Owned big_values(DType::uint64, {2});
  Owned big_indices(DType::int64, {2});
  call_kernel("sort:sort", {big_values.view(), big_indices.view(), big.view()},
              {integer_scalar(0), integer_scalar(1)});
  ASSERT_EQ(big_indices.get<std::int64_t>(0), 1);
}

TEST(SortTest, RefusesWhatHasNoOrderAndTooManyOfThem) {
  Owned in(DType::complex64, {4});
  Owned real(DType::float32, {4});
  Owned indices(DType::int64, {4});
  EXPECT_THROW(call_kernel("sort:sort", {in.view(), indices.view(), in.view()},
                           {integer_scalar(0), integer_scalar(1)}),
               Error);
  EXPECT_THROW(call_kernel("sort:topk", {real.view(), indices.view(), real.view()},
                           {integer_scalar(5), integer_scalar(1), integer_scalar(1)}),
               Error);
}

}  // namespace
}  // namespace nbx::testing
