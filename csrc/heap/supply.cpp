// Memory under given runs of pages: for blocks that wake, and for reserved blocks that grow.
#include <algorithm>

#include "heap/state.h"
#include "stream/callback.h"

namespace nbx {

void Heap::State::admit(const HeapRequest& request, const std::function<Account*()>& admit) {
  Account* refused = nullptr;
  const auto admitted = [&] {
    {
      const std::lock_guard<ShortLock> guard(lock);
      refused = admit();
    }
    // Threads may have been lent what is missing.
    if (refused != nullptr && refused->has_leases()) {
      refused->without_leases([&] { refused = admit(); });
    }
    return refused == nullptr;
  };
  if (!admitted() && !reclaim(request.granted, admitted)) throw over_budget(request, *refused);
}

bool Heap::State::try_fill(const HeapRequest& request, const Targets& targets, bool steal,
                           std::vector<PageRun>* runs) {
  Pages& memory = reservable();
  std::vector<Victim> victims;
  std::vector<PageRun> taken;
  {
    const std::lock_guard<ShortLock> guard(lock);
    *runs = targets();
    std::uint64_t missing = 0;
    for (const PageRun& run : *runs) missing += run.count;
    if (missing == 0) return true;
    const std::uint64_t banked = memory.banked_bytes() / memory.granule();
    steal =
        steal || steals((missing - std::min(missing, banked)) * memory.granule(), request.granted);
    if (steal && missing > banked) victims = space.take_victims(missing - banked);
  }
  for (const Victim& victim : victims) taken.push_back(victim.run);
  const FillResult result = memory.fill(*runs, taken, request.lifetime);
  {
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
    if (result.stolen != 0) ++remaps;
    note_held();
  }
  if (result.created != 0) {
    Recorder::note_now(RecordedAction::kMap, recorded, 0, result.created, request.stream,
                       request.account.id(), 0);
  }
  if (result.stolen != 0) {
    Recorder::note_now(RecordedAction::kSteal, recorded, 0, result.stolen, request.stream,
                       request.account.id(), 0);
  }
  if (result.status == kAllocationRefused) {
    // Some runtimes report a refusal once more, on a later unrelated call.
    if (primitives.last_error != nullptr) primitives.last_error(device.ordinal());
    return false;
  }
  device.check(result.status, result.call);
  return true;
}

std::vector<PageRun> Heap::State::supply(const HeapRequest& request, const Targets& targets) {
  std::vector<PageRun> runs;
  bool done = false;
  const auto attempt = [&](bool steal) {
    done = done || try_fill(request, targets, steal, &runs);
    return done;
  };
  // What threads keep could serve it, and nothing new comes there meanwhile.
  const Recall recall(*this);
  poll();
  if (attempt(false)) return runs;
  if (!pages) release_segments(0);
  if (attempt(true)) return runs;
  if (wait_for_pending() && attempt(true)) return runs;
  reclaim(request.granted, [&] {
    poll();
    return attempt(true);
  });
  if (!done && !host && !inside_callback()) {
    // Queued work may hold the last reference to memory that nobody else can reach.
    wait_for_device();
    poll();
    attempt(true);
  }
  if (!done) throw refusal(figures(request));
  return runs;
}

}  // namespace nbx
