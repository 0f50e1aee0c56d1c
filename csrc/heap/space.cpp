#include "heap/space.h"

#include <algorithm>

namespace nbx {

Space::Space(std::uint32_t granule_bits) : granule_bits_(granule_bits) {
  for (std::uint32_t home = 0; home < kHomes; ++home) {
    lanes_.push_back(std::make_unique<Lane>(granule_bits));
  }
}

// ---- lanes ---------------------------------------------------------------------------------

std::uint32_t Space::lane_of(StreamHandle stream) const noexcept {
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->stream == stream) return lane;
  }
  return 0;
}

std::uint32_t Space::make_lane(StreamHandle stream) {
  if (const std::uint32_t known = lane_of(stream)) return known;
  // A lane without blocks says nothing of its stream, which may be gone.
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (!lanes_[lane]->bins.empty()) continue;
    lanes_[lane]->stream = stream;
    return lane;
  }
  lanes_.push_back(std::make_unique<Lane>(granule_bits_));
  lanes_.back()->stream = stream;
  return static_cast<std::uint32_t>(lanes_.size() - 1);
}

// ---- taking --------------------------------------------------------------------------------

std::uint32_t Space::take_from_bins(std::uint32_t home, StreamHandle stream, std::uint64_t bytes,
                                    std::uint64_t alignment) noexcept {
  if (!records_.ready(2)) return kNoBlock;
  const std::uint64_t need = alignment > granule() ? bytes + alignment - granule() : bytes;
  std::uint32_t id = lanes_[home]->bins.find(records_, need);
  if (lanes_.size() > kHomes) {
    const std::uint32_t lane = lane_of(stream);
    if (lane != 0 && !lanes_[lane]->bins.empty()) {
      const std::uint32_t own = lanes_[lane]->bins.find(records_, need);
      // The tighter fit; at equal size the stream's own, which no other stream could have.
      if (own != kNoBlock && (id == kNoBlock || records_[own].bytes <= records_[id].bytes)) {
        id = own;
      }
    }
  }
  return id == kNoBlock ? id : carve(id, stream, bytes, alignment);
}

std::uint32_t Space::take_any(std::uint32_t home, bool both, StreamHandle stream,
                              std::uint64_t bytes, std::uint64_t alignment) {
  records_.ensure(2);
  flush();
  const std::uint32_t own = lane_of(stream);
  const std::uint32_t other = kHomes - 1 - home;
  for (const std::uint32_t lane : {own != 0 ? own : home, home, both ? other : home}) {
    const std::uint32_t id = lanes_[lane]->bins.find_any(records_, bytes, alignment);
    if (id != kNoBlock) return carve(id, stream, bytes, alignment);
  }
  return kNoBlock;
}

void Space::pull(std::uint32_t id) noexcept {
  const BlockRecord& record = records_[id];
  lanes_[record.lane]->bins.remove(records_, id);
  if (record.lane < kHomes && fills_segment(record)) unused_bytes_[record.lane] -= record.bytes;
}

std::uint32_t Space::carve(std::uint32_t id, StreamHandle stream, std::uint64_t bytes,
                           std::uint64_t alignment) noexcept {
  pull(id);
  const std::uint32_t lane = records_[id].lane;
  const std::uint64_t skip =
      (alignment - (records_[id].address & (alignment - 1))) & (alignment - 1);
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
  return id;
}

/// Cuts a block that is in no bin after `bytes`; the rest becomes its free right neighbour, in no
/// bin yet.
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
  right.state = BlockState::kFree;
  right.previous = id;
  right.next = left.next;
  if (left.next != kNoBlock) records_[left.next].previous = rest;
  left.next = rest;
  left.bytes = bytes;
  index(rest);
}

// ---- giving back ---------------------------------------------------------------------------

std::uint32_t Space::give_to_lane(std::uint32_t id, const BlockUse* uses, std::size_t count) {
  BlockRecord& record = records_[id];
  const std::uint32_t home = record.home;
  if (record.ticket == 0 && (count == 0 || (count == 1 && uses[0].ticket == 0))) {
    ++record.generation;
    return put(id, home);
  }
  std::vector<BlockUse> open;
  const auto note = [&](const BlockUse& use) {
    if (use.ticket == 0) return;
    for (BlockUse& known : open) {
      if (known.stream == use.stream) {
        known.ticket = std::max(known.ticket, use.ticket);
        return;
      }
    }
    open.push_back(use);
  };
  note(BlockUse{record.stream, record.ticket});
  for (std::size_t i = 0; i < count; ++i) note(uses[i]);
  std::uint32_t lane = home;
  if (open.size() == 1) {
    lane = make_lane(open[0].stream);
    record.stream = open[0].stream;
    record.ticket = open[0].ticket;
  } else if (open.size() > 1) {
    waiting_.push_back(Waiting{id, std::move(open)});
    record.state = BlockState::kWaiting;
    ++record.generation;
    return kNoBlock;
  }
  ++record.generation;
  return put(id, lane);
}

void Space::flush() noexcept {
  if (cached_bytes_ == 0) return;
  for (std::uint32_t& head : cached_) {
    while (head != kNoBlock) {
      const std::uint32_t id = head;
      head = records_[id].bin_next;
      put(id, records_[id].home);
    }
  }
  cached_bytes_ = 0;
}

/// Makes a block free in a lane, merged with its free neighbours there.
std::uint32_t Space::put(std::uint32_t id, std::uint32_t lane) noexcept {
  records_[id].state = BlockState::kFree;
  records_[id].lane = lane;
  const auto joins = [&](std::uint32_t other) {
    return other != kNoBlock && records_[other].state == BlockState::kFree &&
           records_[other].lane == lane;
  };
  const std::uint32_t right = records_[id].next;
  if (joins(right)) {
    lanes_[lane]->bins.remove(records_, right);
    merge(id, right);
  }
  const std::uint32_t left = records_[id].previous;
  if (joins(left)) {
    lanes_[lane]->bins.remove(records_, left);
    id = merge(left, id);
  }
  const BlockRecord& record = records_[id];
  lanes_[lane]->bins.insert(records_, id);
  if (lane >= kHomes || !fills_segment(record)) return kNoBlock;
  unused_bytes_[lane] += record.bytes;
  return id;
}

std::uint32_t Space::merge(std::uint32_t left, std::uint32_t right) noexcept {
  unindex(right);
  BlockRecord& a = records_[left];
  const BlockRecord& b = records_[right];
  a.bytes += b.bytes;
  a.ticket = std::max(a.ticket, b.ticket);
  a.next = b.next;
  if (b.next != kNoBlock) records_[b.next].previous = left;
  records_.release(right);
  return left;
}

// ---- completed work ------------------------------------------------------------------------

std::vector<StreamHandle> Space::pending_streams() const {
  std::vector<StreamHandle> streams;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (!lanes_[lane]->bins.empty()) streams.push_back(lanes_[lane]->stream);
  }
  for (const Waiting& entry : waiting_) {
    for (const BlockUse& use : entry.uses) {
      if (std::find(streams.begin(), streams.end(), use.stream) == streams.end()) {
        streams.push_back(use.stream);
      }
    }
  }
  return streams;
}

Ticket Space::newest_ticket(StreamHandle stream) const noexcept {
  Ticket newest = 0;
  if (const std::uint32_t lane = lane_of(stream)) {
    lanes_[lane]->bins.for_each(
        records_, [&](std::uint32_t id) { newest = std::max(newest, records_[id].ticket); });
  }
  for (const Waiting& entry : waiting_) {
    for (const BlockUse& use : entry.uses) {
      if (use.stream == stream) newest = std::max(newest, use.ticket);
    }
  }
  return newest;
}

void Space::complete(StreamHandle stream, Ticket ticket) noexcept {
  if (const std::uint32_t lane = lane_of(stream)) {
    Bins& bins = lanes_[lane]->bins;
    bins.for_each(records_, [&](std::uint32_t id) {
      if (records_[id].ticket > ticket) return;
      bins.remove(records_, id);
      put(id, records_[id].home);
    });
  }
  for (std::size_t i = 0; i < waiting_.size();) {
    std::vector<BlockUse>& uses = waiting_[i].uses;
    uses.erase(std::remove_if(uses.begin(), uses.end(),
                              [&](const BlockUse& use) {
                                return use.stream == stream && use.ticket <= ticket;
                              }),
               uses.end());
    if (!uses.empty()) {
      ++i;
      continue;
    }
    const std::uint32_t id = waiting_[i].block;
    waiting_[i] = std::move(waiting_.back());
    waiting_.pop_back();
    put(id, records_[id].home);
  }
}

// ---- segments ------------------------------------------------------------------------------

void Space::add_segment(Segment segment) {
  records_.ensure(1);
  segment.pages.assign((segment.bytes >> kPageBits) + 1, kNoBlock);
  segments_.reserve(segments_.size() + 1);
  spare_segments_.reserve(segments_.size() + 1);
  auto slot = static_cast<std::uint32_t>(segments_.size());
  if (!spare_segments_.empty()) slot = spare_segments_.back();
  by_base_.emplace(segment.base, slot);
  // Nothing throws from here on.
  const std::uint32_t id = records_.acquire();
  BlockRecord& record = records_[id];
  record.address = segment.base;
  record.bytes = segment.bytes;
  record.stream = 0;
  record.ticket = 0;
  record.previous = record.next = kNoBlock;
  record.segment = slot;
  record.home = static_cast<std::uint8_t>(segment.home);
  segment.first = id;
  segment_bytes_[segment.home] += segment.driver_bytes;
  const std::uint32_t home = segment.home;
  if (spare_segments_.empty()) {
    segments_.push_back(std::move(segment));
  } else {
    spare_segments_.pop_back();
    segments_[slot] = std::move(segment);
  }
  index(id);
  put(id, home);
}

Segment Space::remove_segment(std::uint32_t block) noexcept {
  const std::uint32_t slot = records_[block].segment;
  pull(block);
  records_.release(block);
  Segment segment = std::move(segments_[slot]);
  segments_[slot] = Segment{};
  by_base_.erase(segment.base);
  spare_segments_.push_back(slot);
  segment_bytes_[segment.home] -= segment.driver_bytes;
  return segment;
}

std::uint32_t Space::unused_segment() noexcept {
  flush();
  std::uint32_t best = kNoBlock;
  for (const auto& [base, slot] : by_base_) {
    const std::uint32_t id = segments_[slot].first;
    const BlockRecord& record = records_[id];
    const bool unused =
        record.state == BlockState::kFree && record.lane < kHomes && fills_segment(record);
    if (unused && (best == kNoBlock || record.bytes > records_[best].bytes)) best = id;
  }
  return best;
}

// ---- addresses -----------------------------------------------------------------------------

void Space::index(std::uint32_t id) noexcept {
  Segment& segment = segments_[records_[id].segment];
  std::uint32_t& first = segment.pages[(records_[id].address - segment.base) >> kPageBits];
  if (first == kNoBlock || records_[id].address < records_[first].address) first = id;
}

void Space::unindex(std::uint32_t id) noexcept {
  const BlockRecord& record = records_[id];
  Segment& segment = segments_[record.segment];
  const std::uint64_t page = (record.address - segment.base) >> kPageBits;
  if (segment.pages[page] != id) return;
  const std::uint32_t next = record.next;
  const bool same =
      next != kNoBlock && (records_[next].address - segment.base) >> kPageBits == page;
  segment.pages[page] = same ? next : kNoBlock;
}

std::uint32_t Space::find(DeviceAddress address) const noexcept {
  auto above = by_base_.upper_bound(address);
  if (above == by_base_.begin()) return kNoBlock;
  const Segment& segment = segments_[std::prev(above)->second];
  if (address - segment.base >= segment.bytes) return kNoBlock;
  std::uint64_t page = (address - segment.base) >> kPageBits;
  // The first block starts at the base, so the walk down ends.
  while (segment.pages[page] == kNoBlock || records_[segment.pages[page]].address > address) --page;
  std::uint32_t id = segment.pages[page];
  while (records_[id].address + records_[id].bytes <= address) id = records_[id].next;
  return records_[id].state == BlockState::kLive ? id : kNoBlock;
}

// ---- figures -------------------------------------------------------------------------------

std::uint64_t Space::pending_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane)
    bytes += lanes_[lane]->bins.bytes();
  for (const Waiting& entry : waiting_) bytes += records_[entry.block].bytes;
  return bytes;
}

std::uint64_t Space::free_blocks() const noexcept {
  std::uint64_t count = 0;
  for (const auto& lane : lanes_) count += lane->bins.count();
  return count;
}

std::uint64_t Space::largest_hole() const noexcept {
  return std::max(lanes_[kSharedHome]->bins.largest(records_),
                  lanes_[kSingleHome]->bins.largest(records_));
}

}  // namespace nbx
