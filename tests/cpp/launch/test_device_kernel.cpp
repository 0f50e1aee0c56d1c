#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "device/sim/sim.h"
#include "launch/device_kernel.h"
#include "launch/plan.h"
#include "storage/capture.h"

namespace nbx {
namespace {

/// What the simulated driver saw of launches.
struct Seen {
  std::vector<LaunchGeometry> geometries;
  std::vector<std::vector<std::uint64_t>> words;
  std::vector<std::uint32_t> bytes;
};

void see(const LaunchGeometry& geometry, void* const* arguments, std::size_t count, void* context) {
  auto& seen = *static_cast<Seen*>(context);
  seen.geometries.push_back(geometry);
  std::vector<std::uint64_t> words(count);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(&words[i], arguments[i], seen.bytes[i]);
  seen.words.push_back(std::move(words));
}

/// out[i] = alpha * in[i] + n over n floats, as the words (out, in, alpha, n) say.
void scale(const LaunchGeometry& /*geometry*/, void* const* arguments, std::size_t /*count*/,
           void* /*context*/) {
  auto* out = *static_cast<float**>(arguments[0]);
  const auto* in = *static_cast<const float**>(arguments[1]);
  const float alpha = *static_cast<float*>(arguments[2]);
  const std::int32_t n = *static_cast<std::int32_t*>(arguments[3]);
  for (std::int32_t i = 0; i < n; ++i) out[i] = alpha * in[i] + static_cast<float>(n);
}

class DeviceKernelTest : public ::testing::Test {
 protected:
  Device& device_ = open_device(DeviceKind::kSim, 0);
  DeviceMemory& memory_ = memory_of(device_);
  Stream& stream_ = current_stream(device_);
  Seen seen_;

  KernelRecipe recipe(std::vector<Slot> slots, std::uint32_t hidden = 2) {
    KernelRecipe made;
    made.name = "test:kernel";
    made.symbol = "kernel";
    made.threads = 128;
    made.hidden_words = hidden;
    made.slots = std::move(slots);
    return made;
  }

  std::shared_ptr<DeviceKernel> load(KernelRecipe made, sim::KernelFunction function = &see) {
    seen_.bytes.clear();
    for (const Slot slot : made.slots) {
      if (slot != Slot::kSkip) seen_.bytes.push_back(bytes_of(slot));
    }
    seen_.bytes.insert(seen_.bytes.end(), made.hidden_words, 8);
    sim::register_kernel("kernel", function, &seen_, seen_.bytes);
    const std::shared_ptr<void> keep(nullptr, [](void*) { sim::unregister_kernel("kernel"); });
    return std::make_shared<DeviceKernel>(device_, "kernel", 6, std::move(made), keep);
  }
};

TEST_F(DeviceKernelTest, PassesWordsAsTheDriverReadsThem) {
  const auto kernel =
      load(recipe({Slot::kRaw8, Slot::kSkip, Slot::kRaw4, Slot::kFloat32, Slot::kRaw1,
                   Slot::kBfloat16, Slot::kFloat64, Slot::kRaw2, Slot::kFloat16}));
  ASSERT_EQ(kernel->word_count(), 8U);
  const std::uint64_t words[] = {0x123456789abcdef0,
                                 static_cast<std::uint64_t>(-5),
                                 pack_real(Slot::kFloat32, 0.1),
                                 1,
                                 pack_real(Slot::kBfloat16, 1.0),
                                 pack_real(Slot::kFloat64, 0.1),
                                 0xfffe,
                                 pack_real(Slot::kFloat16, -2.0)};
  kernel->launch(stream_, Grid{7, 5, 3}, words);
  stream_.synchronize();
  ASSERT_EQ(seen_.words.size(), 1U);
  const std::vector<std::uint64_t> expected{0x123456789abcdef0,
                                            0xfffffffb,
                                            std::bit_cast<std::uint32_t>(0.1F),
                                            1,
                                            0x3f80,
                                            std::bit_cast<std::uint64_t>(0.1),
                                            0xfffe,
                                            0xc000,
                                            0,
                                            0};
  EXPECT_EQ(seen_.words[0], expected);
  const LaunchGeometry& geometry = seen_.geometries[0];
  EXPECT_EQ(geometry.grid[0], 7U);
  EXPECT_EQ(geometry.grid[1], 5U);
  EXPECT_EQ(geometry.grid[2], 3U);
  EXPECT_EQ(geometry.block[0], 128U);
}

TEST_F(DeviceKernelTest, NarrowsNumbersWithOneRounding) {
  // Between two float16 numbers, and above the tie by less than a float can tell.
  EXPECT_EQ(pack_real(Slot::kFloat16, 1.0 + 0x1p-11 + 0x1p-40), 0x3c01U);
  EXPECT_EQ(pack_real(Slot::kFloat16, 1.0 + 0x1p-11), 0x3c00U);
  EXPECT_EQ(pack_real(Slot::kBfloat16, 1.0 + 0x1p-8 + 0x1p-40), 0x3f81U);
  Scalar scalar;
  EXPECT_THROW(static_cast<void>(pack_scalar(Slot::kRaw4, scalar)), Error);
  scalar.kind = ScalarKind::kReal;
  scalar.real = 2.5;
  EXPECT_THROW(static_cast<void>(pack_scalar(Slot::kRaw4, scalar)), Error);
  EXPECT_EQ(pack_scalar(Slot::kFloat64, scalar), std::bit_cast<std::uint64_t>(2.5));
}

TEST_F(DeviceKernelTest, ChecksTheGrid) {
  const auto kernel = load(recipe({}));
  kernel->launch(stream_, Grid{0, 1, 1}, nullptr);
  kernel->launch(stream_, Grid{4, 0, 1}, nullptr);
  EXPECT_THROW(kernel->launch(stream_, Grid{1, 65536, 1}, nullptr), Error);
  EXPECT_THROW(kernel->launch(stream_, Grid{1, 1, 65536}, nullptr), Error);
  EXPECT_THROW(kernel->launch(stream_, Grid{std::uint64_t{1} << 31, 1, 1}, nullptr), Error);
  kernel->launch(stream_, Grid{0x7fffffff, 65535, 65535}, nullptr);
  stream_.synchronize();
  EXPECT_EQ(seen_.words.size(), 1U) << "empty grids launch nothing";
  Device& other = open_device(DeviceKind::kSim, 1);
  EXPECT_THROW(kernel->launch(current_stream(other), Grid{}, nullptr), Error);
}

TEST_F(DeviceKernelTest, CountsClustersAlongX) {
  KernelRecipe made = recipe({});
  made.cluster = 4;
  const auto kernel = load(made);
  kernel->launch(stream_, Grid{3, 2, 1}, nullptr);
  stream_.synchronize();
  ASSERT_EQ(seen_.geometries.size(), 1U);
  EXPECT_EQ(seen_.geometries[0].grid[0], 12U);
  EXPECT_EQ(seen_.geometries[0].cluster[0], 4U);
}

TEST_F(DeviceKernelTest, GivesScratchMemoryThatOutlivesTheLaunch) {
  KernelRecipe made = recipe({});
  made.scratch_bytes = 256;
  made.scratch_alignment = 128;
  const auto kernel = load(made);
  const std::uint64_t before = memory_.heap.statistics().live;
  kernel->launch(stream_, Grid{8, 2, 1}, nullptr);
  EXPECT_EQ(memory_.heap.statistics().live, before) << "free again, in the order of the stream";
  stream_.synchronize();
  ASSERT_EQ(seen_.words.size(), 1U);
  EXPECT_NE(seen_.words[0][0], 0U);
  EXPECT_EQ(seen_.words[0][0] % 128, 0U);
  EXPECT_EQ(seen_.words[0][1], 0U);
}

TEST_F(DeviceKernelTest, UnloadsAfterItsWork) {
  const std::uint64_t unloads = sim::call_count(0, Primitive::k_module_unload);
  auto kernel = load(recipe({}));
  kernel->launch(stream_, Grid{}, nullptr);
  auto shared = kernel;
  kernel = nullptr;
  EXPECT_EQ(sim::call_count(0, Primitive::k_module_unload), unloads);
  shared = nullptr;
  EXPECT_EQ(sim::call_count(0, Primitive::k_module_unload), unloads + 1);
  EXPECT_EQ(seen_.words.size(), 1U) << "the queued launch ran before the code went";
  EXPECT_THROW(sim::unregister_kernel("kernel"), Error) << "what was kept went too";
}

TEST_F(DeviceKernelTest, StaysLoadedForGraphs) {
  const std::uint64_t unloads = sim::call_count(0, Primitive::k_module_unload);
  const auto stream = create_stream(device_, 0);
  std::unique_ptr<CapturedGraph> graph;
  {
    auto kernel = load(recipe({Slot::kRaw8}));
    CaptureScope capture(memory_, *stream);
    const std::uint64_t word = 42;
    kernel->launch(*stream, Grid{}, &word);
    graph = capture.finish();
  }
  graph->launch(*stream);
  stream->synchronize();
  EXPECT_EQ(sim::call_count(0, Primitive::k_module_unload), unloads);
  ASSERT_EQ(seen_.words.size(), 1U);
  EXPECT_EQ(seen_.words[0][0], 42U);
  sim::unregister_kernel("kernel");
}

TEST_F(DeviceKernelTest, RefusesWhatTheDriverRefuses) {
  EXPECT_THROW(DeviceKernel(device_, "nothing", 7, recipe({})), Error);
  EXPECT_THROW(
      DeviceKernel(device_, "nothing", 7,
                   recipe(std::vector<Slot>(DeviceKernel::kMaximumWords + 1, Slot::kRaw8))),
      Error);
  EXPECT_THROW(DeviceKernel(open_device(DeviceKind::kCpu, 0), "nothing", 7, recipe({})), Error);
  const auto kernel = load(recipe({}));
  sim::add_fault(0, sim::Fault{Primitive::k_launch, 1, 1, 719});
  try {
    kernel->launch(stream_, Grid{}, nullptr);
    FAIL() << "the driver's refusal was lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(error.what()).find("test:kernel"), std::string::npos) << error.what();
  }
  sim::clear_faults(0);
}

class Watcher : public LaunchObserver {
 public:
  void on_launch(const LaunchNote& note) noexcept override {
    names.push_back(note.kernel);
    grids.push_back(note.grid.x);
  }
  std::vector<std::string> names;
  std::vector<std::uint64_t> grids;
};

TEST_F(DeviceKernelTest, TellsWhoeverWatches) {
  const auto kernel = load(recipe({}));
  const auto watcher = std::make_shared<Watcher>();
  kernel->launch(stream_, Grid{1, 1, 1}, nullptr);
  add_observer(watcher);
  kernel->launch(stream_, Grid{2, 1, 1}, nullptr);
  kernel->launch(stream_, Grid{0, 1, 1}, nullptr);
  remove_observer(watcher.get());
  EXPECT_FALSE(launches_observed.load());
  kernel->launch(stream_, Grid{3, 1, 1}, nullptr);
  EXPECT_EQ(watcher->names, std::vector<std::string>{"test:kernel"});
  EXPECT_EQ(watcher->grids, std::vector<std::uint64_t>{2});
}

// ---- steps of plans -------------------------------------------------------------------------

class DevicePlanTest : public DeviceKernelTest {
 protected:
  Layout vector_of(std::int64_t count) {
    const std::int64_t stride = 1;
    return Layout(&count, &stride, 1);
  }

  /// out = alpha * in + n, with alpha from the call.
  Plan plan(std::int64_t count) {
    Plan made;
    made.name = "scale";
    made.outputs.push_back(
        {DType::float32, vector_of(count), static_cast<std::uint64_t>(count) * 4});
    Step step;
    step.device_kernel =
        load(recipe({Slot::kRaw8, Slot::kRaw8, Slot::kFloat32, Slot::kRaw4}, 0), &scale);
    step.operands = {Operand{OperandSource::kOutput, 0, DType::float32, 0, vector_of(count)},
                     Operand{OperandSource::kArgument, 0, DType::float32, 0, vector_of(count)}};
    step.arguments = {
        {ArgumentSource::Kind::kAddress, Slot::kRaw8, 0, 0},
        {ArgumentSource::Kind::kAddress, Slot::kRaw8, 1, 0},
        {ArgumentSource::Kind::kScalar, Slot::kFloat32, 0, 0},
        {ArgumentSource::Kind::kWord, Slot::kRaw4, 0, static_cast<std::uint64_t>(count)}};
    made.steps.push_back(std::move(step));
    made.results = {{OperandSource::kOutput, 0}};
    return made;
  }

  TensorMeta upload(const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    TensorMeta meta = empty_tensor(memory_, DType::float32, &count, 1);
    EXPECT_EQ(device_.primitives().copy(
                  device_.ordinal(), meta.data, reinterpret_cast<DeviceAddress>(values.data()),
                  values.size() * 4, CopyKind::kHostToDevice, stream_.handle()),
              kSuccess);
    meta.storage->touch(stream_);
    stream_.synchronize();
    return meta;
  }
};

TEST_F(DevicePlanTest, RunsInStreamOrderOnValuesOfTheCall) {
  std::vector<float> values(100);
  std::mt19937 random(std::random_device{}());
  for (float& value : values) value = static_cast<float>(random() % 1000);
  const Plan made = plan(100);
  TensorMeta input = upload(values);
  TensorMeta* arguments[] = {&input};
  for (const double alpha : {0.5, 3.0}) {
    Scalar scalar;
    scalar.kind = ScalarKind::kReal;
    scalar.real = alpha;
    TensorMeta output;
    run_plan(made, memory_, stream_, arguments, 1, &scalar, 1, &output);
    EXPECT_FALSE(output.storage->is_idle()) << "queued, and the storage knows";
    output.storage->wait();
    std::vector<float> result(100);
    EXPECT_EQ(
        device_.primitives().copy(device_.ordinal(), reinterpret_cast<DeviceAddress>(result.data()),
                                  output.data, 400, CopyKind::kDeviceToHost, stream_.handle()),
        kSuccess);
    stream_.synchronize();
    for (std::size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(result[i], static_cast<float>(alpha) * values[i] + 100.0F);
    }
  }
}

TEST_F(DevicePlanTest, RefusesPlansThatCannotRun) {
  Plan made = plan(4);
  EXPECT_NO_THROW(require_runnable(made, device_));
  EXPECT_THROW(require_runnable(made, open_device(DeviceKind::kSim, 1)), Error);
  Scalar none;
  TensorMeta input = upload({1, 2, 3, 4});
  TensorMeta* arguments[] = {&input};
  TensorMeta output;
  try {
    run_plan(made, memory_, stream_, arguments, 1, &none, 1, &output);
    FAIL() << "None was taken for a number";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kType);
  }
  made.steps[0].device_kernel = nullptr;
  EXPECT_NO_THROW(require_runnable(made, device_)) << "simulated devices take host kernels";
}

}  // namespace
}  // namespace nbx
