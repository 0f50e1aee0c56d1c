// Replays: their figures against naive counts, what they refuse, and that they leave no trace.
#include "arena/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "arena/replay_clock.h"
#include "core/error.h"
#include "device/sim_fixture.h"
#include "heap/fake_device.h"

namespace nbx {
namespace {

constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

/// The columns of a trace that a test writes.
struct Events {
  std::vector<std::int8_t> ops;
  std::vector<std::int64_t> ids, bytes, streams;
  std::vector<double> seconds;

  void add(bool allocation, std::int64_t id, std::int64_t size, std::int64_t stream = 0) {
    ops.push_back(allocation ? 1 : -1);
    ids.push_back(id);
    bytes.push_back(size);
    streams.push_back(stream);
  }
  [[nodiscard]] ReplayTrace trace() const {
    return ReplayTrace{ids.size(),   ops.data(),     ids.data(),
                       bytes.data(), streams.data(), seconds.empty() ? nullptr : seconds.data()};
  }
};

/// Random sizes, ids used again, some left live; `peak` by adding up what is live at every event.
struct RandomEvents : Events {
  RandomEvents(std::uint64_t seed, int count, int stream_count) {
    std::mt19937_64 random(seed);
    std::map<std::int64_t, std::int64_t> live;
    for (int i = 0; i < count; ++i) {
      const auto id = static_cast<std::int64_t>(random() % 200);
      const auto found = live.find(id);
      if (found == live.end()) {
        const auto size = static_cast<std::int64_t>(random() % (std::uint64_t{1} << random() % 23));
        add(true, id, size,
            static_cast<std::int64_t>(random() % static_cast<unsigned>(stream_count)) - 3);
        live[id] = size;
        ++allocations;
      } else {
        add(false, id, 0, 0);
        live.erase(found);
      }
      std::int64_t held = 0;
      for (const auto& [key, size] : live) held += size;
      peak = std::max(peak, static_cast<std::uint64_t>(held));
    }
  }
  std::uint64_t peak = 0;
  std::uint64_t allocations = 0;
};

class Replay : public SimTest {
 protected:
  static ReplayReport run(const Events& events, const ReplayOptions& options = {},
                          std::optional<std::uint64_t> memory = std::nullopt) {
    return replay_simulated(kOrdinal, memory, events.trace(), options);
  }
};

template <class Function>
std::string refusal_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kValue);
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(Replay, FiguresAgreeWithANaiveCount) {
  const std::uint64_t seed = testing::fresh_seed("FiguresAgreeWithANaiveCount");
  for (const int stream_count : {1, 7}) {
    const RandomEvents events(seed, 4000, stream_count);
    EXPECT_EQ(peak_of(events.trace()), events.peak);
    ReplayOptions options;
    options.repeat = 3;
    const ReplayReport report = run(events, options);
    EXPECT_EQ(report.device, "sim:1");
    EXPECT_EQ(report.streams, static_cast<std::uint32_t>(stream_count));
    EXPECT_EQ(report.memory, (2 * events.peak + kGranule - 1) / kGranule * kGranule);
    ASSERT_EQ(report.passes.size(), 3u);
    EXPECT_FALSE(report.first_refusal.has_value());
    for (const ReplayPass& pass : report.passes) {
      EXPECT_EQ(pass.allocations, events.allocations);
      EXPECT_EQ(pass.refused, 0u);
      EXPECT_EQ(pass.peak_live, events.peak);
      EXPECT_GE(pass.peak_granted, pass.peak_live);
      EXPECT_LE(pass.peak_granted, pass.peak_live + 256 * 200);
      EXPECT_GE(pass.peak_mapped, pass.peak_granted);
      EXPECT_LE(pass.peak_mapped, report.memory);
      EXPECT_DOUBLE_EQ(pass.ratio,
                       static_cast<double>(pass.peak_mapped) / static_cast<double>(pass.peak_live));
      EXPECT_GT(pass.alloc_ns_p50, 0.0);
      EXPECT_GE(pass.alloc_ns_p99, pass.alloc_ns_p50);
      // A pass of one stream that finds its pages already there costs the device nothing.
      EXPECT_EQ(pass.virtual_seconds > 0.0, stream_count > 1 || pass.driver_calls > 0);
    }
    EXPECT_GT(report.passes[0].driver_calls, 0u);
    // The state is kept: later passes find most of their memory where the first one left it.
    EXPECT_LT(report.passes[2].created_bytes, report.passes[0].created_bytes);
  }
}

TEST_F(Replay, LeavesTheDeviceAsItWas) {
  const sim::Books before = sim::books(kOrdinal);
  const RandomEvents events(testing::fresh_seed("LeavesTheDeviceAsItWas"), 500, 7);
  static_cast<void>(run(events));
  const sim::Books after = sim::books(kOrdinal);
  EXPECT_EQ(after.total_bytes, before.total_bytes);
  EXPECT_EQ(after.used_bytes, before.used_bytes);
  EXPECT_EQ(after.pages, before.pages);
  EXPECT_EQ(after.queued_work, 0u);
  EXPECT_EQ(sim::backing(kOrdinal), sim::Backing::kReal);
}

TEST_F(Replay, ADeviceThatHoldsMemoryIsRefused) {
  const DeviceAddress held = allocate(kMega);
  Events events;
  events.add(true, 1, 10);
  EXPECT_NE(refusal_of([&] { static_cast<void>(run(events)); }).find("sim:1 holds"),
            std::string::npos);
  EXPECT_EQ(table().free(kOrdinal, held), kSuccess);
}

TEST_F(Replay, TheBudgetSaysWhatWouldBeRefused) {
  Events events;
  for (const int id : {10, 11, 12}) events.add(true, id, 4 * kMega);
  for (const int id : {12, 10}) events.add(false, id, 0);
  events.add(true, 12, 4 * kMega);
  ReplayOptions options;
  options.budget = 8 * kMega;
  options.repeat = 2;
  const ReplayReport report = run(events, options, 64 * kMega);
  EXPECT_EQ(report.budget, 8 * kMega);
  for (const ReplayPass& pass : report.passes) {
    EXPECT_EQ(pass.refused, 1u);
    EXPECT_EQ(pass.allocations, 3u);
    EXPECT_EQ(pass.peak_live, 8 * kMega);
  }
  ASSERT_TRUE(report.first_refusal.has_value());
  EXPECT_EQ(report.first_refusal->event, 2u);
  EXPECT_EQ(report.first_refusal->pass, 0u);
  EXPECT_EQ(report.first_refusal->requested, 4 * kMega);
  EXPECT_FALSE(report.first_refusal->why.empty());
}

TEST_F(Replay, MemoryThatIsTooSmallRefusesInsteadOfEnding) {
  Events events;
  events.add(true, 1, 6 * kMega);
  events.add(true, 2, 6 * kMega);
  events.add(true, 3, kMega);
  const ReplayReport report = run(events, {}, 8 * kMega);
  EXPECT_EQ(report.memory, 8 * kMega);
  EXPECT_EQ(report.passes[0].refused, 1u);
  EXPECT_EQ(report.passes[0].allocations, 2u);
  ASSERT_TRUE(report.first_refusal.has_value());
  EXPECT_EQ(report.first_refusal->event, 1u);
}

TEST_F(Replay, AStreamMayHaveWhatAnotherHasFreed) {
  Events events;
  for (int i = 0; i < 40; ++i) {
    events.add(true, i, 6 * kMega, i % 2);
    events.add(false, i, 0, i % 2);
  }
  ReplayOptions options;
  options.work_seconds = 1.0;  // far longer than the host needs: nothing is complete by itself
  const ReplayReport report = run(events, options, 8 * kMega);
  EXPECT_EQ(report.streams, 2u);
  EXPECT_EQ(report.passes[0].refused, 0u);
  EXPECT_LE(report.passes[0].peak_mapped, 8 * kMega);
}

TEST_F(Replay, AllocationsAreSplitOverStreams) {
  const RandomEvents events(testing::fresh_seed("AllocationsAreSplitOverStreams"), 2000, 1);
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), {3}}) {
    ReplayOptions options;
    options.streams = 4;
    options.seed = seed;
    const ReplayReport report = run(events, options);
    EXPECT_EQ(report.streams, 4u);
    EXPECT_EQ(report.passes[0].peak_live, events.peak);
    EXPECT_EQ(report.passes[0].refused, 0u);
  }
}

TEST_F(Replay, TimesPaceTheVirtualClock) {
  Events events;
  for (int i = 0; i < 10; ++i) {
    events.add(true, i, 100);
    events.seconds.push_back(100.0 + i);
  }
  const double seconds = run(events).passes[0].virtual_seconds;
  EXPECT_GE(seconds, 9.0);
  EXPECT_LT(seconds, 9.1);
}

TEST_F(Replay, NothingAndZeroBytesAreTraces) {
  Events events;
  EXPECT_EQ(run(events).passes[0].ratio, 1.0);
  events.add(true, -4, 0);
  events.add(false, -4, 0);
  events.add(true, -4, 0);
  const ReplayPass pass = run(events).passes[0];
  EXPECT_EQ(pass.allocations, 2u);
  EXPECT_EQ(pass.peak_live, 0u);
  EXPECT_EQ(pass.peak_mapped, 0u);
}

TEST_F(Replay, WrongEventsAreNamed) {
  Events events;
  events.add(true, 7, 100);
  const auto with = [&](bool allocation, std::int64_t id, std::int64_t bytes) {
    Events wrong = events;
    wrong.add(allocation, id, bytes);
    return refusal_of([&] { static_cast<void>(run(wrong)); });
  };
  EXPECT_EQ(with(false, 8, 0),
            "replay: event 1 (free of id 8): nothing of this id is live; allocate it first");
  EXPECT_EQ(with(true, 7, 1),
            "replay: event 1 (allocation of id 7): this id is live already; free it first or give "
            "another");
  EXPECT_EQ(with(true, 8, -1),
            "replay: event 1 (allocation of id 8): its size is -1; give 0 bytes or more");
  EXPECT_NE(with(true, 8, INT64_MAX).find("the live bytes pass 2**62"), std::string::npos);
  Events other = events;
  other.ops[0] = 2;
  EXPECT_NE(refusal_of([&] { static_cast<void>(peak_of(other.trace())); }).find("its kind is 2"),
            std::string::npos);
  Events late = events;
  late.add(false, 7, 0);
  late.seconds = {2.0, 1.0};
  EXPECT_NE(refusal_of([&] { static_cast<void>(run(late)); }).find("never decrease"),
            std::string::npos);
}

TEST_F(Replay, WrongOptionsAreNamed) {
  Events events;
  ReplayOptions options;
  options.repeat = 0;
  EXPECT_NE(refusal_of([&] { static_cast<void>(run(events, options)); }).find("repeat is 0"),
            std::string::npos);
  options.repeat = 1;
  options.work_seconds = -1.0;
  EXPECT_NE(refusal_of([&] { static_cast<void>(run(events, options)); }).find("work_seconds is -1"),
            std::string::npos);
}

TEST_F(Replay, AFailingDriverEndsTheReplayAndLeavesNothing) {
  const RandomEvents events(testing::fresh_seed("AFailingDriverEndsTheReplay"), 500, 2);
  sim::Fault fault{Primitive::k_launch_host};
  fault.first_call = 20;
  fault.status = 719;
  sim::add_fault(kOrdinal, fault);
  EXPECT_THROW(static_cast<void>(run(events)), Error);
  sim::clear_faults(kOrdinal);
  EXPECT_EQ(sim::books(kOrdinal).used_bytes, 0u);
}

TEST(ReplayOnTheHost, CountsTheSame) {
  const RandomEvents events(testing::fresh_seed("CountsTheSame"), 2000, 1);
  const ReplayReport report = replay(open_device(DeviceKind::kCpu, 0), events.trace(), {});
  EXPECT_EQ(report.device, "cpu");
  EXPECT_EQ(report.passes[0].allocations, events.allocations);
  EXPECT_EQ(report.passes[0].peak_live, events.peak);
  EXPECT_GE(report.passes[0].peak_mapped, events.peak);
  EXPECT_EQ(report.passes[0].virtual_seconds, 0.0);
}

TEST(LatencySamples, AreInNanosecondsAndRanked) {
  LatencySamples samples;
  EXPECT_EQ(samples.quantile(0.5), 0.0);
  samples.start(100);
  const std::uint64_t start = LatencySamples::ticks();
  const std::uint64_t since = clock_nanoseconds();
  while (clock_nanoseconds() - since < 1000000) {
  }
  const std::uint64_t spent = LatencySamples::ticks() - start;
  for (int i = 0; i < 98; ++i) samples.add(spent);
  samples.add(2 * spent);
  samples.add(3 * spent);
  samples.finish();
  EXPECT_GE(samples.quantile(0.5), 0.99e6);
  EXPECT_DOUBLE_EQ(samples.quantile(0.98), samples.quantile(0.5));
  EXPECT_GT(samples.quantile(0.99), 1.9 * samples.quantile(0.5));
  EXPECT_GT(samples.quantile(1.0), samples.quantile(0.99));
}

}  // namespace
}  // namespace nbx
