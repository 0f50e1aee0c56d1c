// Kernels and graphs of simulated devices.
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "device/sim_fixture.h"

namespace nbx {
namespace {

constexpr const char* kName = "add a constant";

struct Calls {
  int count = 0;
  LaunchGeometry geometry{};
};

/// Adds `value` to the first `n` numbers: (address, value, n).
void add_constant(const LaunchGeometry& geometry, void* const* arguments, std::size_t count,
                  void* context) {
  ASSERT_EQ(count, 3u);
  auto& calls = *static_cast<Calls*>(context);
  ++calls.count;
  calls.geometry = geometry;
  auto* const numbers = *static_cast<std::uint32_t**>(arguments[0]);
  const auto value = *static_cast<std::uint32_t*>(arguments[1]);
  const auto n = *static_cast<std::uint64_t*>(arguments[2]);
  for (std::uint64_t i = 0; i < n; ++i) numbers[i] += value;
}

class SimKernels : public SimTest {
 protected:
  static constexpr std::uint64_t kCount = 300;

  void SetUp() override {
    SimTest::SetUp();
    sim::register_kernel(kName, &add_constant, &calls_, {8, 4, 8});
    ASSERT_EQ(table().module_load(kOrdinal, kName, std::string(kName).size(), &module_), kSuccess);
    ASSERT_EQ(table().kernel_find(kOrdinal, module_, kName, 0, &kernel_), kSuccess);
    stream_ = new_stream();
    address_ = allocate(kCount * 4);
    fill(address_, 0, kCount, stream_);
  }
  void TearDown() override {
    EXPECT_EQ(table().stream_synchronize(kOrdinal, stream_), kSuccess);
    EXPECT_EQ(table().free(kOrdinal, address_), kSuccess);
    EXPECT_EQ(table().stream_destroy(kOrdinal, stream_), kSuccess);
    EXPECT_EQ(table().module_unload(kOrdinal, module_), kSuccess);
    if (registered_) sim::unregister_kernel(kName);
    SimTest::TearDown();
  }

  static LaunchGeometry geometry(std::uint32_t blocks) {
    return {{blocks, 1, 1}, {128, 1, 1}, 0, {1, 1, 1}, false, false};
  }
  /// The values behind one set of arguments.
  struct Arguments {
    Arguments(DeviceAddress to, std::uint32_t amount) : address(to), value(amount) {}
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;
    DeviceAddress address;
    std::uint32_t value;
    std::uint64_t n = kCount;
    std::array<void*, 3> all{&address, &value, &n};
  };
  Status launch(std::uint32_t value, std::uint32_t blocks = 3) {
    Arguments arguments(address_, value);
    const LaunchGeometry shape = geometry(blocks);
    const Status status =
        table().launch(kOrdinal, kernel_, &shape, arguments.all.data(), 3, stream_);
    arguments.value = 1'000'000;  // the values were taken at the call
    return status;
  }
  std::uint32_t sum_at(std::size_t index) {
    std::vector<std::uint32_t> numbers(kCount);
    read(numbers.data(), address_, kCount * 4, stream_);
    EXPECT_EQ(table().stream_synchronize(kOrdinal, stream_), kSuccess);
    return numbers[index];
  }

  Calls calls_;
  ModuleHandle module_ = 0;
  KernelHandle kernel_ = 0;
  StreamHandle stream_ = 0;
  DeviceAddress address_ = 0;
  bool registered_ = true;
};

TEST_F(SimKernels, RunInStreamOrderOnCopiesOfTheirArguments) {
  ASSERT_EQ(launch(5, 7), kSuccess);
  EXPECT_EQ(calls_.count, 0) << "nobody waited for it";
  ASSERT_EQ(launch(6), kSuccess);
  EXPECT_EQ(sum_at(kCount - 1), 11u);
  EXPECT_EQ(calls_.count, 2);
  EXPECT_EQ(calls_.geometry.grid[0], 3u);
}

TEST_F(SimKernels, AreNamedByTheirImages) {
  ModuleHandle module = 0;
  EXPECT_EQ(table().module_load(kOrdinal, "other", 5, &module), kInvalidImage);
  EXPECT_EQ(table().module_load(kOrdinal, nullptr, 5, &module), kInvalidValue);
  KernelHandle kernel = 0;
  EXPECT_EQ(table().kernel_find(kOrdinal, module_, "other", 0, &kernel), kNotFound);
  EXPECT_EQ(table().kernel_find(kOrdinal, module_, kName, 1 << 20, &kernel), kInvalidValue);
  EXPECT_EQ(table().kernel_find(0, module_, kName, 0, &kernel), kInvalidHandle)
      << "a module of another device";
  KernelAttributes attributes{};
  ASSERT_EQ(table().kernel_attributes(kOrdinal, kernel_, &attributes), kSuccess);
  EXPECT_EQ(attributes.threads_per_block, 1024u);
  EXPECT_EQ(table().kernel_attributes(kOrdinal, kernel_ + 1000, &attributes), kInvalidHandle);
  EXPECT_THROW(sim::register_kernel(kName, &add_constant, nullptr, {}), Error);
  EXPECT_THROW(sim::unregister_kernel("other"), Error);
}

TEST_F(SimKernels, RefuseWhatDoesNotSuitThem) {
  Arguments arguments(address_, 1);
  const auto launched = [&](const LaunchGeometry& shape, std::size_t count) {
    return table().launch(kOrdinal, kernel_, &shape, arguments.all.data(), count, stream_);
  };
  EXPECT_EQ(launched(geometry(1), 2), kInvalidValue);
  EXPECT_EQ(launched(geometry(0), 3), kInvalidValue);
  LaunchGeometry shape = geometry(1);
  shape.block[1] = 9;
  EXPECT_EQ(launched(shape, 3), kInvalidValue) << "1,152 threads";
  shape = geometry(1);
  shape.shared_bytes = 50'000;
  EXPECT_EQ(launched(shape, 3), kInvalidValue) << "more than was asked for at kernel_find";
  shape = geometry(3);
  shape.cluster[0] = 2;
  EXPECT_EQ(launched(shape, 3), kInvalidValue) << "clusters that do not divide the grid";
}

TEST_F(SimKernels, EndWithTheirModule) {
  ModuleHandle module = 0;
  KernelHandle kernel = 0;
  ASSERT_EQ(table().module_load(kOrdinal, kName, std::string(kName).size(), &module), kSuccess);
  ASSERT_EQ(table().kernel_find(kOrdinal, module, kName, 0, &kernel), kSuccess);
  Arguments arguments(address_, 4);
  const LaunchGeometry shape = geometry(1);
  ASSERT_EQ(table().launch(kOrdinal, kernel, &shape, arguments.all.data(), 3, stream_), kSuccess);
  ASSERT_EQ(table().module_unload(kOrdinal, module), kSuccess);
  EXPECT_EQ(table().launch(kOrdinal, kernel, &shape, arguments.all.data(), 3, stream_),
            kInvalidHandle);
  EXPECT_EQ(table().module_unload(kOrdinal, module), kInvalidHandle);
  EXPECT_EQ(sum_at(0), 4u) << "queued work keeps what it runs";
}

TEST_F(SimKernels, WhatIsUnregisteredIsNotCalled) {
  ASSERT_EQ(launch(5), kSuccess);
  sim::unregister_kernel(kName);
  registered_ = false;
  EXPECT_EQ(launch(5), kInvalidHandle);
  EXPECT_EQ(table().stream_synchronize(kOrdinal, stream_), kInvalidHandle);
  EXPECT_EQ(table().last_error(kOrdinal), kInvalidHandle);
  EXPECT_EQ(calls_.count, 0);
}

TEST_F(SimKernels, CapturedOnesAreReplayedAndReplaced) {
  NodeHandle none = 0;
  EXPECT_EQ(table().capture_node(kOrdinal, stream_, &none), kCaptureInvalid);
  ASSERT_EQ(table().capture_begin(kOrdinal, stream_), kSuccess);
  EXPECT_EQ(table().capture_node(kOrdinal, stream_, &none), kCaptureInvalid) << "nothing yet";
  fill(address_, 100, kCount, stream_);
  NodeHandle filled = 0;
  ASSERT_EQ(table().capture_node(kOrdinal, stream_, &filled), kSuccess);
  ASSERT_EQ(launch(5), kSuccess);
  NodeHandle node = 0;
  ASSERT_EQ(table().capture_node(kOrdinal, stream_, &node), kSuccess);
  EXPECT_NE(node, filled);
  GraphHandle graph = 0;
  ASSERT_EQ(table().capture_end(kOrdinal, stream_, &graph), kSuccess);
  EXPECT_EQ(calls_.count, 0);

  ASSERT_EQ(table().graph_launch(kOrdinal, graph, stream_), kSuccess);
  Arguments arguments(address_, 9);
  const LaunchGeometry shape = geometry(2);
  ASSERT_EQ(
      table().graph_set_kernel(kOrdinal, graph, node, kernel_, &shape, arguments.all.data(), 3),
      kSuccess);
  EXPECT_EQ(sum_at(0), 105u) << "the launch came before the change";
  ASSERT_EQ(table().graph_launch(kOrdinal, graph, stream_), kSuccess);
  EXPECT_EQ(sum_at(0), 109u);
  EXPECT_EQ(
      table().graph_set_kernel(kOrdinal, graph, filled, kernel_, &shape, arguments.all.data(), 3),
      kInvalidValue)
      << "no kernel";
  EXPECT_EQ(table().graph_set_kernel(kOrdinal, graph, node + 1000, kernel_, &shape,
                                     arguments.all.data(), 3),
            kInvalidHandle);
  EXPECT_EQ(
      table().graph_set_kernel(kOrdinal, graph, node, kernel_, &shape, arguments.all.data(), 2),
      kInvalidValue);
  ASSERT_EQ(table().graph_destroy(kOrdinal, graph), kSuccess);
}

TEST_F(SimKernels, GraphsAreBuiltNodeByNode) {
  GraphHandle graph = 0;
  ASSERT_EQ(table().graph_create(kOrdinal, &graph), kSuccess);
  EXPECT_EQ(table().graph_launch(kOrdinal, graph, stream_), kInvalidHandle) << "not finished";
  std::vector<NodeHandle> nodes;
  for (const std::uint32_t value : {1u, 10u, 100u}) {
    Arguments arguments(address_, value);
    const LaunchGeometry shape = geometry(1);
    NodeHandle node = 0;
    ASSERT_EQ(table().graph_add_kernel(kOrdinal, graph, kernel_, &shape, arguments.all.data(), 3,
                                       nodes.data(), nodes.size(), &node),
              kSuccess);
    nodes.push_back(node);
  }
  Arguments arguments(address_, 20);
  const LaunchGeometry shape = geometry(1);
  const NodeHandle unknown = nodes[0] + 1000;
  NodeHandle node = 0;
  EXPECT_EQ(table().graph_add_kernel(kOrdinal, graph, kernel_, &shape, arguments.all.data(), 3,
                                     &unknown, 1, &node),
            kInvalidValue);
  EXPECT_EQ(
      table().graph_set_kernel(kOrdinal, graph, nodes[1], kernel_, &shape, arguments.all.data(), 3),
      kNotPermitted)
      << "not finished";
  ASSERT_EQ(table().graph_finish(kOrdinal, graph), kSuccess);
  EXPECT_EQ(table().graph_finish(kOrdinal, graph), kNotPermitted);
  EXPECT_EQ(table().graph_add_kernel(kOrdinal, graph, kernel_, &shape, arguments.all.data(), 3,
                                     nullptr, 0, &node),
            kNotPermitted);
  ASSERT_EQ(table().graph_launch(kOrdinal, graph, stream_), kSuccess);
  EXPECT_EQ(sum_at(7), 111u);
  ASSERT_EQ(
      table().graph_set_kernel(kOrdinal, graph, nodes[1], kernel_, &shape, arguments.all.data(), 3),
      kSuccess);
  ASSERT_EQ(table().graph_launch(kOrdinal, graph, stream_), kSuccess);
  ASSERT_EQ(table().graph_destroy(kOrdinal, graph), kSuccess);
  EXPECT_EQ(sum_at(7), 111u + 121u) << "a launched graph runs though it was destroyed";
}

}  // namespace
}  // namespace nbx
