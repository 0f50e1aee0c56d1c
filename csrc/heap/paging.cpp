// Memory in pages under a range of addresses: free ones go where they are wanted before the driver
// is asked for more.
#include <algorithm>

#include "heap/state.h"

namespace nbx {
namespace {

/// Addresses to reserve for a device, as a multiple of its memory: room for holes to move about.
constexpr std::uint64_t kRangePerMemory = 2;

/// Pages that the driver makes before work is asked again what it has let go of: each costs many
/// times what asking does.
constexpr std::uint64_t kMadeAtOnce = 4;

/// Cuts runs of `count` granules off the front of the runs.
std::vector<PageRun> take_front(std::vector<PageRun>* runs, std::uint64_t count) {
  std::vector<PageRun> front;
  auto run = runs->begin();
  for (; run != runs->end() && run->count <= count; ++run) {
    front.push_back(*run);
    count -= run->count;
  }
  if (run != runs->end() && count != 0) {
    front.push_back(PageRun{run->range, run->first, count});
    run->first += count;
    run->count -= count;
  }
  runs->erase(runs->begin(), run);
  return front;
}

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

/// Makes the stream wait for others when that saves pages; returns what it can have from then on.
Reach Heap::State::widen(const HeapRequest& request, const Reach& reach) {
  if (host || !options.reuse_waits) return reach;
  Reach all = reach;
  all.waits = true;
  GrowthPlan plan;
  GrowthPlan waiting;
  {
    const std::lock_guard<ShortLock> guard(lock);
    plan = space.plan_growth(reach, request.granted, request.alignment);
    waiting = space.plan_growth(all, request.granted, request.alignment);
  }
  if (!waiting.found() || waiting.waits.empty() ||
      (plan.found() && waiting.missing >= plan.missing)) {
    return reach;
  }
  for (const StreamId other : waiting.waits) {
    if (!insert_wait(request.stream, other)) return reach;
    const std::lock_guard<ShortLock> guard(lock);
    ++waits;
  }
  return Reach{reach.stream, true, false, submitted_ticket(request.stream)};
}

std::uint32_t Heap::State::grow_pages(const HeapRequest& request, const Reach& reach) {
  const Reach wider = widen(request, reach);
  FillResult result;
  std::uint32_t id = kNoBlock;
  if (!fill_window(request, wider, false, &id, &result)) {
    if (!reserve_range(request.granted + request.alignment)) return kNoBlock;
    if (!fill_window(request, wider, false, &id, &result)) return kNoBlock;
  }
  if (result.status == kAllocationRefused) {
    static_cast<void>(fill_window(request, wider, true, &id, &result));
  }
  if (result.status == kAllocationRefused) {
    // Some runtimes report a refusal once more, on a later unrelated call.
    if (primitives.last_error != nullptr) primitives.last_error(device.ordinal());
    return kNoBlock;
  }
  device.check(result.status, result.call);
  return id;
}

/// Puts memory under the targets, from the bank, the victims and the driver, and books what came of
/// it.
FillResult Heap::State::fill(const std::vector<PageRun>& targets,
                             const std::vector<Victim>& victims, Lifetime lifetime) {
  std::vector<PageRun> runs;
  for (const Victim& victim : victims) runs.push_back(victim.run);
  const FillResult result = reservable().fill(targets, runs, lifetime);
  const std::lock_guard<ShortLock> guard(lock);
  for (std::size_t i = 0; i < victims.size(); ++i) {
    if (i < result.taken) {
      space.make_gap(victims[i].record);
    } else {
      space.return_victim(victims[i].record);
    }
  }
  created += result.created;
  stolen += result.stolen;
  note_held();
  return result;
}

void Heap::State::note_filled(const HeapRequest& request, DeviceAddress start,
                              const FillResult& result) {
  if (result.created != 0) {
    Recorder::note_now(RecordedAction::kMap, recorded, start, result.created, request.stream,
                       request.account.id(), 0);
  }
  if (result.stolen != 0) {
    Recorder::note_now(RecordedAction::kSteal, recorded, start, result.stolen, request.stream,
                       request.account.id(), 0);
  }
}

/// Puts memory under the gaps, or fails and leaves what it gathered in the bank. Where free pages
/// come first, work goes on while the driver moves or makes some: what it has let go of by then
/// serves before more are made, and nobody waits for it.
FillResult Heap::State::fill_gaps(std::vector<PageRun> gaps, bool steal, Lifetime lifetime) {
  FillResult total;
  std::vector<PageRun> filled;
  while (!gaps.empty()) {
    if (!filled.empty()) poll();
    std::uint64_t missing = 0;
    for (const PageRun& gap : gaps) missing += gap.count;
    std::uint64_t count = missing;
    std::vector<Victim> victims;
    if (steal) {
      const std::lock_guard<ShortLock> guard(lock);
      std::uint64_t free = pages->banked_bytes() / pages->granule();
      if (missing > free) victims = space.take_victims(missing - free);
      for (const Victim& victim : victims) free += victim.run.count;
      const std::uint64_t at_once = free == 0 ? kMadeAtOnce : free;
      if (lifetime == Lifetime::kTransient && space.pending_bytes() >= pages->granule()) {
        count = std::min(missing, at_once);
      }
    }
    std::vector<PageRun> targets = take_front(&gaps, count);
    const FillResult result = fill(targets, victims, lifetime);
    total.status = result.status;
    total.call = result.call;
    total.created += result.created;
    total.stolen += result.stolen;
    if (result.status != kSuccess) {
      for (const PageRun& run : filled) static_cast<void>(pages->unmap(run));
      break;
    }
    filled.insert(filled.end(), targets.begin(), targets.end());
  }
  return total;
}

/// Puts pages under the gaps of the best window and hands out a block of it; where pages are
/// `scarce`, those that are free serve first. All of that, or nothing but the bank has changed.
/// False if there is no window.
bool Heap::State::fill_window(const HeapRequest& request, const Reach& reach, bool scarce,
                              std::uint32_t* id, FillResult* result) {
  std::vector<PageRun> gaps;
  std::uint32_t window = kNoBlock;
  DeviceAddress start = 0;
  bool steal = scarce;
  {
    // Under one lock: once it is given up others may take what the plan is made of.
    const std::lock_guard<ShortLock> guard(lock);
    const GrowthPlan plan = space.plan_growth(reach, request.granted, request.alignment, scarce);
    if (!plan.found()) return false;
    start = plan.start;
    steal = steal || steals(plan.missing * pages->granule(), request.granted);
    window = space.open_window(plan, reach, &gaps);
  }
  try {
    *result = fill_gaps(std::move(gaps), steal, request.lifetime);
  } catch (...) {
    const std::lock_guard<ShortLock> guard(lock);
    space.abandon_window(window);
    throw;
  }
  note_filled(request, start, *result);
  const std::lock_guard<ShortLock> guard(lock);
  if (result->stolen != 0) ++remaps;
  if (result->status != kSuccess) {
    space.abandon_window(window);
    return true;
  }
  *id = space.close_window(window, request.granted, request.alignment);
  hand_out(*id, request);
  return true;
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
