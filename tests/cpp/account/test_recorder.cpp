#include "account/recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "core/error.h"

namespace nbx {
namespace {

using Action = RecordedAction;

/// Events of one heap, thread by thread, oldest first.
std::map<std::uint64_t, std::vector<RecordedFields>> events_of(const std::vector<RecordedRun>& runs,
                                                               std::uint8_t heap) {
  std::map<std::uint64_t, std::vector<RecordedFields>> events;
  for (const RecordedRun& run : runs) {
    for (const RecordedEvent& event : run.events) {
      const RecordedFields fields = event.unpack();
      if (fields.heap == heap) events[run.thread].push_back(fields);
    }
  }
  return events;
}

class RecorderTest : public testing::Test {
 protected:
  void SetUp() override { heap_ = Recorder::open_heap("test:0"); }
  void TearDown() override {
    Recorder::close_heap(heap_);
    Recorder::set_events_per_thread(former_);
  }
  void note(std::uint64_t bytes, Action action = Action::kAllocate) const {
    Recorder::note(action, heap_, bytes * 16, bytes, 1, 2, 3, 4);
  }

  std::uint8_t heap_ = 0;
  std::uint64_t former_ = Recorder::events_per_thread();
};

TEST_F(RecorderTest, PackingKeepsEveryField) {
  std::random_device device;
  const auto seed = device();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 1000; ++round) {
    RecordedFields fields;
    fields.ticks = random();
    fields.action = static_cast<Action>(1 + random() % 15);
    fields.heap = static_cast<std::uint8_t>(random());
    fields.address = random() & RecordedEvent::kAddressMask;
    fields.bytes = random() & RecordedEvent::kBytesMax;
    fields.stream = static_cast<std::uint32_t>(random() & RecordedEvent::kSmallMax);
    fields.account = static_cast<std::uint32_t>(random() & RecordedEvent::kSmallMax);
    fields.origin = static_cast<std::uint32_t>(random() & RecordedEvent::kSmallMax);
    fields.generation = static_cast<std::uint32_t>(random() & RecordedEvent::kGenerationMask);
    const RecordedFields back = RecordedEvent::pack(fields).unpack();
    EXPECT_EQ(back.ticks, fields.ticks);
    EXPECT_EQ(back.action, fields.action);
    EXPECT_EQ(back.heap, fields.heap);
    EXPECT_EQ(back.address, fields.address);
    EXPECT_EQ(back.bytes, fields.bytes);
    EXPECT_EQ(back.stream, fields.stream);
    EXPECT_EQ(back.account, fields.account);
    EXPECT_EQ(back.generation, fields.generation);
    EXPECT_EQ(back.origin, fields.origin);
  }
}

TEST_F(RecorderTest, LargeNumbersSayOthersAndTouchNoNeighbour) {
  RecordedFields fields;
  fields.bytes = ~std::uint64_t{0};
  fields.stream = fields.account = fields.origin = ~std::uint32_t{0};
  fields.generation = 0x12345678;
  const RecordedFields back = RecordedEvent::pack(fields).unpack();
  EXPECT_EQ(back.bytes, RecordedEvent::kBytesMax);
  EXPECT_EQ(back.stream, RecordedEvent::kSmallMax);
  EXPECT_EQ(back.account, RecordedEvent::kSmallMax);
  EXPECT_EQ(back.origin, RecordedEvent::kSmallMax);
  EXPECT_EQ(back.generation, 0x345678u);
  EXPECT_EQ(back.address, 0u);
}

TEST_F(RecorderTest, ReadReturnsWhatWasNotedInOrder) {
  for (std::uint64_t i = 1; i <= 20; ++i) note(i);
  const auto events = events_of(Recorder::read(), heap_);
  ASSERT_EQ(events.size(), 1u);
  const auto& mine = events.begin()->second;
  ASSERT_EQ(mine.size(), 20u);
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(mine[i].bytes, i + 1);
    EXPECT_EQ(mine[i].address, (i + 1) * 16);
    EXPECT_EQ(mine[i].stream, 1u);
    EXPECT_EQ(mine[i].account, 2u);
    EXPECT_EQ(mine[i].generation, 3u);
    EXPECT_EQ(mine[i].origin, 4u);
    if (i > 0) {
      EXPECT_GE(mine[i].ticks, mine[i - 1].ticks);
    }
  }
}

TEST_F(RecorderTest, AFullRingKeepsTheNewestAndCountsTheRest) {
  Recorder::set_events_per_thread(100);  // 128, one of which may be half written
  std::uint64_t lost = 0;
  std::map<std::uint64_t, std::vector<RecordedFields>> events;
  std::thread([&] {
    for (std::uint64_t i = 0; i < 1000; ++i) note(i);
    const auto runs = Recorder::read();
    events = events_of(runs, heap_);
    for (const RecordedRun& run : runs) {
      if (events.count(run.thread) != 0) lost += run.lost;
    }
  }).join();
  ASSERT_EQ(events.size(), 1u);
  const auto& mine = events.begin()->second;
  ASSERT_EQ(mine.size(), 127u);
  EXPECT_EQ(mine.front().bytes, 1000u - 127);
  EXPECT_EQ(mine.back().bytes, 999u);
  EXPECT_EQ(lost, 1001u - 127);  // the mark of the thread is an event of its own
}

TEST_F(RecorderTest, EndedThreadsKeepTheirEventsWithinABound) {
  Recorder::set_events_per_thread(64);
  constexpr std::uint64_t kThreads = 3 * Recorder::kMostEndedRings;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    std::thread([&] { note(i); }).join();
  }
  const auto events = events_of(Recorder::read(), heap_);
  // Rings of ended threads are written on, not cleared: so small ones still hold everything.
  EXPECT_EQ(events.size(), kThreads);
  std::uint64_t i = 0;
  for (const auto& [thread, fields] : events) {
    ASSERT_EQ(fields.size(), 1u);
    EXPECT_EQ(fields[0].bytes, i++);
  }
}

TEST_F(RecorderTest, OffNotesNothingAndOnGoesOn) {
  note(1);
  EXPECT_NE(Recorder::set_events_per_thread(0), 0u);
  EXPECT_FALSE(Recorder::enabled());
  note(2);
  EXPECT_THROW(Recording(1000), Error);
  Recorder::set_events_per_thread(former_);
  note(3);
  const auto events = events_of(Recorder::read(), heap_);
  ASSERT_EQ(events.size(), 1u);
  const auto& mine = events.begin()->second;
  ASSERT_EQ(mine.size(), 2u);
  EXPECT_EQ(mine[0].bytes, 1u);
  EXPECT_EQ(mine[1].bytes, 3u);
}

TEST_F(RecorderTest, ARecordingMissesNothing) {
  Recorder::set_events_per_thread(64);
  note(1);
  Recording recording(std::uint64_t{1} << 30);
  constexpr std::uint64_t kEvents = 5000;
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEvents; ++i) note(t * kEvents + i);
    });
  }
  std::vector<RecordedRun> runs;
  const auto keep = [&](std::vector<RecordedRun> more) {
    for (RecordedRun& run : more) runs.push_back(std::move(run));
  };
  for (int i = 0; i < 20; ++i) keep(recording.take());
  for (std::thread& thread : threads) thread.join();
  keep(recording.stop());
  note(2);
  EXPECT_TRUE(recording.stop().empty());
  EXPECT_EQ(recording.lost(), 0u);
  const auto events = events_of(runs, heap_);
  ASSERT_EQ(events.size(), 3u);
  std::uint64_t sum = 0;
  for (const auto& [thread, fields] : events) {
    ASSERT_EQ(fields.size(), kEvents);
    const std::uint64_t first = fields[0].bytes;
    sum += first;
    for (std::uint64_t i = 0; i < kEvents; ++i) ASSERT_EQ(fields[i].bytes, first + i);
  }
  EXPECT_EQ(sum, 3 * kEvents);
}

TEST_F(RecorderTest, ABoundedRecordingCountsWhatItLoses) {
  Recorder::set_events_per_thread(64);
  std::uint64_t held = 0, lost = 0;
  std::thread([&] {
    Recording recording(128);
    for (std::uint64_t i = 0; i < 1000; ++i) note(i);
    const auto runs = recording.stop();
    for (const auto& [thread, fields] : events_of(runs, heap_)) held += fields.size();
    lost = recording.lost();
  }).join();
  EXPECT_GT(held, 0u);
  EXPECT_LE(held, 128u + 64);
  EXPECT_EQ(held + lost, 1000u);
}

TEST_F(RecorderTest, FourRecordingsRunAtATime) {
  std::vector<std::unique_ptr<Recording>> running;
  for (std::size_t i = 0; i < Recording::kMost; ++i) {
    running.push_back(std::make_unique<Recording>(1000));
  }
  EXPECT_THROW(Recording(1000), Error);
  running.pop_back();
  Recording again(1000);
  note(7);
  EXPECT_EQ(events_of(again.stop(), heap_).size(), 1u);
}

TEST_F(RecorderTest, ReadersNeverSeeAMixedEvent) {
  Recorder::set_events_per_thread(64);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      const std::uint64_t number = i & 0xfffff;
      Recorder::note(Action::kFree, heap_, number * 16, number, static_cast<std::uint32_t>(number),
                     static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number),
                     static_cast<std::uint32_t>(number));
    }
  });
  std::size_t seen = 0;
  for (int round = 0; round < 2000 || seen == 0; ++round) {
    for (const auto& [thread, events] : events_of(Recorder::read(), heap_)) {
      std::uint64_t expected = events.front().bytes;
      for (const RecordedFields& fields : events) {
        ASSERT_EQ(fields.bytes, expected);
        ASSERT_EQ(fields.address, expected * 16);
        ASSERT_EQ(fields.stream, expected);
        ASSERT_EQ(fields.account, expected);
        ASSERT_EQ(fields.generation, expected);
        ASSERT_EQ(fields.origin, expected);
        expected = (expected + 1) & 0xfffff;
        ++seen;
      }
    }
  }
  stop.store(true, std::memory_order_relaxed);
  writer.join();
}

TEST_F(RecorderTest, NamesComeBackAndTextsAreSharedByValue) {
  EXPECT_EQ(Recorder::heap_name(heap_), "test:0");
  EXPECT_EQ(Recorder::heap_name(255), "others");
  const std::uint32_t one = Recorder::intern("a.py:1 f");
  EXPECT_NE(one, 0u);
  EXPECT_EQ(Recorder::intern("a.py:1 f"), one);
  EXPECT_NE(Recorder::intern("a.py:2 f"), one);
  EXPECT_EQ(Recorder::text_of(one), "a.py:1 f");
  EXPECT_EQ(Recorder::text_of(0), "");
}

TEST_F(RecorderTest, HeapNumbersAreGivenAgain) {
  for (int i = 0; i < 1000; ++i) {
    const std::uint8_t heap = Recorder::open_heap("short");
    EXPECT_NE(heap, 0u);
    EXPECT_NE(heap, 255u);
    Recorder::close_heap(heap);
  }
}

TEST_F(RecorderTest, TheOriginHookIsAskedOnlyWhileItIsSet) {
  EXPECT_EQ(Recorder::origin(), 0u);
  const auto former = Recorder::set_origin_hook([]() noexcept { return std::uint32_t{42}; });
  EXPECT_EQ(Recorder::origin(), 42u);
  Recorder::set_origin_hook(former);
  EXPECT_EQ(Recorder::origin(), 0u);
}

TEST_F(RecorderTest, TheClockRuns) {
  const RecorderClock one = Recorder::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const RecorderClock two = Recorder::clock();
  EXPECT_EQ(one.first_ticks, two.first_ticks);
  EXPECT_GT(two.last_ticks, one.last_ticks);
  EXPECT_GT(two.last_nanoseconds, one.last_nanoseconds);
  EXPECT_GE(one.last_nanoseconds, one.first_nanoseconds);
}

}  // namespace
}  // namespace nbx
