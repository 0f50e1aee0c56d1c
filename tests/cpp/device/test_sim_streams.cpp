#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/error.h"
#include "sim_fixture.h"

namespace nbx {
namespace {

using SimStreams = SimTest;

TEST_F(SimStreams, WorkRunsWhenSomebodyWaitsAndNotBefore) {
  const DeviceAddress address = allocate(4);
  const std::uint32_t value = 42;
  std::uint32_t result = 7;
  write(address, &value, 4, 0);
  read(&result, address, 4, 0);
  EXPECT_EQ(result, 7u) << "a missing wait must be visible";
  EXPECT_EQ(sim::books(kOrdinal).queued_work, 2u);
  ASSERT_EQ(table().stream_synchronize(kOrdinal, 0), kSuccess);
  EXPECT_EQ(result, 42u);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimStreams, PageableMemoryIsReadAtSubmitAndPinnedMemoryLater) {
  const DeviceAddress address = allocate(8);
  std::uint32_t pageable = 1;
  void* pinned = nullptr;
  ASSERT_EQ(table().host_allocate(kOrdinal, 4, &pinned), kSuccess);
  auto* const word = static_cast<std::uint32_t*>(pinned);
  *word = 1;
  write(address, &pageable, 4, 0);
  write(address + 4, pinned, 4, 0);
  pageable = 2;
  *word = 2;
  std::uint32_t result[2] = {};
  read(result, address, 8, 0);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(result[0], 1u);
  EXPECT_EQ(result[1], 2u);
  ASSERT_EQ(table().host_free(kOrdinal, pinned), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimStreams, QueriesSeeWorkWhoseVirtualTimeHasPassed) {
  int runs = 0;
  const HostWork work{[](void* payload) { ++*static_cast<int*>(payload); }, [](void*) {}, &runs};
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 1.0, 0), kSuccess);
  Ticket submitted = 0;
  Ticket completed = 0;
  ASSERT_EQ(table().submitted_ticket(kOrdinal, 0, &submitted), kSuccess);
  ASSERT_EQ(table().completed_ticket(kOrdinal, 0, &completed), kSuccess);
  EXPECT_LT(completed, submitted);
  EXPECT_EQ(runs, 0);
  sim::advance(1.0);
  ASSERT_EQ(table().completed_ticket(kOrdinal, 0, &completed), kSuccess);
  EXPECT_EQ(completed, submitted);
  EXPECT_EQ(runs, 1);
}

TEST_F(SimStreams, WaitingPassesTheVirtualTimeOfTheWork) {
  const HostWork work{[](void*) {}, [](void*) {}, nullptr};
  const double start = sim::seconds();
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 3.0, 0), kSuccess);
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 2.0, 0), kSuccess);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_NEAR(sim::seconds() - start, 5.0, 1e-3);
}

TEST_F(SimStreams, StreamsRunAtTheSameVirtualTime) {
  const HostWork work{[](void*) {}, [](void*) {}, nullptr};
  const StreamHandle a = new_stream();
  const StreamHandle b = new_stream();
  const double start = sim::seconds();
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 1.0, a), kSuccess);
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 1.0, b), kSuccess);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_NEAR(sim::seconds() - start, 1.0, 1e-3);
  ASSERT_EQ(table().stream_destroy(kOrdinal, a), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, b), kSuccess);
}

TEST_F(SimStreams, AnEventMakesAnotherStreamWait) {
  const DeviceAddress address = allocate(4);
  const StreamHandle a = new_stream();
  const StreamHandle b = new_stream();
  const EventHandle event = new_event();
  std::uint32_t result = 0;
  fill(address, 1, 1, 0);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  fill(address, 5, 1, a);
  ASSERT_EQ(table().event_record(kOrdinal, event, a), kSuccess);
  fill(address, 9, 1, a);  // after the mark: not waited for
  ASSERT_EQ(table().stream_wait_event(kOrdinal, b, event), kSuccess);
  read(&result, address, 4, b);
  ASSERT_EQ(table().stream_synchronize(kOrdinal, b), kSuccess);
  EXPECT_EQ(result, 5u);
  ASSERT_EQ(table().event_destroy(kOrdinal, event), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, b), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, a), kSuccess);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  read(&result, address, 4, 0);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(result, 9u) << "work of a destroyed stream still runs";
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimStreams, WithoutAnEventTheOldBytesAreSeen) {
  const DeviceAddress address = allocate(4);
  const StreamHandle a = new_stream();
  const StreamHandle b = new_stream();
  std::uint32_t result = 0;
  fill(address, 1, 1, 0);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  fill(address, 5, 1, a);
  read(&result, address, 4, b);
  ASSERT_EQ(table().stream_synchronize(kOrdinal, b), kSuccess);
  EXPECT_EQ(result, 1u);
  ASSERT_EQ(table().stream_destroy(kOrdinal, a), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, b), kSuccess);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimStreams, HostWorkMayCallTheDeviceButNotWaitForItself) {
  struct Payload {
    Status wait = kSuccess;
    Status allocated = kSystemFailure;
    std::size_t discarded = 0;
  } payload;
  const HostWork work{[](void* data) {
                        auto& own = *static_cast<Payload*>(data);
                        DeviceAddress address = 0;
                        own.wait = table().synchronize(kOrdinal);
                        own.allocated = table().allocate(kOrdinal, 64, &address);
                        EXPECT_EQ(table().free(kOrdinal, address), kSuccess);
                      },
                      [](void* data) {
                        Ticket ticket = 0;
                        EXPECT_EQ(table().completed_ticket(kOrdinal, 0, &ticket), kSuccess);
                        ++static_cast<Payload*>(data)->discarded;
                      },
                      &payload};
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 0.0, 0), kSuccess);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(payload.wait, kNotPermitted);
  EXPECT_EQ(payload.allocated, kSuccess);
  EXPECT_EQ(payload.discarded, 1u);
}

TEST_F(SimStreams, MemoryFreedUnderQueuedWorkIsASticyError) {
  const DeviceAddress address = allocate(4096);
  fill(address, 1, 4, 0);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
  EXPECT_EQ(table().synchronize(kOrdinal), kIllegalAddress);
  EXPECT_EQ(table().synchronize(kOrdinal), kIllegalAddress);
  EXPECT_EQ(table().last_error(kOrdinal), kIllegalAddress);
  EXPECT_EQ(table().synchronize(kOrdinal), kSuccess);
}

TEST_F(SimStreams, ACaptureReplaysItsActions) {
  const DeviceAddress address = allocate(8);
  const StreamHandle stream = new_stream();
  const StreamHandle joined = new_stream();
  const EventHandle fork = new_event();
  std::uint32_t source = 3;
  std::uint32_t result[2] = {};
  ASSERT_EQ(table().capture_begin(kOrdinal, stream), kSuccess);
  write(address, &source, 4, stream);
  ASSERT_EQ(table().event_record(kOrdinal, fork, stream), kSuccess);
  ASSERT_EQ(table().stream_wait_event(kOrdinal, joined, fork), kSuccess);
  ASSERT_EQ(table().copy(kOrdinal, address + 4, address, 4, CopyKind::kDeviceToDevice, joined),
            kSuccess);
  EXPECT_EQ(table().stream_synchronize(kOrdinal, stream), kCaptureInvalid);
  GraphHandle graph = 0;
  EXPECT_EQ(table().capture_end(kOrdinal, joined, &graph), kCaptureInvalid);
  ASSERT_EQ(table().capture_end(kOrdinal, stream, &graph), kSuccess);
  EXPECT_EQ(sim::books(kOrdinal).queued_work, 0u);
  for (const std::uint32_t value : {11u, 12u}) {
    source = value;  // a replay reads the source anew
    ASSERT_EQ(table().graph_launch(kOrdinal, graph, stream), kSuccess);
    read(result, address, 8, stream);
    ASSERT_EQ(table().stream_synchronize(kOrdinal, stream), kSuccess);
    EXPECT_EQ(result[0], value);
    EXPECT_EQ(result[1], value);
  }
  ASSERT_EQ(table().graph_destroy(kOrdinal, graph), kSuccess);
  EXPECT_EQ(table().graph_launch(kOrdinal, graph, stream), kInvalidHandle);
  ASSERT_EQ(table().event_destroy(kOrdinal, fork), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, stream), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, joined), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimStreams, AnAbandonedCaptureLeavesNothing) {
  int discards = 0;
  const HostWork work{[](void*) {}, [](void* payload) { ++*static_cast<int*>(payload); },
                      &discards};
  const StreamHandle stream = new_stream();
  ASSERT_EQ(table().capture_begin(kOrdinal, stream), kSuccess);
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 0.0, stream), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, stream), kSuccess);
  EXPECT_EQ(discards, 1);
}

TEST_F(SimStreams, PeersCopyWhenEnabled) {
  const Primitives& sim = table();
  bool supported = false;
  ASSERT_EQ(sim.peer_supported(kOrdinal, 0, &supported), kSuccess);
  EXPECT_TRUE(supported);
  ASSERT_EQ(sim.peer_supported(kOrdinal, kOrdinal, &supported), kSuccess);
  EXPECT_FALSE(supported);
  DeviceAddress other = 0;
  ASSERT_EQ(sim.allocate(0, 4, &other), kSuccess);
  ASSERT_EQ(sim.fill(0, other, 77, 4, 1, 0), kSuccess);
  ASSERT_EQ(sim.synchronize(0), kSuccess);
  const DeviceAddress own = allocate(4);
  ASSERT_EQ(sim.copy_peer(kOrdinal, own, 0, other, 4, 0), kSuccess);
  std::uint32_t result = 0;
  read(&result, own, 4, 0);
  ASSERT_EQ(sim.synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(result, 77u);
  EXPECT_EQ(sim.peer_enable(kOrdinal, kOrdinal), kInvalidDevice);
  EXPECT_EQ(sim.copy(kOrdinal, own, other, 4, CopyKind::kDeviceToDevice, 0), kPeerNotEnabled);
  ASSERT_EQ(sim.peer_enable(kOrdinal, 0), kSuccess);
  EXPECT_EQ(sim.copy(kOrdinal, own, other, 4, CopyKind::kDeviceToDevice, 0), kSuccess);
  ASSERT_EQ(sim.synchronize(kOrdinal), kSuccess);
  ASSERT_EQ(sim.free(0, other), kSuccess);
  ASSERT_EQ(sim.free(kOrdinal, own), kSuccess);
}

TEST_F(SimStreams, ManyStreamsThatWaitForOneAnotherNeverStall) {
  constexpr int kThreads = 4;
  std::vector<StreamHandle> streams;
  std::vector<EventHandle> events;
  for (int i = 0; i < kThreads; ++i) {
    streams.push_back(new_stream());
    events.push_back(new_event());
  }
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const HostWork work{[](void*) {}, [](void*) {}, nullptr};
      for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_EQ(table().launch_host(kOrdinal, &work, 1e-6, streams[t]), kSuccess);
        EXPECT_EQ(table().event_record(kOrdinal, events[t], streams[t]), kSuccess);
        EXPECT_EQ(table().stream_wait_event(kOrdinal, streams[t], events[(t + i) % kThreads]),
                  kSuccess);
        if (i % 10 == 0) {
          EXPECT_EQ(table().stream_synchronize(kOrdinal, streams[t]), kSuccess);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(sim::books(kOrdinal).queued_work, 0u);
  for (const EventHandle event : events)
    EXPECT_EQ(table().event_destroy(kOrdinal, event), kSuccess);
  for (const StreamHandle s : streams) EXPECT_EQ(table().stream_destroy(kOrdinal, s), kSuccess);
}

TEST_F(SimStreams, AForkedChildIsRefused) {
  static_cast<void>(device());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    DeviceAddress address = 0;
    _exit(table().allocate(kOrdinal, 64, &address) == kForkedChild ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace nbx
