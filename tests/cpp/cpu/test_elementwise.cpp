// Elementwise kernels against naive references in double or in 128-bit integers.
#include <algorithm>
#include <complex>
#include <functional>
#include <map>

#include "core/error.h"
#include "core/half.h"
#include "cpu/elementwise_math.h"
#include "kernel_testing.h"

namespace nbx {
namespace {

using testing::absent_view;
using testing::call_kernel;
using testing::dtype_scalar;
using testing::fresh_seed;
using testing::integer_scalar;
using testing::Owned;
using testing::real_scalar;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

using Function = std::function<double(const std::vector<double>&)>;

struct Case {
  std::string name;
  std::size_t inputs;
  std::vector<Scalar> extras;
  double low;  // domain of the random arguments
  double high;
  Function reference;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(-std::fabs(x))) + std::max(x, 0.0); }
double python_remainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::vector<Case> float_cases() {
  using V = const std::vector<double>&;
  std::vector<Case> cases = {
      {"neg", 1, {}, -9, 9, [](V v) { return -v[0]; }},
      {"abs", 1, {}, -9, 9, [](V v) { return std::fabs(v[0]); }},
      {"sign", 1, {}, -9, 9, [](V v) { return v[0] > 0   ? 1.0
                                              : v[0] < 0 ? -1.0
                                                         : 0.0; }},
      {"square", 1, {}, -9, 9, [](V v) { return v[0] * v[0]; }},
      {"reciprocal", 1, {}, 0.1, 9, [](V v) { return 1 / v[0]; }},
      {"sqrt", 1, {}, 0, 9, [](V v) { return std::sqrt(v[0]); }},
      {"rsqrt", 1, {}, 0.1, 9, [](V v) { return 1 / std::sqrt(v[0]); }},
      {"exp", 1, {}, -9, 9, [](V v) { return std::exp(v[0]); }},
      {"exp2", 1, {}, -9, 9, [](V v) { return std::exp2(v[0]); }},
      {"expm1", 1, {}, -2, 2, [](V v) { return std::expm1(v[0]); }},
      {"log", 1, {}, 0.01, 9, [](V v) { return std::log(v[0]); }},
      {"log2", 1, {}, 0.01, 9, [](V v) { return std::log2(v[0]); }},
      {"log10", 1, {}, 0.01, 9, [](V v) { return std::log10(v[0]); }},
      {"log1p", 1, {}, -0.9, 9, [](V v) { return std::log1p(v[0]); }},
      {"sin", 1, {}, -9, 9, [](V v) { return std::sin(v[0]); }},
      {"cos", 1, {}, -9, 9, [](V v) { return std::cos(v[0]); }},
      {"tan", 1, {}, -1.5, 1.5, [](V v) { return std::tan(v[0]); }},
      {"asin", 1, {}, -1, 1, [](V v) { return std::asin(v[0]); }},
      {"acos", 1, {}, -1, 1, [](V v) { return std::acos(v[0]); }},
      {"atan", 1, {}, -9, 9, [](V v) { return std::atan(v[0]); }},
      {"sinh", 1, {}, -9, 9, [](V v) { return std::sinh(v[0]); }},
      {"cosh", 1, {}, -9, 9, [](V v) { return std::cosh(v[0]); }},
      {"tanh", 1, {}, -9, 9, [](V v) { return std::tanh(v[0]); }},
      {"asinh", 1, {}, -9, 9, [](V v) { return std::asinh(v[0]); }},
      {"acosh", 1, {}, 1, 9, [](V v) { return std::acosh(v[0]); }},
      {"atanh", 1, {}, -0.99, 0.99, [](V v) { return std::atanh(v[0]); }},
      {"erf", 1, {}, -5, 5, [](V v) { return std::erf(v[0]); }},
      {"floor", 1, {}, -9, 9, [](V v) { return std::floor(v[0]); }},
      {"ceil", 1, {}, -9, 9, [](V v) { return std::ceil(v[0]); }},
      {"trunc", 1, {}, -9, 9, [](V v) { return std::trunc(v[0]); }},
      {"round", 1, {}, -9, 9, [](V v) { return std::nearbyint(v[0]); }},
      {"relu", 1, {}, -9, 9, [](V v) { return std::max(v[0], 0.0); }},
      {"sigmoid", 1, {}, -20, 20, [](V v) { return sigmoid(v[0]); }},
      {"silu", 1, {}, -20, 20, [](V v) { return v[0] * sigmoid(v[0]); }},
      {"mish", 1, {}, -9, 9, [](V v) { return v[0] * std::tanh(softplus(v[0])); }},
      {"log_sigmoid", 1, {}, -20, 20, [](V v) { return -softplus(-v[0]); }},
      {"add", 2, {}, 0, 9, [](V v) { return v[0] + v[1]; }},
      {"sub", 2, {}, -9, 9, [](V v) { return v[0] - v[1]; }},
      {"mul", 2, {}, -9, 9, [](V v) { return v[0] * v[1]; }},
      {"div", 2, {}, 0.1, 9, [](V v) { return v[0] / v[1]; }},
      {"floor_divide", 2, {}, -9, 9, [](V v) { return std::floor(v[0] / v[1]); }},
      {"remainder", 2, {}, -9, 9, [](V v) { return python_remainder(v[0], v[1]); }},
      {"fmod", 2, {}, -9, 9, [](V v) { return std::fmod(v[0], v[1]); }},
      {"pow", 2, {}, 0.1, 4, [](V v) { return std::pow(v[0], v[1]); }},
      {"atan2", 2, {}, -9, 9, [](V v) { return std::atan2(v[0], v[1]); }},
      {"hypot", 2, {}, -9, 9, [](V v) { return std::hypot(v[0], v[1]); }},
      {"copysign", 2, {}, -9, 9, [](V v) { return std::copysign(v[0], v[1]); }},
      {"logaddexp", 2, {}, 1, 9, [](V v) { return std::log(std::exp(v[0]) + std::exp(v[1])); }},
      {"maximum", 2, {}, -9, 9, [](V v) { return std::max(v[0], v[1]); }},
      {"minimum", 2, {}, -9, 9, [](V v) { return std::min(v[0], v[1]); }},
      {"clamp", 3, {}, -9, 9, [](V v) { return std::min(std::max(v[0], v[1]), v[2]); }},
  };
  cases.push_back({"hardsigmoid", 1, {}, -9, 9, [](V v) {
                     return std::min(std::max(v[0] + 3, 0.0), 6.0) / 6;
                   }});
  cases.push_back({"hardswish", 1, {}, -9, 9, [](V v) {
                     return v[0] * std::min(std::max(v[0] + 3, 0.0), 6.0) / 6;
                   }});
  cases.push_back({"gelu", 1, {integer_scalar(0)}, -6, 6, [](V v) {
                     return 0.5 * v[0] * std::erfc(-v[0] / std::sqrt(2.0));
                   }});
  cases.push_back({"gelu", 1, {integer_scalar(1)}, -6, 6, [](V v) {
                     const double x = v[0];
                     const double inner =
                         std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
                     return x * sigmoid(2 * inner);  // (1 + tanh) / 2 without cancelling
                   }});
  cases.push_back({"softplus", 1, {real_scalar(2), real_scalar(12)}, -9, 9, [](V v) {
                     return 2 * v[0] > 12 ? v[0] : softplus(2 * v[0]) / 2;
                   }});
  cases.push_back({"elu", 1, {real_scalar(1.5)}, -9, 9, [](V v) {
                     return v[0] > 0 ? v[0] : 1.5 * std::expm1(v[0]);
                   }});
  cases.push_back({"leaky_relu", 1, {real_scalar(0.125)}, -9, 9, [](V v) {
                     return v[0] > 0 ? v[0] : 0.125 * v[0];
                   }});
  cases.push_back({"lerp", 3, {}, 0, 9, [](V v) { return v[0] + v[2] * (v[1] - v[0]); }});
  cases.push_back(
      {"addcmul", 3, {real_scalar(0.5)}, 0, 9, [](V v) { return v[0] + 0.5 * v[1] * v[2]; }});
  return cases;
}

/// Relative error of one rounding to the type.
double unit_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 0x1p-52;
    case DType::float32:
      return 0x1p-23;
    case DType::float16:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

std::vector<Scalar> with_dtype(DType dtype, const std::vector<Scalar>& extras) {
  std::vector<Scalar> scalars = {dtype_scalar(dtype)};
  scalars.insert(scalars.end(), extras.begin(), extras.end());
  return scalars;
}

double largest_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return std::numeric_limits<double>::max();
    case DType::float32:
      return std::numeric_limits<float>::max();
    case DType::float16:
      return 0x1.ffcp15;
    default:
      return 0x1.fep127;
  }
}

/// Steps of `floor`-like results may fall on either side of a rounding; the others are smooth.
bool is_stepped(const std::string& name) { return name == "floor_divide" || name == "remainder"; }

void run_float_case(const Case& test, DType dtype, DType op_dtype,
                    const std::vector<std::int64_t>& shape, bool scattered, std::mt19937& rng) {
  SCOPED_TRACE(test.name + " in " + facts_of(dtype).name);
  std::uniform_real_distribution<double> draw(test.low, test.high);
  std::vector<Owned> in;
  for (std::size_t k = 0; k < test.inputs; ++k) {
    in.push_back(scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape));
    for (std::int64_t i = 0; i < in[k].count(); ++i) in[k].set_number(i, draw(rng));
  }
  Owned out = scattered ? Owned::scattered(dtype, shape, rng) : Owned(dtype, shape);
  std::vector<TensorView> views = {out.view()};
  for (Owned& tensor : in) views.push_back(tensor.view());
  call_kernel("elementwise:" + test.name, views, with_dtype(op_dtype, test.extras));
  for (std::int64_t i = 0; i < out.count(); ++i) {
    std::vector<double> arguments;
    for (Owned& tensor : in) arguments.push_back(tensor.number(i));
    const double expected = test.reference(arguments);
    double scale = 1;
    for (const double argument : arguments) scale = std::max(scale, std::fabs(argument));
    const double unit = unit_of(dtype);
    // Four units of the result, and one of the scale on which arguments cancel.
    const double allowed = unit * (4 * std::fabs(expected) + scale);
    double error = std::fabs(out.number(i) - expected);
    if (is_stepped(test.name)) {
      error = std::min(
          error,
          std::fabs(std::fabs(error) - (test.name == "remainder" ? std::fabs(arguments[1]) : 1.0)));
    }
    if (std::isinf(out.number(i))) {  // a quotient of a tiny divisor may leave the type's range
      ASSERT_EQ(std::signbit(out.number(i)), std::signbit(expected));
      ASSERT_GT(std::fabs(expected) + allowed, largest_of(dtype)) << "argument " << arguments[0];
      continue;
    }
    ASSERT_LE(error, allowed) << "arguments " << arguments[0] << " ... expected " << expected
                              << " got " << out.number(i);
  }
}

TEST(Elementwise, FloatOpsAgreeWithDouble) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const Case& test : float_cases()) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
      const DType op = dtype == DType::float64 ? dtype : DType::float32;
      run_float_case(test, dtype, op, {2311}, false, rng);
      run_float_case(test, dtype, op, {3, 19, 7}, true, rng);
      run_float_case(test, dtype, op, {}, false, rng);
      run_float_case(test, dtype, op, {0, 4}, false, rng);
      run_float_case(test, dtype, op, {5, 300}, true, rng);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
}

double error_in_units(float got, double expected) {
  const double rounded = static_cast<float>(expected);
  const double next = std::nextafter(static_cast<float>(std::fabs(rounded)), INFINITY);
  return std::fabs(static_cast<double>(got) - expected) / (next - std::fabs(rounded));
}

TEST(Elementwise, OwnFunctionsKeepTheirErrorBounds) {
  double worst_exp = 0;
  double worst_log = 0;
  double worst_tanh = 0;
  double worst_sigmoid = 0;
  double worst_erf = 0;
  // Every 1009th pattern of all finite floats.
  for (std::uint32_t bits = 0; bits < 0x7f800000U; bits += 1009) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof(x));
    for (const float signed_x : {x, -x}) {
      const auto wide = static_cast<double>(signed_x);
      if (signed_x > -103 && signed_x < 88.7F) {
        worst_exp =
            std::max(worst_exp, error_in_units(cpu::math::exponential(signed_x), std::exp(wide)));
      }
      worst_tanh = std::max(
          worst_tanh, error_in_units(cpu::math::hyperbolic_tangent(signed_x), std::tanh(wide)));
      worst_erf =
          std::max(worst_erf, error_in_units(cpu::math::error_function(signed_x), std::erf(wide)));
      if (signed_x > -87) {
        worst_sigmoid =
            std::max(worst_sigmoid, error_in_units(cpu::math::sigmoid(signed_x), sigmoid(wide)));
      }
    }
    if (x > 0) {
      worst_log = std::max(
          worst_log, error_in_units(cpu::math::logarithm(x), std::log(static_cast<double>(x))));
    }
  }
  EXPECT_LE(worst_exp, 1.5);
  EXPECT_LE(worst_log, 2.0);
  EXPECT_LE(worst_tanh, 2.5);
  EXPECT_LE(worst_sigmoid, 3.0);
  EXPECT_LE(worst_erf, 2.0);
}

TEST(Elementwise, SpecialNumbersFollowTheStandard) {
  const double x[] = {0.0, -0.0, kInfinity, -kInfinity, kNan, 1.0, -1.0, 1e-42, 89.5, -110.0};
  const std::map<std::string, std::function<double(double)>> cases = {
      {"exp", [](double v) { return std::exp(v); }},
      {"log", [](double v) { return std::log(v); }},
      {"tanh", [](double v) { return std::tanh(v); }},
      {"erf", [](double v) { return std::erf(v); }},
      {"sigmoid", [](double v) { return sigmoid(v); }},
      {"sqrt", [](double v) { return std::sqrt(v); }},
      {"floor", [](double v) { return std::floor(v); }},
      {"round", [](double v) { return std::nearbyint(v); }},
      {"sign", [](double v) { return v > 0   ? 1.0
                                     : v < 0 ? -1.0
                                             : v; }},
      {"relu", [](double v) { return v < 0 ? 0.0 : v; }},
  };
  Owned in(DType::float32, {10});
  for (int i = 0; i < 10; ++i) in.set(i, static_cast<float>(x[i]));
  for (const auto& [name, reference] : cases) {
    Owned out(DType::float32, {10});
    call_kernel("elementwise:" + name, {out.view(), in.view()}, {dtype_scalar(DType::float32)});
    for (int i = 0; i < 10; ++i) {
      const auto expected = static_cast<float>(reference(static_cast<double>(in.get<float>(i))));
      const float got = out.get<float>(i);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << name << " of " << x[i];
      } else if (std::isinf(expected)) {
        EXPECT_EQ(got, expected) << name << " of " << x[i];
      } else {
        EXPECT_NEAR(got, expected, std::fabs(expected) * 3e-7 + 2e-45) << name << " of " << x[i];
      }
    }
  }
}

TEST(Elementwise, NanWinsInExtrema) {
  Owned a(DType::float32, {4});
  Owned b(DType::float32, {4});
  const double left[] = {kNan, 1, kNan, 2};
  const double right[] = {1, kNan, kNan, 3};
  for (int i = 0; i < 4; ++i) {
    a.set_number(i, left[i]);
    b.set_number(i, right[i]);
  }
  for (const char* name : {"maximum", "minimum"}) {
    Owned out(DType::float32, {4});
    call_kernel(std::string("elementwise:") + name, {out.view(), a.view(), b.view()},
                {dtype_scalar(DType::float32)});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(out.get<float>(i)));
    EXPECT_EQ(out.number(3), name[1] == 'a' ? 3 : 2);
  }
  Owned out(DType::float32, {4});
  call_kernel("elementwise:clamp", {out.view(), a.view(), absent_view(), absent_view()},
              {dtype_scalar(DType::float32), Scalar{}, real_scalar(1.5)});
  EXPECT_TRUE(std::isnan(out.get<float>(0)));
  EXPECT_EQ(out.number(1), 1);
  EXPECT_EQ(out.number(3), 1.5);
  call_kernel("elementwise:clamp", {out.view(), a.view(), absent_view(), absent_view()},
              {dtype_scalar(DType::float32), real_scalar(1.75), Scalar{}});
  EXPECT_EQ(out.number(1), 1.75);
}

TEST(Elementwise, NanToNumTakesTheOutputsLimits) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    Owned in(DType::float32, {4});
    const double values[] = {kNan, kInfinity, -kInfinity, 2};
    for (int i = 0; i < 4; ++i) in.set_number(i, values[i]);
    Owned out(dtype, {4});
    const double greatest = largest_of(dtype);
    call_kernel("elementwise:nan_to_num", {out.view(), in.view()},
                {dtype_scalar(DType::float32), real_scalar(0.5), Scalar{}, real_scalar(-3)});
    EXPECT_EQ(out.number(0), 0.5);
    EXPECT_EQ(out.number(1), greatest);
    EXPECT_EQ(out.number(2), -3);
    EXPECT_EQ(out.number(3), 2);
  }
}

// --- integers -----------------------------------------------------------------------------------

using Wide = __int128;
using IntegerFunction = std::function<Wide(Wide, Wide)>;

Wide floor_quotient(Wide a, Wide b) {
  if (b == 0) return 0;
  Wide q = a / b;
  if (a % b != 0 && (a < 0) != (b < 0)) --q;
  return q;
}

const std::map<std::string, IntegerFunction>& integer_cases() {
  static const std::map<std::string, IntegerFunction> cases = {
      {"add", [](Wide a, Wide b) { return a + b; }},
      {"sub", [](Wide a, Wide b) { return a - b; }},
      {"mul",
       [](Wide a, Wide b) {
         return static_cast<Wide>(static_cast<unsigned __int128>(a) *
                                  static_cast<unsigned __int128>(b));
       }},
      {"floor_divide", floor_quotient},
      {"remainder", [](Wide a, Wide b) { return b == 0 ? 0 : a - floor_quotient(a, b) * b; }},
      {"fmod", [](Wide a, Wide b) { return b == 0 ? 0 : a % b; }},
      {"maximum", [](Wide a, Wide b) { return std::max(a, b); }},
      {"minimum", [](Wide a, Wide b) { return std::min(a, b); }},
      {"bitwise_and", [](Wide a, Wide b) { return a & b; }},
      {"bitwise_or", [](Wide a, Wide b) { return a | b; }},
      {"bitwise_xor", [](Wide a, Wide b) { return a ^ b; }},
  };
  return cases;
}

Wide exact(Owned& tensor, std::int64_t i) {
  switch (tensor.dtype()) {
    case DType::int64:
      return tensor.get<std::int64_t>(i);
    case DType::uint64:
      return tensor.get<std::uint64_t>(i);
    default:
      return static_cast<Wide>(tensor.number(i));
  }
}

Wide wrap(Wide value, DType dtype) {
  const int bits = bits_of(dtype);
  const Wide span = static_cast<Wide>(1) << bits;
  Wide wrapped = value & (span - 1);
  if (facts_of(dtype).kind == 'i' && wrapped >= span / 2) wrapped -= span;
  return wrapped;
}

constexpr DType kIntegers[] = {DType::int8,  DType::int16,  DType::int32,  DType::int64,
                               DType::uint8, DType::uint16, DType::uint32, DType::uint64};

/// Random integers with the awkward ones in front.
void fill_integers(Owned& tensor, std::mt19937& rng, std::size_t turn) {
  tensor.randomise(rng);
  const std::int64_t specials[] = {0, -1, 1, std::numeric_limits<std::int64_t>::min(), 7, -7};
  for (std::int64_t i = 0; i < std::min<std::int64_t>(36, tensor.count()); ++i) {
    const auto pick = static_cast<std::size_t>(turn == 0 ? i / 6 : i % 6);
    std::int64_t value = specials[pick];
    if (pick == 3) value >>= 64 - bits_of(tensor.dtype());
    std::memcpy(tensor.at(i), &value, static_cast<std::size_t>(itemsize_of(tensor.dtype())));
  }
}

TEST(Elementwise, IntegersAreExactAndWrap) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const auto& [name, reference] : integer_cases()) {
    for (const DType dtype : kIntegers) {
      SCOPED_TRACE(name + " in " + facts_of(dtype).name);
      const DType op = dtype == DType::uint64 ? DType::uint64 : DType::int64;
      Owned a = Owned::scattered(dtype, {401}, rng);
      Owned b = Owned(dtype, {401});
      Owned out = Owned::scattered(dtype, {401}, rng);
      fill_integers(a, rng, 0);
      fill_integers(b, rng, 1);
      call_kernel("elementwise:" + name, {out.view(), a.view(), b.view()}, {dtype_scalar(op)});
      for (std::int64_t i = 0; i < 401; ++i) {
        const Wide expected = wrap(reference(exact(a, i), exact(b, i)), dtype);
        ASSERT_TRUE(exact(out, i) == expected)
            << a.number(i) << ", " << b.number(i) << " gave " << out.number(i);
      }
    }
  }
}

TEST(Elementwise, IntegerPowersAreExact) {
  Owned a(DType::int64, {6});
  Owned b(DType::int64, {6});
  const std::int64_t bases[] = {3, -3, 2, -1, 0, 10};
  const std::int64_t exponents[] = {39, 39, 70, -3, 0, -1};
  const std::int64_t expected[] = {4052555153018976267, -4052555153018976267, 0, -1, 1, 0};
  for (int i = 0; i < 6; ++i) {
    a.set(i, bases[i]);
    b.set(i, exponents[i]);
  }
  Owned out(DType::int64, {6});
  call_kernel("elementwise:pow", {out.view(), a.view(), b.view()}, {dtype_scalar(DType::int64)});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out.get<std::int64_t>(i), expected[i]) << i;
}

TEST(Elementwise, ShiftsPastTheWidthPushEverythingOut) {
  Owned a(DType::int32, {5});
  Owned b(DType::int32, {5});
  const std::int32_t values[] = {-5, 5, -5, 1, 1};
  const std::int32_t counts[] = {1, 1, 100, 31, -1};
  for (int i = 0; i < 5; ++i) {
    a.set(i, values[i]);
    b.set(i, counts[i]);
  }
  Owned out(DType::int32, {5});
  call_kernel("elementwise:right_shift", {out.view(), a.view(), b.view()},
              {dtype_scalar(DType::int64)});
  const std::int32_t right[] = {-3, 2, -1, 0, 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(out.get<std::int32_t>(i), right[i]) << i;
  call_kernel("elementwise:left_shift", {out.view(), a.view(), b.view()},
              {dtype_scalar(DType::int64)});
  const std::int32_t left[] = {-10, 10, 0, std::numeric_limits<std::int32_t>::min(), 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(out.get<std::int32_t>(i), left[i]) << i;
}

// --- truth values -------------------------------------------------------------------------------

bool compares(const std::string& name, Wide a, Wide b) {
  if (name == "eq") return a == b;
  if (name == "ne") return a != b;
  if (name == "lt") return a < b;
  if (name == "le") return a <= b;
  return name == "gt" ? a > b : a >= b;
}

TEST(Elementwise, IntegersOfAnySignCompareExactly) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const char* name : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    const std::string kernel = std::string("elementwise:") + name;
    for (const DType left : kIntegers) {
      for (const DType right : kIntegers) {
        Owned a = Owned::scattered(left, {97}, rng);
        Owned b = Owned::scattered(right, {97}, rng);
        fill_integers(a, rng, 0);
        fill_integers(b, rng, 1);
        const bool mixed = (left == DType::uint64) != (right == DType::uint64);
        const bool is_unsigned = left == DType::uint64 && right == DType::uint64;
        const DType op = mixed ? DType::float64 : is_unsigned ? DType::uint64 : DType::int64;
        Owned out(DType::bool_, {97});
        call_kernel(kernel, {out.view(), a.view(), b.view()}, {dtype_scalar(op)});
        for (std::int64_t i = 0; i < 97; ++i) {
          ASSERT_EQ(out.number(i), compares(name, exact(a, i), exact(b, i)) ? 1 : 0)
              << name << " of " << facts_of(left).name << " and " << facts_of(right).name;
        }
      }
    }
    Owned big(DType::uint64, {2});
    big.set<std::uint64_t>(0, ~std::uint64_t{0});
    big.set<std::uint64_t>(1, 0);
    Owned out(DType::bool_, {2});
    call_kernel(kernel, {out.view(), big.view(), absent_view()},
                {dtype_scalar(DType::uint64), integer_scalar(-1)});
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(out.number(i), compares(name, exact(big, i), -1) ? 1 : 0) << name;
    }
  }
}

TEST(Elementwise, LogicTakesAnyType) {
  Owned a(DType::float32, {4});
  Owned b(DType::int8, {4});
  const double left[] = {0, 0.5, kNan, 0};
  const double right[] = {3, 0, -1, 0};
  for (int i = 0; i < 4; ++i) {
    a.set_number(i, left[i]);
    b.set_number(i, right[i]);
  }
  Owned out(DType::bool_, {4});
  const auto expect = [&](const std::string& name, std::vector<int> expected) {
    call_kernel("elementwise:" + name, {out.view(), a.view(), b.view()},
                {dtype_scalar(DType::float32)});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out.number(i), expected[static_cast<std::size_t>(i)]);
  };
  expect("logical_and", {0, 0, 1, 0});
  expect("logical_or", {1, 1, 1, 0});
  expect("logical_xor", {1, 1, 0, 0});
  call_kernel("elementwise:logical_not", {out.view(), a.view()}, {dtype_scalar(DType::float32)});
  EXPECT_EQ(out.number(0), 1);
  EXPECT_EQ(out.number(2), 0);
  call_kernel("elementwise:isnan", {out.view(), a.view()}, {dtype_scalar(DType::float32)});
  EXPECT_EQ(out.number(1), 0);
  EXPECT_EQ(out.number(2), 1);
}

TEST(Elementwise, BoolsStayBools) {
  Owned a(DType::bool_, {4});
  Owned b(DType::bool_, {4});
  for (int i = 0; i < 4; ++i) {
    // A byte other than 1 counts as true.
    a.set<std::uint8_t>(i, i / 2 == 0 ? 0 : 7);
    b.set<std::uint8_t>(i, static_cast<std::uint8_t>(i % 2));
  }
  Owned out(DType::bool_, {4});
  const auto expect = [&](const std::string& name, std::vector<int> expected) {
    call_kernel("elementwise:" + name, {out.view(), a.view(), b.view()},
                {dtype_scalar(DType::bool_)});
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(out.get<std::uint8_t>(i), expected[static_cast<std::size_t>(i)]) << name;
    }
  };
  expect("add", {0, 1, 1, 1});
  expect("mul", {0, 0, 0, 1});
  expect("bitwise_xor", {0, 1, 1, 0});
  expect("maximum", {0, 1, 1, 1});
  expect("eq", {1, 0, 0, 1});
  call_kernel("elementwise:bitwise_not", {out.view(), a.view()}, {dtype_scalar(DType::bool_)});
  EXPECT_EQ(out.get<std::uint8_t>(0), 1);
  EXPECT_EQ(out.get<std::uint8_t>(3), 0);
}

// --- operands -----------------------------------------------------------------------------------

TEST(Elementwise, NumbersStandInForOperands) {
  Owned a(DType::bfloat16, {3000});
  for (int i = 0; i < 3000; ++i) a.set_number(i, i % 50);
  Owned out(DType::bfloat16, {3000});
  call_kernel("elementwise:sub", {out.view(), absent_view(), a.view()},
              {dtype_scalar(DType::float32), real_scalar(100)});
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(out.number(i), 100 - i % 50);
  Owned condition(DType::bool_, {3000});
  for (int i = 0; i < 3000; ++i) condition.set<std::uint8_t>(i, i % 3 == 0);
  call_kernel("elementwise:where", {out.view(), condition.view(), absent_view(), absent_view()},
              {dtype_scalar(DType::float32), real_scalar(2), real_scalar(-4)});
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(out.number(i), i % 3 == 0 ? 2 : -4);
}

TEST(Elementwise, WritesOverItsOwnInput) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::float32, DType::float16}) {
    Owned a = Owned::scattered(dtype, {50, 41}, rng);
    a.randomise(rng);
    std::vector<double> before;
    for (std::int64_t i = 0; i < a.count(); ++i) before.push_back(a.number(i));
    call_kernel("elementwise:add", {a.view(), a.view(), a.view()}, {dtype_scalar(DType::float32)});
    for (std::int64_t i = 0; i < a.count(); ++i) {
      ASSERT_EQ(a.number(i), 2 * before[static_cast<std::size_t>(i)]);
    }
  }
}

TEST(Elementwise, BroadcastsStridesOfZero) {
  Owned row(DType::float32, {700});
  Owned column(DType::float32, {90});
  for (int i = 0; i < 700; ++i) row.set_number(i, i);
  for (int i = 0; i < 90; ++i) column.set_number(i, 1000 * i);
  const std::int64_t shape[] = {90, 700};
  const std::int64_t along_row[] = {0, 1};
  const std::int64_t along_column[] = {1, 0};
  const TensorView a{row.view().data, shape, along_row, 2, DType::float32};
  const TensorView b{column.view().data, shape, along_column, 2, DType::float32};
  Owned out(DType::float32, {90, 700});
  call_kernel("elementwise:add", {out.view(), a, b}, {dtype_scalar(DType::float32)});
  for (int i = 0; i < 90; ++i) {
    for (int j = 0; j < 700; ++j) ASSERT_EQ(out.number(i * 700 + j), 1000 * i + j);
  }
}

TEST(Elementwise, ComplexNumbersFollowTheirFormulas) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  using C = std::complex<double>;
  Owned a(DType::complex128, {64});
  Owned b(DType::complex128, {64});
  a.randomise(rng);
  b.randomise(rng);
  const std::map<std::string, std::function<C(C, C)>> cases = {
      {"add", [](C x, C y) { return x + y; }},
      {"mul", [](C x, C y) { return x * y; }},
      {"div", [](C x, C y) { return x / y; }},
      {"pow", [](C x, C y) { return std::exp(y * std::log(x)); }},
      {"exp", [](C x, C) { return std::exp(x); }},
      {"expm1", [](C x, C) { return std::exp(x) - 1.0; }},
      {"log1p", [](C x, C) { return std::log(1.0 + x); }},
      {"sqrt", [](C x, C) { return std::sqrt(x); }},
      {"abs", [](C x, C) { return C(std::hypot(x.real(), x.imag())); }},
      {"tanh", [](C x, C) { return std::sinh(x) / std::cosh(x); }},
      {"sign", [](C x, C) { return x / std::hypot(x.real(), x.imag()); }},
  };
  for (const auto& [name, reference] : cases) {
    const bool binary = name == "add" || name == "mul" || name == "div" || name == "pow";
    Owned out(DType::complex128, {64});
    std::vector<TensorView> views = {out.view(), a.view()};
    if (binary) views.push_back(b.view());
    call_kernel("elementwise:" + name, views, {dtype_scalar(DType::complex128)});
    for (int i = 0; i < 64; ++i) {
      const C expected = reference(a.get<C>(i), b.get<C>(i));
      ASSERT_LE(std::abs(out.get<C>(i) - expected), 1e-12 * (1 + std::abs(expected))) << name;
    }
  }
}

TEST(Elementwise, RefusesWhatItCannotCompute) {
  Owned a(DType::float32, {4});
  Owned other(DType::float32, {5});
  Owned packed(DType::int4, {4});
  const Scalar single = dtype_scalar(DType::float32);
  EXPECT_THROW(call_kernel("elementwise:sin", {a.view(), a.view()}, {dtype_scalar(DType::int64)}),
               Error);
  EXPECT_THROW(call_kernel("elementwise:add", {a.view(), a.view(), other.view()}, {single}), Error);
  EXPECT_THROW(call_kernel("elementwise:add", {a.view(), a.view(), absent_view()}, {single}),
               Error);
  EXPECT_THROW(call_kernel("elementwise:neg", {a.view(), packed.view()}, {single}), Error);
  EXPECT_THROW(call_kernel("elementwise:add", {a.view(), a.view()}, {single}), Error);
}

}  // namespace
}  // namespace nbx
