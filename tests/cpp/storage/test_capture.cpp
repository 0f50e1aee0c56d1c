// Captures with the memory that they use: on a simulated device, whose graphs run real bytes.
#include "storage/capture.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "device/sim/sim.h"
#include "storage/late.h"
#include "storage/transfer.h"
#include "stream/callback.h"
#include "stream/event.h"

namespace nbx {
namespace {

constexpr std::uint64_t kBytes = 3 << 20;

class Captures : public ::testing::Test {
 protected:
  Device& device = open_device(DeviceKind::kSim, 0);
  const Primitives& table = device.primitives();
  DeviceMemory memory{device};
  std::shared_ptr<Stream> stream = create_stream(device, 0);
  std::shared_ptr<Stream> other = create_stream(device, 0);

  Reference<Storage> take(Stream& on) {
    Stream& former = set_current_stream(on);
    Reference<Storage> storage = Storage::allocate(memory, kBytes);
    set_current_stream(former);
    return storage;
  }
  void fill(const Reference<Storage>& storage, std::uint32_t value, Stream& on) {
    device.check(table.fill(0, storage->address(), value, 1, kBytes, on.handle()), "fill");
    storage->touch(on);
  }
  void copy(const Reference<Storage>& to, const Reference<Storage>& from, Stream& on) {
    device.check(table.copy(0, to->address(), from->address(), kBytes, CopyKind::kDeviceToDevice,
                            on.handle()),
                 "copy");
    to->touch(on);
    from->touch(on);
  }
  void expect_bytes(const Reference<Storage>& storage, unsigned char value) {
    storage->wait();
    std::vector<unsigned char> bytes(kBytes);
    device.check(table.copy(0, reinterpret_cast<DeviceAddress>(bytes.data()), storage->address(),
                            kBytes, CopyKind::kDeviceToHost, 0),
                 "copy");
    default_stream(device).synchronize();
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), value), static_cast<std::ptrdiff_t>(kBytes));
  }
};

TEST_F(Captures, AChildForkedInsideIsRefused) {
  const auto input = take(*stream);
  const auto output = take(*stream);
  CaptureScope scope(memory, *stream);
  copy(output, input, *stream);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      note_captured_range(*stream, input->address(), 1);
      watch_for_capture(scope.capture(), *input);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a lock that was left held would never be given
      note_captured_range(*stream, input->address(), 1);
      try {
        static_cast<void>(scope.finish());
      } catch (const Error& error) {
        _exit(error.kind() == ErrorKind::kDevice ? 0 : 1);
      }
      _exit(2);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
  static_cast<void>(scope.finish());
}

TEST_F(Captures, FreesInsideAreReusedInsideAndTheReplayHasRightBytes) {
  const auto input = take(*stream);
  const auto output = take(*stream);
  CaptureScope scope(memory, *stream);
  EXPECT_TRUE(stream->is_captured());
  DeviceAddress first = 0;
  {
    const auto temporary = take(*stream);
    first = temporary->address();
    copy(temporary, input, *stream);
    copy(output, temporary, *stream);
  }
  {
    const auto temporary = take(*stream);
    EXPECT_EQ(temporary->address(), first) << "freed inside, reused inside";
    fill(temporary, 0x77, *stream);
  }
  const auto graph = scope.finish();
  EXPECT_FALSE(stream->is_captured());
  // The temporary's memory is the graph's: nobody else gets it, however often it runs.
  std::vector<Reference<Storage>> outside;
  for (int i = 0; i < 8; ++i) {
    outside.push_back(take(*other));
    EXPECT_NE(outside.back()->address(), first);
    fill(outside.back(), 0x11, *other);
  }
  for (const std::uint32_t value : {1u, 2u, 3u}) {
    fill(input, value, *stream);
    graph->launch(*stream);
    expect_bytes(output, static_cast<unsigned char>(value));
  }
  for (const auto& storage : outside) expect_bytes(storage, 0x11);
}

TEST_F(Captures, MemoryThatCapturedWorkUsedIsFrozenWhenItIsFreedAndTheGraphIsOutOfDate) {
  auto used = take(*stream);
  const DeviceAddress address = used->address();
  std::unique_ptr<CapturedGraph> graph;
  {
    CaptureScope scope(memory, *stream);
    fill(used, 2, *stream);
    graph = scope.finish();
  }
  graph->launch(*stream);
  used = {};
  EXPECT_EQ(memory.heap.statistics().live, 0u);
  EXPECT_EQ(memory.heap.statistics().pending, kBytes);
  memory.heap.trim();
  std::vector<Reference<Storage>> outside;
  for (int i = 0; i < 4; ++i) {
    outside.push_back(take(*stream));
    EXPECT_NE(outside.back()->address(), address);
    fill(outside.back(), 0x11, *stream);
  }
  EXPECT_THROW(graph->launch(*stream), Error);
  EXPECT_THROW(graph->launch(*stream), Error) << "for ever";
  for (const auto& storage : outside) expect_bytes(storage, 0x11);
  graph.reset();
  stream->synchronize();
  memory.heap.trim();
  EXPECT_EQ(memory.heap.statistics().pending, 0u);
}

TEST_F(Captures, MemoryFromOutsideThatIsFreedInsideEndsTheCapture) {
  auto used = take(*stream);
  {
    CaptureScope scope(memory, *stream);
    fill(used, 1, *stream);
    used = {};
    EXPECT_EQ(memory.heap.statistics().pending, kBytes);
    EXPECT_THROW(static_cast<void>(scope.finish()), Error);
  }
  EXPECT_FALSE(stream->is_captured());
  EXPECT_EQ(memory.heap.statistics().pending, 0u);
}

TEST_F(Captures, ATensorKeepsNoListOfGraphsThatAreGone) {
  const auto weights = take(*stream);
  for (int i = 0; i < 100; ++i) {
    CaptureScope scope(memory, *stream);
    fill(weights, 1, *stream);
    scope.finish()->launch(*stream);
    stream->synchronize();
  }
  EXPECT_LE(weights->use_count(), 2u);
}

TEST_F(Captures, HostBytesAreKeptForTheGraph) {
  const auto target = take(*stream);
  CaptureScope scope(memory, *stream);
  {
    TensorMeta meta;
    meta.storage = target;
    meta.data = target->address();
    meta.dtype = DType::uint8;
    Stream& former = set_current_stream(*stream);
    std::vector<unsigned char> host(kBytes, 0x3c);
    copy_from_host(meta, host.data(), kBytes);
    set_current_stream(former);
    std::fill(host.begin(), host.end(), 0);
  }
  const auto graph = scope.finish();
  fill(target, 0, *stream);
  graph->launch(*stream);
  expect_bytes(target, 0x3c);
  EXPECT_TRUE(graph->used().has_range(target->address() + 1, target->address() + 2));
}

TEST_F(Captures, AGraphThatGoesLeavesItsMemoryAfterItsLastLaunch) {
  std::unique_ptr<CapturedGraph> graph;
  DeviceAddress address = 0;
  {
    CaptureScope scope(memory, *stream);
    const auto temporary = take(*stream);
    address = temporary->address();
    fill(temporary, 0xee, *stream);
    const HostWork slow{[](void*) {}, [](void*) {}, nullptr};
    device.check(table.launch_host(0, &slow, 1.0, stream->handle()), "launch_host");
    graph = scope.finish();
  }
  HeapOptions options;
  options.reuse_waits = false;
  memory.heap.set_options(options);
  graph->launch(*stream);
  graph.reset();
  const auto early = take(*other);
  EXPECT_NE(early->address(), address) << "the last launch is still to come";
  stream->synchronize();
  const auto block = take(*other);
  EXPECT_EQ(block->address(), address);
}

TEST_F(Captures, LaunchesOfOneGraphRunOneAfterTheOther) {
  const auto counter = take(*stream);
  const auto copied = take(*stream);
  fill(counter, 5, *stream);
  stream->synchronize();
  std::unique_ptr<CapturedGraph> graph;
  {
    CaptureScope scope(memory, *stream);
    copy(copied, counter, *stream);
    graph = scope.finish();
  }
  const HostWork slow{[](void*) {}, [](void*) {}, nullptr};
  device.check(table.launch_host(0, &slow, 1.0, stream->handle()), "launch_host");
  graph->launch(*stream);
  graph->launch(*other);
  other->synchronize();
  EXPECT_TRUE(stream->is_complete(stream->submitted()));
  expect_bytes(copied, 5);
}

TEST_F(Captures, AStreamThatWaitsForCapturedWorkJoinsTheCapture) {
  const auto output = take(*stream);
  CaptureScope scope(memory, *stream);
  fill(output, 1, *stream);
  other->wait_stream(*stream);
  EXPECT_EQ(other->id(), stream->id());
  const auto temporary = take(*other);
  const DeviceAddress address = temporary->address();
  fill(temporary, 9, *other);
  copy(output, temporary, *other);
  stream->wait_stream(*other);
  const auto graph = scope.finish();
  EXPECT_NE(other->id(), stream->id());
  graph->launch(*stream);
  expect_bytes(output, 9);
  EXPECT_EQ(temporary->address(), address);
}

TEST_F(Captures, AnAbandonedCaptureFreesItsBlocks) {
  const std::uint64_t before = memory.heap.statistics().mapped;
  for (int i = 0; i < 50; ++i) {
    const CaptureScope scope(memory, *stream);
    const auto temporary = take(*stream);
    fill(temporary, 1, *stream);
  }
  const HeapStatistics after = memory.heap.statistics();
  EXPECT_EQ(after.live, 0u);
  EXPECT_EQ(after.pending, 0u);
  EXPECT_LE(after.mapped, before + (std::uint64_t{4} << 20));
  EXPECT_FALSE(stream->is_captured());
  stream->synchronize();
}

TEST_F(Captures, RefusedCapturesLeaveNothingBehind) {
  EXPECT_THROW(CaptureScope(memory, default_stream(device)), Error);
  EXPECT_FALSE(default_stream(device).is_captured());
  const CaptureScope scope(memory, *stream);
  EXPECT_THROW(CaptureScope(memory, *stream), Error);
  EXPECT_TRUE(stream->is_captured());
  EXPECT_FALSE(insert_wait(other->id(), stream->id()));
}

TEST_F(Captures, ARefusalInsideACaptureIsARefusal) {
  const std::uint64_t total = sim::books(0).total_bytes;
  sim::set_memory(0, sim::books(0).used_bytes);
  {
    const CaptureScope scope(memory, *stream);
    try {
      static_cast<void>(take(*stream));
      ADD_FAILURE() << "served";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
    }
  }
  sim::set_memory(0, total);
}

TEST_F(Captures, MemoryUnderOtherWorkIsNotReusedInsideTheCapture) {
  auto shared = take(*stream);
  const DeviceAddress address = shared->address();
  fill(shared, 0xaa, *other);
  const HostWork slow{[](void*) {}, [](void*) {}, nullptr};
  device.check(table.launch_host(0, &slow, 1.0, other->handle()), "launch_host");
  shared->touch(*other);
  CaptureScope scope(memory, *stream);
  fill(shared, 0xbb, *stream);
  shared = {};
  const auto temporary = take(*stream);
  EXPECT_NE(temporary->address(), address) << "the graph may run before the other stream's work";
  EXPECT_THROW(static_cast<void>(scope.finish()), Error) << "what it used is gone";
}

// ---- owners that get their memory back late ------------------------------------------------

int finalized = 0;
void count_finalized(void*) noexcept { ++finalized; }

TEST_F(Captures, BorrowedMemoryDroppedInACallbackGoesBackAfterTheWork) {
  finalized = 0;
  auto borrowed = Storage::borrow(memory, 4096, 64, 64, true, &finalized, count_finalized);
  const HostWork slow{[](void*) {}, [](void*) {}, nullptr};
  device.check(table.launch_host(0, &slow, 1.0, stream->handle()), "launch_host");
  borrowed->touch(*stream);
  {
    const CallbackScope callback;
    const std::uint64_t before = sim::call_count(0, Primitive::k_wait_ticket);
    borrowed = {};
    EXPECT_EQ(sim::call_count(0, Primitive::k_wait_ticket), before);
  }
  EXPECT_EQ(finalized, 0) << "the work still uses it";
  EXPECT_EQ(late_owners(), 1u);
  run_late_owners();
  EXPECT_EQ(finalized, 0);
  stream->synchronize();
  run_late_owners();
  EXPECT_EQ(finalized, 1);
  EXPECT_EQ(memory.mapped.granted(), 0u);
}

}  // namespace
}  // namespace nbx
