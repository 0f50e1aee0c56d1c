// Scans against naive loops.
#include <algorithm>

#include "core/error.h"
#include "kernel_testing.h"

namespace nbx {
namespace {

using testing::call_kernel;
using testing::dtype_scalar;
using testing::fresh_seed;
using testing::Owned;

const std::vector<std::vector<std::int64_t>> kShapes = {{1},        {2500},     {0, 3},  {3, 0},
                                                        {7, 5, 11}, {40, 1030}, {300, 2}};

TEST(Scan, SumsAndProductsOfFloats) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::float16, DType::float32, DType::float64}) {
    const double unit = dtype == DType::float16 ? 0x1p-11 : dtype == DType::float32 ? 0x1p-24 : 0;
    for (const auto& shape : kShapes) {
      for (const bool scattered : {false, true}) {
        Owned in = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
        Owned out = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
        in.randomise(rng);
        const DType op = dtype == DType::float64 ? dtype : DType::float32;
        call_kernel("scan:cumsum", {out.view(), in.view()}, {dtype_scalar(op)});
        long double sum = 0;
        double slack = 0;  // of the additions in double so far, and of `expected` itself
        for (std::int64_t i = 0; i < in.count(); ++i) {
          const bool starts = i % shape.back() == 0;
          sum = starts ? in.number(i) : sum + in.number(i);
          const auto expected = static_cast<double>(sum);
          slack = (starts ? 0 : slack) + std::fabs(expected) * 0x1p-53;
          ASSERT_NEAR(out.number(i), expected,
                      1.01 * ((unit + 0x1p-53) * (std::fabs(expected) + 1e-3) + slack))
              << i;
        }
        for (std::int64_t i = 0; i < in.count(); ++i) in.set_number(i, rng() % 2 == 0 ? -1.0 : 1.0);
        call_kernel("scan:cumprod", {out.view(), in.view()}, {dtype_scalar(op)});
        double product = 1;
        for (std::int64_t i = 0; i < in.count(); ++i) {
          product = i % shape.back() == 0 ? in.number(i) : product * in.number(i);
          ASSERT_EQ(out.number(i), product);
        }
      }
    }
  }
}

TEST(Scan, IntegersWrapExactly) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  Owned in(DType::int64, {3, 400});
  in.randomise(rng);
  Owned out(DType::int64, {3, 400});
  call_kernel("scan:cumsum", {out.view(), in.view()}, {dtype_scalar(DType::int64)});
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < 1200; ++i) {
    const auto value = in.get<std::uint64_t>(i);
    sum = i % 400 == 0 ? value : sum + value;
    ASSERT_EQ(out.get<std::uint64_t>(i), sum);
  }
}

/// Runs along the first axis of a row-major matrix: neighbouring rows go side by side.
TEST(Scan, ColumnsAgreeWithRows) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  Owned in(DType::float32, {90, 300});
  Owned out(DType::float32, {90, 300});
  Owned places(DType::int64, {90, 300});
  in.randomise(rng);
  const std::int64_t shape[] = {300, 90};
  const std::int64_t strides[] = {1, 300};
  const auto turned = [&](Owned& t) {
    return TensorView{t.view().data, shape, strides, 2, t.dtype()};
  };
  call_kernel("scan:cumsum", {turned(out), turned(in)}, {dtype_scalar(DType::float32)});
  for (std::int64_t j = 0; j < 300; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < 90; ++i) {
      sum += in.number(i * 300 + j);
      ASSERT_EQ(out.get<float>(i * 300 + j), static_cast<float>(sum));
    }
  }
  call_kernel("scan:cummin", {turned(out), turned(places), turned(in)},
              {dtype_scalar(DType::float32)});
  for (std::int64_t j = 0; j < 300; ++j) {
    std::int64_t place = 0;
    for (std::int64_t i = 0; i < 90; ++i) {
      if (in.number(i * 300 + j) <= in.number(place * 300 + j)) place = i;
      ASSERT_EQ(places.get<std::int64_t>(i * 300 + j), place);
      ASSERT_EQ(out.number(i * 300 + j), in.number(place * 300 + j));
    }
  }
}

TEST(Scan, ExtremaKeepTheLastPlaceAndNan) {
  Owned in(DType::float32, {7});
  const float values[] = {1.0F, 3.0F, 2.0F, 3.0F, std::nanf(""), 9.0F, std::nanf("")};
  for (int i = 0; i < 7; ++i) in.set(i, values[i]);
  Owned out(DType::float32, {7});
  Owned places(DType::int64, {7});
  call_kernel("scan:cummax", {out.view(), places.view(), in.view()},
              {dtype_scalar(DType::float32)});
  const std::int64_t expected[] = {0, 1, 1, 3, 4, 4, 6};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(places.get<std::int64_t>(i), expected[i]);
    if (i < 4) {
      EXPECT_EQ(out.number(i), in.number(expected[i]));
    } else {
      EXPECT_TRUE(std::isnan(out.get<float>(i)));
    }
  }
}

TEST(Scan, RefusesBadOperands) {
  Owned in(DType::float32, {3});
  Owned other(DType::float32, {4});
  Owned scalar(DType::float32, {});
  const Scalar single = dtype_scalar(DType::float32);
  EXPECT_THROW(call_kernel("scan:cumsum", {other.view(), in.view()}, {single}), Error);
  EXPECT_THROW(call_kernel("scan:cumsum", {scalar.view(), scalar.view()}, {single}), Error);
  EXPECT_THROW(call_kernel("scan:cummax", {in.view(), in.view()}, {single}), Error);
}

}  // namespace
}  // namespace nbx
