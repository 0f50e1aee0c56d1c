// Memory in whole segments, for devices without virtual memory.
#include <algorithm>

#include "heap/state.h"

namespace nbx {
namespace {

// Unused host memory that stays mapped, for the next large block: unmapping and faulting pages in
// again costs more than most kernels that want such a block.
constexpr std::uint64_t kHostKeep = 16 * kMiB;
// The same for a single block, so that the result of one large op after another needs no new pages.
constexpr std::uint64_t kHostKeepOne = 512 * kMiB;

/// Shared segments grow by an eighth of what they hold, so that small programs stay small and large
/// ones make few driver calls.
constexpr std::uint64_t kHostSmallest = kMiB;
constexpr std::uint64_t kDeviceSmallest = 2 * kMiB;
constexpr std::uint64_t kLargest = 64 * kMiB;

std::uint64_t next_segment(std::uint64_t smallest, std::uint64_t held) noexcept {
  std::uint64_t segment = smallest;
  while (segment < kLargest && segment * 16 <= held) segment *= 2;
  return segment;
}

}  // namespace

std::uint64_t Heap::State::generous_growth(const HeapRequest& request, std::uint64_t exact) {
  if (home_of(request.granted) == Space::kSingleHome) return exact;
  const std::lock_guard<ShortLock> guard(lock);
  const std::uint64_t home = space.home_bytes(Space::kSharedHome);
  const std::uint64_t wanted = next_segment(host ? kHostSmallest : kDeviceSmallest, home);
  // A segment beyond the budget would hold memory that can never be used.
  const Account* root = &request.account;
  while (root->parent() != nullptr) root = root->parent();
  const std::uint64_t limit = root->limit();
  const bool within = limit == kUnlimited || (held() <= limit && wanted <= limit - held());
  return within && request.granted <= wanted / 2 ? wanted : exact;
}

std::uint32_t Heap::State::grow_segment(const HeapRequest& request, const Reach& reach,
                                        bool exact) {
  const std::uint64_t least = round_up(request.granted, 4 * kKiB);
  const std::uint64_t bytes = exact ? least : generous_growth(request, least);
  // A driver may align less than it says; the second try has room for that.
  for (const std::uint64_t slack : {std::uint64_t{0}, kMaximumAlignment}) {
    Segment segment;
    segment.home = home_of(request.granted);
    segment.driver_bytes = bytes + slack;
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    const Status status =
        primitives.allocate(device.ordinal(), segment.driver_bytes, &segment.driver_address);
    if (status == kAllocationRefused) {
      // Some runtimes report a refusal once more, on a later unrelated call.
      if (primitives.last_error != nullptr) primitives.last_error(device.ordinal());
      return kNoBlock;
    }
    device.check(status, "allocate");
    segment.base = round_up(segment.driver_address, space.granule());
    const DeviceAddress end = segment.driver_address + segment.driver_bytes;
    const DeviceAddress first = round_up(segment.base, request.alignment);
    if (first > end || end - first < request.granted) {
      device.check(give_to_driver(segment.driver_address), "free");
      continue;
    }
    segment.bytes = (end - segment.base) / space.granule() * space.granule();
    const DeviceAddress address = segment.driver_address;
    const std::uint64_t driver_bytes = segment.driver_bytes;
    try {
      const std::lock_guard<ShortLock> guard(lock);
      space.records().ensure(3);
      space.add_segment(std::move(segment));
      segment_bytes += driver_bytes;
      created += driver_bytes;
      note_held();
      Recorder::note_now(RecordedAction::kMap, recorded, address, driver_bytes, request.stream,
                         request.account.id(), 0);
      const std::uint32_t id = space.take_any(home_of(request.granted), false, reach,
                                              request.granted, request.alignment);
      if (id != kNoBlock) hand_out(id, request);
      return id;
    } catch (...) {
      static_cast<void>(give_to_driver(address));
      throw;
    }
  }
  return kNoBlock;
}

std::uint64_t Heap::State::release_segments(std::uint64_t keep) {
  std::uint64_t released = 0;
  Status status = kSuccess;
  while (true) {
    Segment segment;
    {
      const std::lock_guard<ShortLock> guard(lock);
      if (parked() <= keep) break;
      const std::uint32_t unused = space.unused_segment();
      if (unused == kNoBlock) break;
      segment = space.remove_segment(unused);
      segment_bytes -= segment.driver_bytes;
    }
    Status freed = kSuccess;
    {
      // A driver may wait for all its work here.
      const GrowthLock::Pause pause(growth);
      freed = give_to_driver(segment.driver_address);
    }
    if (status == kSuccess) status = freed;
    released += segment.driver_bytes;
    Recorder::note_now(RecordedAction::kUnmap, recorded, segment.driver_address,
                       segment.driver_bytes, kNoStream, 0, 0);
  }
  device.check(status, "free");
  return released;
}

Status Heap::State::give_to_driver(DeviceAddress address) noexcept {
  driver_calls.fetch_add(1, std::memory_order_relaxed);
  return primitives.free(device.ordinal(), address);
}

bool Heap::State::surplus(std::uint32_t unused) const noexcept {
  if (!host) return false;
  const std::uint32_t home = space.record(unused).lane;
  if (home == Space::kSingleHome) {
    const std::uint64_t all = space.unused_bytes(home);
    const bool alone = all == space.record(unused).bytes;
    return all > (alone ? kHostKeepOne : kHostKeep);
  }
  // One unused shared segment stays, so that a count going up and down at its edge costs nothing.
  return space.unused_bytes(home) > space.record(unused).bytes;
}

}  // namespace nbx
