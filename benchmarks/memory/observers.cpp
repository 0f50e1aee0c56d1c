// What watching costs: the recorder's events, and a snapshot of many blocks.
#include "account/recorder.h"
#include "devices.h"
#include "harness.h"
#include "heap/blocks.h"

namespace bench {
namespace {

using namespace nbx;

void recorder(Report* report) {
  Blocks blocks(gpu_memory());
  const std::uint64_t events = Recorder::events_per_thread();
  const auto timed = [&](std::uint64_t kept) {
    return [&blocks, kept](int count) {
      Recorder::set_events_per_thread(kept);
      for (int i = 0; i < count; ++i) blocks.give(blocks.take(4096), 4096);
    };
  };
  const Pair pair = compare(401, 4000, timed(events), timed(0));
  Recorder::set_events_per_thread(events);
  report->add("recorder_on_ns", pair.first);
  report->add("recorder_off_ns", pair.second);
  // A pair of calls notes two events.
  report->add("recorder_event_ns", (pair.first - pair.second) / 2);
  const auto note = [](int count) {
    for (int i = 0; i < count; ++i) {
      Recorder::note(RecordedAction::kAllocate, 0, std::uint64_t{4096} << (i & 15), 4096, 1, 2, 3);
    }
  };
  report->add("recorder_note_ns", median_ns(401, 4000, note));
}

void snapshot(Report* report) {
  constexpr std::size_t kLive = 100000;
  Blocks blocks(gpu_memory());
  LogUniform size(2026, 256, 1 << 20);
  std::mt19937_64 random(2026);
  while (blocks.size() < kLive) blocks.hold(size());
  // As after a while: holes between the blocks.
  for (std::size_t i = 0; i < kLive; ++i) blocks.exchange(random() % kLive, size());
  std::vector<double> whole, holds;
  for (int i = 0; i < 51; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const HeapBlocks found = gpu_memory().heap.blocks();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    whole.push_back(spent.count());
    holds.push_back(static_cast<double>(found.longest_hold) / 1000);
  }
  report->add("snapshot_100k_ms", median(std::move(whole)));
  report->add("snapshot_lock_us", median(std::move(holds)));
}

}  // namespace

void time_observers(Report* report) {
  recorder(report);
  snapshot(report);
}

}  // namespace bench
