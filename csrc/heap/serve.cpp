// The slow path of the heap: where memory is looked for, one step after the other, and a new search
// after each.
#include <algorithm>

#include "core/log.h"
#include "heap/blocking.h"
#include "heap/state.h"
#include "stream/callback.h"

namespace nbx {

Reach Heap::State::reach_of(const HeapRequest& request) {
  if (host) return Reach{request.stream, false, false, 0};
  return Reach{request.stream, options.reuse_ordered, false, submitted_ticket(request.stream)};
}

std::uint32_t Heap::State::serve(const HeapRequest& request) {
  const Reach reach = reach_of(request);
  std::uint32_t id = search(request, reach, false);
  if (id != kNoBlock) return id;
  // Until the request is served nothing comes into a cache that could have served it.
  const Recall recall(*this);
  id = search(request, reach, false);
  if (id != kNoBlock) return id;
  recall.drain();
  id = serve_parked(request, reach);
  if (id != kNoBlock) return id;
  id = grow(request, reach, false);
  if (id != kNoBlock) return id;
  if (wait_for_pending()) {
    id = search(request, reach, true);
    if (id == kNoBlock) id = grow(request, reach, true);
    if (id != kNoBlock) return id;
  }
  id = serve_reclaimed(request, reach);
  // Neither while a stream is captured nor inside host work may the device be waited for.
  if (id != kNoBlock || host || is_capture(request.stream) || inside_callback()) return id;
  // Queued work may hold the last reference to memory that nobody else can reach.
  wait_for_device();
  poll();
  id = search(request, reach, true);
  if (id == kNoBlock) id = grow(request, reach, true);
  return id != kNoBlock ? id : search(request, reach, true);
}

/// What is free already, for this stream or with an order to others.
std::uint32_t Heap::State::serve_parked(const HeapRequest& request, const Reach& reach) {
  if (!host) poll();
  const std::uint32_t id = search(request, reach, false);
  if (id != kNoBlock || host || !options.reuse_waits) return id;
  return search_after_wait(request, reach);
}

std::uint32_t Heap::State::serve_reclaimed(const HeapRequest& request, const Reach& reach) {
  std::uint32_t id = kNoBlock;
  reclaim(request.granted, [&] {
    poll();
    id = search(request, reach, true);
    if (id == kNoBlock) id = grow(request, reach, true);
    return id != kNoBlock;
  });
  return id;
}

std::uint32_t Heap::State::search(const HeapRequest& request, const Reach& reach, bool both) {
  const std::lock_guard<ShortLock> guard(lock);
  std::uint32_t id = kNoBlock;
  if (request.granted <= SlotSize::kLargest && request.alignment <= space.granule() &&
      request.lifetime == Lifetime::kTransient) {
    id = slabs.take_open(SlotSize::of(request.granted / space.granule()), request.stream);
  }
  if (id == kNoBlock) {
    id = space.take_any(home_of(request.granted), both, reach, request.granted, request.alignment);
  }
  if (id != kNoBlock) hand_out(id, request);
  return id;
}

/// Makes the stream wait for another one whose freed block fits.
std::uint32_t Heap::State::search_after_wait(const HeapRequest& request, const Reach& reach) {
  StreamId other = kNoStream;
  {
    const std::lock_guard<ShortLock> guard(lock);
    other = space.stream_to_wait_for(request.stream, request.granted, request.alignment);
  }
  if (other == kNoStream || !insert_wait(request.stream, other)) return kNoBlock;
  Reach after = reach;
  after.ordered = true;
  after.follow = submitted_ticket(request.stream);
  {
    const std::lock_guard<ShortLock> guard(lock);
    ++waits;
  }
  return search(request, after, false);
}

std::uint32_t Heap::State::grow(const HeapRequest& request, const Reach& reach, bool exact) {
  if (pages) return grow_pages(request, reach);
  std::uint32_t id = grow_segment(request, reach, exact);
  if (id != kNoBlock) return id;
  release_segments(0);
  return grow_segment(request, reach, true);
}

void Heap::State::poll() {
  std::vector<StreamId> streams;
  {
    const std::lock_guard<ShortLock> guard(lock);
    if (freed_sleepers != 0) bury();
    streams = space.pending_streams();
  }
  for (const StreamId stream : streams) {
    Ticket newest = 0;
    {
      const std::lock_guard<ShortLock> guard(lock);
      newest = space.newest_ticket(stream);
    }
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    Ticket completed = 0;
    {
      const GrowthLock::Pause pause(growth);
      completed = completed_ticket(stream, newest);
    }
    const std::lock_guard<ShortLock> guard(lock);
    space.complete(stream, completed);
  }
  fold_slabs();
}

void Heap::State::wait_for_device() {
  driver_calls.fetch_add(1, std::memory_order_relaxed);
  const GrowthLock::Pause pause(growth);
  device.check(primitives.synchronize(device.ordinal()), "synchronize");
}

/// Waits for the work that keeps freed blocks; false if there was none, or if it may not wait.
bool Heap::State::wait_for_pending() {
  if (inside_callback()) return false;
  std::vector<BlockUse> uses;
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const StreamId stream : space.pending_streams()) {
      uses.push_back(BlockUse{stream, space.newest_ticket(stream)});
    }
  }
  for (const BlockUse& use : uses) {
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    {
      const GrowthLock::Pause pause(growth);
      wait_for(use);
    }
    const std::lock_guard<ShortLock> guard(lock);
    space.complete(use.stream, use.ticket);
  }
  fold_slabs();
  return !uses.empty();
}

RefusalFigures Heap::State::figures(const HeapRequest& request, const Account* refused) {
  RefusalFigures result;
  result.device = device.name();
  result.tag = request.account.path();
  result.requested = request.bytes;
  result.granted = request.granted;
  result.inside_work = inside_callback();
  Account* root = &request.account;
  while (root->parent() != nullptr) root = root->parent();
  if (root->limit() != kUnlimited) result.budget = root->limit();
  const std::vector<AccountHold> kept = root->subtree();
  std::vector<Account*> accounts;
  for (const AccountHold& account : kept) accounts.push_back(account.get());
  MemoryInfo info{};
  const bool known = primitives.memory_info != nullptr &&
                     primitives.memory_info(device.ordinal(), &info) == kSuccess &&
                     info.total_bytes != 0;
  {
    const std::lock_guard<ShortLock> guard(lock);
    result.live = live_now().bytes;
    result.pending = space.pending_bytes() + space.frozen_bytes();
    result.parked = parked();
    result.parked_blocks = space.free_blocks();
    result.live_blocks = live_now().blocks;
    result.largest_hole = space.largest_hole();
    result.unused = space.unused_bytes(Space::kSharedHome) + space.unused_bytes(Space::kSingleHome);
    if (pages) result.unused += space.free_granules() * pages->granule() + pages->banked_bytes();
    for (const StreamId stream : space.pending_streams()) {
      result.pending_streams.emplace_back("stream " + std::to_string(stream),
                                          space.pending_bytes_of(stream));
    }
    if (known) {
      const std::uint64_t used = info.total_bytes - std::min(info.free_bytes, info.total_bytes);
      result.external = used > held() ? used - held() : 0;
      result.advice = advice_for(request, refused, info.free_bytes, accounts);
    }
  }
  if (known) {
    result.driver_free = info.free_bytes;
    result.driver_total = info.total_bytes;
  }
  return result;
}

/// None if the books cannot be copied: a report must not fail where an allocation already has.
std::optional<Advice> Heap::State::advice_for(const HeapRequest& request, const Account* refused,
                                              std::uint64_t driver_free,
                                              const std::vector<Account*>& accounts) noexcept {
  try {
    TrialRequest trial;
    trial.reach = Reach{request.stream, true, true, 0};
    trial.home = home_of(request.granted);
    trial.bytes = request.granted;
    trial.alignment = request.alignment;
    trial.spare = driver_free + (pages ? pages->banked_bytes() : 0);
    trial.refused = refused;
    for (const Account* account = refused; account != nullptr; account = account->parent()) {
      const std::uint64_t limit = account->limit();
      if (limit == kUnlimited) continue;
      trial.room = std::min(trial.room, limit - std::min(limit, account->granted_locked()));
    }
    return advise(space, trial, accounts);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

Error Heap::State::over_budget(const HeapRequest& request, const Account& account) {
  RefusalFigures result = figures(request, &account);
  result.tag = account.path();
  result.over_budget = true;
  result.limit = account.limit();
  result.held = account.granted();
  return refusal(result);
}

}  // namespace nbx
