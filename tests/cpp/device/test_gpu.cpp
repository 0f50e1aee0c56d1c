// What the cuda and hip tables add to the drivers, on stubs of them.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "device/gpu_fixture.h"

namespace nbx {
namespace {

class Gpu : public GpuTest {
 protected:
  /// Host work that holds its stream until it is opened.
  struct Gate {
    std::mutex closed;
    HostWork work() {
      return HostWork{[](void* gate) {
                        const std::lock_guard<std::mutex> guard(static_cast<Gate*>(gate)->closed);
                      },
                      [](void*) {}, this};
    }
  };

  void close(Gate* gate, StreamHandle stream) const {
    gate->closed.lock();
    const HostWork work = gate->work();
    EXPECT_EQ(table().launch_host(ordinal(), &work, 0.0, stream), kSuccess);
  }

  /// A kernel that adds `value` to `n` numbers.
  static void add_constant(const unsigned* /*grid*/, const unsigned* /*block*/, void** arguments) {
    auto* const numbers = *static_cast<std::uint32_t**>(arguments[0]);
    const auto value = *static_cast<std::uint32_t*>(arguments[1]);
    const auto n = *static_cast<std::uint64_t*>(arguments[2]);
    for (std::uint64_t i = 0; i < n; ++i) numbers[i] += value;
  }
  struct Arguments {
    Arguments(DeviceAddress to, std::uint32_t amount, std::uint64_t count)
        : address(to), value(amount), n(count) {}
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;
    DeviceAddress address;
    std::uint32_t value;
    std::uint64_t n;
    std::array<void*, 3> all{&address, &value, &n};
  };
  KernelHandle add_kernel(ModuleHandle* module, std::uint32_t shared_bytes = 0) const {
    constexpr char kImage[] = "stub add 8,4,8";
    stub_->function("add", &add_constant);
    KernelHandle kernel = 0;
    EXPECT_EQ(table().module_load(ordinal(), kImage, sizeof(kImage) - 1, module), kSuccess);
    EXPECT_EQ(table().kernel_find(ordinal(), *module, "add", shared_bytes, &kernel), kSuccess);
    return kernel;
  }
  static LaunchGeometry geometry(std::uint32_t blocks) {
    return {{blocks, 1, 1}, {128, 1, 1}, 0, {1, 1, 1}, false, false};
  }
};

TEST_P(Gpu, ReportsWhatTheChipIs) {
  const DeviceProperties& properties = device_->properties();
  EXPECT_STREQ(properties.architecture, is_cuda() ? "sm_90" : "gfx942");
  EXPECT_EQ(properties.base_alignment, 256u);
  EXPECT_EQ(properties.page_granularity, std::uint64_t{2} << 20);
  EXPECT_EQ(properties.counts.lanes, is_cuda() ? 32u : 64u);
  EXPECT_EQ(properties.counts.threads_per_block, 1024u);
  EXPECT_EQ(properties.counts.multiprocessors, is_cuda() ? 20u : 38u);
  EXPECT_FALSE(properties.host_readable);
}

// ---- refusals
// ------------------------------------------------------------------------------------

TEST_P(Gpu, ARefusalIsRealAndLeavesNothing) {
  MemoryInfo info{};
  ASSERT_EQ(table().memory_info(ordinal(), &info), kSuccess);
  const DeviceAddress most = allocate(info.free_bytes - (1 << 20));
  DeviceAddress address = 0;
  EXPECT_EQ(table().allocate(ordinal(), 2 << 20, &address), kAllocationRefused);
  EXPECT_EQ(address, 0u);
  EXPECT_EQ(table().last_error(ordinal()), kSuccess);
  PageHandle page = 0;
  EXPECT_EQ(table().page_create(ordinal(), 2 << 20, &page), kAllocationRefused);
  EXPECT_EQ(table().last_error(ordinal()), kSuccess);
  free(most);
}

TEST_P(Gpu, CodesPassThroughWithTheDriversText) {
  stub_->fail(symbol("cuMemAlloc", "hipMalloc"), 1, 700);
  DeviceAddress address = 0;
  EXPECT_EQ(table().allocate(ordinal(), 64, &address), 700);
  const std::string text = table().status_text(700);
  EXPECT_NE(text.find(symbol("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress")),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("End the process"), std::string::npos) << text;
  const std::string memory = table().status_text(kAllocationRefused);
  EXPECT_NE(memory.find("out of memory"), std::string::npos) << memory;
  EXPECT_EQ(memory.find("End the process"), std::string::npos) << memory;
  EXPECT_EQ(table().status_text(700), table().status_text(700)) << "texts stay";
}

TEST_P(Gpu, ABrokenDeviceIsTold) {
  stub_->break_device(ordinal(), 719);
  EXPECT_EQ(table().synchronize(ordinal()), 719);
  EXPECT_EQ(table().last_error(ordinal()), 719);
  EXPECT_NE(std::string(table().status_text(719)).find("End the process"), std::string::npos);
  stub_->break_device(ordinal(), 0);
  EXPECT_EQ(table().last_error(ordinal()), kSuccess);
}

TEST_P(Gpu, AForkedChildMakesNoCall) {
  const DeviceAddress address = allocate(64);
  EventHandle event = 0;
  ASSERT_EQ(table().event_create(ordinal(), false, &event), kSuccess);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    DeviceAddress more = 0;
    Ticket ticket = 0;
    const bool refused = table().allocate(ordinal(), 64, &more) == kForkedChild &&
                         table().free(ordinal(), address) == kForkedChild &&
                         table().event_destroy(ordinal(), event) == kForkedChild &&
                         table().submitted_ticket(ordinal(), 0, &ticket) == kForkedChild &&
                         table().page_release(ordinal(), 1) == kForkedChild &&
                         table().synchronize(ordinal()) == kForkedChild;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(table().event_destroy(ordinal(), event), kSuccess);
  free(address);
}

TEST_P(Gpu, EveryThreadGetsTheDevice) {
  const std::int32_t near = ordinal();
  std::thread([this, near] {
    DeviceAddress here = 0;
    DeviceAddress there = 0;
    ASSERT_EQ(table().allocate(near, 1 << 20, &here), kSuccess);
    const std::uint64_t before = stub_->used(other());
    ASSERT_EQ(table().allocate(other(), 1 << 20, &there), kSuccess);
    EXPECT_EQ(stub_->used(other()), before + (1 << 20));
    EXPECT_EQ(table().free(other(), there), kSuccess);
    EXPECT_EQ(table().free(near, here), kSuccess);
  }).join();
}

// ---- streams, tickets, events
// --------------------------------------------------------------------

TEST_P(Gpu, TicketsFollowTheWork) {
  const StreamHandle stream = new_stream();
  const DeviceAddress address = allocate(400);
  const Ticket before = submitted(stream);
  Gate gate;
  close(&gate, stream);
  fill(address, 7, 100, stream);
  EXPECT_EQ(submitted(stream), before + 2);
  EXPECT_LT(completed(stream), before + 2);
  gate.closed.unlock();
  ASSERT_EQ(table().wait_ticket(ordinal(), stream, before + 2), kSuccess);
  EXPECT_EQ(completed(stream), before + 2);
  const std::uint64_t queries = stub_->calls(symbol("cuEventQuery", "hipEventQuery"));
  EXPECT_EQ(completed(stream), before + 2);
  EXPECT_EQ(stub_->calls(symbol("cuEventQuery", "hipEventQuery")), queries)
      << "nothing is asked where all is known";
  free(address);
  destroy(stream);
}

TEST_P(Gpu, MarksStayFew) {
  const StreamHandle stream = new_stream();
  const DeviceAddress address = allocate(400);
  const char* const record = symbol("cuEventRecord", "hipEventRecord");
  Gate gate;
  close(&gate, stream);
  const Ticket first = submitted(stream);
  const std::uint64_t before = stub_->calls(record);
  for (std::uint32_t i = 0; i < 50; ++i) {
    fill(address, i, 100, stream);
    EXPECT_LT(completed(stream), first);
  }
  EXPECT_EQ(stub_->calls(record), before + 8);
  const Ticket last = submitted(stream);
  std::thread waiter([&] { EXPECT_EQ(table().wait_ticket(ordinal(), stream, last), kSuccess); });
  gate.closed.unlock();
  waiter.join();
  EXPECT_EQ(completed(stream), last);
  EXPECT_EQ(table().wait_ticket(ordinal(), stream, last + 1), kInvalidValue);
  free(address);
  destroy(stream);
}

TEST_P(Gpu, ManyThreadsWaitForTickets) {
  const StreamHandle stream = new_stream();
  const DeviceAddress address = allocate(4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        static_cast<void>(table().fill(ordinal(), address, 1, 4, 1, stream));
        const Ticket ticket = submitted(stream);
        if (t % 2 == 0) {
          wrong += table().wait_ticket(ordinal(), stream, ticket) == kSuccess ? 0 : 1;
          wrong += completed(stream) >= ticket ? 0 : 1;
        } else {
          const Ticket seen = completed(stream);
          wrong += completed(stream) >= seen ? 0 : 1;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  free(address);
  destroy(stream);
}

TEST_P(Gpu, AStreamOfOthersCanBeUsedAndNotDestroyed) {
  const StreamHandle stream = new_stream();
  destroy(stream);
  // The default stream stands for one that another library made.
  const DeviceAddress address = allocate(400);
  const Ticket before = submitted(0);
  fill(address, 9, 100, 1);  // its other name
  EXPECT_EQ(submitted(0), before + 1);
  EXPECT_EQ(word_at(address, 0), 9u);
  EXPECT_EQ(table().stream_destroy(ordinal(), 0), kInvalidHandle);
  EXPECT_EQ(table().fill(ordinal(), address, 9, 4, 100, 2), kInvalidHandle)
      << "each thread's own, which means another stream elsewhere";
  free(address);
}

TEST_P(Gpu, StreamsAreMadeOnceAndTheirTicketsGoOn) {
  const StreamHandle stream = new_stream();
  const DeviceAddress address = allocate(400);
  fill(address, 1, 100, stream);
  const Ticket ticket = submitted(stream);
  ASSERT_EQ(table().stream_synchronize(ordinal(), stream), kSuccess);
  destroy(stream);
  const std::uint64_t made =
      stub_->calls(symbol("cuStreamCreateWithPriority", "hipStreamCreateWithPriority"));
  const StreamHandle again = new_stream();
  EXPECT_EQ(stub_->calls(symbol("cuStreamCreateWithPriority", "hipStreamCreateWithPriority")),
            made);
  EXPECT_GE(submitted(again), again == stream ? ticket : 0);
  EXPECT_EQ(completed(again), submitted(again));
  destroy(again);
  free(address);
}

TEST_P(Gpu, EventsThatWereGivenBackNameNothing) {
  EventHandle first = 0;
  ASSERT_EQ(table().event_create(ordinal(), false, &first), kSuccess);
  ASSERT_EQ(table().event_record(ordinal(), first, 0), kSuccess);
  ASSERT_EQ(table().event_destroy(ordinal(), first), kSuccess);
  EventHandle second = 0;
  ASSERT_EQ(table().event_create(ordinal(), false, &second), kSuccess);
  EXPECT_NE(first, second);
  bool complete = false;
  EXPECT_EQ(table().event_query(ordinal(), first, &complete), kInvalidHandle);
  ASSERT_EQ(table().event_query(ordinal(), second, &complete), kSuccess);
  EXPECT_TRUE(complete) << "whatever its former user recorded";
  EXPECT_EQ(table().event_query(ordinal(), 12345, &complete), kInvalidHandle);
  double seconds = 0.0;
  EXPECT_EQ(table().event_elapsed(ordinal(), second, second, &seconds), kInvalidHandle)
      << "made without timing";
  ASSERT_EQ(table().event_destroy(ordinal(), second), kSuccess);
}

// ---- kernels and graphs
// --------------------------------------------------------------------------

TEST_P(Gpu, KernelsRunWithTheirArguments) {
  ModuleHandle module = 0;
  const KernelHandle kernel = add_kernel(&module, 100'000 - 50'000);
  const DeviceAddress address = allocate(400);
  fill(address, 1, 100, 0);
  Arguments arguments(address, 41, 100);
  LaunchGeometry shape = geometry(5);
  shape.shared_bytes = 40'000;
  const Ticket before = submitted(0);
  ASSERT_EQ(table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, 0), kSuccess);
  arguments.value = 1000;
  EXPECT_EQ(submitted(0), before + 1);
  EXPECT_EQ(word_at(address + 396, 0), 42u);
  std::array<unsigned, 7> seen{};
  stub_->geometry(seen.data());
  EXPECT_EQ(seen, (std::array<unsigned, 7>{5, 1, 1, 128, 1, 1, 40'000}));
  EXPECT_EQ(stub_->attribute_of_launch(2), -1) << "nothing is asked for that was not wanted";
  KernelAttributes attributes{};
  ASSERT_EQ(table().kernel_attributes(ordinal(), kernel, &attributes), kSuccess);
  EXPECT_EQ(attributes.registers, 40u);
  EXPECT_EQ(attributes.threads_per_block, 1024u);
  KernelHandle none = 0;
  EXPECT_EQ(table().kernel_find(ordinal(), module, "other", 0, &none), kNotFound);
  EXPECT_NE(table().kernel_find(ordinal(), module, "add", 1 << 20, &none), kSuccess);
  EXPECT_EQ(table().launch(ordinal(), 0, &shape, arguments.all.data(), 3, 0), kInvalidHandle);
  ASSERT_EQ(table().module_unload(ordinal(), module), kSuccess);
  EXPECT_EQ(table().module_unload(ordinal(), module), kInvalidHandle);
  EXPECT_EQ(table().module_load(ordinal(), "nonsense", 8, &module), kInvalidImage);
  free(address);
}

TEST_P(Gpu, LaunchesAskForWhatTheyNeed) {
  ModuleHandle module = 0;
  const KernelHandle kernel = add_kernel(&module, is_cuda() ? 200'000 : 60'000);
  const DeviceAddress address = allocate(400);
  Arguments arguments(address, 1, 1);
  LaunchGeometry shape = geometry(4);
  shape.cooperative = true;
  ASSERT_EQ(table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, 0), kSuccess);
  ASSERT_EQ(table().synchronize(ordinal()), kSuccess);
  EXPECT_EQ(stub_->attribute_of_launch(2), 1);
  shape = geometry(4);
  shape.cluster[0] = 2;
  shape.programmatic = true;
  const Status status = table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, 0);
  if (is_cuda()) {
    ASSERT_EQ(status, kSuccess);
    ASSERT_EQ(table().synchronize(ordinal()), kSuccess);
    EXPECT_EQ(stub_->attribute_of_launch(4), 2) << "cluster";
    EXPECT_EQ(stub_->attribute_of_launch(5), 1) << "spread";
    EXPECT_EQ(stub_->attribute_of_launch(6), 1) << "early start";
    shape.cluster[0] = 1;
    shape.shared_bytes = 200'000;
    EXPECT_EQ(table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, 0), kSuccess);
  } else {
    EXPECT_EQ(status, kUnsupported);
  }
  ASSERT_EQ(table().synchronize(ordinal()), kSuccess);
  ASSERT_EQ(table().module_unload(ordinal(), module), kSuccess);
  free(address);
}

TEST_P(Gpu, CapturedGraphsAreReplayedAndChanged) {
  ModuleHandle module = 0;
  const KernelHandle kernel = add_kernel(&module);
  const StreamHandle stream = new_stream();
  const StreamHandle side = new_stream();
  const DeviceAddress address = allocate(400);
  fill(address, 0, 100, stream);
  NodeHandle node = 0;
  EXPECT_EQ(table().capture_node(ordinal(), stream, &node), kCaptureInvalid);
  EXPECT_NE(table().capture_begin(ordinal(), 0), kSuccess) << "the default stream";
  ASSERT_EQ(table().capture_begin(ordinal(), stream), kSuccess);
  fill(address, 100, 100, stream);
  EXPECT_LE(completed(stream), submitted(stream)) << "no mark is made in a capture";
  Arguments arguments(address, 5, 100);
  LaunchGeometry shape = geometry(1);
  ASSERT_EQ(table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, stream), kSuccess);
  ASSERT_EQ(table().capture_node(ordinal(), stream, &node), kSuccess);
  EventHandle event = 0;
  ASSERT_EQ(table().event_create(ordinal(), false, &event), kSuccess);
  ASSERT_EQ(table().event_record(ordinal(), event, stream), kSuccess);
  ASSERT_EQ(table().stream_wait_event(ordinal(), side, event), kSuccess);
  ASSERT_EQ(table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, side), kSuccess);
  ASSERT_EQ(table().event_record(ordinal(), event, side), kSuccess);
  ASSERT_EQ(table().launch(ordinal(), kernel, &shape, arguments.all.data(), 3, stream), kSuccess);
  ASSERT_EQ(table().stream_wait_event(ordinal(), stream, event), kSuccess);
  NodeHandle none = 0;
  EXPECT_EQ(table().capture_node(ordinal(), stream, &none), kCaptureInvalid) << "two before it";
  GraphHandle graph = 0;
  ASSERT_EQ(table().capture_end(ordinal(), stream, &graph), kSuccess);
  ASSERT_EQ(table().event_destroy(ordinal(), event), kSuccess);

  ASSERT_EQ(table().graph_launch(ordinal(), graph, stream), kSuccess);
  EXPECT_EQ(word_at(address, stream), 115u);
  arguments.value = 50;
  ASSERT_EQ(
      table().graph_set_kernel(ordinal(), graph, node, kernel, &shape, arguments.all.data(), 3),
      kSuccess);
  ASSERT_EQ(table().graph_launch(ordinal(), graph, stream), kSuccess);
  EXPECT_EQ(word_at(address, stream), 160u);
  EXPECT_EQ(completed(stream), submitted(stream));
  ASSERT_EQ(table().graph_destroy(ordinal(), graph), kSuccess);
  EXPECT_EQ(table().graph_destroy(ordinal(), graph), kInvalidHandle);
  EXPECT_EQ(table().graph_launch(ordinal(), graph, stream), kInvalidHandle);
  ASSERT_EQ(table().module_unload(ordinal(), module), kSuccess);
  destroy(side);
  destroy(stream);
  free(address);
}

TEST_P(Gpu, GraphsAreBuiltNodeByNode) {
  ModuleHandle module = 0;
  const KernelHandle kernel = add_kernel(&module);
  const DeviceAddress address = allocate(400);
  fill(address, 0, 100, 0);
  GraphHandle graph = 0;
  ASSERT_EQ(table().graph_create(ordinal(), &graph), kSuccess);
  EXPECT_EQ(table().graph_launch(ordinal(), graph, 0), kInvalidHandle) << "not finished";
  const LaunchGeometry shape = geometry(1);
  std::vector<NodeHandle> nodes;
  for (const std::uint32_t value : {1u, 10u, 100u}) {
    Arguments arguments(address, value, 100);
    NodeHandle node = 0;
    ASSERT_EQ(table().graph_add_kernel(ordinal(), graph, kernel, &shape, arguments.all.data(), 3,
                                       nodes.data(), nodes.size(), &node),
              kSuccess);
    nodes.push_back(node);
  }
  Arguments arguments(address, 20, 100);
  EXPECT_EQ(
      table().graph_set_kernel(ordinal(), graph, nodes[1], kernel, &shape, arguments.all.data(), 3),
      kNotPermitted);
  ASSERT_EQ(table().graph_finish(ordinal(), graph), kSuccess);
  EXPECT_EQ(table().graph_finish(ordinal(), graph), kNotPermitted);
  ASSERT_EQ(table().graph_launch(ordinal(), graph, 0), kSuccess);
  ASSERT_EQ(
      table().graph_set_kernel(ordinal(), graph, nodes[1], kernel, &shape, arguments.all.data(), 3),
      kSuccess);
  ASSERT_EQ(table().graph_launch(ordinal(), graph, 0), kSuccess);
  EXPECT_EQ(word_at(address + 200, 0), 111u + 121u);
  ASSERT_EQ(table().graph_destroy(ordinal(), graph), kSuccess);
  ASSERT_EQ(table().module_unload(ordinal(), module), kSuccess);
  free(address);
}

struct Counts {
  std::atomic<int> runs{0};
  std::atomic<int> discards{0};
  HostWork work() {
    return HostWork{[](void* c) { ++static_cast<Counts*>(c)->runs; },
                    [](void* c) { ++static_cast<Counts*>(c)->discards; }, this};
  }
};

TEST_P(Gpu, CapturedHostWorkIsDiscardedWithItsGraph) {
  Counts counts;
  const HostWork work = counts.work();
  const StreamHandle stream = new_stream();
  ASSERT_EQ(table().capture_begin(ordinal(), stream), kSuccess);
  ASSERT_EQ(table().launch_host(ordinal(), &work, 0.0, stream), kSuccess);
  GraphHandle graph = 0;
  ASSERT_EQ(table().capture_end(ordinal(), stream, &graph), kSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(table().graph_launch(ordinal(), graph, stream), kSuccess);
  ASSERT_EQ(table().stream_synchronize(ordinal(), stream), kSuccess);
  EXPECT_EQ(counts.runs, 3);
  EXPECT_EQ(counts.discards, 0);
  ASSERT_EQ(table().graph_destroy(ordinal(), graph), kSuccess);
  EXPECT_EQ(counts.discards, 1);
  for (const char* name : {symbol("cuLaunchHostFunc", "hipLaunchHostFunc"),
                           symbol("cuStreamIsCapturing", "hipStreamIsCapturing")}) {
    const int before = counts.discards;
    stub_->fail(name, 1, 999);
    EXPECT_EQ(table().launch_host(ordinal(), &work, 0.0, stream), 999);
    EXPECT_EQ(counts.discards, before + 1) << "refused work is discarded too";
  }
  EXPECT_EQ(counts.runs, 3);
  destroy(stream);
}

TEST_P(Gpu, AStreamThatIsDestroyedGivesUpItsCapture) {
  const StreamHandle stream = new_stream();
  ASSERT_EQ(table().capture_begin(ordinal(), stream), kSuccess);
  destroy(stream);
  const StreamHandle again = new_stream();
  const DeviceAddress address = allocate(400);
  fill(address, 3, 100, again);
  EXPECT_EQ(word_at(address, again), 3u);
  destroy(again);
  free(address);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Gpu);
INSTANTIATE_TEST_SUITE_P(Devices, Gpu, testing::ValuesIn(driver_devices()), device_test_name);

}  // namespace
}  // namespace nbx
