// Graphs: host calls on the cpu, kernels of a simulated device, and what may be changed in them.
#include "launch/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "device/host_status.h"
#include "device/sim/sim.h"
#include "launch/plan.h"

namespace nbx {
namespace {

constexpr std::int64_t kCount = 32;
constexpr std::uint64_t kBytes = kCount * 4;

// ---- the table of the cpu ------------------------------------------------------------------

class CpuGraphs : public ::testing::Test {
 protected:
  Device& device = open_device(DeviceKind::kCpu, 0);
  const Primitives& table = device.primitives();
  StreamHandle stream = 0;
  StreamHandle other = 0;
  std::vector<std::uint32_t> numbers = std::vector<std::uint32_t>(kCount, 0);

  void SetUp() override {
    ASSERT_EQ(table.stream_create(0, 0, &stream), kSuccess);
    ASSERT_EQ(table.stream_create(0, 0, &other), kSuccess);
  }
  void TearDown() override {
    ASSERT_EQ(table.stream_destroy(0, stream), kSuccess);
    ASSERT_EQ(table.stream_destroy(0, other), kSuccess);
  }
  [[nodiscard]] DeviceAddress address() const {
    return reinterpret_cast<DeviceAddress>(numbers.data());
  }
  [[nodiscard]] std::ptrdiff_t count(std::uint32_t value) const {
    return std::count(numbers.begin(), numbers.end(), value);
  }
};

TEST_F(CpuGraphs, RunsWhatItRecordedAtEachLaunch) {
  struct Tally {
    int runs = 0;
    int discards = 0;
  } tally;
  ASSERT_EQ(table.capture_begin(0, stream), kSuccess);
  ASSERT_EQ(table.fill(0, address(), 7, 4, kCount / 2, stream), kSuccess);
  ASSERT_EQ(table.copy(0, address() + kBytes / 2, address(), kBytes / 2, CopyKind::kDeviceToDevice,
                       stream),
            kSuccess);
  const HostWork work{[](void* payload) { ++static_cast<Tally*>(payload)->runs; },
                      [](void* payload) { ++static_cast<Tally*>(payload)->discards; }, &tally};
  ASSERT_EQ(table.launch_host(0, &work, 0.0, stream), kSuccess);
  ASSERT_EQ(table.fill(0, address(), 1, 4, 1, other), kSuccess) << "another stream is not captured";
  EXPECT_EQ(count(7), 0);
  EXPECT_EQ(count(1), 1);
  EXPECT_EQ(table.stream_synchronize(0, stream), kCaptureInvalid);
  GraphHandle graph = 0;
  EXPECT_EQ(table.capture_end(0, other, &graph), kCaptureInvalid);
  ASSERT_EQ(table.capture_end(0, stream, &graph), kSuccess);
  EXPECT_EQ(tally.runs, 0);
  for (int i = 1; i <= 3; ++i) {
    std::fill(numbers.begin(), numbers.end(), 0);
    ASSERT_EQ(table.graph_launch(0, graph, i == 2 ? other : stream), kSuccess);
    EXPECT_EQ(count(7), kCount);
    EXPECT_EQ(tally.runs, i);
  }
  EXPECT_EQ(tally.discards, 0);
  ASSERT_EQ(table.graph_destroy(0, graph), kSuccess);
  EXPECT_EQ(tally.discards, 1);
  EXPECT_EQ(table.graph_destroy(0, graph), kInvalidHandle);
  EXPECT_EQ(table.graph_launch(0, graph, stream), kInvalidHandle);
}

TEST_F(CpuGraphs, StreamsJoinByEventsAndRefusalsChangeNothing) {
  EXPECT_EQ(table.capture_begin(0, 0), kCaptureInvalid) << "the default stream";
  EXPECT_EQ(table.capture_begin(1, stream), kInvalidDevice);
  GraphHandle graph = 0;
  EXPECT_EQ(table.capture_end(0, stream, &graph), kCaptureInvalid);
  EventHandle event = 0;
  ASSERT_EQ(table.event_create(0, false, &event), kSuccess);
  ASSERT_EQ(table.capture_begin(0, stream), kSuccess);
  EXPECT_EQ(table.capture_begin(0, stream), kCaptureInvalid);
  ASSERT_EQ(table.event_record(0, event, stream), kSuccess);
  ASSERT_EQ(table.stream_wait_event(0, other, event), kSuccess);
  ASSERT_EQ(table.fill(0, address(), 5, 4, kCount, other), kSuccess);
  EXPECT_EQ(count(5), 0);
  ASSERT_EQ(table.capture_end(0, stream, &graph), kSuccess);
  ASSERT_EQ(table.fill(0, address(), 3, 4, kCount, other), kSuccess);
  EXPECT_EQ(count(3), kCount) << "the joined stream is free again";
  ASSERT_EQ(table.graph_launch(0, graph, stream), kSuccess);
  EXPECT_EQ(count(5), kCount);
  ASSERT_EQ(table.graph_destroy(0, graph), kSuccess);
  ASSERT_EQ(table.event_destroy(0, event), kSuccess);
}

TEST_F(CpuGraphs, AStreamThatGoesTakesItsCaptureAlong) {
  StreamHandle third = 0;
  ASSERT_EQ(table.stream_create(0, 0, &third), kSuccess);
  ASSERT_EQ(table.capture_begin(0, third), kSuccess);
  int discards = 0;
  const HostWork work{[](void*) {}, [](void* payload) { ++*static_cast<int*>(payload); },
                      &discards};
  ASSERT_EQ(table.launch_host(0, &work, 0.0, third), kSuccess);
  ASSERT_EQ(table.stream_destroy(0, third), kSuccess);
  EXPECT_EQ(discards, 1);
}

// ---- graphs of host calls ------------------------------------------------------------------

TensorMeta numbers_on(DeviceMemory& memory, std::int64_t count = kCount) {
  return empty_tensor(memory, DType::float32, &count, 1);
}

/// y = x + the scalar.
void add_scalar(const KernelCall& call) {
  auto* y = reinterpret_cast<float*>(call.tensors[0].data);
  const auto* x = reinterpret_cast<const float*>(call.tensors[1].data);
  for (std::int64_t i = 0; i < call.tensors[0].shape[0]; ++i) {
    y[i] = x[i] + static_cast<float>(call.scalars[0].real);
  }
}

class HostGraphs : public ::testing::TestWithParam<DeviceKind> {
 protected:
  Device& device = open_device(GetParam(), 0);
  DeviceMemory memory{device};
  std::shared_ptr<Stream> stream = create_stream(device, 0);
  Stream& former = set_current_stream(*stream);
  ~HostGraphs() override { set_current_stream(former); }

  void add(TensorMeta& y, TensorMeta& x, double value) {
    TensorMeta* const tensors[] = {&y, &x};
    Scalar scalar;
    scalar.kind = ScalarKind::kReal;
    scalar.real = value;
    run_kernel(&add_scalar, nullptr, *stream, tensors, 2, 1, &scalar, 1);
  }
  void set(const TensorMeta& tensor, float value) {
    const Status status = device.primitives().fill(
        0, tensor.data, std::bit_cast<std::uint32_t>(value), 4, kCount, stream->handle());
    ASSERT_EQ(status, kSuccess);
    tensor.storage->touch(*stream);
  }
  void expect(const TensorMeta& tensor, float value) {
    tensor.storage->wait();
    const auto* numbers = reinterpret_cast<const float*>(tensor.data);
    EXPECT_EQ(std::count(numbers, numbers + kCount, value), kCount) << numbers[0];
  }
};

TEST_P(HostGraphs, CallsRunAgainAndTakeOtherMemory) {
  TensorMeta x = numbers_on(memory);
  TensorMeta y = numbers_on(memory);
  set(x, 1.0f);
  set(y, 0.0f);
  GraphScope scope(memory, *stream);
  {
    TensorMeta inside = numbers_on(memory);
    add(inside, x, 2.0);
    add(y, inside, 4.0);
  }
  const std::shared_ptr<Graph> graph = scope.finish();
  expect(y, 0.0f);
  ASSERT_EQ(graph->nodes().size(), 2u);
  EXPECT_EQ(graph->nodes()[1].call->kernel, &add_scalar);
  graph->launch(*stream);
  expect(y, 7.0f);
  TensorMeta other = numbers_on(memory);
  set(other, 10.0f);
  graph->rebind(x, other);
  graph->launch(*stream);
  expect(y, 16.0f);
  x = {};
  graph->launch(*stream);
  other = {};
  EXPECT_THROW(graph->launch(*stream), Error);
  EXPECT_THROW(graph->require_valid(), Error);
}

TEST_P(HostGraphs, ReadsOfCapturedWorkAreRefusedWhileTheCaptureIsOpen) {
  TensorMeta x = numbers_on(memory);
  set(x, 1.0f);
  expect(x, 1.0f);
  std::shared_ptr<Graph> graph;
  {
    GraphScope scope(memory, *stream);
    add(x, x, 1.0);
    EXPECT_FALSE(x.storage->is_idle());
    EXPECT_THROW(x.storage->wait(), Error);
    graph = scope.finish();
  }
  expect(x, 1.0f);
  graph->launch(*stream);
  expect(x, 2.0f);
}

TEST_P(HostGraphs, BuildingTakesKernelsOnly) {
  TensorMeta x = numbers_on(memory);
  GraphScope scope(memory, *stream);
  add(x, x, 1.0);
  EXPECT_THROW(static_cast<void>(scope.build()), Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, HostGraphs, ::testing::Values(DeviceKind::kCpu, DeviceKind::kSim),
                         [](const auto& kind) {
                           return std::string(kind.param == DeviceKind::kCpu ? "cpu" : "sim");
                         });

// ---- graphs of kernels ---------------------------------------------------------------------

/// y[i] = x[i] + value: (y, x, value).
void add_value(const LaunchGeometry& geometry, void* const* arguments, std::size_t, void*) {
  auto* y = *static_cast<float**>(arguments[0]);
  const auto* x = *static_cast<float**>(arguments[1]);
  const float value = *static_cast<float*>(arguments[2]);
  for (std::uint32_t i = 0; i < geometry.grid[0]; ++i) y[i] = x[i] + value;
}

class KernelGraphs : public ::testing::Test {
 protected:
  static constexpr const char* kName = "test_graph add_value";
  Device& device = open_device(DeviceKind::kSim, 0);
  DeviceMemory memory{device};
  std::shared_ptr<Stream> stream = create_stream(device, 0);
  Stream& former = set_current_stream(*stream);
  std::shared_ptr<DeviceKernel> kernel;

  KernelGraphs() {
    sim::register_kernel(kName, &add_value, nullptr, {8, 8, 4});
    KernelRecipe recipe;
    recipe.name = "add_value";
    recipe.symbol = kName;
    recipe.threads = 1;
    recipe.slots = {Slot::kRaw8, Slot::kRaw8, Slot::kFloat32, Slot::kSkip};
    recipe.parameters = {"y", "x", "value", "BLOCK"};
    kernel = std::make_shared<DeviceKernel>(device, kName, std::string(kName).size(), recipe);
  }
  ~KernelGraphs() override {
    kernel.reset();
    set_current_stream(former);
    stream->synchronize();
    sim::unregister_kernel(kName);
  }
  void add(const TensorMeta& y, const TensorMeta& x, float value) {
    const std::uint64_t words[] = {y.data, x.data, pack_real(Slot::kFloat32, value)};
    kernel->launch(*stream, Grid{kCount, 1, 1}, words);
    y.storage->touch(*stream);
    x.storage->touch(*stream);
  }
  void expect(const TensorMeta& tensor, float value) {
    tensor.storage->wait();
    const auto* numbers = reinterpret_cast<const float*>(tensor.data);
    EXPECT_EQ(std::count(numbers, numbers + kCount, value), kCount) << numbers[0];
  }
  TensorMeta filled(float value) {
    TensorMeta made = numbers_on(memory);
    device.check(device.primitives().fill(0, made.data, std::bit_cast<std::uint32_t>(value), 4,
                                          kCount, stream->handle()),
                 "fill");
    made.storage->touch(*stream);
    return made;
  }
};

TEST_F(KernelGraphs, NodesKnowTheirArgumentsAndTakeOthers) {
  TensorMeta x = filled(1.0f);
  TensorMeta y = filled(0.0f);
  GraphScope scope(memory, *stream);
  add(y, x, 1.0f);
  add(y, y, 2.0f);
  const std::shared_ptr<Graph> graph = scope.finish();
  kernel.reset();  // the graph keeps it loaded
  ASSERT_EQ(graph->nodes().size(), 2u);
  const GraphNode& node = graph->nodes()[0];
  EXPECT_EQ(node.name, "add_value");
  EXPECT_EQ(node.geometry.grid[0], static_cast<std::uint32_t>(kCount));
  ASSERT_EQ(node.arguments.size(), 3u);
  EXPECT_EQ(node.arguments[2].name, "value");
  EXPECT_NE(node.handle, 0u);
  graph->launch(*stream);
  expect(y, 4.0f);
  graph->update(0, 2, pack_real(Slot::kFloat32, 10.0));
  graph->launch(*stream);
  expect(y, 13.0f);
  const TensorMeta other = filled(100.0f);
  graph->rebind(x, other);
  // The launch before is not changed by what comes after it.
  graph->launch(*stream);
  graph->rebind(other, x);
  expect(y, 112.0f);
  graph->launch(*stream);
  expect(y, 13.0f);
  EXPECT_THROW(graph->rebind(other, x), Error) << "nothing uses it";
}

TEST_F(KernelGraphs, ARefusedChangeLeavesTheGraphAsItWas) {
  TensorMeta x = filled(1.0f);
  TensorMeta y = filled(0.0f);
  GraphScope scope(memory, *stream);
  add(y, x, 1.0f);
  add(y, x, 2.0f);
  const std::shared_ptr<Graph> graph = scope.finish();
  const TensorMeta other = filled(50.0f);
  sim::Fault fault{};
  fault.primitive = Primitive::k_graph_set_kernel;
  fault.first_call = 2;
  fault.status = kInvalidValue;
  sim::add_fault(0, fault);
  EXPECT_THROW(graph->rebind(x, other), Error);
  sim::clear_faults(0);
  graph->launch(*stream);
  expect(y, 3.0f);
  graph->rebind(x, other);
  graph->launch(*stream);
  expect(y, 52.0f);
}

TEST_F(KernelGraphs, GraphsAreBuiltOfRecordedLaunches) {
  TensorMeta x = filled(1.0f);
  TensorMeta y = filled(0.0f);
  std::shared_ptr<Graph> graph;
  {
    GraphScope scope(memory, *stream);
    add(y, x, 1.0f);
    add(x, y, 5.0f);
    graph = scope.build();
  }
  EXPECT_FALSE(stream->is_captured());
  expect(x, 1.0f);
  graph->launch(*stream);
  graph->launch(*stream);
  expect(x, 13.0f);
  graph->update(1, 2, pack_real(Slot::kFloat32, 0.0));
  graph->launch(*stream);
  expect(x, 14.0f);
  graph.reset();
  stream->synchronize();
  EXPECT_EQ(memory.heap.statistics().pending, 0u);
}

}  // namespace
}  // namespace nbx
