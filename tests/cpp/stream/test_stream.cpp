#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "device/host_status.h"
#include "stream/event.h"
#include "stream/fault.h"
#include "stream/stream.h"

namespace nbx {
namespace {

Device& sim(std::int32_t ordinal) { return open_device(DeviceKind::kSim, ordinal); }
Device& cpu() { return open_device(DeviceKind::kCpu, 0); }

void launch(Stream& stream, int* runs) {
  const HostWork work{[](void* payload) { ++*static_cast<int*>(payload); }, [](void*) {}, runs};
  Device& device = stream.device();
  device.check(device.primitives().launch_host(device.ordinal(), &work, 1.0, stream.handle()),
               "launch_host");
}

TEST(Stream, TheCpuHasNoOutstandingWork) {
  Stream& stream = default_stream(cpu());
  int runs = 0;
  launch(stream, &runs);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(stream.submitted(), 0u);
  EXPECT_TRUE(stream.is_complete(0));
  stream.synchronize();
}

TEST(Stream, TicketsCompleteWhenWaitedFor) {
  const auto stream = create_stream(sim(0), 0);
  int runs = 0;
  EXPECT_EQ(stream->submitted(), 0u);
  launch(*stream, &runs);
  launch(*stream, &runs);
  EXPECT_EQ(stream->submitted(), 2u);
  EXPECT_FALSE(stream->is_complete(1));
  stream->wait(1);
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(stream->is_complete(1));
  EXPECT_FALSE(stream->is_complete(2));
  stream->synchronize();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(stream->is_complete(2));
}

TEST(Stream, WaitStreamOrdersAcrossStreamsAndDevices) {
  const auto first = create_stream(sim(0), 0);
  const auto second = create_stream(sim(1), 0);
  int before = 0;
  int after = 0;
  launch(*first, &before);
  second->wait_stream(*first);
  launch(*first, &before);
  launch(*second, &after);
  second->synchronize();
  EXPECT_EQ(after, 1);
  EXPECT_EQ(before, 1) << "only what was submitted before is waited for";
  first->synchronize();
}

TEST(Stream, CurrentIsPerThreadAndPerDevice) {
  const auto stream = create_stream(sim(0), 0);
  Stream& former = set_current_stream(*stream);
  EXPECT_EQ(&former, &default_stream(sim(0)));
  EXPECT_EQ(&current_stream(sim(0)), stream.get());
  EXPECT_EQ(&current_stream(sim(1)), &default_stream(sim(1)));
  std::thread([] { EXPECT_EQ(&current_stream(sim(0)), &default_stream(sim(0))); }).join();
  EXPECT_EQ(&set_current_stream(former), stream.get());
}

TEST(Stream, ADestroyedStreamIsNoLongerCurrent) {
  auto stream = create_stream(sim(0), 0);
  set_current_stream(*stream);
  stream.reset();
  EXPECT_EQ(&current_stream(sim(0)), &default_stream(sim(0)));
}

TEST(Stream, ThreadsMayPollTogether) {
  const auto stream = create_stream(sim(0), 0);
  int runs = 0;
  for (int i = 0; i < 200; ++i) launch(*stream, &runs);
  std::vector<std::thread> threads;
  for (Ticket t = 0; t < 4; ++t) {
    threads.emplace_back([&stream, t] {
      for (Ticket wanted = 1 + t; wanted <= 200; wanted += 4) {
        stream->wait(wanted);
        EXPECT_TRUE(stream->is_complete(wanted));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, 200);
}

TEST(Event, MarksOrderAndTime) {
  const auto stream = create_stream(sim(0), 0);
  Event start(sim(0), true);
  Event end(sim(0), true);
  EXPECT_TRUE(start.is_complete());
  int runs = 0;
  start.record(*stream);
  launch(*stream, &runs);
  end.record(*stream);
  EXPECT_FALSE(end.is_complete());
  end.synchronize();
  EXPECT_EQ(runs, 1);
  EXPECT_NEAR(start.seconds_to(end), 1.0, 1e-3);
  Event untimed(sim(0), false);
  EXPECT_THROW(static_cast<void>(start.seconds_to(untimed)), Error);
  EXPECT_THROW(start.record(default_stream(sim(1))), Error);
}

TEST(Stream, AFaultOfQueuedWorkIsRaisedByTheNextWait) {
  const auto stream = create_stream(sim(0), 0);
  record_fault(sim(0), Error(ErrorKind::kIndex, "row 9 of 4"));
  try {
    stream->synchronize();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIndex);
    EXPECT_STREQ(error.what(), "sim:0: row 9 of 4");
  }
  stream->synchronize();
}

std::string fault_text(Device& device) {
  try {
    raise_fault(device);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIndex);
    return error.what();
  }
  return {};
}

TEST(Fault, AWordOfAKernelIsTheNextError) {
  Device& device = sim(1);
  const FaultSite first = fault_site(device, "take", "axis 0 with size 5");
  const FaultSite second = fault_site(device, "gather", "axis 1 with size 7");
  ASSERT_NE(first.word, 0u);
  EXPECT_EQ(first.word, second.word);
  EXPECT_NE(first.number, second.number);
  EXPECT_EQ(fault_text(device), "");
  auto* word = reinterpret_cast<std::int64_t*>(first.word);
  constexpr std::int64_t kMask = (std::int64_t{1} << 48) - 1;
  *word = std::int64_t{second.number} << 48 | (-9 & kMask);
  EXPECT_EQ(fault_text(device), "sim:1: gather: index -9 is out of bounds for axis 1 with size 7");
  EXPECT_EQ(fault_text(device), "");
  *word = std::int64_t{first.number} << 48 | 5;
  EXPECT_EQ(fault_text(device), "sim:1: take: index 5 is out of bounds for axis 0 with size 5");
  EXPECT_EQ(fault_text(sim(0)), "");
}

}  // namespace
}  // namespace nbx
