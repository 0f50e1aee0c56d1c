// Chains against their kernels run one by one over whole tensors.
#include "cpu/chain.h"

#include <cstring>
#include <random>
#include <vector>

#include "core/error.h"
#include "cpu/kernel_testing.h"
#include "cpu/pool.h"
#include "gtest/gtest.h"

namespace nbx::cpu {
namespace {

using Source = ChainOperand::Source;
using Shape = std::vector<std::int64_t>;

Scalar integer(std::int64_t value) {
  return {ScalarKind::kInteger, false, value, static_cast<double>(value), 0.0};
}
ScalarSource constant(std::int64_t value) { return {false, 0, integer(value)}; }
ScalarSource type(DType dtype) { return constant(static_cast<std::int64_t>(dtype)); }

/// (x * y).exp() with the product kept in a block only, then a reduction of `reduced` axes.
std::vector<ChainStep> steps_of(const char* reduction, std::int32_t reduced) {
  std::vector<ChainStep> steps{
      {find_host_kernel("elementwise:mul"),
       {{Source::kScratch, 0}, {Source::kCall, 1}, {Source::kCall, 2}},
       {type(DType::float32)}},
      {find_host_kernel("elementwise:exp"),
       {{reduction == nullptr ? Source::kCall : Source::kScratch, 0}, {Source::kScratch, 0}},
       {type(DType::float32)}}};
  if (reduction != nullptr) {
    steps.push_back({find_host_kernel(reduction),
                     {{Source::kCall, 0}, {Source::kScratch, 0}},
                     {type(DType::float32), constant(reduced)}});
  }
  return steps;
}

struct Data {
  Shape shape;
  std::vector<float> values;
  Shape strides;

  Data(Shape extents, std::vector<float> numbers) : shape(extents), values(std::move(numbers)) {
    strides.assign(shape.size(), 1);
    for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  }
  TensorView view() {
    return {reinterpret_cast<std::byte*>(values.data()), shape.data(), strides.data(),
            static_cast<std::int32_t>(shape.size()), DType::float32};
  }
};

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

Data random_data(const Shape& shape, std::mt19937& generator) {
  std::uniform_real_distribution<float> numbers(-1.0F, 1.0F);
  std::vector<float> values(static_cast<std::size_t>(count_of(shape)));
  for (float& value : values) value = numbers(generator);
  return {shape, values};
}

/// exp(x * y) by the kernels over the whole tensors.
Data whole(Data& x, Data& y) {
  Data out(x.shape, std::vector<float>(x.values.size()));
  const Scalar dtype = integer(static_cast<std::int64_t>(DType::float32));
  const TensorView product[] = {out.view(), x.view(), y.view()};
  find_host_kernel("elementwise:mul")({product, 3, &dtype, 1, nullptr});
  const TensorView power[] = {out.view(), out.view()};
  find_host_kernel("elementwise:exp")({power, 2, &dtype, 1, nullptr});
  return out;
}

class Chains : public ::testing::TestWithParam<Shape> {};

TEST_P(Chains, PointwiseStepsGiveWhatTheirKernelsGive) {
  const std::uint32_t seed = testing::fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 generator(seed);
  Data x = random_data(GetParam(), generator);
  Data y = random_data(GetParam(), generator);
  Data out(x.shape, std::vector<float>(x.values.size(), -1.0F));
  auto chain = Chain(GetParam(), {DType::float32}, steps_of(nullptr, 0), 0);
  const TensorView views[] = {out.view(), x.view(), y.view()};
  run_chain({views, 3, nullptr, 0, &chain});
  EXPECT_EQ(out.values, whole(x, y).values);
}

TEST_P(Chains, ReductionsOfTrailingAxesAddUp) {
  const std::uint32_t seed = testing::fresh_seed();
  NBX_SEEDED_TRACE(seed);
  std::mt19937 generator(seed);
  Data x = random_data(GetParam(), generator);
  Data y = random_data(GetParam(), generator);
  const Data powers = whole(x, y);
  const auto rank = static_cast<std::int32_t>(GetParam().size());
  for (std::int32_t reduced = 1; reduced <= rank; ++reduced) {
    const Shape kept(GetParam().begin(), GetParam().end() - reduced);
    auto chain = Chain(GetParam(), {DType::float32}, steps_of("reduce:sum", reduced), reduced);
    const std::int64_t pieces = chain.blocks().per_output;
    Shape shape = kept;
    if (pieces > 1) shape.push_back(pieces);
    Data out(shape, std::vector<float>(static_cast<std::size_t>(count_of(shape))));
    const TensorView views[] = {out.view(), x.view(), y.view()};
    run_chain({views, 3, nullptr, 0, &chain});
    const std::int64_t row = count_of(GetParam()) / count_of(kept);
    for (std::int64_t i = 0; i < count_of(kept); ++i) {
      double expected = 0.0;
      for (std::int64_t j = 0; j < row; ++j) {
        expected += static_cast<double>(powers.values[static_cast<std::size_t>(i * row + j)]);
      }
      double got = 0.0;
      for (std::int64_t j = 0; j < pieces; ++j) {
        got += static_cast<double>(out.values[static_cast<std::size_t>(i * pieces + j)]);
      }
      ASSERT_NEAR(got, expected, 1e-6 * expected) << "output " << i << ", " << reduced << " axes";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Chains,
                         ::testing::Values(Shape{1}, Shape{5}, Shape{kChainBlock},
                                           Shape{kChainBlock + 1}, Shape{kLongestRow},
                                           Shape{kLongestRow + 1}, Shape{100'003}, Shape{3, 50'000},
                                           Shape{2, 3, 20'011}, Shape{700, 3}, Shape{5, 7, 300},
                                           Shape{2, 400, 100}, Shape{1, 1, 1}, Shape{40'000, 1}));

TEST(Chain, BlocksCoverEveryElementOnce) {
  for (const Shape& shape : {Shape{3, 50'000}, Shape{2, 400, 100}, Shape{kChainBlock}}) {
    const Chain chain(shape, {}, {}, 0);
    const ChainBlocks& blocks = chain.blocks();
    EXPECT_EQ(blocks.per_output, 1);
    EXPECT_GE(blocks.count * kChainBlock, count_of(shape));
    EXPECT_LE(blocks.length * count_of(Shape(shape.begin() + blocks.axis, shape.end())),
              kChainBlock);
  }
}

TEST(Chain, ThreadsDoNotChangeSums) {
  std::mt19937 generator(testing::fresh_seed());
  const Shape shape{7, 90'001};
  Data x = random_data(shape, generator);
  Data y = random_data(shape, generator);
  auto chain = Chain(shape, {DType::float32}, steps_of("reduce:sum", 1), 1);
  std::vector<std::vector<float>> results;
  const int before = thread_count();
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    Data out({7, chain.blocks().per_output}, {});
    out.values.resize(static_cast<std::size_t>(count_of(out.shape)));
    const TensorView views[] = {out.view(), x.view(), y.view()};
    run_chain({views, 3, nullptr, 0, &chain});
    results.push_back(out.values);
  }
  set_thread_count(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Chain, RefusesWhatIsNotThere) {
  const auto text = [](const Shape& shape, const std::vector<DType>& scratch, std::int32_t reduced,
                       std::vector<ChainStep> steps) -> std::string {
    try {
      const Chain chain(shape, scratch, std::move(steps), reduced);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(text({4}, {}, 0, steps_of(nullptr, 0)).find("names block 0 of 0"), std::string::npos);
  EXPECT_NE(text({4}, {}, 2, {}).find("cannot reduce 2 of 1 axes"), std::string::npos);
  EXPECT_NE(text(Shape(65, 1), {}, 0, {}).find("got 65 axes"), std::string::npos);
  EXPECT_NE(text({4}, {}, 0, {{nullptr, {}, {}}}).find("no kernel"), std::string::npos);
}

}  // namespace
}  // namespace nbx::cpu
