// Reductions against naive sums in long double.
#include <algorithm>
#include <complex>
#include <functional>
#include <map>

#include "core/error.h"
#include "cpu/pool.h"
#include "kernel_testing.h"

namespace nbx {
namespace {

using testing::call_kernel;
using testing::dtype_scalar;
using testing::fresh_seed;
using testing::integer_scalar;
using testing::Owned;
using testing::real_scalar;

using Values = std::vector<long double>;

struct Case {
  std::string name;
  std::vector<Scalar> extras;
  std::function<long double(const Values&)> reference;
  bool is_exact;  // a choice among the values or a count
};

long double sum_of(const Values& v) {
  long double sum = 0;
  for (const long double x : v) sum += x;
  return sum;
}
long double variance_of(const Values& v, long double correction) {
  const auto n = static_cast<long double>(v.size());
  const long double mean = sum_of(v) / n;
  long double sum = 0;
  for (const long double x : v) sum += (x - mean) * (x - mean);
  return sum / (n - correction);
}
long double norm_of(const Values& v, long double p) {
  long double sum = 0;
  for (const long double x : v) sum += std::pow(std::fabs(x), p);
  return std::pow(sum, 1 / p);
}

std::vector<Case> cases() {
  using V = const Values&;
  std::vector<Case> all = {
      {"sum", {}, sum_of, false},
      {"mean", {}, [](V v) { return sum_of(v) / static_cast<long double>(v.size()); }, false},
      {"amax", {}, [](V v) { return *std::max_element(v.begin(), v.end()); }, true},
      {"amin", {}, [](V v) { return *std::min_element(v.begin(), v.end()); }, true},
      {"norm", {real_scalar(2)}, [](V v) { return norm_of(v, 2); }, false},
      {"norm", {real_scalar(1)}, [](V v) { return norm_of(v, 1); }, false},
      {"norm", {real_scalar(3.5)}, [](V v) { return norm_of(v, 3.5); }, false},
  };
  all.push_back({"argmax",
                 {},
                 [](V v) {
                   return static_cast<long double>(std::max_element(v.begin(), v.end()) -
                                                   v.begin());
                 },
                 true});
  all.push_back({"argmin",
                 {},
                 [](V v) {
                   return static_cast<long double>(std::min_element(v.begin(), v.end()) -
                                                   v.begin());
                 },
                 true});
  all.push_back({"norm",
                 {real_scalar(INFINITY)},
                 [](V v) {
                   long double most = 0;
                   for (const long double x : v) most = std::max(most, std::fabs(x));
                   return most;
                 },
                 true});
  all.push_back({"norm",
                 {real_scalar(0)},
                 [](V v) {
                   return static_cast<long double>(
                       std::count_if(v.begin(), v.end(), [](long double x) { return x != 0; }));
                 },
                 false});
  all.push_back({"var", {real_scalar(0)}, [](V v) { return variance_of(v, 0); }, false});
  all.push_back({"std", {real_scalar(0)}, [](V v) { return std::sqrt(variance_of(v, 0)); }, false});
  all.push_back({"logsumexp",
                 {},
                 [](V v) {
                   const long double most = *std::max_element(v.begin(), v.end());
                   long double sum = 0;
                   for (const long double x : v) sum += std::exp(x - most);
                   return std::log(sum) + most;
                 },
                 false});
  all.push_back({"prod",
                 {},
                 [](V v) {
                   long double product = 1;
                   for (const long double x : v) product *= x;
                   return product;
                 },
                 false});
  all.push_back({"count_nonzero",
                 {},
                 [](V v) {
                   return static_cast<long double>(
                       std::count_if(v.begin(), v.end(), [](long double x) { return x != 0; }));
                 },
                 true});
  return all;
}

std::vector<Scalar> scalars_of(DType op_dtype, std::int64_t axes,
                               const std::vector<Scalar>& extras = {}) {
  std::vector<Scalar> scalars = {dtype_scalar(op_dtype), integer_scalar(axes)};
  scalars.insert(scalars.end(), extras.begin(), extras.end());
  return scalars;
}

std::int64_t product_of(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

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

struct Shape {
  std::vector<std::int64_t> kept;
  std::vector<std::int64_t> reduced;
};

void run_case(const Case& test, DType dtype, const Shape& shape, bool scattered,
              std::mt19937& rng) {
  SCOPED_TRACE(test.name + " of " + facts_of(dtype).name + " " +
               std::to_string(product_of(shape.kept)) + " x " +
               std::to_string(product_of(shape.reduced)));
  std::vector<std::int64_t> whole = shape.kept;
  whole.insert(whole.end(), shape.reduced.begin(), shape.reduced.end());
  Owned in = scattered ? Owned::scattered(dtype, whole, rng) : Owned(dtype, whole);
  in.randomise(rng);
  // Products of many numbers stay near 1.
  if (test.name == "prod") {
    for (std::int64_t i = 0; i < in.count(); ++i) in.set_number(i, rng() % 2 == 0 ? 1.0 : -1.0);
  }
  const bool index = test.name.rfind("arg", 0) == 0 || test.name == "count_nonzero";
  const DType out_dtype = index ? DType::int64 : dtype;
  Owned out =
      scattered ? Owned::scattered(out_dtype, shape.kept, rng) : Owned(out_dtype, shape.kept);
  const DType op = dtype == DType::float64 ? dtype : DType::float32;
  call_kernel("reduce:" + test.name, {out.view(), in.view()},
              scalars_of(op, static_cast<std::int64_t>(shape.reduced.size()), test.extras));
  const std::int64_t length = product_of(shape.reduced);
  for (std::int64_t i = 0; i < out.count(); ++i) {
    Values values;
    for (std::int64_t k = 0; k < length; ++k) values.push_back(in.number(i * length + k));
    const auto expected = static_cast<double>(test.reference(values));
    // One rounding to the result's type; float64 also adds up with its own precision.
    const double growth = dtype == DType::float64 ? 4 + std::sqrt(static_cast<double>(length)) : 2;
    // As many roundings, of partial sums that grow as the root of their number.
    const double spread = dtype == DType::float64 ? 4 * static_cast<double>(length) : 0;
    const double allowed = test.is_exact
                               ? 0
                               : unit_of(dtype) * (std::fabs(expected) * growth + spread) +
                                     (op == DType::float32 ? 1e-6 : 0);
    ASSERT_LE(std::fabs(out.number(i) - expected), allowed) << "output " << i << " " << expected;
  }
}

TEST(Reduce, AgreesWithLongSums) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  const std::vector<Shape> shapes = {{{}, {1}},      {{}, {1237}},     {{7}, {}},
                                     {{3, 5}, {31}}, {{2, 300}, {3}},  {{0}, {4}},
                                     {{33}, {2, 5}}, {{4}, {3, 2, 70}}};
  for (const Case& test : cases()) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
      for (const Shape& shape : shapes) {
        run_case(test, dtype, shape, false, rng);
        run_case(test, dtype, shape, true, rng);
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
}

TEST(Reduce, LongReductionsGoInPieces) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const Case& test : cases()) {
    run_case(test, DType::float32, {{}, {200003}}, false, rng);
    run_case(test, DType::float32, {{2}, {70001}}, false, rng);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

/// A matrix read down its columns: neighbouring outputs are reduced side by side.
TEST(Reduce, ColumnsAgreeWithRows) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const std::int64_t rows : {5, 700, 2500}) {
    const std::int64_t columns = 301;
    Owned in(DType::float32, {rows, columns});
    in.randomise(rng);
    const std::int64_t shape[] = {columns, rows};
    const std::int64_t strides[] = {1, columns};
    const TensorView transposed{in.view().data, shape, strides, 2, DType::float32};
    Owned dense(DType::float32, {columns, rows});
    call_kernel("copy:strided", {dense.view(), transposed});
    for (const Case& test : cases()) {
      if (test.name == "prod") continue;
      const bool index = test.name.rfind("arg", 0) == 0 || test.name == "count_nonzero";
      const DType dtype = index ? DType::int64 : DType::float32;
      Owned down(dtype, {columns});
      Owned along(dtype, {columns});
      const auto scalars = scalars_of(DType::float32, 1, test.extras);
      call_kernel("reduce:" + test.name, {down.view(), transposed}, scalars);
      call_kernel("reduce:" + test.name, {along.view(), dense.view()}, scalars);
      for (std::int64_t i = 0; i < columns; ++i) {
        ASSERT_NEAR(down.number(i), along.number(i), std::fabs(along.number(i)) * 1e-6 + 1e-6)
            << test.name;
      }
    }
  }
}

TEST(Reduce, DoesNotDependOnTheThreadCount) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  Owned in(DType::float64, {3, 300017});
  in.randomise(rng);
  const int before = cpu::set_thread_count(1);
  Owned one(DType::float64, {3});
  call_kernel("reduce:sum", {one.view(), in.view()}, scalars_of(DType::float64, 1));
  for (const int threads : {2, 3, 5}) {
    cpu::set_thread_count(threads);
    Owned many(DType::float64, {3});
    call_kernel("reduce:sum", {many.view(), in.view()}, scalars_of(DType::float64, 1));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(many.get<double>(i), one.get<double>(i));
  }
  cpu::set_thread_count(before);
}

TEST(Reduce, IntegerSumsAreExact) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const DType dtype : {DType::int8, DType::int32, DType::int64, DType::uint8, DType::uint64}) {
    Owned in = Owned::scattered(dtype, {5, 999}, rng);
    in.randomise(rng);
    const bool is_unsigned = facts_of(dtype).kind == 'u';
    const DType op = is_unsigned ? DType::uint64 : DType::int64;
    Owned sum(op, {5});
    Owned prod(op, {5});
    call_kernel("reduce:sum", {sum.view(), in.view()}, scalars_of(op, 1));
    call_kernel("reduce:prod", {prod.view(), in.view()}, scalars_of(op, 1));
    for (std::int64_t i = 0; i < 5; ++i) {
      std::uint64_t expected = 0;
      std::uint64_t product = 1;
      for (std::int64_t k = 0; k < 999; ++k) {
        std::uint64_t value = 0;
        const std::int64_t at = i * 999 + k;
        if (dtype == DType::uint64 || dtype == DType::int64) {
          value = in.get<std::uint64_t>(at);
        } else {
          value = static_cast<std::uint64_t>(static_cast<std::int64_t>(in.number(at)));
        }
        expected += value;
        product *= value;
      }
      EXPECT_EQ(sum.get<std::uint64_t>(i), expected);
      EXPECT_EQ(prod.get<std::uint64_t>(i), product);
    }
  }
}

TEST(Reduce, VarianceOfALargeMeanIsNotNegative) {
  Owned in(DType::float32, {4096});
  for (int i = 0; i < 4096; ++i) in.set(i, 10000.0F + static_cast<float>(i % 2) * 0.125F);
  Owned out(DType::float32, {});
  call_kernel("reduce:var", {out.view(), in.view()},
              scalars_of(DType::float32, 1, {real_scalar(0)}));
  EXPECT_NEAR(out.get<float>(0), 0.0625 * 0.0625, 1e-9);
  Owned same(DType::float32, {1000});
  for (int i = 0; i < 1000; ++i) same.set(i, 1234.567F);
  call_kernel("reduce:var", {out.view(), same.view()},
              scalars_of(DType::float32, 1, {real_scalar(1)}));
  EXPECT_GE(out.get<float>(0), 0.0F);
  EXPECT_LE(out.get<float>(0), 1e-12F);
}

TEST(Reduce, NanWins) {
  Owned in(DType::float32, {3000});
  for (int i = 0; i < 3000; ++i) in.set(i, static_cast<float>(i % 100));
  in.set(1501, std::nanf(""));
  in.set(2222, std::nanf(""));
  Owned value(DType::float32, {});
  Owned place(DType::int64, {});
  for (const char* name : {"amax", "amin", "sum", "logsumexp"}) {
    call_kernel(std::string("reduce:") + name, {value.view(), in.view()},
                scalars_of(DType::float32, 1));
    EXPECT_TRUE(std::isnan(value.get<float>(0))) << name;
  }
  for (const char* name : {"argmax", "argmin"}) {
    call_kernel(std::string("reduce:") + name, {place.view(), in.view()},
                scalars_of(DType::float32, 1));
    EXPECT_EQ(place.get<std::int64_t>(0), 1501) << name;
  }
}

TEST(Reduce, TheFirstOfEqualsIsThePlace) {
  Owned in(DType::float32, {2, 3, 1000});
  for (int i = 0; i < 6000; ++i) in.set(i, i % 1000 == 700 || i % 1000 == 20 ? 5.0F : -INFINITY);
  Owned out(DType::int64, {2});
  call_kernel("reduce:argmax", {out.view(), in.view()}, scalars_of(DType::float32, 2));
  EXPECT_EQ(out.get<std::int64_t>(0), 20);
  Owned low(DType::float32, {2, 50});
  for (int i = 0; i < 100; ++i) low.set(i, -INFINITY);
  call_kernel("reduce:argmax", {out.view(), low.view()}, scalars_of(DType::float32, 1));
  EXPECT_EQ(out.get<std::int64_t>(1), 0);
}

TEST(Reduce, EmptyAxesGiveTheIdentity) {
  Owned in(DType::float32, {3, 0});
  Owned out(DType::float32, {3});
  const auto expect = [&](const char* name, double expected, std::vector<Scalar> extras = {}) {
    call_kernel(std::string("reduce:") + name, {out.view(), in.view()},
                scalars_of(DType::float32, 1, extras));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(out.number(i), expected) << name;
  };
  expect("sum", 0);
  expect("prod", 1);
  expect("norm", 0, {real_scalar(2)});
  expect("logsumexp", -INFINITY);
  expect("count_nonzero", 0);
  expect("all", 1);
  expect("any", 0);
  call_kernel("reduce:mean", {out.view(), in.view()}, scalars_of(DType::float32, 1));
  EXPECT_TRUE(std::isnan(out.get<float>(0)));
}

TEST(Reduce, TruthOfAnyType) {
  Owned in(DType::float32, {2, 3});
  const float values[] = {0.5F, -1.0F, std::nanf(""), 0.0F, 0.25F, 0.0F};
  for (int i = 0; i < 6; ++i) in.set(i, values[i]);
  Owned out(DType::bool_, {2});
  call_kernel("reduce:all", {out.view(), in.view()}, scalars_of(DType::float32, 1));
  EXPECT_EQ(out.number(0), 1);
  EXPECT_EQ(out.number(1), 0);
  call_kernel("reduce:any", {out.view(), in.view()}, scalars_of(DType::float32, 1));
  EXPECT_EQ(out.number(1), 1);
}

TEST(Reduce, InfinitiesPassThroughLogSumExp) {
  Owned in(DType::float32, {3, 2});
  const float values[] = {-INFINITY, -INFINITY, INFINITY, 1.0F, -INFINITY, 2.0F};
  for (int i = 0; i < 6; ++i) in.set(i, values[i]);
  Owned out(DType::float32, {3});
  call_kernel("reduce:logsumexp", {out.view(), in.view()}, scalars_of(DType::float32, 1));
  EXPECT_EQ(out.number(0), -INFINITY);
  EXPECT_EQ(out.number(1), INFINITY);
  EXPECT_EQ(out.number(2), 2.0);
}

TEST(Reduce, ComplexNumbers) {
  const std::uint32_t seed = fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 rng(seed);
  Owned in = Owned::scattered(DType::complex64, {4, 60}, rng);
  in.randomise(rng);
  Owned sum(DType::complex64, {4});
  Owned norm(DType::float32, {4});
  call_kernel("reduce:sum", {sum.view(), in.view()}, scalars_of(DType::complex64, 1));
  call_kernel("reduce:norm", {norm.view(), in.view()},
              scalars_of(DType::complex64, 1, {real_scalar(2)}));
  for (std::int64_t i = 0; i < 4; ++i) {
    std::complex<double> expected = 0;
    double squares = 0;
    for (std::int64_t k = 0; k < 60; ++k) {
      const std::complex<double> value(in.get<std::complex<float>>(i * 60 + k));
      expected += value;
      squares += std::norm(value);
    }
    const std::complex<double> got(sum.get<std::complex<float>>(i));
    EXPECT_LE(std::abs(got - expected), 1e-5);
    EXPECT_NEAR(norm.number(i), std::sqrt(squares), 1e-5);
  }
}

TEST(Reduce, RefusesBadOperands) {
  Owned in(DType::float32, {3, 4});
  Owned out(DType::float32, {3});
  Owned wrong(DType::float32, {2});
  EXPECT_THROW(call_kernel("reduce:sum", {out.view(), in.view()}, scalars_of(DType::float32, 2)),
               Error);
  EXPECT_THROW(call_kernel("reduce:sum", {wrong.view(), in.view()}, scalars_of(DType::float32, 1)),
               Error);
  EXPECT_THROW(call_kernel("reduce:mean", {out.view(), in.view()}, scalars_of(DType::int64, 1)),
               Error);
  EXPECT_THROW(call_kernel("reduce:var", {out.view(), in.view()}, scalars_of(DType::float32, 1)),
               Error);
}

}  // namespace
}  // namespace nbx
