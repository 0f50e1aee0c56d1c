// The books of sleep: addresses that stay taken while the pages under them are away.
#include <algorithm>

#include "heap/space.h"

namespace nbx {
namespace {

std::uint64_t first_page(const PageRange& range, DeviceAddress address) noexcept {
  return range.index_of(address + range.granule() - 1);
}

/// Appends a handle, to the last run if it follows it.
void append(std::vector<PageRun>* runs, PageRange* range, std::uint64_t first,
            std::uint64_t count) {
  if (!runs->empty()) {
    PageRun& last = runs->back();
    if (last.range == range && last.first + last.count == first) {
      last.count += count;
      return;
    }
  }
  runs->push_back(PageRun{range, first, count});
}

}  // namespace

std::uint32_t Space::segment_of(const PageRange& range) const noexcept {
  return by_base_.find(range.base())->second;
}

// ---- pages go ------------------------------------------------------------------------------

void Space::take_dormant(std::vector<PageRun>* runs, std::vector<std::uint32_t>* holes) {
  const auto quiet = [](const BlockRecord& record) {
    return record.state == BlockState::kAsleep || record.state == BlockState::kDormant ||
           (record.state == BlockState::kFree && record.lane < kHomes);
  };
  for (const Segment& segment : segments_) {
    if (segment.pages == nullptr) continue;
    const PageRange& range = *segment.pages;
    for (std::uint32_t first = segment.first; first != kNoBlock;) {
      // Neighbours that no waking block breaks.
      std::uint32_t last = kNoBlock;
      for (std::uint32_t id = first; id != kNoBlock && quiet(records_[id]); id = records_[id].next)
        last = id;
      if (last == kNoBlock) {
        first = records_[first].next;
        continue;
      }
      const std::uint64_t high = range.index_of(records_[last].address + records_[last].bytes);
      std::uint32_t at = first;
      for (std::uint64_t index = first_page(range, records_[first].address); index < high;) {
        const PageRange::Cell& cell = range[index];
        const std::uint64_t count = cell.granules == 0 ? 1 : cell.granules - cell.place;
        const DeviceAddress start = range.address_of(index);
        const DeviceAddress end = range.address_of(index + count);
        while (records_[at].address + records_[at].bytes <= start) at = records_[at].next;
        bool slept = false;
        if (cell.granules != 0 && cell.place == 0 && count <= high - index) {
          for (std::uint32_t id = at; !slept && id != kNoBlock && records_[id].address < end;
               id = records_[id].next) {
            slept = records_[id].state == BlockState::kAsleep;
          }
        }
        if (slept) append(runs, segment.pages, index, count);
        index += count;
      }
      first = records_[last].next;
    }
  }
  for (const PageRun& run : *runs) {
    const DeviceAddress end = run.range->address_of(run.first + run.count);
    const Segment& segment = segments_[segment_of(*run.range)];
    for (std::uint32_t id = holder(segment, run.range->address_of(run.first));
         id != kNoBlock && records_[id].address < end; id = records_[id].next) {
      const bool known = !holes->empty() && holes->back() == id;
      if (records_[id].state == BlockState::kFree && !known) holes->push_back(id);
    }
  }
  ensure_scatter(holes->size() + runs->size());
  for (const std::uint32_t id : *holes) {
    pull(id);
    records_[id].state = BlockState::kMoving;
  }
}

void Space::scatter(std::uint32_t id) { return_pieces(id, records_[id].home); }

/// Addresses without memory: whole pages become gaps, the rest waits for its page.
void Space::settle(std::uint32_t id) {
  records_.ensure(2);
  records_[id].state = BlockState::kDormant;
  const auto joins = [&](std::uint32_t other) {
    return other != kNoBlock && records_[other].state == BlockState::kDormant;
  };
  if (joins(records_[id].next)) merge(id, records_[id].next);
  if (joins(records_[id].previous)) id = merge(records_[id].previous, id);
  const PageRange& range = *segments_[records_[id].segment].pages;
  const DeviceAddress start = records_[id].address;
  const std::uint64_t low = first_page(range, start);
  const std::uint64_t high = range.index_of(start + records_[id].bytes);
  if (low >= high) return;
  if (range.address_of(low) > start) {
    split(id, range.address_of(low) - start);
    id = records_[id].next;
  }
  const std::uint64_t bytes = range.address_of(high) - range.address_of(low);
  if (records_[id].bytes > bytes) split(id, bytes);
  make_gap(id);
}

void Space::drop_asleep(std::uint32_t id) {
  ensure_scatter(1);
  BlockRecord& record = records_[id];
  // Every change of memory under the block may ask for a record.
  const PageRange& range = *segments_[record.segment].pages;
  const std::uint64_t pages = (record.bytes + range.granule() - 1) / range.granule() + 1;
  records_.ensure(static_cast<std::uint32_t>(2 * pages + 4));
  record.generation += 1;
  record.state = BlockState::kMoving;
  record.stream = kNoStream;
  record.ticket = 0;
  scatter(id);
}

// ---- pages come ----------------------------------------------------------------------------

void Space::stir(const PageRun& run) {
  const Segment& segment = segments_[segment_of(*run.range)];
  const DeviceAddress end = run.range->address_of(run.first + run.count);
  for (DeviceAddress address = run.range->address_of(run.first); address < end;) {
    const std::uint32_t id = holder(segment, address);
    address = records_[id].address + records_[id].bytes;
    if (records_[id].state != BlockState::kDormant) continue;
    records_[id].state = BlockState::kMoving;
    scatter(id);
  }
}

std::uint64_t Space::dormant_count(const PageRun& run) const noexcept {
  const Segment& segment = segments_[segment_of(*run.range)];
  const DeviceAddress end = run.range->address_of(run.first + run.count);
  std::uint64_t count = 0;
  for (std::uint32_t id = holder(segment, run.range->address_of(run.first));
       id != kNoBlock && records_[id].address < end; id = records_[id].next) {
    if (records_[id].state == BlockState::kDormant) ++count;
  }
  return count;
}

void Space::list_missing(std::uint32_t id, std::vector<PageRun>* runs) const {
  const BlockRecord& record = records_[id];
  PageRange* range = segments_[record.segment].pages;
  const std::uint64_t high = first_page(*range, record.address + record.bytes);
  for (std::uint64_t index = range->index_of(record.address); index < high; ++index) {
    if (range->mapped(index)) continue;
    // The neighbour before may have listed the page that they share.
    const bool known = !runs->empty() && runs->back().range == range &&
                       index < runs->back().first + runs->back().count;
    if (!known) append(runs, range, index, 1);
  }
}

std::uint64_t Space::mapped_bytes(std::uint32_t id) const noexcept {
  const BlockRecord& record = records_[id];
  const PageRange& range = *segments_[record.segment].pages;
  const DeviceAddress end = record.address + record.bytes;
  std::uint64_t bytes = 0;
  for (DeviceAddress address = record.address; address < end;) {
    const std::uint64_t index = range.index_of(address);
    const DeviceAddress next = std::min(end, range.address_of(index + 1));
    if (range.mapped(index)) bytes += next - address;
    address = next;
  }
  return bytes;
}

bool Space::has_large_handle(std::uint32_t id) const noexcept {
  const BlockRecord& record = records_[id];
  const PageRange& range = *segments_[record.segment].pages;
  const std::uint64_t high = first_page(range, record.address + record.bytes);
  for (std::uint64_t index = range.index_of(record.address); index < high; ++index) {
    if (range[index].granules > 1) return true;
  }
  return false;
}

}  // namespace nbx
