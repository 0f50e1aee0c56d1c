// Memory in pages under a range of addresses: free ones go where they are wanted before the driver
// is asked for more.
#include <algorithm>

#include "heap/state.h"

namespace nbx {
namespace {

/// Addresses to reserve for a device, as a multiple of its memory: room for holes to move about.
constexpr std::uint64_t kRangePerMemory = 2;

}  // namespace

/// Reserves more addresses; half as many, and half again, while the driver refuses.
bool Heap::State::reserve_range(std::uint64_t bytes) {
  const std::uint64_t least = round_up(bytes, pages->granule()) + pages->granule();
  std::uint64_t wanted = std::max(
      round_up(kRangePerMemory * device.properties().total_bytes, pages->granule()), least);
  PageRange* range = pages->reserve(wanted);
  while (range == nullptr && wanted > least) {
    wanted = std::max(least, round_up(wanted / 2, pages->granule()));
    range = pages->reserve(wanted);
  }
  if (range == nullptr) return false;
  Segment segment;
  segment.base = segment.driver_address = range->base();
  segment.bytes = range->bytes();
  segment.pages = range;
  const std::lock_guard<ShortLock> guard(lock);
  space.add_segment(std::move(segment));
  return true;
}

/// The window for a request; streams that have to be waited for are waited for here, when that
/// saves pages.
GrowthPlan Heap::State::plan_window(const HeapRequest& request, const Reach& reach) {
  GrowthPlan plan;
  GrowthPlan waiting;
  {
    const std::lock_guard<ShortLock> guard(lock);
    plan = space.plan_growth(reach, request.granted, request.alignment);
    if (!host && options.reuse_waits) {
      Reach all = reach;
      all.waits = true;
      waiting = space.plan_growth(all, request.granted, request.alignment);
    }
  }
  if (!waiting.found() || waiting.waits.empty() ||
      (plan.found() && waiting.missing >= plan.missing)) {
    return plan;
  }
  for (const StreamId other : waiting.waits) {
    if (!insert_wait(request.stream, other)) return plan;
    const std::lock_guard<ShortLock> guard(lock);
    ++waits;
  }
  Reach after = reach;
  after.ordered = true;
  after.follow = submitted_ticket(request.stream);
  const std::lock_guard<ShortLock> guard(lock);
  return space.plan_growth(after, request.granted, request.alignment);
}

std::uint32_t Heap::State::grow_pages(const HeapRequest& request, const Reach& reach) {
  GrowthPlan plan = plan_window(request, reach);
  if (!plan.found()) {
    if (!reserve_range(request.granted + request.alignment)) return kNoBlock;
    plan = plan_window(request, reach);
    if (!plan.found()) return kNoBlock;
  }
  Reach after = reach;
  if (!host) after = Reach{reach.stream, true, false, submitted_ticket(request.stream)};
  bool steal = true;
  {
    const std::lock_guard<ShortLock> guard(lock);
    steal = steals(plan.missing * pages->granule(), request.granted);
  }
  FillResult result;
  std::uint32_t id = fill_window(request, after, plan, steal, &result);
  if (id == kNoBlock && result.status == kAllocationRefused) {
    {
      const std::lock_guard<ShortLock> guard(lock);
      plan = space.plan_growth(after, request.granted, request.alignment, true);
    }
    if (plan.found()) id = fill_window(request, after, plan, true, &result);
  }
  if (result.status == kAllocationRefused) {
    // Some runtimes report a refusal once more, on a later unrelated call.
    if (primitives.last_error != nullptr) primitives.last_error(device.ordinal());
    return kNoBlock;
  }
  device.check(result.status, result.call);
  return id;
}

/// Puts pages under the window's gaps and hands out a block of it. All of that, or nothing but the
/// bank has changed.
std::uint32_t Heap::State::fill_window(const HeapRequest& request, const Reach& reach,
                                       const GrowthPlan& plan, bool steal, FillResult* result) {
  std::vector<PageRun> gaps;
  std::vector<Victim> victims;
  std::vector<PageRun> runs;
  std::uint32_t window = kNoBlock;
  {
    const std::lock_guard<ShortLock> guard(lock);
    window = space.open_window(plan, reach, &gaps);
    const std::uint64_t banked = pages->banked_bytes() / pages->granule();
    if (steal && plan.missing > banked) victims = space.take_victims(plan.missing - banked);
  }
  if (!gaps.empty()) {
    for (const Victim& victim : victims) runs.push_back(victim.run);
    *result = pages->fill(gaps, runs, request.lifetime);
  }
  const std::lock_guard<ShortLock> guard(lock);
  for (std::size_t i = 0; i < victims.size(); ++i) {
    if (i < result->taken) {
      space.make_gap(victims[i].record);
    } else {
      space.return_victim(victims[i].record);
    }
  }
  created += result->created;
  stolen += result->stolen;
  if (result->stolen != 0) ++remaps;
  note_held();
  if (result->created != 0) {
    Recorder::note_now(RecordedAction::kMap, recorded, plan.start, result->created, request.stream,
                       request.account.id(), 0);
  }
  if (result->stolen != 0) {
    Recorder::note_now(RecordedAction::kSteal, recorded, plan.start, result->stolen, request.stream,
                       request.account.id(), 0);
  }
  if (result->status != kSuccess) {
    space.abandon_window(window);
    return kNoBlock;
  }
  const std::uint32_t id = space.close_window(window, request.granted, request.alignment);
  hand_out(id, request);
  return id;
}

std::uint64_t Heap::State::release_pages(std::uint64_t keep) {
  const std::uint64_t before = held();
  std::vector<Victim> victims;
  {
    const std::lock_guard<ShortLock> guard(lock);
    const std::uint64_t free = parked();
    const std::uint64_t banked = pages->banked_bytes();
    if (free > keep && free - keep > banked) {
      const std::uint64_t page = pages->granule();
      victims = space.take_victims((free - keep - banked + page - 1) / page);
    }
  }
  Status status = kSuccess;
  for (const Victim& victim : victims) {
    if (status == kSuccess) status = pages->unmap(victim.run);
    const std::lock_guard<ShortLock> guard(lock);
    if (status == kSuccess) {
      space.make_gap(victim.record);
    } else {
      space.return_victim(victim.record);
    }
  }
  device.check(status, "page_unmap");
  std::uint64_t others = 0;
  {
    const std::lock_guard<ShortLock> guard(lock);
    others = parked() - pages->banked_bytes();
  }
  device.check(pages->empty_bank(keep > others ? keep - others : 0), "page_release");
  const std::uint64_t released = before - held();
  if (released != 0) {
    Recorder::note_now(RecordedAction::kUnmap, recorded, 0, released, kNoStream, 0, 0);
  }
  return released;
}

}  // namespace nbx
