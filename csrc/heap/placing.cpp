// Where in a hole a block lies, and how the hole is cut for it.
#include <algorithm>

#include "core/align.h"
#include "heap/space.h"

namespace nbx {

/// Bytes before a block at the low or the high end of the hole. In a range it lies beside a block
/// of its own size, which will likely go when it goes; else at the end where it spoils fewer whole
/// pages, which could move to where they are wanted, or leaves less of the page that it cuts. Where
/// several streams free blocks, neighbours go at different times: all lie at the low end.
std::uint64_t Space::place_in(const BlockRecord& hole, std::uint64_t bytes,
                              std::uint64_t alignment) const noexcept {
  const std::uint64_t low = (alignment - (hole.address & (alignment - 1))) & (alignment - 1);
  const PageRange* range = segments_[hole.segment].pages;
  if (range == nullptr || hole.bytes == low + bytes || lanes_.size() > kHomes + 1) return low;
  const std::uint64_t page = range->granule();
  const std::uint64_t start = hole.address - range->base(), end = start + hole.bytes;
  const std::uint64_t high = ((end - bytes) & ~(alignment - 1)) - start;
  const auto is_alike = [&](std::uint32_t id) {
    return id != kNoBlock && records_[id].bytes == bytes && records_[id].state != BlockState::kGap;
  };
  const bool left = is_alike(hole.previous), right = is_alike(hole.next);
  if (left != right) return right ? high : low;
  const std::uint64_t first = round_up(start, page), last = end / page * page;
  if (first < last) {
    const std::uint64_t low_end = std::clamp(round_up(start + low + bytes, page), first, last);
    const std::uint64_t high_start = std::clamp((start + high) / page * page, first, last);
    if (low_end - first != last - high_start)
      return last - high_start < low_end - first ? high : low;
  }
  const std::uint64_t cut = start + low + bytes;
  return (start + high) % page < round_up(cut, page) - cut ? high : low;
}

void Space::pull(std::uint32_t id) noexcept {
  const BlockRecord& record = records_[id];
  if (record.state == BlockState::kGap) {
    gaps_.remove(records_, id);
    return;
  }
  lanes_[record.lane]->bins.remove(records_, id);
  if (record.lane < kHomes && fills_segment(record)) unused_bytes_[record.lane] -= record.bytes;
}

std::uint32_t Space::carve(std::uint32_t id, StreamId stream, std::uint64_t bytes,
                           std::uint64_t alignment) noexcept {
  pull(id);
  const std::uint32_t lane = records_[id].lane;
  const std::uint64_t skip = place_in(records_[id], bytes, alignment);
  if (skip != 0) {
    split(id, skip);
    const std::uint32_t front = id;
    id = records_[front].next;
    lanes_[lane]->bins.insert(records_, front);
  }
  if (records_[id].bytes > bytes) {
    split(id, bytes);
    lanes_[lane]->bins.insert(records_, records_[id].next);
  }
  BlockRecord& record = records_[id];
  record.state = BlockState::kLive;
  if (lane < kHomes) record.ticket = 0;
  record.stream = stream;
  // While it is live: the capture that it belongs to, or its home.
  const std::uint32_t own = lanes_.size() > kHomes ? lane_of(stream) : 0;
  record.lane = static_cast<std::uint16_t>(is_capturing(own) ? own : record.home);
  return id;
}

/// Cuts a block that is in no bin after `bytes`; the rest becomes its right neighbour, in the same
/// state and in no bin yet.
void Space::split(std::uint32_t id, std::uint64_t bytes) noexcept {
  const std::uint32_t rest = records_.acquire();
  BlockRecord& left = records_[id];
  BlockRecord& right = records_[rest];
  right.address = left.address + bytes;
  right.bytes = left.bytes - bytes;
  right.stream = left.stream;
  right.ticket = left.ticket;
  right.segment = left.segment;
  right.home = left.home;
  right.lane = left.lane;
  right.state = left.state;
  right.previous = id;
  right.next = left.next;
  if (left.next != kNoBlock) records_[left.next].previous = rest;
  left.next = rest;
  left.bytes = bytes;
  index(rest);
}

}  // namespace nbx
