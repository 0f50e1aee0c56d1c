// Growth of a range: the window of addresses to put pages under, and the free pages to put there.
#include <algorithm>

#include "core/align.h"
#include "heap/space.h"

namespace nbx {

// ---- the window ----------------------------------------------------------------------------

struct Space::Search {
  const Reach& reach;
  std::uint32_t own;
  std::uint64_t bytes;
  std::uint64_t alignment;
  bool scarce;
  GrowthPlan best;

  /// Pages that others cannot have.
  [[nodiscard]] std::uint64_t cost(const GrowthPlan& plan) const noexcept {
    return scarce ? plan.missing + plan.inside : plan.missing;
  }
  /// Fewest pages, then fewest waits, then the lowest address.
  void offer(GrowthPlan plan) {
    if (best.found()) {
      if (cost(plan) != cost(best)) {
        if (cost(plan) > cost(best)) return;
      } else if (plan.waits.size() != best.waits.size()) {
        if (plan.waits.size() > best.waits.size()) return;
      } else if (plan.start >= best.start) {
        return;
      }
    }
    best = std::move(plan);
  }
};

/// The window that begins at `start` in record `first` and goes on to the right as far as needed.
void Space::window_from(std::uint32_t first, DeviceAddress start, Search* search) const {
  const PageRange& range = *segments_[records_[first].segment].pages;
  const std::uint64_t page = range.granule();
  const std::uint64_t need = round_up(start, search->alignment) - start + search->bytes;
  GrowthPlan plan;
  plan.first = first;
  plan.start = start;
  std::uint64_t have = 0;
  for (std::uint32_t id = first; id != kNoBlock; id = records_[id].next) {
    const BlockRecord& record = records_[id];
    const DeviceAddress from = std::max(start, record.address);
    const std::uint64_t bytes = record.address + record.bytes - from;
    plan.last = id;
    plan.end = from + bytes;
    if (record.state == BlockState::kGap) {
      const std::uint64_t pages = std::min(bytes, round_up(need - have, page)) / page;
      plan.missing += pages;
      plan.end = from + pages * page;
      have += pages * page;
    } else if (record.state == BlockState::kFree && reaches(search->reach, record, search->own)) {
      have += bytes;
      if (search->scarce && record.lane < kHomes) plan.inside += whole_pages(record);
      const StreamId stream = record.lane < kHomes ? kNoStream : lanes_[record.lane]->stream;
      if (record.lane >= kHomes && record.lane != search->own &&
          !is_ordered(search->reach.stream, BlockUse{stream, record.ticket},
                      search->reach.follow) &&
          std::find(plan.waits.begin(), plan.waits.end(), stream) == plan.waits.end()) {
        plan.waits.push_back(stream);
      }
    } else {
      return;
    }
    if (have >= need) {
      search->offer(std::move(plan));
      return;
    }
    if (search->best.found() && search->cost(plan) > search->cost(search->best)) return;
  }
}

/// The windows that need the gap: with the holes to its left, from its start, or of its end alone
/// with the holes to its right.
void Space::windows_of(std::uint32_t gap, Search* search) const {
  const BlockRecord& record = records_[gap];
  std::uint32_t first = gap;
  while (records_[first].previous != kNoBlock) {
    const BlockRecord& left = records_[records_[first].previous];
    if (left.state != BlockState::kFree || !reaches(search->reach, left, search->own)) break;
    first = records_[first].previous;
  }
  for (std::uint32_t id = first;; id = records_[id].next) {
    window_from(id, records_[id].address, search);
    if (id == gap) break;
  }
  std::uint64_t right = 0;
  for (std::uint32_t id = record.next; id != kNoBlock; id = records_[id].next) {
    const BlockRecord& hole = records_[id];
    if (hole.state != BlockState::kFree || !reaches(search->reach, hole, search->own)) break;
    right += hole.bytes;
  }
  if (right == 0) return;
  const std::uint64_t page = segments_[record.segment].pages->granule();
  const std::uint64_t pages =
      right >= search->bytes ? 1 : round_up(search->bytes - right, page) / page;
  if (pages * page < record.bytes) {
    window_from(gap, record.address + record.bytes - pages * page, search);
  }
}

GrowthPlan Space::plan_growth(const Reach& reach, std::uint64_t bytes, std::uint64_t alignment,
                              bool scarce) const {
  Search search{reach, lane_of(reach.stream), bytes, alignment, scarce, {}};
  gaps_.for_each(records_, [&](std::uint32_t id) { windows_of(id, &search); });
  // Holes of several lanes next to each other, without a gap between them.
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    lanes_[lane]->bins.for_each(records_, [&](std::uint32_t id) {
      const BlockRecord& hole = records_[id];
      if (segments_[hole.segment].pages == nullptr || !reaches(reach, hole, search.own)) return;
      window_from(id, hole.address, &search);
      const std::uint32_t left = hole.previous;
      if (left != kNoBlock && records_[left].state == BlockState::kFree &&
          reaches(reach, records_[left], search.own)) {
        window_from(left, records_[left].address, &search);
      }
    });
  }
  return std::move(search.best);
}

std::uint32_t Space::open_window(const GrowthPlan& plan, const Reach& reach,
                                 std::vector<PageRun>* gaps) {
  records_.ensure(2);
  PageRange* range = segments_[records_[plan.first].segment].pages;
  const std::uint32_t own = lane_of(reach.stream);
  std::uint64_t runs = 0;
  for (std::uint32_t id = plan.first;; id = records_[id].next) {
    ++runs;
    if (id == plan.last) break;
  }
  gaps->reserve(gaps->size() + runs);
  // Nothing throws from here on.
  std::uint32_t window = plan.first;
  pull(window);
  if (plan.start > records_[window].address) {
    const std::uint32_t rest = window;
    split(rest, plan.start - records_[rest].address);
    window = records_[rest].next;
    gaps_.insert(records_, rest);
  }
  Ticket ticket = 0;
  const auto add = [&](std::uint32_t id) {
    BlockRecord& record = records_[id];
    if (record.address + record.bytes > plan.end) {
      split(id, plan.end - record.address);
      gaps_.insert(records_, record.next);
    }
    if (record.state == BlockState::kGap) {
      gaps->push_back(
          PageRun{range, range->index_of(record.address), record.bytes / range->granule()});
    } else if (record.lane == own && own >= kHomes) {
      ticket = std::max(ticket, record.ticket.get());
    } else if (record.lane >= kHomes) {
      ticket = std::max(ticket, reach.follow);
    }
    record.ticket = 0;
  };
  add(window);
  while (records_[window].address + records_[window].bytes < plan.end) {
    const std::uint32_t next = records_[window].next;
    pull(next);
    add(next);
    merge(window, next);
  }
  BlockRecord& record = records_[window];
  record.state = BlockState::kMoving;
  record.stream = reach.stream;
  record.ticket = ticket;
  return window;
}

std::uint32_t Space::close_window(std::uint32_t window, std::uint64_t bytes,
                                  std::uint64_t alignment) {
  records_.ensure(2);
  BlockRecord& record = records_[window];
  const StreamId stream = record.stream;
  record.lane = static_cast<std::uint16_t>(lane_for(record));
  record.state = BlockState::kFree;
  lanes_[record.lane]->bins.insert(records_, window);
  const std::uint32_t id = carve(window, stream, bytes, alignment);
  // The rests on both sides join what is free beyond them.
  for (const std::uint32_t rest : {records_[id].previous, records_[id].next}) {
    if (rest == kNoBlock || records_[rest].state != BlockState::kFree) continue;
    const std::uint32_t lane = records_[rest].lane;
    pull(rest);
    put(rest, lane);
  }
  return id;
}

/// Frees a block on the move, piece by piece: with memory into a lane, without into the gaps.
void Space::return_pieces(std::uint32_t id, std::uint32_t lane) {
  const PageRange& range = *segments_[records_[id].segment].pages;
  while (true) {
    records_.ensure(1);
    BlockRecord& record = records_[id];
    const DeviceAddress end = record.address + record.bytes;
    std::uint64_t index = range.index_of(record.address);
    const bool mapped = range.mapped(index);
    while (range.address_of(index) < end && range.mapped(index) == mapped) ++index;
    const DeviceAddress cut = std::min(end, range.address_of(index));
    std::uint32_t rest = kNoBlock;
    if (cut < end) {
      split(id, cut - record.address);
      rest = record.next;
    }
    if (mapped) {
      put(id, lane);
    } else {
      settle(id);
    }
    if (rest == kNoBlock) return;
    id = rest;
  }
}

void Space::abandon_window(std::uint32_t window) {
  return_pieces(window, lane_for(records_[window]));
}

std::uint32_t Space::lane_for(const BlockRecord& record) {
  const std::uint32_t own = lane_of(record.stream);
  if (is_capturing(own)) return own;
  return record.ticket != 0 ? make_lane(record.stream) : record.home;
}

// ---- free pages ----------------------------------------------------------------------------

std::vector<Victim> Space::take_victims(std::uint64_t granules) {
  std::vector<Victim> victims;
  std::vector<std::uint32_t> holes;
  for (const Segment& segment : segments_) {
    if (segment.pages == nullptr) continue;
    const std::uint64_t page = segment.pages->granule();
    lanes_[segment.home]->bins.for_each(
        records_,
        [&](std::uint32_t id) {
          const BlockRecord& hole = records_[id];
          if (&segments_[hole.segment] == &segment && hole.bytes >= page) holes.push_back(id);
        },
        page);
  }
  std::sort(holes.begin(), holes.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (records_[a].bytes != records_[b].bytes) return records_[a].bytes > records_[b].bytes;
    return records_[a].address > records_[b].address;
  });
  victims.reserve(holes.size());
  records_.ensure(static_cast<std::uint32_t>(2 * holes.size()));
  for (const std::uint32_t hole : holes) {
    if (granules == 0) break;
    PageRange& range = *segments_[records_[hole].segment].pages;
    const DeviceAddress start = records_[hole].address;
    const DeviceAddress end = start + records_[hole].bytes;
    // From the top of the hole down, handle by handle, as far as they are whole.
    std::uint64_t high = range.index_of(end);
    const std::uint64_t low =
        range.index_of(round_up(start - range.base(), range.granule()) + range.base());
    while (high > low && range[high - 1].place + 1 != range[high - 1].granules) --high;
    std::uint64_t first = high;
    std::uint64_t found = 0;
    while (first > low && found < granules && range[first - 1].granules <= first - low &&
           range[first - 1].place + 1 == range[first - 1].granules) {
      found += range[first - 1].granules;
      first -= range[first - 1].granules;
    }
    if (found == 0) continue;
    granules -= std::min(granules, found);
    std::uint32_t id = hole;
    pull(id);
    const std::uint32_t lane = records_[id].lane;
    if (range.address_of(first) > start) {
      split(id, range.address_of(first) - start);
      lanes_[lane]->bins.insert(records_, id);
      id = records_[id].next;
    }
    if (range.address_of(high) < end) {
      split(id, range.address_of(high) - records_[id].address);
      lanes_[lane]->bins.insert(records_, records_[id].next);
    }
    records_[id].state = BlockState::kMoving;
    victims.push_back(Victim{id, PageRun{&range, first, high - first}});
  }
  return victims;
}

/// Granules of handles that lie in the hole as a whole.
std::uint64_t Space::whole_pages(const BlockRecord& hole) const noexcept {
  const PageRange* range = segments_[hole.segment].pages;
  if (range == nullptr) return 0;
  const std::uint64_t low =
      range->index_of(round_up(hole.address - range->base(), range->granule()) + range->base());
  const std::uint64_t high = range->index_of(hole.address + hole.bytes);
  std::uint64_t count = 0;
  for (std::uint64_t index = low; index < high;) {
    const PageRange::Cell& cell = (*range)[index];
    const std::uint64_t rest = cell.granules - cell.place;
    if (cell.place == 0 && rest <= high - index) count += rest;
    index += rest;
  }
  return count;
}

std::uint64_t Space::free_granules() const {
  std::uint64_t count = 0;
  lanes_[kSharedHome]->bins.for_each(records_,
                                     [&](std::uint32_t id) { count += whole_pages(records_[id]); });
  return count;
}

bool Space::fits(std::uint32_t home, const Reach& reach, std::uint64_t bytes,
                 std::uint64_t alignment, std::uint64_t spare) {
  if (bytes == 0) return true;
  const auto any = [](const BlockRecord&) { return true; };
  for (const std::uint32_t lane : {home, kHomes - 1 - home, lane_of(reach.stream)}) {
    if (lanes_[lane]->bins.find_any(records_, bytes, alignment, any) != kNoBlock) return true;
  }
  if (find_of_others(reach, bytes, alignment) != kNoBlock) return true;
  const GrowthPlan plan = plan_growth(reach, bytes, alignment, true);
  if (!plan.found()) {
    // Segments that nothing uses can be given back for one of the right size.
    return spare + unused_bytes_[kSharedHome] + unused_bytes_[kSingleHome] >= bytes;
  }
  const std::uint64_t page = segments_[records_[plan.first].segment].pages->granule();
  return plan.missing + plan.inside <= free_granules() + spare / page;
}

/// Its pages are gone.
void Space::make_gap(std::uint32_t victim) noexcept {
  records_[victim].state = BlockState::kGap;
  const auto joins = [&](std::uint32_t other) {
    return other != kNoBlock && records_[other].state == BlockState::kGap;
  };
  const std::uint32_t right = records_[victim].next;
  if (joins(right)) {
    gaps_.remove(records_, right);
    merge(victim, right);
  }
  const std::uint32_t left = records_[victim].previous;
  if (joins(left)) {
    gaps_.remove(records_, left);
    victim = merge(left, victim);
  }
  gaps_.insert(records_, victim);
}

void Space::return_victim(std::uint32_t victim) noexcept { put(victim, records_[victim].home); }

}  // namespace nbx
