#include "storage/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "device/device.h"
#include "launch/kernel.h"
#include "storage/transfer.h"
#include "storage/views.h"

namespace nbx {
namespace {

DeviceMemory& memory(DeviceKind kind = DeviceKind::kCpu, std::int32_t ordinal = 0) {
  return memory_of(open_device(kind, ordinal));
}

TensorMeta counting(std::vector<std::int64_t> shape) {
  TensorMeta meta =
      empty_tensor(memory(), DType::int32, shape.data(), static_cast<std::int32_t>(shape.size()));
  auto* values = reinterpret_cast<std::int32_t*>(meta.data);
  std::iota(values, values + meta.layout.element_count(), 0);
  return meta;
}

/// The elements in row-major order of the view, read one by one.
std::vector<std::int32_t> elements(const TensorMeta& meta) {
  std::vector<std::int32_t> result;
  const std::int64_t count = meta.layout.element_count();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (std::int32_t axis = meta.layout.rank() - 1; axis >= 0; --axis) {
      offset += rest % meta.layout.shape()[axis] * meta.layout.strides()[axis];
      rest /= meta.layout.shape()[axis];
    }
    result.push_back(reinterpret_cast<const std::int32_t*>(meta.data)[offset]);
  }
  return result;
}

Extents extents(std::initializer_list<std::int64_t> values) {
  Extents result;
  for (const std::int64_t value : values) result.push(value);
  return result;
}

template <class Act>
ErrorKind refusal(const Act& act) {
  try {
    static_cast<void>(act());
  } catch (const Error& error) {
    EXPECT_GT(std::string(error.what()).size(), 20u);
    return error.kind();
  }
  ADD_FAILURE() << "nothing was refused";
  return ErrorKind::kIo;
}

TEST(TensorView, CountsEmptyTensorsWhoseOtherExtentsMultiplyPast64Bits) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  for (int zero = 0; zero < 3; ++zero) {
    std::int64_t shape[] = {kHuge, kHuge, kHuge};
    const std::int64_t strides[] = {7, 7, 7};
    shape[zero] = 0;
    const TensorView view{nullptr, shape, strides, 3, DType::float32};
    EXPECT_EQ(view.element_count(), 0);
    EXPECT_TRUE(is_contiguous(view));
    const TensorMeta meta = empty_tensor(memory(), DType::int8, shape, 3);
    EXPECT_EQ(flattened_shape(meta, 0, 2).values[0], 0);
  }
}

TEST(Layout, KeepsHighRanksThroughCopiesAndMoves) {
  for (const std::int32_t rank : {0, 1, 8, 9, 64}) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(rank), 1);
    if (rank > 0) shape.back() = 7;
    Layout layout(shape.data(), shape.data(), rank);
    layout.set_contiguous_strides();
    const Layout copy = layout;
    Layout moved = std::move(layout);
    layout = copy;
    moved = Layout(moved);
    for (const Layout* each : {&copy, &std::as_const(moved), &std::as_const(layout)}) {
      EXPECT_EQ(each->rank(), rank);
      EXPECT_TRUE(each->contiguous());
      EXPECT_EQ(each->element_count(), rank > 0 ? 7 : 1);
    }
  }
  Layout layout;
  EXPECT_EQ(refusal([&] {
              layout.resize(65);
              return 0;
            }),
            ErrorKind::kValue);
}

TEST(Tensor, RefusesShapesThatOverflow) {
  const std::int64_t many[] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_EQ(refusal([&] { return empty_tensor(memory(), DType::int8, many, 2); }),
            ErrorKind::kOverflow);
  const std::int64_t wide[] = {std::int64_t{1} << 61};
  EXPECT_EQ(refusal([&] { return empty_tensor(memory(), DType::float64, wide, 1); }),
            ErrorKind::kOverflow);
  const std::int64_t negative[] = {-1};
  EXPECT_EQ(refusal([&] { return empty_tensor(memory(), DType::int8, negative, 1); }),
            ErrorKind::kValue);
  const std::int64_t none[] = {std::int64_t{1} << 40, 0, std::int64_t{1} << 40};
  EXPECT_EQ(empty_tensor(memory(), DType::int8, none, 3).layout.element_count(), 0);
  EXPECT_EQ(bytes_of(DType::int4, 7), 4u);
}

TEST(Views, AddressTheRightElements) {
  const TensorMeta base = counting({3, 4});
  EXPECT_EQ(elements(select_view(base, 0, -1)), (std::vector{8, 9, 10, 11}));
  EXPECT_EQ(elements(narrow_view(base, 1, 1, 2)), (std::vector{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(elements(transpose_view(narrow_view(base, 1, 1, 2), 0, 1)),
            (std::vector{1, 5, 9, 2, 6, 10}));
  EXPECT_EQ(elements(flip_view(select_view(base, 0, 0), nullptr)), (std::vector{3, 2, 1, 0}));
  EXPECT_EQ(elements(diagonal_view(base, 1, 0, 1)), (std::vector{1, 6, 11}));
  EXPECT_EQ(elements(diagonal_view(base, -1, 0, 1)), (std::vector{4, 9}));
  EXPECT_EQ(elements(unfold_view(select_view(base, 0, 0), 0, 3, 1)),
            (std::vector{0, 1, 2, 1, 2, 3}));
  EXPECT_EQ(elements(expand_view(select_view(base, 1, 0), extents({2, 3}))),
            (std::vector{0, 4, 8, 0, 4, 8}));
}

TEST(Views, ReshapeOnlyAlongRuns) {
  const TensorMeta base = counting({2, 3, 4});
  TensorMeta view;
  ASSERT_TRUE(try_reshape_view(base, extents({6, 4}), &view));
  EXPECT_EQ(elements(view), elements(base));
  const TensorMeta cut = narrow_view(base, 2, 0, 2);
  ASSERT_TRUE(try_reshape_view(cut, extents({6, 2}), &view));
  EXPECT_EQ(elements(view), elements(cut));
  ASSERT_TRUE(try_reshape_view(cut, extents({3, 2, 1, 2}), &view));
  EXPECT_EQ(elements(view), elements(cut));
  EXPECT_FALSE(try_reshape_view(cut, extents({12}), &view));
  EXPECT_EQ(refusal([&] { return resolved_shape(base, extents({5, -1})); }), ErrorKind::kValue);
}

TEST(Views, StayInsideTheStorage) {
  const TensorMeta base = counting({12});
  const auto strided = [&](Extents shape, Extents strides, DeviceAddress origin) {
    return as_strided_view(base, shape, strides, origin);
  };
  EXPECT_EQ(elements(strided(extents({2, 2}), extents({6, 1}), base.data + 4)),
            (std::vector{1, 2, 7, 8}));
  for (const auto& [shape, stride, offset] :
       {std::tuple{13, 1, 0}, {2, -1, 0}, {1, 1, 48}, {1, 1, -4}, {4, 4, 0}}) {
    EXPECT_EQ(refusal([&, s = shape, t = stride, o = offset] {
                return strided(extents({s}), extents({t}),
                               base.data + static_cast<DeviceAddress>(o));
              }),
              ErrorKind::kValue)
        << shape << " " << stride << " " << offset;
  }
  EXPECT_EQ(
      refusal([&] { return strided(extents({3}), extents({std::int64_t{1} << 62}), base.data); }),
      ErrorKind::kOverflow);
}

TEST(Views, KnowWhatOverlaps) {
  const TensorMeta base = counting({10});
  EXPECT_TRUE(may_overlap(narrow_view(base, 0, 0, 6), narrow_view(base, 0, 5, 5)));
  EXPECT_FALSE(may_overlap(narrow_view(base, 0, 0, 5), narrow_view(base, 0, 5, 5)));
  EXPECT_TRUE(may_overlap(flip_view(base, nullptr), narrow_view(base, 0, 0, 1)));
  EXPECT_FALSE(may_overlap(base, counting({10})));
}

TEST(Transfer, CarriesBytesBetweenDevices) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const TensorMeta source = counting({1000});
  for (std::int64_t i = 0; i < 1000; ++i) {
    reinterpret_cast<std::uint32_t*>(source.data)[i] = static_cast<std::uint32_t>(random());
  }
  const std::int64_t shape[] = {1000};
  const TensorMeta first = empty_tensor(memory(DeviceKind::kSim, 0), DType::int32, shape, 1);
  const TensorMeta second = empty_tensor(memory(DeviceKind::kSim, 1), DType::int32, shape, 1);
  const TensorMeta third = empty_tensor(memory(DeviceKind::kSim, 1), DType::int32, shape, 1);
  const TensorMeta back = empty_tensor(memory(), DType::int32, shape, 1);
  copy_across(first, source);
  copy_across(second, first);
  copy_across(third, second);
  copy_across(back, third);
  EXPECT_EQ(elements(back), elements(source));
  std::vector<std::int32_t> host(1000);
  copy_to_host(third, host.data(), 4000);
  EXPECT_EQ(host, elements(source));
}

TEST(IndexKernels, CheckEveryIndexBeforeWriting) {
  TensorMeta out = counting({4});
  TensorMeta values = counting({3});
  TensorMeta indices = empty_tensor(memory(), DType::int64, values.layout.shape(), 1);
  auto* index = reinterpret_cast<std::int64_t*>(indices.data);
  index[0] = 0;
  index[1] = -1;
  index[2] = 4;
  const TensorView views[] = {out.view(), values.view(), indices.view()};
  Scalar count;
  count.kind = ScalarKind::kInteger;
  count.integer = 1;
  Scalar axis = count;
  axis.integer = 5;
  const Scalar scalars[] = {count, axis};
  const KernelCall call{views, 3, scalars, 2, nullptr};
  const HostKernel put = find_host_kernel("index:put");
  ASSERT_NE(put, nullptr);
  EXPECT_EQ(refusal([&] {
              put(call);
              return 0;
            }),
            ErrorKind::kIndex);
  EXPECT_EQ(elements(out), (std::vector{0, 1, 2, 3}));
  index[2] = 0;
  put(call);
  EXPECT_EQ(elements(out), (std::vector{2, 1, 2, 1}));
}

}  // namespace
}  // namespace nbx
