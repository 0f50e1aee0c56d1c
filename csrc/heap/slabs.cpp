#include "heap/slabs.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/log.h"
#include "heap/space.h"

namespace nbx {

Slabs::Slabs(Space& space) : space_(space), records_(space.records()) {}

// ---- lists of slabs with free slots --------------------------------------------------------

void Slabs::link(std::uint32_t number, bool first) noexcept {
  Slab& slab = slabs_[number];
  List& list = lists_[slab.size_class];
  slab.previous = first ? 0 : list.last;
  slab.next = first ? list.first : 0;
  (slab.previous != 0 ? slabs_[slab.previous].next : list.first) = number;
  (slab.next != 0 ? slabs_[slab.next].previous : list.last) = number;
}

void Slabs::unlink(std::uint32_t number) noexcept {
  const Slab& slab = slabs_[number];
  List& list = lists_[slab.size_class];
  (slab.previous != 0 ? slabs_[slab.previous].next : list.first) = slab.next;
  (slab.next != 0 ? slabs_[slab.next].previous : list.last) = slab.previous;
}

// ---- taking --------------------------------------------------------------------------------

std::uint32_t Slabs::find_slab(std::uint32_t size_class, StreamId stream) const noexcept {
  std::uint32_t idle = 0;
  int looked = 0;
  for (std::uint32_t number = lists_[size_class].first; number != 0 && looked < kLooked;
       number = slabs_[number].next, ++looked) {
    if (slabs_[number].stream == stream) return number;
    if (idle == 0 && slabs_[number].newest == 0) idle = number;
  }
  return idle;
}

std::uint32_t Slabs::take(std::uint32_t size_class, StreamId stream, std::uint32_t count,
                          std::uint32_t* ids) noexcept {
  std::uint32_t taken = 0;
  while (taken < count) {
    std::uint32_t number = find_slab(size_class, stream);
    if (number == 0 && taken == 0) number = make_slab(size_class, stream);
    if (number == 0) break;
    Slab& slab = slabs_[number];
    if (is_empty(slab)) {
      --empties_[size_class];
      --empty_;
    }
    while (taken < count && slab.free != 0) ids[taken++] = pop(slab, stream);
    if (slab.free == 0) unlink(number);
  }
  return taken;
}

std::uint32_t Slabs::pop(Slab& slab, StreamId stream) noexcept {
  const std::uint32_t id = slab.first_free;
  BlockRecord& slot = records_[id];
  slab.first_free = slot.bin_next;
  --slab.free;
  slab.stream = stream;
  if (slab.newest == 0) slot.ticket = 0;
  slot.stream = stream;
  return id;
}

std::uint32_t Slabs::make_slab(std::uint32_t size_class, StreamId stream) noexcept {
  // One block of a size says nothing of more to come.
  if (misses_[size_class] < kHeapFirst) {
    ++misses_[size_class];
    return 0;
  }
  const std::uint64_t slot_bytes = SlotSize::granules(size_class) * space_.granule();
  const auto most =
      static_cast<std::uint32_t>(std::max(kSlabBytes / slot_bytes, std::uint64_t{kLeastSlots}));
  const std::uint32_t slots = std::min(most, std::max(kFewSlots, wanted_[size_class]));
  std::uint32_t number = 0;
  try {
    records_.ensure(slots + 2);
    strays_.reserve(slot_count_ + slots);
    frozen_.reserve(slot_count_ + slots);
    spare_.reserve(slabs_.size() + 1);
    auto ids = std::make_unique<std::uint32_t[]>(slots);
    if (spare_.empty()) {
      slabs_.emplace_back();
      spare_.push_back(static_cast<std::uint32_t>(slabs_.size() - 1));
    }
    number = spare_.back();
    slabs_[number].ids = std::move(ids);
  } catch (const std::exception&) {
    return 0;
  }
  const std::uint32_t block =
      space_.take(Space::kSharedHome, stream, slots * slot_bytes, space_.granule());
  if (block == kNoBlock) return 0;
  spare_.pop_back();
  wanted_[size_class] = slots * 2;
  Slab& slab = slabs_[number];
  slab.block = block;
  slab.size_class = size_class;
  slab.stream = stream;
  slab.newest = records_[block].ticket;
  slab.slots = slab.free = slots;
  cut(number);
  return number;
}

/// Makes the records of the slots, lowest address first.
void Slabs::cut(std::uint32_t number) noexcept {
  Slab& slab = slabs_[number];
  BlockRecord& block = records_[slab.block];
  const std::uint64_t bytes = block.bytes / slab.slots;
  block.state = BlockState::kSlab;
  block.bin_next = number;
  block.ticket = 0;  // the slots have it from here on
  slab.first_free = kNoBlock;
  for (std::uint32_t place = slab.slots; place-- > 0;) {
    const std::uint32_t id = records_.acquire();
    BlockRecord& slot = records_[id];
    slot.address = block.address + place * bytes;
    slot.bytes = bytes;
    slot.stream = slab.stream;
    slot.ticket = slab.newest;
    slot.set_slot(number, slab.size_class);
    slot.segment = block.segment;
    slot.lane = block.home;
    slot.home = block.home;
    slot.bin_next = slab.first_free;
    slot.state = BlockState::kCached;
    slab.first_free = id;
    slab.ids[place] = id;
  }
  slot_count_ += slab.slots;
  ++empties_[slab.size_class];
  ++empty_;
  link(number, true);
}

// ---- giving back ---------------------------------------------------------------------------

std::uint32_t Slabs::give(std::uint32_t id) noexcept {
  BlockRecord& slot = records_[id];
  const std::uint32_t number = slot.slab();
  Slab& slab = slabs_[number];
  if (slot.ticket != 0) {
    if (slot.stream != slab.stream && slab.newest != 0) {
      slot.state = BlockState::kWaiting;
      strays_.push_back(id);
      return kNoBlock;
    }
    slab.stream = slot.stream;
    slab.newest = std::max(slab.newest, slot.ticket.get());
  }
  slot.state = BlockState::kCached;
  slot.bin_next = slab.first_free;
  slab.first_free = id;
  if (slab.free++ == 0) link(number, true);
  if (!is_empty(slab)) return kNoBlock;
  ++empties_[slab.size_class];
  ++empty_;
  // One empty slab a class is kept: what comes and goes around it costs nothing.
  if (empties_[slab.size_class] > 1) return give_up(number);
  unlink(number);
  link(number, false);
  return kNoBlock;
}

std::uint32_t Slabs::give_up(std::uint32_t number) noexcept {
  Slab& slab = slabs_[number];
  BlockRecord& block = records_[slab.block];
  const BlockUse use{slab.stream, slab.newest};
  std::uint32_t unused = kNoBlock;
  block.state = BlockState::kLive;
  try {
    unused = space_.give(slab.block, &use, use.ticket != 0 ? 1 : 0);
  } catch (const std::exception& error) {
    block.state = BlockState::kSlab;
    log(LogLevel::kError, std::string("slab: it is kept: ") + error.what());
    return kNoBlock;
  }
  unlink(number);
  for (std::uint32_t place = 0; place < slab.slots; ++place) records_.release(slab.ids[place]);
  --empties_[slab.size_class];
  --empty_;
  slot_count_ -= slab.slots;
  slab = Slab{};
  spare_.push_back(number);
  return unused;
}

void Slabs::release_capture(StreamId capture, const BlockUse& use) noexcept {
  for (std::size_t i = 0; i < frozen_.size();) {
    const Frozen entry = frozen_[i];
    if (entry.capture != capture) {
      ++i;
      continue;
    }
    frozen_[i] = frozen_.back();
    frozen_.pop_back();
    records_[entry.id].stream = use.stream;
    records_[entry.id].ticket = use.ticket;
    static_cast<void>(give(entry.id));
  }
}

// ---- completed work ------------------------------------------------------------------------

void Slabs::list_streams(std::vector<StreamId>* streams) const {
  const auto add = [&](StreamId stream) {
    if (std::find(streams->begin(), streams->end(), stream) == streams->end()) {
      streams->push_back(stream);
    }
  };
  for (const Slab& slab : slabs_) {
    if (slab.free != 0 && slab.newest != 0) add(slab.stream);
  }
  for (const std::uint32_t id : strays_) add(records_[id].stream);
}

Ticket Slabs::newest_ticket(StreamId stream) const noexcept {
  Ticket newest = 0;
  for (const Slab& slab : slabs_) {
    if (slab.stream == stream) newest = std::max(newest, slab.newest);
  }
  for (const std::uint32_t id : strays_) {
    if (records_[id].stream == stream) newest = std::max(newest, records_[id].ticket.get());
  }
  return newest;
}

void Slabs::complete(StreamId stream, Ticket ticket) noexcept {
  for (Slab& slab : slabs_) {
    if (slab.stream == stream && slab.newest <= ticket) slab.newest = 0;
  }
  for (std::size_t i = 0; i < strays_.size();) {
    const std::uint32_t id = strays_[i];
    BlockRecord& slot = records_[id];
    if (slot.stream != stream || slot.ticket > ticket) {
      ++i;
      continue;
    }
    strays_[i] = strays_.back();
    strays_.pop_back();
    slot.ticket = 0;
    static_cast<void>(give(id));
  }
}

std::uint32_t Slabs::find(std::uint32_t block, DeviceAddress address) const noexcept {
  const std::uint32_t number = records_[block].bin_next;
  const Slab& slab = slabs_[number];
  const std::uint64_t bytes = records_[block].bytes / slab.slots;
  const std::uint32_t id = slab.ids[(address - records_[block].address) / bytes];
  return records_[id].state == BlockState::kLive ? id : kNoBlock;
}

}  // namespace nbx
