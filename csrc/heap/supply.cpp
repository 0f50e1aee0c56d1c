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
  const FillResult result = fill(*runs, victims, request.lifetime);
  note_filled(request, 0, result);
  if (result.stolen != 0) {
    const std::lock_guard<ShortLock> guard(lock);
    ++remaps;
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
  recall.drain();
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
