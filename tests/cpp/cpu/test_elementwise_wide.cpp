// Float functions computed in double: random bit patterns against long double, on each level.
#include "cpu/elementwise_wide.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "kernel_testing.h"

namespace nbx {
namespace {

using cpu::Simd;
using testing::fresh_seed;
using Wide = long double;
constexpr std::int64_t kCount = 1 << 14;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

using Loop = void (*)(float* out, const float* a, const float* b, std::int64_t count);

struct Function {
  const char* name;
  Loop loops[3];
  std::function<Wide(Wide, Wide)> reference;
  bool (*takes)(float a, float b);
};

// One loop for each level, compiled by the same vectoriser as the kernels.
#if NBX_X86
#define NBX_LEVELS(name) {&name##_portable, &name##_avx2, &name##_avx512}
#define NBX_LOOP(name, ...)                                                                   \
  void name##_portable(float* out, const float* x, const float* y, std::int64_t n) {          \
    for (std::int64_t i = 0; i < n; ++i) out[i] = cpu::math::__VA_ARGS__;                     \
    static_cast<void>(y);                                                                     \
  }                                                                                           \
  NBX_AVX2 void name##_avx2(float* out, const float* x, const float* y, std::int64_t n) {     \
    for (std::int64_t i = 0; i < n; ++i) out[i] = cpu::math::__VA_ARGS__;                     \
    static_cast<void>(y);                                                                     \
  }                                                                                           \
  NBX_AVX512 void name##_avx512(float* out, const float* x, const float* y, std::int64_t n) { \
    for (std::int64_t i = 0; i < n; ++i) out[i] = cpu::math::__VA_ARGS__;                     \
    static_cast<void>(y);                                                                     \
  }
#else
#define NBX_LEVELS(name) {&name##_portable, nullptr, nullptr}
#define NBX_LOOP(name, ...)                                                          \
  void name##_portable(float* out, const float* x, const float* y, std::int64_t n) { \
    for (std::int64_t i = 0; i < n; ++i) out[i] = cpu::math::__VA_ARGS__;            \
    static_cast<void>(y);                                                            \
  }
#endif

bool any(float, float) { return true; }
bool near_angle(float x, float) { return !cpu::math::is_far_angle(x); }
bool near_quotient(float x, float y) { return !cpu::math::is_far_quotient(x, y); }

// clang-format off
#define NBX_FUNCTIONS(X)                                                             \
  X(exp2, exp2(x[i]), std::exp2(a), any)                                             \
  X(expm1, expm1(x[i]), std::expm1(a), any)                                          \
  X(log2, log2(x[i]), std::log2(a), any)                                             \
  X(log10, log10(x[i]), std::log10(a), any)                                          \
  X(log1p, log1p(x[i]), std::log1p(a), any)                                          \
  X(sin, near_sin(x[i]), std::sin(a), near_angle)                                    \
  X(cos, near_cos(x[i]), std::cos(a), near_angle)                                    \
  X(tan, near_tan(x[i]), std::tan(a), near_angle)                                    \
  X(asin, asin(x[i]), std::asin(a), any)                                             \
  X(acos, acos(x[i]), std::acos(a), any)                                             \
  X(atan, atan(x[i]), std::atan(a), any)                                             \
  X(sinh, sinh(x[i]), std::sinh(a), any)                                             \
  X(cosh, cosh(x[i]), std::cosh(a), any)                                             \
  X(asinh, asinh(x[i]), std::asinh(a), any)                                          \
  X(acosh, acosh(x[i]), std::acosh(a), any)                                          \
  X(atanh, atanh(x[i]), std::atanh(a), any)                                          \
  X(log1p_exp, log1p_exp(x[i]), std::fmax(a, 0.0L) + std::log1p(std::exp(-std::fabs(a))) + (a != a ? a : 0), any) \
  X(atan2, atan2(x[i], y[i]), std::atan2(a, b), any)                                 \
  X(hypot, hypot(x[i], y[i]), std::hypot(a, b), any)                                 \
  X(power, power(x[i], y[i]), std::pow(a, b), any)                                   \
  X(fmod, near_fmod(x[i], y[i]), std::fmod(a, b), near_quotient)
// clang-format on

#define NBX_DEFINE(name, call, reference, takes) NBX_LOOP(name##_loop, call)
NBX_FUNCTIONS(NBX_DEFINE)
#undef NBX_DEFINE

std::vector<Function> functions() {
  return {
#define NBX_ENTRY(name, call, reference, takes) \
  {#name, NBX_LEVELS(name##_loop),              \
   [](Wide a, [[maybe_unused]] Wide b) -> Wide { return reference; }, &takes},
      NBX_FUNCTIONS(NBX_ENTRY)
#undef NBX_ENTRY
  };
}

/// Distance from the true value in units of the float nearest to it.
double units(float found, Wide wanted) {
  const auto nearest = static_cast<float>(wanted);
  if (nearest != nearest || found != found)
    return (nearest != nearest) == (found != found) ? 0 : 1e9;
  if (found == nearest) return std::signbit(found) == std::signbit(nearest) ? 0 : 1e9;
  if (std::fabs(nearest) == kInfinity || std::fabs(found) == kInfinity) return 1e9;
  int exponent = 0;
  static_cast<void>(std::frexp(nearest, &exponent));
  const Wide unit = std::ldexp(Wide{1}, std::max(exponent, -125) - 24);
  return static_cast<double>(std::fabs(static_cast<Wide>(found) - wanted) / unit);
}

/// Special values in all pairs, any bits, and numbers of a size that models have.
void fill(std::vector<float>& a, std::vector<float>& b, std::uint32_t seed) {
  const float special[] = {0.0F,    -0.0F,    1.0F,      -1.0F,      0.5F,   -0.5F,   2.0F,
                           3.0F,    -3.0F,    88.7F,     -104.F,     1e-45F, -1e-45F, 1e-38F,
                           3.4e38F, -3.4e38F, kInfinity, -kInfinity, kNan};
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> moderate(-20.0F, 20.0F);
  std::size_t at = 0;
  for (const float x : special) {
    for (const float y : special) {
      a[at] = x;
      b[at++] = y;
    }
  }
  for (; at < a.size(); ++at) {
    const bool bits = at % 2 == 0;
    a[at] =
        bits ? std::bit_cast<float>(static_cast<std::uint32_t>(generator())) : moderate(generator);
    b[at] =
        bits ? std::bit_cast<float>(static_cast<std::uint32_t>(generator())) : moderate(generator);
  }
}

TEST(Wide, FunctionsAreWithinOneUnitOnEveryLevel) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  fill(a, b, seed);
  const Simd best = cpu::simd_level();
  for (const Function& function : functions()) {
    std::vector<float> first;
    for (int level = 0; level <= static_cast<int>(best); ++level) {
      std::vector<float> out(kCount);
      function.loops[level](out.data(), a.data(), b.data(), kCount);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (!function.takes(a[i], b[i])) continue;
        const Wide wanted = function.reference(a[i], b[i]);
        ASSERT_LE(units(out[i], wanted), 0.6)
            << function.name << "(" << a[i] << ", " << b[i] << ") is " << out[i] << " on level "
            << level << ", expected " << static_cast<float>(wanted);
      }
    }
  }
}

/// Angles and quotients that the vectorised forms do not take, among those that they do.
TEST(Wide, FarOperandsTakeTheExactForm) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::vector<float> a(4000);
  std::vector<float> b(4000);
  fill(a, b, seed);
  const std::int64_t shape[] = {4000};
  const std::int64_t strides[] = {1};
  const auto view = [&](std::vector<float>& values) {
    return TensorView{reinterpret_cast<std::byte*>(values.data()), shape, strides, 1,
                      DType::float32};
  };
  const std::pair<const char*, std::function<Wide(Wide, Wide)>> cases[] = {
      {"sin", [](Wide x, Wide) { return std::sin(x); }},
      {"cos", [](Wide x, Wide) { return std::cos(x); }},
      {"tan", [](Wide x, Wide) { return std::tan(x); }},
      {"fmod", [](Wide x, Wide y) { return std::fmod(x, y); }},
  };
  for (const auto& [name, reference] : cases) {
    std::vector<float> out(4000);
    std::vector<TensorView> operands = {view(out), view(a)};
    if (std::string(name) == "fmod") operands.push_back(view(b));
    testing::call_kernel("elementwise:" + std::string(name), operands,
                         {testing::dtype_scalar(DType::float32)});
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_LE(units(out[i], reference(a[i], b[i])), 1.0)
          << name << "(" << a[i] << ", " << b[i] << ") is " << out[i];
    }
  }
}

}  // namespace
}  // namespace nbx
