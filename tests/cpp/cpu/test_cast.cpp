// Element conversions against a naive reference in double, over all patterns where that is
// possible.
#include <complex>

#include "core/error.h"
#include "core/half.h"
#include "cpu/cast.h"
#include "kernel_testing.h"

namespace nbx {
namespace {

using testing::absent_view;
using testing::call_kernel;
using testing::decode;
using testing::fresh_seed;
using testing::integer_scalar;
using testing::narrow_format;
using testing::Owned;
using testing::real_scalar;

constexpr DType kNarrow[] = {DType::float16, DType::bfloat16, DType::float8_e4m3fn,
                             DType::float8_e5m2};

float widen(std::uint32_t bits, DType dtype) {
  switch (dtype) {
    case DType::float16:
      return to_float(Float16{static_cast<std::uint16_t>(bits)});
    case DType::bfloat16:
      return to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    case DType::float8_e4m3fn:
      return to_float(Float8E4m3fn{static_cast<std::uint8_t>(bits)});
    default:
      return to_float(Float8E5m2{static_cast<std::uint8_t>(bits)});
  }
}

std::uint32_t narrow(double value, DType dtype, bool from_single) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::float16:
      return from_single ? from_float<Float16>(single).bits : from_double<Float16>(value).bits;
    case DType::bfloat16:
      return from_single ? from_float<BFloat16>(single).bits : from_double<BFloat16>(value).bits;
    case DType::float8_e4m3fn:
      return from_single ? from_float<Float8E4m3fn>(single).bits
                         : from_double<Float8E4m3fn>(value).bits;
    default:
      return from_single ? from_float<Float8E5m2>(single).bits
                         : from_double<Float8E5m2>(value).bits;
  }
}

/// Checks the result against its neighbours: no pattern is nearer, and a tie went to the even one.
void expect_nearest(double value, std::uint32_t bits, DType dtype) {
  const auto format = narrow_format(dtype);
  const std::uint32_t sign = 1U << (format.exponent_bits + format.mantissa_bits);
  const double got = decode(bits, dtype);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(got));
    return;
  }
  ASSERT_EQ((bits & sign) != 0, std::signbit(value)) << value;
  const double magnitude = std::fabs(value);
  const std::uint32_t pattern = bits & (sign - 1U);
  // The step past the greatest number decides where overflow begins.
  std::uint32_t greatest = sign - 1U;
  while (!std::isfinite(decode(greatest, dtype))) --greatest;
  const double top = decode(greatest, dtype);
  const double step = top - decode(greatest - 1U, dtype);
  const bool top_is_even = greatest % 2 == 0;
  const double edge = top + step / 2;
  if (magnitude > edge || (magnitude == edge && !top_is_even)) {
    EXPECT_EQ(pattern, greatest + 1U) << value << " overflows " << facts_of(dtype).name;
    return;
  }
  ASSERT_LE(pattern, greatest) << value << " in " << facts_of(dtype).name;
  const double error = std::fabs(std::fabs(got) - magnitude);
  for (const std::uint32_t other : {pattern - 1U, pattern + 1U}) {
    if (other > greatest) continue;
    const double other_error = std::fabs(decode(other, dtype) - magnitude);
    EXPECT_LE(error, other_error) << value << " in " << facts_of(dtype).name;
    if (error == other_error && error != 0) {
      EXPECT_EQ(pattern % 2, 0U) << value;
    }
  }
}

TEST(Half, WidensEveryPattern) {
  for (const DType dtype : kNarrow) {
    for (std::uint32_t bits = 0; bits < (1U << bits_of(dtype)); ++bits) {
      const double expected = decode(bits, dtype);
      const float got = widen(bits, dtype);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << facts_of(dtype).name << " " << bits;
      } else {
        ASSERT_EQ(static_cast<double>(got), expected) << facts_of(dtype).name << " " << bits;
        ASSERT_EQ(std::signbit(got), std::signbit(expected));
      }
    }
  }
}

TEST(Half, RoundsEveryMidpointAndItsNeighbours) {
  for (const DType dtype : kNarrow) {
    const std::uint32_t patterns = 1U << (bits_of(dtype) - 1);
    for (std::uint32_t bits = 0; bits + 1 < patterns; ++bits) {
      const double low = decode(bits, dtype);
      const double high = decode(bits + 1U, dtype);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = low + (high - low) / 2;
      for (const double sign : {1.0, -1.0}) {
        for (const double value : {low, middle, std::nextafter(middle, low),
                                   std::nextafter(middle, high), low + (high - low) / 4}) {
          expect_nearest(sign * value, narrow(sign * value, dtype, false), dtype);
          const double single = static_cast<float>(sign * value);
          expect_nearest(single, narrow(single, dtype, true), dtype);
        }
      }
      ASSERT_FALSE(::testing::Test::HasFailure()) << facts_of(dtype).name << " " << bits;
    }
  }
}

TEST(Half, RoundsRandomAndSpecialNumbers) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = {0.0,    -0.0,   infinity, -infinity, std::nan(""), 65504,
                                65519,  65520,  65536,    448,       464,          464.0000001,
                                480,    57344,  61440,    3.4e38,    3.39e38,      1e300,
                                -1e300, 1e-300, -1e-300,  5e-324};
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t word = (static_cast<std::uint64_t>(rng()) << 32) | rng();
    double value = 0;
    std::memcpy(&value, &word, sizeof(value));
    values.push_back(value);
    values.push_back(
        std::ldexp(1.0 + static_cast<double>(rng()) * 0x1p-32, static_cast<int>(rng() % 60) - 30));
  }
  for (const DType dtype : kNarrow) {
    for (const double value : values) {
      expect_nearest(value, narrow(value, dtype, false), dtype);
      const double single = static_cast<float>(value);
      expect_nearest(single, narrow(single, dtype, true), dtype);
      ASSERT_FALSE(::testing::Test::HasFailure()) << facts_of(dtype).name << " " << value;
    }
  }
}

/// The naive conversion of an exact long double to an integer type's limits.
long double exact(Owned& tensor, std::int64_t i) {
  if (tensor.dtype() == DType::int64) {
    return static_cast<long double>(tensor.get<std::int64_t>(i));
  }
  if (tensor.dtype() == DType::uint64) {
    return static_cast<long double>(tensor.get<std::uint64_t>(i));
  }
  return static_cast<long double>(tensor.number(i));
}

void expect_converted(Owned& out, Owned& in, std::int64_t i) {
  const long double value = exact(in, i);
  const long double got = exact(out, i);
  const DType to = out.dtype();
  if (to == DType::bool_) {
    const bool imaginary =
        (in.dtype() == DType::complex64 && in.get<std::complex<float>>(i).imag() != 0) ||
        (in.dtype() == DType::complex128 && in.get<std::complex<double>>(i).imag() != 0);
    EXPECT_EQ(got != 0, value != 0 || imaginary);
  } else if (is_integer(to)) {
    const bool is_signed = facts_of(to).kind == 'i';
    const int digits = bits_of(to) - (is_signed ? 1 : 0);
    const long double greatest = std::ldexp(1.0L, digits) - 1;
    const long double least = is_signed ? -std::ldexp(1.0L, digits) : 0;
    if (is_integer(in.dtype()) || in.dtype() == DType::bool_) {
      const long double span = std::ldexp(1.0L, bits_of(to));
      long double wrapped = std::fmod(value, span);
      if (wrapped < least) wrapped += span;
      if (wrapped > greatest) wrapped -= span;
      EXPECT_EQ(got, wrapped);
    } else if (std::isnan(value)) {
      EXPECT_EQ(got, 0);
    } else {
      EXPECT_EQ(got, std::min(std::max(std::trunc(value), least), greatest));
    }
  } else if (testing::is_narrow(to)) {
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(got));
      return;
    }
    std::uint32_t bits = 0;
    std::memcpy(&bits, out.at(i), static_cast<std::size_t>(itemsize_of(to)));
    // The double nearest to a 64-bit integer decides as the integer does, except at ties, which
    // the sticky test covers.
    expect_nearest(static_cast<double>(value), bits, to);
  } else if (to == DType::float32 || to == DType::complex64) {
    const auto expected = static_cast<float>(value);
    EXPECT_TRUE(static_cast<float>(got) == expected || (std::isnan(expected) && std::isnan(got)));
  } else {
    const auto expected = static_cast<double>(value);
    EXPECT_TRUE(static_cast<double>(got) == expected || (std::isnan(expected) && std::isnan(got)));
  }
  if (to == DType::complex64 && !is_complex(in.dtype())) {
    EXPECT_EQ(out.get<std::complex<float>>(i).imag(), 0.0F);
  }
}

TEST(Copy, ConvertsEveryPairInEveryLayout) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const double specials[] = {0.0, -0.0, 1e10, -1e10, 127.5, -128.5, 255.9, 1e20, -1e20, 0.5, -0.5};
  for (int to = 0; to < kDTypeCount; ++to) {
    for (int from = 0; from < kDTypeCount; ++from) {
      const auto target = static_cast<DType>(to);
      const auto source = static_cast<DType>(from);
      if (target == DType::int4 || source == DType::int4) continue;
      SCOPED_TRACE(std::string(facts_of(source).name) + " to " + facts_of(target).name);
      for (const bool scattered : {false, true}) {
        const std::vector<std::int64_t> shape =
            scattered ? std::vector<std::int64_t>{3, 17, 5} : std::vector<std::int64_t>{1301};
        Owned in = scattered ? Owned::scattered(source, shape, rng) : Owned(source, shape);
        Owned out = scattered ? Owned::scattered(target, shape, rng) : Owned(target, shape);
        in.randomise(rng);
        if (source == DType::float32 || source == DType::float64) {
          std::int64_t i = 0;
          for (const double special : specials) in.set_number(i++, special);
          in.set_number(i++, std::numeric_limits<double>::infinity());
          in.set_number(i++, -std::numeric_limits<double>::infinity());
          in.set_number(i, std::nan(""));
        }
        call_kernel("copy:strided", {out.view(), in.view()});
        for (std::int64_t i = 0; i < in.count(); ++i) expect_converted(out, in, i);
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
}

TEST(Copy, RoundsLongIntegersOnce) {
  // One above a tie that a double cannot see.
  Owned in(DType::uint64, {3});
  in.set<std::uint64_t>(0, (std::uint64_t{0x101} << 55) | 1U);
  in.set<std::uint64_t>(1, std::uint64_t{0x101} << 55);
  in.set<std::uint64_t>(2, std::uint64_t{0x103} << 54);
  Owned out(DType::bfloat16, {3});
  call_kernel("copy:strided", {out.view(), in.view()});
  EXPECT_EQ(out.number(0), std::ldexp(0x102, 55));
  EXPECT_EQ(out.number(1), std::ldexp(0x100, 55));
  EXPECT_EQ(out.number(2), std::ldexp(0x104, 54));
  Owned negative(DType::int64, {1});
  negative.set<std::int64_t>(0, -((std::int64_t{0x101} << 54) | 1));
  call_kernel("copy:strided", {Owned(DType::bfloat16, {1}).view(), negative.view()});
  Owned one(DType::bfloat16, {1});
  call_kernel("copy:strided", {one.view(), negative.view()});
  EXPECT_EQ(one.number(0), -std::ldexp(0x102, 54));
}

TEST(Copy, MovesEveryWidthThroughEveryLayout) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {0}, {1}, {7, 0, 3}, {1, 1, 1}, {5, 1, 3}, {2, 3, 4, 5, 2}, {67, 131}, {3, 70, 33}};
  for (const DType dtype : {DType::bool_, DType::int8, DType::float16, DType::float32,
                            DType::float64, DType::complex64, DType::complex128}) {
    for (const auto& shape : shapes) {
      for (int round = 0; round < 6; ++round) {
        Owned in = round == 0 ? Owned(dtype, shape) : Owned::scattered(dtype, shape, rng);
        Owned out = round == 1 ? Owned(dtype, shape) : Owned::scattered(dtype, shape, rng);
        in.randomise(rng);
        call_kernel("copy:strided", {out.view(), in.view()});
        for (std::int64_t i = 0; i < in.count(); ++i) {
          ASSERT_EQ(std::memcmp(out.at(i), in.at(i), static_cast<std::size_t>(itemsize_of(dtype))),
                    0)
              << facts_of(dtype).name << " element " << i;
        }
      }
    }
  }
}

TEST(Copy, MovesLargeTensorsOnThePool) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const std::int64_t rows = 701;
  const std::int64_t columns = 1003;
  Owned in(DType::float32, {rows, columns});
  in.randomise(rng);
  const std::int64_t shape[] = {columns, rows};
  const std::int64_t strides[] = {1, columns};
  const TensorView transposed{in.view().data, shape, strides, 2, DType::float32};
  Owned out(DType::float32, {columns, rows});
  call_kernel("copy:strided", {out.view(), transposed});
  Owned half(DType::bfloat16, {columns, rows});
  call_kernel("copy:strided", {half.view(), transposed});
  for (std::int64_t i = 0; i < columns; ++i) {
    for (std::int64_t j = 0; j < rows; ++j) {
      const float expected = in.get<float>(j * columns + i);
      ASSERT_EQ(out.get<float>(i * rows + j), expected);
      ASSERT_EQ(half.get<std::uint16_t>(i * rows + j), from_float<BFloat16>(expected).bits);
    }
  }
}

TEST(Copy, BroadcastsAStrideOfZero) {
  Owned in(DType::int16, {3});
  for (int i = 0; i < 3; ++i) in.set<std::int16_t>(i, static_cast<std::int16_t>(i + 1));
  const std::int64_t shape[] = {3, 4};
  const std::int64_t strides[] = {1, 0};
  const TensorView wide{in.view().data, shape, strides, 2, DType::int16};
  Owned out(DType::float32, {3, 4});
  call_kernel("copy:strided", {out.view(), wide});
  Owned same(DType::int16, {3, 4});
  call_kernel("copy:strided", {same.view(), wide});
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(out.number(i), i / 4 + 1);
    EXPECT_EQ(same.number(i), i / 4 + 1);
  }
}

TEST(Copy, PacksAndUnpacksInt4) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const std::int64_t count : {1, 2, 7, 1025, 40001}) {
    Owned in = Owned::scattered(DType::int32, {count}, rng);
    for (std::int64_t i = 0; i < count; ++i) {
      in.set<std::int32_t>(i, static_cast<std::int32_t>(rng() % 16) - 8);
    }
    Owned packed(DType::int4, {count});
    call_kernel("copy:strided", {packed.view(), in.view()});
    Owned again(DType::int4, {count});
    call_kernel("copy:strided", {again.view(), packed.view()});
    Owned out = Owned::scattered(DType::float16, {count}, rng);
    call_kernel("copy:strided", {out.view(), again.view()});
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(out.number(i), in.number(i)) << i;
    const auto first = std::to_integer<int>(*packed.view().data);
    EXPECT_EQ(first & 0xf, in.get<std::int32_t>(0) & 0xf);
  }
  Owned reals(DType::float32, {4});
  const float values[] = {100.0F, -100.0F, 2.9F, -2.9F};
  for (int i = 0; i < 4; ++i) reals.set(i, values[i]);
  Owned packed(DType::int4, {4});
  call_kernel("copy:strided", {packed.view(), reals.view()});
  call_kernel("copy:strided", {reals.view(), packed.view()});
  EXPECT_EQ(reals.number(0), 7);
  EXPECT_EQ(reals.number(1), -8);
  EXPECT_EQ(reals.number(2), 2);
  EXPECT_EQ(reals.number(3), -2);
}

TEST(Copy, RefusesStridedPackedViews) {
  Owned packed(DType::int4, {8});
  const std::int64_t shape[] = {4};
  const std::int64_t strides[] = {2};
  const TensorView strided{packed.view().data, shape, strides, 1, DType::int4};
  Owned out(DType::int8, {4});
  EXPECT_THROW(call_kernel("copy:strided", {out.view(), strided}), Error);
  EXPECT_THROW(call_kernel("copy:strided", {out.view()}), Error);
}

TEST(Fill, WritesOneNumberEverywhere) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    if (dtype == DType::int4) continue;
    Owned out = Owned::scattered(dtype, {3, 5, 2}, rng);
    call_kernel("fill:value", {out.view()}, {integer_scalar(1)});
    for (std::int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out.number(i), 1) << code;
    call_kernel("fill:value", {out.view()}, {real_scalar(1.5)});
    const double expected = is_floating(dtype) || is_complex(dtype) ? 1.5 : 1;
    for (std::int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out.number(i), expected) << code;
  }
  Owned wide(DType::uint64, {2});
  Scalar greatest = integer_scalar(-1);
  greatest.is_unsigned = true;
  call_kernel("fill:value", {wide.view()}, {greatest});
  EXPECT_EQ(wide.get<std::uint64_t>(1), ~std::uint64_t{0});
  Owned packed(DType::int4, {5});
  call_kernel("fill:value", {packed.view()}, {integer_scalar(-3)});
  Owned out(DType::int8, {5});
  call_kernel("copy:strided", {out.view(), packed.view()});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(out.number(i), -3);
  Owned complex(DType::complex64, {2});
  call_kernel("fill:value", {complex.view()}, {{ScalarKind::kComplex, false, 0, 1.0, -2.0}});
  EXPECT_EQ(complex.get<std::complex<float>>(1), std::complex<float>(1.0F, -2.0F));
}

TEST(Fill, CountsExactlyInIntegers) {
  Owned out(DType::int64, {3});
  const std::int64_t start = (std::int64_t{1} << 60) + 1;
  call_kernel("fill:arange", {out.view()}, {integer_scalar(start), integer_scalar(-7)});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(out.get<std::int64_t>(i), start - 7 * i);
  Owned many(DType::float32, {100000});
  call_kernel("fill:arange", {many.view()}, {real_scalar(0.5), real_scalar(0.25)});
  for (int i = 0; i < 100000; i += 997) {
    EXPECT_EQ(many.get<float>(i), static_cast<float>(0.5 + 0.25 * i));
  }
}

TEST(Fill, EndsALinearSpaceOnItsEnd) {
  Owned out(DType::float64, {5});
  call_kernel("fill:linspace", {out.view()}, {real_scalar(0), real_scalar(0.1), real_scalar(0.4)});
  for (int i = 0; i < 5; ++i) EXPECT_DOUBLE_EQ(out.get<double>(i), 0.1 * i);
  EXPECT_EQ(out.get<double>(4), 0.4);
  call_kernel("fill:linspace", {out.view()}, {real_scalar(1), real_scalar(0.1), Scalar{}});
  EXPECT_DOUBLE_EQ(out.get<double>(4), 1.4);
}

TEST(Fill, DrawsDiagonalsAndTriangles) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (std::int64_t k = -6; k <= 7; ++k) {
    Owned eye = Owned::scattered(DType::float16, {4, 5}, rng);
    call_kernel("fill:eye", {eye.view()}, {integer_scalar(k)});
    Owned in = Owned::scattered(DType::int32, {3, 4, 5}, rng);
    in.randomise(rng);
    Owned upper = Owned::scattered(DType::int32, {3, 4, 5}, rng);
    Owned lower(DType::int32, {3, 4, 5});
    call_kernel("fill:triangle", {upper.view(), in.view()}, {integer_scalar(k), integer_scalar(1)});
    call_kernel("fill:triangle", {lower.view(), in.view()}, {integer_scalar(k), integer_scalar(0)});
    for (std::int64_t i = 0; i < 60; ++i) {
      const std::int64_t row = i / 5 % 4;
      const std::int64_t column = i % 5;
      ASSERT_EQ(upper.number(i), column >= row + k ? in.number(i) : 0);
      ASSERT_EQ(lower.number(i), column <= row + k ? in.number(i) : 0);
      if (i < 20) {
        ASSERT_EQ(eye.number(i), column == row + k ? 1 : 0);
      }
    }
  }
}

TEST(Carriers, RefuseOtherTypes) {
  EXPECT_EQ(cpu::carrier_of(DType::float32, "op"), cpu::Carrier::kFloat32);
  EXPECT_THROW((void)cpu::carrier_of(DType::int8, "op"), Error);
  const Scalar code = integer_scalar(99);
  const KernelCall call{nullptr, 0, &code, 1, nullptr};
  EXPECT_THROW((void)cpu::op_dtype_of(call, "op"), Error);
}

}  // namespace
}  // namespace nbx
