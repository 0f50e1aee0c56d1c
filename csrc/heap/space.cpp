#include "heap/space.h"

#include <algorithm>

#include "account/recorder.h"
#include "heap/slabs.h"

namespace nbx {

Space::Space(std::uint32_t granule_bits) : granule_bits_(granule_bits), gaps_(granule_bits) {
  for (std::uint32_t home = 0; home < kHomes; ++home) {
    lanes_.push_back(std::make_unique<Lane>(granule_bits));
  }
}

Space::Space(const Space& other)
    : granule_bits_(other.granule_bits_),
      records_(other.records_),
      gaps_(other.gaps_),
      waiting_(other.waiting_),
      spare_segments_(other.spare_segments_),
      by_base_(other.by_base_) {
  for (const auto& lane : other.lanes_) lanes_.push_back(std::make_unique<Lane>(*lane));
  for (const Segment& segment : other.segments_) {
    segments_.push_back(Segment{segment.driver_address, segment.driver_bytes, segment.base,
                                segment.bytes, segment.pages, segment.home, segment.first,
                                segment.starts.copy()});
  }
  for (std::uint32_t home = 0; home < kHomes; ++home) {
    unused_bytes_[home] = other.unused_bytes_[home];
    segment_bytes_[home] = other.segment_bytes_[home];
  }
}

// ---- lanes ---------------------------------------------------------------------------------

std::uint32_t Space::lane_of(StreamId stream) const noexcept {
  std::uint32_t found = 0;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->stream == stream) found = lane;
  }
  return found;
}

std::uint32_t Space::new_lane() {
  // A lane without blocks says nothing of its stream, which may be gone.
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture == 0 && lanes_[lane]->bins.empty()) return lane;
  }
  lanes_.push_back(std::make_unique<Lane>(granule_bits_));
  return static_cast<std::uint32_t>(lanes_.size() - 1);
}

std::uint32_t Space::make_lane(StreamId stream) {
  if (const std::uint32_t known = lane_of(stream)) return known;
  const std::uint32_t lane = new_lane();
  lanes_[lane]->stream = stream;
  return lane;
}

bool Space::reaches(const Reach& reach, const BlockRecord& record,
                    std::uint32_t own) const noexcept {
  const std::uint32_t lane = record.lane;
  if (lane < kHomes || lane == own) return true;
  const Lane& other = *lanes_[lane];
  if (other.capture != 0 || is_capturing(own)) return false;
  if (reach.waits) return true;
  return reach.ordered &&
         is_ordered(reach.stream, BlockUse{other.stream, record.ticket}, reach.follow);
}

// ---- taking --------------------------------------------------------------------------------

std::uint32_t Space::take(std::uint32_t home, StreamId stream, std::uint64_t bytes,
                          std::uint64_t alignment) noexcept {
  if (!records_.ready(2)) return kNoBlock;
  const std::uint64_t need = alignment > granule() ? bytes + alignment - granule() : bytes;
  // The tighter fit; at equal size the stream's own, which no other stream could have.
  std::uint32_t id = kNoBlock;
  if (lanes_.size() > kHomes) {
    const std::uint32_t lane = lane_of(stream);
    if (lane != 0) id = lanes_[lane]->bins.find(records_, need);
  }
  if (id == kNoBlock || records_[id].bytes != need) {
    const std::uint32_t idle = lanes_[home]->bins.find(records_, need);
    if (id == kNoBlock || (idle != kNoBlock && records_[idle].bytes < records_[id].bytes)) {
      id = idle;
    }
  }
  return id == kNoBlock ? id : carve(id, stream, bytes, alignment);
}

std::uint32_t Space::take_any(std::uint32_t home, bool both, const Reach& reach,
                              std::uint64_t bytes, std::uint64_t alignment) {
  records_.ensure(2);
  const std::uint32_t own = lane_of(reach.stream);
  const std::uint32_t other = kHomes - 1 - home;
  const auto any = [](const BlockRecord&) { return true; };
  for (const std::uint32_t lane : {own != 0 ? own : home, home, both ? other : home}) {
    const std::uint32_t id = lanes_[lane]->bins.find_any(records_, bytes, alignment, any);
    if (id != kNoBlock) return carve(id, reach.stream, bytes, alignment);
  }
  if (!reach.ordered) return kNoBlock;
  std::uint32_t id = find_of_others(reach, bytes, alignment);
  if (id == kNoBlock) return id;
  id = carve(id, reach.stream, bytes, alignment);
  records_[id].ticket = reach.follow;
  return id;
}

std::uint32_t Space::find_of_others(const Reach& reach, std::uint64_t bytes,
                                    std::uint64_t alignment) const {
  const std::uint32_t own = lane_of(reach.stream);
  const auto reached = [&](const BlockRecord& record) { return reaches(reach, record, own); };
  std::uint32_t best = kNoBlock;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lane == own) continue;
    const std::uint32_t id = lanes_[lane]->bins.find_any(records_, bytes, alignment, reached);
    if (id != kNoBlock && (best == kNoBlock || records_[id].bytes < records_[best].bytes)) {
      best = id;
    }
  }
  return best;
}

StreamId Space::stream_to_wait_for(StreamId stream, std::uint64_t bytes,
                                   std::uint64_t alignment) const {
  const std::uint32_t id = find_of_others(Reach{stream, true, true, 0}, bytes, alignment);
  return id == kNoBlock ? kNoStream : lanes_[records_[id].lane]->stream;
}

// ---- giving back ---------------------------------------------------------------------------

std::uint32_t Space::give(std::uint32_t id, const BlockUse* uses, std::size_t count) {
  BlockRecord& record = records_[id];
  if (!record.is_slot()) [[likely]]
    fetch_around(record);
  const bool idle = record.ticket == 0 && (count == 0 || (count == 1 && uses[0].ticket == 0));
  if (idle && lanes_.size() == kHomes) [[likely]] {
    record.generation += 1;
    return put(id, record.home);
  }
  return give_to_lane(id, uses, count);
}

std::uint32_t Space::give_to_lane(std::uint32_t id, const BlockUse* uses, std::size_t count) {
  BlockRecord& record = records_[id];
  const bool captured = is_capturing(record.lane) || is_capture(record.stream);
  const bool simple = count == 1 && !captured && !is_capture(uses[0].stream) &&
                      (record.ticket == 0 || record.stream == uses[0].stream);
  if (!simple) return give_after_all(id, uses, count);
  const Ticket ticket = std::max(record.ticket.get(), uses[0].ticket);
  std::uint32_t lane = record.home;
  if (ticket != 0) {
    lane = make_lane(uses[0].stream);
    record.stream = uses[0].stream;
    record.ticket = ticket;
  }
  record.generation += 1;
  return put(id, lane);
}

/// The same for work of several streams, and for captures.
std::uint32_t Space::give_after_all(std::uint32_t id, const BlockUse* uses, std::size_t count) {
  BlockRecord& record = records_[id];
  // What captured work took or used, the graph will use again.
  std::uint32_t lane = is_capturing(record.lane) ? record.lane.get() : record.home;
  std::vector<BlockUse> open;
  {
    const auto note = [&](BlockUse use) {
      if (is_capture(use.stream)) {
        if (const std::uint32_t own = lane_of(use.stream)) {
          lane = own;
          return;
        }
        use = resolved(use);  // the graph is gone, its last launch may run
      }
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
  }
  if (open.empty()) {
    record.ticket = 0;
  } else if (open.size() == 1 && !is_capturing(lane)) {
    lane = make_lane(open[0].stream);
    record.stream = open[0].stream;
    record.ticket = open[0].ticket;
  } else {
    // Even a capture has the block only when other work is done with it: nothing says that the
    // graph is launched after that.
    waiting_.push_back(
        Waiting{id, is_capturing(lane) ? lanes_[lane]->capture : 0, std::move(open)});
    record.state = BlockState::kWaiting;
    record.generation += 1;
    return kNoBlock;
  }
  record.generation += 1;
  return put(id, lane);
}

/// Both neighbours, and the place that names the block by its address, come at the same time.
void Space::fetch_around(const BlockRecord& record) const noexcept {
  records_.fetch(record.previous);
  records_.fetch(record.next);
  const Segment& segment = segments_[record.segment];
  segment.starts.fetch((record.address - segment.base) >> BlockStarts::kPageBits);
}

/// What taking it out of its bin touches.
void Space::fetch_links(const BlockRecord& record) const noexcept {
  records_.fetch(record.bin_previous);
  records_.fetch(record.bin_next);
}

/// Makes a block free in a lane, merged with its free neighbours there.
std::uint32_t Space::put(std::uint32_t id, std::uint32_t lane) noexcept {
  if (records_[id].is_slot()) [[unlikely]]
    return put_slot(id, lane);
  records_[id].state = BlockState::kFree;
  records_[id].lane = static_cast<std::uint16_t>(lane);
  const auto joins = [&](std::uint32_t other) {
    return other != kNoBlock && records_[other].state == BlockState::kFree &&
           records_[other].lane == lane;
  };
  const std::uint32_t right = records_[id].next;
  const std::uint32_t left = records_[id].previous;
  const bool joins_right = joins(right), joins_left = joins(left);
  if (joins_left) fetch_links(records_[left]);
  if (joins_right) {
    fetch_links(records_[right]);
    records_.fetch(records_[right].next);
    lanes_[lane]->bins.remove(records_, right);
    merge(id, right);
  }
  if (joins_left) {
    lanes_[lane]->bins.remove(records_, left);
    id = merge(left, id);
  }
  const BlockRecord& record = records_[id];
  lanes_[lane]->bins.insert(records_, id);
  if (lane >= kHomes || !fills_segment(record)) return kNoBlock;
  unused_bytes_[lane] += record.bytes;
  return id;
}

std::uint32_t Space::put_slot(std::uint32_t id, std::uint32_t lane) noexcept {
  if (slabs_ == nullptr) return kNoBlock;
  if (!is_capturing(lane)) return slabs_->give(id, nullptr);
  records_[id].state = BlockState::kWaiting;
  slabs_->freeze(id, lanes_[lane]->capture);
  return kNoBlock;
}

std::uint32_t Space::merge(std::uint32_t left, std::uint32_t right) noexcept {
  unindex(right);
  BlockRecord& a = records_[left];
  const BlockRecord& b = records_[right];
  a.bytes += b.bytes;
  a.ticket = std::max(a.ticket.get(), b.ticket.get());
  a.next = b.next;
  if (b.next != kNoBlock) records_[b.next].previous = left;
  records_.release(right);
  return left;
}

// ---- completed work ------------------------------------------------------------------------

std::vector<StreamId> Space::pending_streams() const {
  std::vector<StreamId> streams;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture == 0 && !lanes_[lane]->bins.empty()) {
      streams.push_back(lanes_[lane]->stream);
    }
  }
  for (const Waiting& entry : waiting_) {
    for (const BlockUse& use : entry.uses) {
      if (std::find(streams.begin(), streams.end(), use.stream) == streams.end()) {
        streams.push_back(use.stream);
      }
    }
  }
  if (slabs_ != nullptr) slabs_->list_streams(&streams);
  return streams;
}

Ticket Space::newest_ticket(StreamId stream) const noexcept {
  Ticket newest = 0;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture != 0 || lanes_[lane]->stream != stream) continue;
    lanes_[lane]->bins.for_each(
        records_, [&](std::uint32_t id) { newest = std::max(newest, records_[id].ticket.get()); });
  }
  for (const Waiting& entry : waiting_) {
    for (const BlockUse& use : entry.uses) {
      if (use.stream == stream) newest = std::max(newest, use.ticket);
    }
  }
  return slabs_ == nullptr ? newest : std::max(newest, slabs_->newest_ticket(stream));
}

void Space::complete(StreamId stream, Ticket ticket) noexcept {
  if (slabs_ != nullptr) slabs_->complete(stream, ticket);
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture != 0 || lanes_[lane]->stream != stream) continue;
    Bins& bins = lanes_[lane]->bins;
    bins.for_each(records_, [&](std::uint32_t id) {
      if (records_[id].ticket > ticket) return;
      bins.remove(records_, id);
      records_[id].ticket = 0;
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
    const std::uint32_t frozen =
        waiting_[i].capture != 0 ? lane_of_capture(waiting_[i].capture) : 0;
    if (i + 1 < waiting_.size()) waiting_[i] = std::move(waiting_.back());
    waiting_.pop_back();
    BlockRecord& record = records_[id];
    if (slabs_ != nullptr) {
      // By the generation that the freed handle had.
      Recorder::note_now(RecordedAction::kFreeCompleted, recorded_, record.address,
                         record.requested(), stream, record.account, record.generation - 1);
    }
    record.ticket = 0;
    put(id, frozen != 0 ? frozen : record.home);
  }
}

// ---- captures ------------------------------------------------------------------------------

std::uint32_t Space::lane_of_capture(CaptureId capture) const noexcept {
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture == capture) return lane;
  }
  return 0;
}

void Space::begin_capture(CaptureId capture, StreamId stream) {
  Lane& lane = *lanes_[new_lane()];
  lane.stream = stream;
  lane.capture = capture;
}

void Space::release_capture(CaptureId capture, const BlockUse& use) {
  const std::uint32_t frozen = lane_of_capture(capture);
  if (frozen == 0) return;
  if (slabs_ != nullptr) slabs_->release_capture(capture, use);
  const std::uint32_t after = use.ticket != 0 ? make_lane(use.stream) : 0;
  for (Waiting& entry : waiting_) {
    if (entry.capture != capture) continue;
    if (use.ticket != 0) entry.uses.push_back(use);
    entry.capture = 0;
  }
  for (std::uint32_t id = 1; id < records_.size(); ++id) {
    BlockRecord& record = records_[id];
    if (record.lane != frozen) continue;
    if (record.state == BlockState::kLive) {
      record.lane = record.home;
      record.stream = use.stream;
      record.ticket = use.ticket;
    }
  }
  Bins& bins = lanes_[frozen]->bins;
  lanes_[frozen]->capture = 0;
  lanes_[frozen]->stream = kNoStream;
  bins.for_each(records_, [&](std::uint32_t id) {
    bins.remove(records_, id);
    records_[id].stream = use.stream;
    records_[id].ticket = use.ticket;
    put(id, after != 0 ? after : records_[id].home);
  });
}

void Space::release_captures() {
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (is_capturing(lane)) release_capture(lanes_[lane]->capture, BlockUse{});
  }
}

// ---- segments ------------------------------------------------------------------------------

void Space::add_segment(Segment segment) {
  records_.ensure(1);
  segment.starts = BlockStarts(segment.bytes);
  segment.starts.prefer_large_pages();
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
  record.stream = kNoStream;
  record.ticket = 0;
  record.previous = record.next = kNoBlock;
  record.segment = slot;
  record.home = static_cast<std::uint8_t>(segment.home);
  segment.first = id;
  segment_bytes_[segment.home] += segment.driver_bytes;
  const std::uint32_t home = segment.home;
  const bool is_range = segment.pages != nullptr;
  if (spare_segments_.empty()) {
    segments_.push_back(std::move(segment));
  } else {
    spare_segments_.pop_back();
    segments_[slot] = std::move(segment);
  }
  index(id);
  if (is_range) {
    make_gap(id);
  } else {
    put(id, home);
  }
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

std::uint32_t Space::unused_segment() const noexcept {
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
  const std::uint64_t page = (records_[id].address - segment.base) >> BlockStarts::kPageBits;
  const std::uint32_t first = segment.starts[page];
  if (first == kNoBlock || records_[id].address < records_[first].address) {
    segment.starts.set(page, id);
  }
}

void Space::unindex(std::uint32_t id) noexcept {
  const BlockRecord& record = records_[id];
  Segment& segment = segments_[record.segment];
  const std::uint64_t page = (record.address - segment.base) >> BlockStarts::kPageBits;
  if (segment.starts[page] != id) return;
  const std::uint32_t next = record.next;
  if (next != kNoBlock &&
      (records_[next].address - segment.base) >> BlockStarts::kPageBits == page) {
    segment.starts.set(page, next);
  } else {
    segment.starts.clear(page);
  }
}

std::uint32_t Space::find(DeviceAddress address) const noexcept {
  auto above = by_base_.upper_bound(address);
  if (above == by_base_.begin()) return kNoBlock;
  const Segment& segment = segments_[std::prev(above)->second];
  if (address - segment.base >= segment.bytes) return kNoBlock;
  const std::uint32_t id = holder(segment, address);
  if (records_[id].state == BlockState::kSlab && slabs_ != nullptr) {
    return slabs_->find(id, address);
  }
  return records_[id].state == BlockState::kLive ? id : kNoBlock;
}

/// The block of any state that holds an address of the segment.
std::uint32_t Space::holder(const Segment& segment, DeviceAddress address) const noexcept {
  std::uint64_t page =
      segment.starts.last_up_to((address - segment.base) >> BlockStarts::kPageBits);
  // The first block of the page may start after the address; the one before starts in an earlier
  // page, as the first block of a segment starts at its base.
  if (records_[segment.starts[page]].address > address) page = segment.starts.last_up_to(page - 1);
  std::uint32_t id = segment.starts[page];
  while (records_[id].address + records_[id].bytes <= address) id = records_[id].next;
  return id;
}

// ---- figures -------------------------------------------------------------------------------

std::uint64_t Space::pending_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture == 0) bytes += lanes_[lane]->bins.bytes();
  }
  for (const Waiting& entry : waiting_) bytes += records_[entry.block].bytes;
  return bytes;
}

std::uint64_t Space::pending_bytes_of(StreamId stream) const noexcept {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    const Lane& known = *lanes_[lane];
    if (known.capture == 0 && known.stream == stream) bytes += known.bins.bytes();
  }
  for (const Waiting& entry : waiting_) {
    const bool waits = std::any_of(entry.uses.begin(), entry.uses.end(),
                                   [&](const BlockUse& use) { return use.stream == stream; });
    if (waits) bytes += records_[entry.block].bytes;
  }
  return bytes;
}

std::uint64_t Space::frozen_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = kHomes; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->capture != 0) bytes += lanes_[lane]->bins.bytes();
  }
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

std::uint64_t Space::visited() const noexcept {
  std::uint64_t records = 0;
  for (const auto& lane : lanes_) records += lane->bins.visited();
  return records;
}

}  // namespace nbx
