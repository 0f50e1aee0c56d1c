// The slow path of the heap: everything that may call the driver.
#include <algorithm>

#include "heap/state.h"

namespace nbx {
namespace {

// Unused host memory that stays mapped, for the next large block: unmapping and faulting pages in
// again costs more than most kernels that want such a block.
constexpr std::uint64_t kHostKeep = 16 * kMiB;

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

std::uint32_t Heap::State::serve(const HeapRequest& request) {
  std::uint32_t id = search(request, false);
  if (id != kNoBlock) return id;
  poll();
  id = search(request, false);
  if (id != kNoBlock) return id;
  id = grow(request, generous_growth(request));
  if (id != kNoBlock) return id;
  release_unused(0);
  id = grow(request, exact_growth(request));
  if (id != kNoBlock) return id;
  if (wait_for_pending()) {
    id = search(request, true);
    if (id != kNoBlock) return id;
    release_unused(0);
    id = grow(request, exact_growth(request));
    if (id != kNoBlock) return id;
  }
  if (!host) {
    // Queued work may hold the last reference to memory that nobody else can reach.
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    device.check(primitives.synchronize(device.ordinal()), "synchronize");
    poll();
    id = search(request, true);
    if (id != kNoBlock) return id;
    release_unused(0);
    id = grow(request, exact_growth(request));
  }
  return id != kNoBlock ? id : search(request, true);
}

std::uint32_t Heap::State::search(const HeapRequest& request, bool both_homes) {
  const std::lock_guard<ShortLock> guard(lock);
  const std::uint32_t id = space.take_any(home_of(request.granted), both_homes, request.stream,
                                          request.granted, request.alignment);
  if (id != kNoBlock) count_live(request.granted);
  return id;
}

std::uint64_t Heap::State::exact_growth(const HeapRequest& request) const noexcept {
  const std::uint64_t page = device.properties().page_granularity;
  return round_up(request.granted, page != 0 ? page : 4 * kKiB);
}

std::uint64_t Heap::State::generous_growth(const HeapRequest& request) {
  const std::uint64_t exact = exact_growth(request);
  if (home_of(request.granted) == Space::kSingleHome) return exact;
  const std::lock_guard<ShortLock> guard(lock);
  const std::uint64_t held = space.home_bytes(Space::kSharedHome);
  const std::uint64_t wanted = next_segment(host ? kHostSmallest : kDeviceSmallest, held);
  // A segment beyond the budget would hold memory that can never be used.
  const Account* root = &request.account;
  while (root->parent() != nullptr) root = root->parent();
  const std::uint64_t limit = root->limit();
  const bool within = limit == kUnlimited || (mapped <= limit && wanted <= limit - mapped);
  return within && request.granted <= wanted / 2 ? wanted : exact;
}

std::uint32_t Heap::State::grow(const HeapRequest& request, std::uint64_t bytes) {
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
    const std::uint64_t held = segment.driver_bytes;
    try {
      const std::lock_guard<ShortLock> guard(lock);
      space.records().ensure(3);
      space.add_segment(std::move(segment));
      mapped += held;
      peak_mapped = std::max(peak_mapped, mapped);
      const std::uint32_t id = space.take_any(home_of(request.granted), false, request.stream,
                                              request.granted, request.alignment);
      if (id != kNoBlock) count_live(request.granted);
      return id;
    } catch (...) {
      static_cast<void>(give_to_driver(address));
      throw;
    }
  }
  return kNoBlock;
}

void Heap::State::poll() {
  std::vector<StreamHandle> streams;
  {
    const std::lock_guard<ShortLock> guard(lock);
    streams = space.pending_streams();
  }
  for (const StreamHandle stream : streams) {
    Ticket newest = 0;
    {
      const std::lock_guard<ShortLock> guard(lock);
      newest = space.newest_ticket(stream);
    }
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    const Ticket completed = completed_ticket(device, stream, newest);
    const std::lock_guard<ShortLock> guard(lock);
    space.complete(stream, completed);
  }
}

/// Waits for the work that keeps freed blocks; false if there was none.
bool Heap::State::wait_for_pending() {
  std::vector<BlockUse> uses;
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const StreamHandle stream : space.pending_streams()) {
      uses.push_back(BlockUse{stream, space.newest_ticket(stream)});
    }
  }
  for (const BlockUse& use : uses) {
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    wait_for(device, use);
    const std::lock_guard<ShortLock> guard(lock);
    space.complete(use.stream, use.ticket);
  }
  return !uses.empty();
}

std::uint64_t Heap::State::release_unused(std::uint64_t keep) {
  std::uint64_t released = 0;
  Status status = kSuccess;
  while (true) {
    Segment segment;
    {
      const std::lock_guard<ShortLock> guard(lock);
      if (mapped - live - space.pending_bytes() <= keep) break;
      const std::uint32_t unused = space.unused_segment();
      if (unused == kNoBlock) break;
      segment = space.remove_segment(unused);
      mapped -= segment.driver_bytes;
    }
    const Status freed = give_to_driver(segment.driver_address);
    if (status == kSuccess) status = freed;
    released += segment.driver_bytes;
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
  if (home == Space::kSingleHome) return space.unused_bytes(home) > kHostKeep;
  // One unused shared segment stays, so that a count going up and down at its edge costs nothing.
  return space.unused_bytes(home) > space.record(unused).bytes;
}

RefusalFigures Heap::State::figures(const HeapRequest& request) {
  RefusalFigures result;
  result.device = device.name();
  result.tag = request.account.path();
  result.requested = request.bytes;
  result.granted = request.granted;
  {
    const std::lock_guard<ShortLock> guard(lock);
    space.flush();
    result.live = live;
    result.pending = space.pending_bytes();
    result.parked = mapped - live - result.pending;
    result.parked_blocks = space.free_blocks();
    result.largest_hole = space.largest_hole();
    result.unused = space.unused_bytes(Space::kSharedHome) + space.unused_bytes(Space::kSingleHome);
  }
  const Account* root = &request.account;
  while (root->parent() != nullptr) root = root->parent();
  if (root->limit() != kUnlimited) result.budget = root->limit();
  MemoryInfo info{};
  if (primitives.memory_info != nullptr &&
      primitives.memory_info(device.ordinal(), &info) == kSuccess && info.total_bytes != 0) {
    result.driver_free = info.free_bytes;
    result.driver_total = info.total_bytes;
    const std::uint64_t used = info.total_bytes - std::min(info.free_bytes, info.total_bytes);
    const std::uint64_t ours = result.live + result.parked + result.pending;
    result.external = used > ours ? used - ours : 0;
  }
  return result;
}

Error Heap::State::over_budget(const HeapRequest& request, const Account& account) {
  RefusalFigures result = figures(request);
  result.tag = account.path();
  result.over_budget = true;
  result.limit = account.limit();
  result.held = account.granted();
  return refusal(result);
}

}  // namespace nbx
