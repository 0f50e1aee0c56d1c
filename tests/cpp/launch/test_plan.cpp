#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/error.h"
#include "launch/plan.h"
#include "storage/storage.h"

namespace nbx {
namespace {

/// out[i] = scale * in[i] + shift over float32 of any strides of one axis.
void affine(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& in = call.tensors[1];
  for (std::int64_t i = 0; i < out.shape[0]; ++i) {
    const float x = in.as<float>()[i * in.strides[0]];
    out.as<float>()[i * out.strides[0]] =
        static_cast<float>(call.scalars[0].real * static_cast<double>(x) + call.scalars[1].real);
  }
}

void refuse(const KernelCall& /*call*/) {
  throw Error(ErrorKind::kIndex, "test: index 9 is out of range [0, 3)");
}

void note_absent(const KernelCall& call) {
  *call.tensors[0].as<float>() = call.tensors[1].data == nullptr ? 1.0F : 0.0F;
}

const HostKernelRegistration kAffine{"test:affine", &affine};
const HostKernelRegistration kRefuse{"test:refuse", &refuse};
const HostKernelRegistration kNoteAbsent{"test:note_absent", &note_absent};

Layout layout_of(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
  return Layout(shape.data(), strides.data(), static_cast<std::int32_t>(shape.size()));
}

TensorSpecification vector_of(std::int64_t count) {
  return {DType::float32, layout_of({count}, {1}), static_cast<std::uint64_t>(count) * 4};
}

Scalar real(double value) {
  Scalar scalar;
  scalar.kind = ScalarKind::kReal;
  scalar.real = value;
  return scalar;
}

class PlanTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  Device& device_ = open_device(GetParam(), 0);
  DeviceMemory& memory_ = memory_of(device_);
  Stream& stream_ = current_stream(device_);

  TensorMeta upload(const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    TensorMeta meta = empty_tensor(memory_, DType::float32, &count, 1);
    const Status status = device_.primitives().copy(
        device_.ordinal(), meta.data, reinterpret_cast<DeviceAddress>(values.data()),
        values.size() * 4, CopyKind::kHostToDevice, stream_.handle());
    EXPECT_EQ(status, kSuccess);
    meta.storage->touch(stream_);
    return meta;
  }

  std::vector<float> download(const TensorMeta& meta) {
    std::vector<float> values(static_cast<std::size_t>(meta.layout.element_count()));
    const Status status = device_.primitives().copy(
        device_.ordinal(), reinterpret_cast<DeviceAddress>(values.data()), meta.data,
        values.size() * 4, CopyKind::kDeviceToHost, stream_.handle());
    EXPECT_EQ(status, kSuccess);
    stream_.synchronize();
    return values;
  }

  std::uint64_t live() { return memory_.heap.statistics().live; }
};

TEST_P(PlanTest, RunsStepsOverWindowsTemporariesAndScalarsOfTheCall) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<float> values(9);
  for (float& value : values) value = std::uniform_real_distribution<float>(-4, 4)(random);
  TensorMeta input = upload(values);
  // temporary = 2 * reversed(every second input) + s; output = 1 * temporary - 1
  Plan plan;
  plan.outputs.push_back(vector_of(5));
  plan.temporaries.push_back(vector_of(5));
  plan.results.push_back({OperandSource::kOutput, 0});
  const Operand reversed{OperandSource::kArgument, 0, DType::float32, 8 * 4, layout_of({5}, {-2})};
  const Operand temporary{OperandSource::kTemporary, 0, DType::float32, 0, layout_of({5}, {1})};
  const Operand output{OperandSource::kOutput, 0, DType::float32, 0, layout_of({5}, {1})};
  Step first;
  first.kernel = find_host_kernel("test:affine");
  first.operands = {temporary, reversed};
  first.scalars = {{false, 0, real(2.0)}, {true, 0, Scalar{}}};
  Step second;
  second.kernel = first.kernel;
  second.operands = {output, temporary};
  second.scalars = {{false, 0, real(1.0)}, {false, 0, real(-1.0)}};
  plan.steps = {first, second};
  TensorMeta* arguments[] = {&input};
  for (const double shift : {0.5, -3.0}) {
    const Scalar scalar = real(shift);
    TensorMeta made;
    run_plan(plan, memory_, stream_, arguments, 1, &scalar, 1, &made);
    const std::vector<float> result = download(made);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_FLOAT_EQ(result[i],
                      static_cast<float>(2.0 * static_cast<double>(values[8 - 2 * i]) + shift) - 1);
    }
  }
}

TEST_P(PlanTest, KeepsStoragesAliveUntilTheWorkHasRun) {
  const std::uint64_t before = live();
  TensorMeta made;
  {
    TensorMeta input = upload({1.0F, 2.0F, 3.0F});
    TensorMeta output = upload({0.0F, 0.0F, 0.0F});
    TensorMeta* tensors[] = {&output, &input};
    const Scalar scalars[] = {real(10.0), real(0.0)};
    run_kernel(find_host_kernel("test:affine"), nullptr, stream_, tensors, 2, 1, scalars, 2);
    made = output;
  }
  EXPECT_EQ(download(made), (std::vector<float>{10.0F, 20.0F, 30.0F}));
  made = TensorMeta{};
  stream_.synchronize();
  EXPECT_EQ(live(), before);
}

TEST_P(PlanTest, AbsentOperandsHaveNoData) {
  TensorMeta output = upload({7.0F});
  TensorMeta* tensors[] = {&output, nullptr};
  run_kernel(find_host_kernel("test:note_absent"), nullptr, stream_, tensors, 2, 1, nullptr, 0);
  EXPECT_EQ(download(output), (std::vector<float>{1.0F}));
}

TEST_P(PlanTest, ErrorsOfKernelsReachWhoeverWaitsAndLeakNothing) {
  const std::uint64_t before = live();
  Plan plan;
  plan.outputs.push_back(vector_of(3));
  plan.results.push_back({OperandSource::kOutput, 0});
  Step step;
  step.kernel = find_host_kernel("test:refuse");
  step.operands = {Operand{OperandSource::kOutput, 0, DType::float32, 0, layout_of({3}, {1})}};
  plan.steps = {step};
  try {
    TensorMeta made;
    run_plan(plan, memory_, stream_, nullptr, 0, nullptr, 0, &made);
    stream_.synchronize();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIndex);
    EXPECT_NE(std::string(error.what()).find("index 9 is out of range"), std::string::npos);
  }
  stream_.synchronize();
  EXPECT_EQ(live(), before);
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanTest, ::testing::Values(DeviceKind::kCpu, DeviceKind::kSim),
                         [](const auto& tested) {
                           return tested.param == DeviceKind::kCpu ? "cpu" : "sim";
                         });

TEST(Kernels, AreFoundByName) {
  EXPECT_EQ(find_host_kernel("test:affine"), &affine);
  EXPECT_EQ(find_host_kernel("test:none"), nullptr);
  const std::vector<std::string> names = host_kernel_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "test:refuse"), names.end());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(KernelsDeathTest, ANameIsRegisteredOnce) {
  EXPECT_DEATH(HostKernelRegistration("test:affine", &affine), "registered twice");
}

}  // namespace
}  // namespace nbx
