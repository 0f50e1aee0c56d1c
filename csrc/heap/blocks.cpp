#include "heap/blocks.h"

#include <algorithm>
#include <mutex>

#include "core/clock.h"
#include "heap/state.h"

namespace nbx {
namespace {

// Records under one hold of the lock: some ten microseconds.
constexpr std::uint32_t kAtOnce = 1024;

/// Holds the lock, and says for how long it did at most.
class TimedHold {
 public:
  TimedHold(ShortLock& lock, std::uint64_t* longest) : guard_(lock), longest_(longest) {}
  ~TimedHold() { *longest_ = std::max(*longest_, clock_nanoseconds() - start_); }
  TimedHold(const TimedHold&) = delete;
  TimedHold& operator=(const TimedHold&) = delete;

 private:
  const std::lock_guard<ShortLock> guard_;
  std::uint64_t* longest_;
  const std::uint64_t start_ = clock_nanoseconds();
};

/// `granule`: of the heap. A slot is larger than what its block counts as.
BlockView view_of(const BlockRecord& record, std::uint64_t granule) noexcept {
  const BlockState state = record.state;
  BlockView view;
  view.address = record.address;
  view.bytes = record.bytes;
  view.generation = record.generation;
  view.stream = record.stream;
  view.segment = record.segment;
  view.state = static_cast<std::uint32_t>(state);
  if (state == BlockState::kLive || state == BlockState::kAsleep || state == BlockState::kWaiting) {
    view.requested = record.requested();
    view.bytes = (view.requested + granule - 1) & ~(granule - 1);
    view.account = record.account;
    view.origin = record.origin;
  }
  return view;
}

}  // namespace

HeapBlocks Heap::blocks() const {
  State& s = *state_;
  HeapBlocks result;
  const std::uint32_t end = s.space.records().size();
  result.blocks.reserve(end);
  for (std::uint32_t first = kNoBlock + 1; first < end; first += kAtOnce) {
    const TimedHold hold(s.lock, &result.longest_hold);
    for (std::uint32_t id = first; id < std::min(end, first + kAtOnce); ++id) {
      const BlockRecord& record = s.space.record(id);
      if (record.state != BlockState::kUnused)
        result.blocks.push_back(view_of(record, s.space.granule()));
    }
  }
  std::size_t room = 0;
  while (true) {
    result.segments.reserve(room);
    const TimedHold hold(s.lock, &result.longest_hold);
    const std::vector<Segment>& segments = s.space.segments();
    room = segments.size();
    if (room > result.segments.capacity()) continue;
    for (const Segment& segment : segments) {
      result.segments.push_back({segment.base, segment.bytes, segment.pages != nullptr ? 1u : 0u,
                                 segment.home == Space::kSingleHome ? 1u : 0u});
    }
    return result;
  }
}

}  // namespace nbx
