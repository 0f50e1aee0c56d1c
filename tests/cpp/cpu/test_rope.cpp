// Rotary positions, embeddings and appending to a cache.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "cpu/kernel_testing.h"

namespace nbx::testing {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(RopeTest, RotatesPairs) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const bool scattered : {false, true}) {
      for (const bool interleaved : {false, true}) {
        for (const std::int64_t rotary : {0, 6, 10}) {
          const Shape shape{2, 3, 5, 10};
          Owned in = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
          in.randomise(rng);
          Owned out = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
          Owned positions(DType::int32, {2, 3});
          for (std::int64_t i = 0; i < 6; ++i) {
            positions.set(i, static_cast<std::int32_t>(rng() % 100000));
          }
          const double base = 10000.0;
          const double scale = 0.25;
          call_kernel("position:rope", {out.view(), in.view(), positions.view()},
                      {real_scalar(base), integer_scalar(interleaved ? 1 : 0),
                       integer_scalar(rotary), real_scalar(scale)});
          for (std::int64_t i = 0; i < in.count(); ++i) {
            const std::int64_t d = i % 10;
            const double position = positions.number(i / 50) * scale;
            double want = in.number(i);
            if (d < rotary) {
              const std::int64_t pair = interleaved ? d / 2 : d % (rotary / 2);
              const bool second = interleaved ? d % 2 == 1 : d >= rotary / 2;
              const std::int64_t distance = interleaved ? 1 : rotary / 2;
              const double angle = position / std::pow(base, 2.0 * static_cast<double>(pair) /
                                                                 static_cast<double>(rotary));
              const double other = in.number(second ? i - distance : i + distance);
              want = in.number(i) * std::cos(angle) + (second ? other : -other) * std::sin(angle);
            }
            const double bound = dtype == DType::bfloat16  ? 4e-2
                                 : dtype == DType::float32 ? 2e-6
                                                           : 1e-9;
            ASSERT_NEAR(out.number(i), want, bound) << i << " rotary " << rotary;
          }
        }
      }
    }
  }
}

TEST(RopeTest, InPlaceAndAgainAtOtherPositions) {
  std::mt19937 rng(1);
  for (int round = 0; round < 3; ++round) {
    Owned in(DType::float32, {1, 2, 3, 8});
    in.randomise(rng);
    Owned out(DType::float32, {1, 2, 3, 8});
    Owned positions(DType::int64, {1, 2});
    positions.set<std::int64_t>(0, 5 * round);
    positions.set<std::int64_t>(1, 3);
    const std::vector<Scalar> scalars{real_scalar(1e5), integer_scalar(1), integer_scalar(8),
                                      real_scalar(1.0)};
    call_kernel("position:rope", {out.view(), in.view(), positions.view()}, scalars);
    const double angle = 5.0 * round;
    ASSERT_NEAR(out.number(0), in.number(0) * std::cos(angle) - in.number(1) * std::sin(angle),
                1e-5);
    call_kernel("position:rope", {in.view(), in.view(), positions.view()}, scalars);
    for (std::int64_t i = 0; i < in.count(); ++i) ASSERT_EQ(in.number(i), out.number(i));
  }
}

TEST(RopeTest, OddWidthsAreRefused) {
  Owned in(DType::float32, {1, 1, 1, 8});
  Owned positions(DType::int64, {1, 1});
  for (const int rotary : {7, 10, -2}) {
    EXPECT_THROW(call_kernel("position:rope", {in.view(), in.view(), positions.view()},
                             {real_scalar(1e4), integer_scalar(1), integer_scalar(rotary),
                              real_scalar(1.0)}),
                 Error);
  }
}

TEST(EmbeddingTest, CopiesRowsOfAnyDtype) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int16, DType::float64}) {
    for (const bool scattered : {false, true}) {
      Owned table = scattered ? Owned::scattered(dtype, {9, 7}, rng) : Owned(dtype, {9, 7});
      table.randomise(rng);
      Owned out = scattered ? Owned::scattered(dtype, {4, 7}, rng) : Owned(dtype, {4, 7});
      Owned ids(DType::int32, {4});
      for (std::int64_t i = 0; i < 4; ++i) ids.set(i, static_cast<std::int32_t>(rng() % 9));
      call_kernel("embedding:dense", {out.view(), ids.view(), table.view()});
      for (std::int64_t i = 0; i < out.count(); ++i) {
        ASSERT_EQ(out.number(i),
                  table.number(static_cast<std::int64_t>(ids.number(i / 7)) * 7 + i % 7));
      }
      for (const int wrong : {-1, 9}) {
        ids.set<std::int32_t>(2, wrong);
        try {
          call_kernel("embedding:dense", {out.view(), ids.view(), table.view()});
          FAIL();
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kIndex);
          EXPECT_NE(std::string(error.what()).find(std::to_string(wrong)), std::string::npos);
        }
      }
    }
  }
}

TEST(AppendTest, WritesThePositionsAndNothingElse) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::float32, DType::float64}) {
    Owned cache = Owned::scattered(dtype, {2, 3, 9, 5}, rng);
    cache.randomise(rng);
    Owned before = cache;
    Owned added = Owned::scattered(DType::float32, {2, 3, 4, 5}, rng);
    added.randomise(rng);
    call_kernel("attention:append", {cache.view(), added.view()}, {integer_scalar(3)});
    for (std::int64_t i = 0; i < cache.count(); ++i) {
      const std::int64_t row = i / 5 % 9;
      const double want =
          row < 3 || row >= 7 ? before.number(i) : added.number((i / 45 * 4 + row - 3) * 5 + i % 5);
      ASSERT_EQ(cache.number(i), want);
    }
    for (const int position : {-1, 6, 100}) {
      EXPECT_THROW(
          call_kernel("attention:append", {cache.view(), added.view()}, {integer_scalar(position)}),
          Error);
    }
  }
}

}  // namespace
}  // namespace nbx::testing
