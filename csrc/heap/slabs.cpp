#include "heap/slabs.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/log.h"
#include "heap/space.h"

namespace nbx {

namespace {

/// So that growing to `count` allocates nothing, and that growing step by step is cheap.
template <class T>
void reserve_for(std::vector<T>* values, std::size_t count) {
  if (values->capacity() < count) values->reserve(std::max(count, 2 * values->capacity()));
}

}  // namespace

Slabs::Slabs(Space& space) : space_(space), records_(space.records()) {
  static_cast<void>(slabs_.emplace_back());
}

// ---- lists of slabs ------------------------------------------------------------------------

template <Slabs::Links Slabs::Slab::* kLinks>
void Slabs::link(List& list, std::uint32_t number, bool first) noexcept {
  Links& links = slabs_[number].*kLinks;
  links.previous = first ? 0 : list.last;
  links.next = first ? list.first : 0;
  (links.previous != 0 ? (slabs_[links.previous].*kLinks).next : list.first) = number;
  (links.next != 0 ? (slabs_[links.next].*kLinks).previous : list.last) = number;
}

template <Slabs::Links Slabs::Slab::* kLinks>
void Slabs::unlink(List& list, std::uint32_t number) noexcept {
  const Links& links = slabs_[number].*kLinks;
  (links.previous != 0 ? (slabs_[links.previous].*kLinks).next : list.first) = links.next;
  (links.next != 0 ? (slabs_[links.next].*kLinks).previous : list.last) = links.previous;
}

template <class Visit>
bool Slabs::visit_lists(const Visit& visit) const noexcept {
  if (visit(lists_)) return true;
  if (opened_ == 0) return false;
  for (const Share* share = shares_; share != nullptr; share = share->next) {
    if (visit(share->lists)) return true;
  }
  return false;
}

template <class Visit>
void Slabs::for_each(const Visit& visit) const noexcept {
  static_cast<void>(visit_lists([&](const Lists& lists) {
    for (const List& list : lists) {
      for (std::uint32_t number = list.first; number != 0; number = slabs_[number].place.next) {
        visit(number);
      }
    }
    return false;
  }));
}

// ---- shares --------------------------------------------------------------------------------

/// The slab has free slots and is nobody's.
void Slabs::adopt(std::uint32_t number, Share& share) noexcept {
  Slab& slab = slabs_[number];
  unlink<&Slab::place>(lists_[slab.size_class], number);
  slab.owner = &share;
  link<&Slab::owned>(share.owned, number, true);
  link<&Slab::place>(share.lists[slab.size_class], number, !is_empty(slab));
}

/// Where all slots were given back by others, the lists of the share are not touched.
void Slabs::disown(std::uint32_t number) noexcept {
  Slab& slab = slabs_[number];
  Share& share = *slab.owner;
  if (slab.free != 0) unlink<&Slab::place>(share.lists[slab.size_class], number);
  unlink<&Slab::owned>(share.owned, number);
  if (slab.returned_slots != 0) unlink<&Slab::returned>(share.returned, number);
  slab.owner = nullptr;
  if (slab.free != 0) link<&Slab::place>(lists_[slab.size_class], number, !is_empty(slab));
  collect(number);
}

void Slabs::add(Share& share, const void* thread) noexcept {
  share.thread = thread;
  share.next = shares_;
  shares_ = &share;
}

void Slabs::disown(Share& share) noexcept {
  while (share.owned.first != 0) disown(share.owned.first);
}

void Slabs::open_shares() noexcept {
  ++opened_;
  for (Share* share = shares_; share != nullptr; share = share->next) collect(*share);
}

/// Somebody else gives a slot back.
void Slabs::give_later(std::uint32_t number, std::uint32_t id) noexcept {
  Slab& slab = slabs_[number];
  BlockRecord& slot = records_[id];
  slot.state = BlockState::kCached;
  slot.bin_next = slab.first_returned;
  slab.first_returned = id;
  slab.newest_returned = std::max(slab.newest_returned, slot.ticket.get());
  if (slab.returned_slots++ == 0) link<&Slab::returned>(slab.owner.get()->returned, number, true);
}

/// What others gave back becomes free.
void Slabs::collect(std::uint32_t number) noexcept {
  Slab& slab = slabs_[number];
  for (std::uint32_t id = slab.first_returned; id != kNoBlock;) {
    const std::uint32_t next = records_[id].bin_next;
    push(list_of(slab), number, id);
    id = next;
  }
  slab.newest = std::max(slab.newest, slab.newest_returned);
  slab.first_returned = kNoBlock;
  slab.newest_returned = 0;
  slab.returned_slots = 0;
}

void Slabs::collect(Share& share) noexcept {
  while (share.returned.first != 0) {
    const std::uint32_t number = share.returned.first;
    unlink<&Slab::returned>(share.returned, number);
    collect(number);
  }
}

// ---- taking --------------------------------------------------------------------------------

/// A slab of the list whose free slots the stream can have at once; 0 if there is none.
std::uint32_t Slabs::find_slab(const List& list, StreamId stream) const noexcept {
  std::uint32_t idle = 0;
  int looked = 0;
  for (std::uint32_t number = list.first; number != 0 && looked < kLooked;
       number = slabs_[number].place.next, ++looked) {
    if (slabs_[number].stream == stream) return number;
    if (idle == 0 && slabs_[number].newest == 0) idle = number;
  }
  return idle;
}

/// A slab that is nobody's, if need be one of the thread's for another stream.
std::uint32_t Slabs::find_for(const Share& share, std::uint32_t size_class,
                              StreamId stream) noexcept {
  std::uint32_t number = find_slab(lists_[size_class], stream);
  for (const Share* other = shares_; number == 0 && other != nullptr; other = other->next) {
    if (other == &share || other->thread != share.thread) continue;
    number = find_slab(other->lists[size_class], stream);
    if (number != 0) disown(number);
  }
  return number;
}

std::uint32_t Slabs::take_owned(Share& share, std::uint32_t size_class, StreamId stream,
                                std::uint32_t count, std::uint32_t* ids) noexcept {
  List& list = share.lists[size_class];
  std::uint32_t taken = 0;
  while (taken < count && list.first != 0) {
    Slab& slab = slabs_[list.first];
    while (taken < count && slab.free != 0) ids[taken++] = pop(slab, stream);
    if (slab.free == 0) unlink<&Slab::place>(list, list.first);
  }
  return taken;
}

std::uint32_t Slabs::take(Share& share, std::uint32_t size_class, StreamId stream,
                          std::uint32_t count, std::uint32_t* ids) noexcept {
  std::uint32_t taken = 0;
  while ((taken += take_owned(share, size_class, stream, count - taken, ids + taken)) < count) {
    if (share.returned.first != 0) {
      collect(share);
      continue;
    }
    std::uint32_t number = find_for(share, size_class, stream);
    if (number == 0 && taken == 0) number = make_slab(size_class, stream);
    if (number == 0) break;
    adopt(number, share);
  }
  return taken;
}

std::uint32_t Slabs::take_open(std::uint32_t size_class, StreamId stream) noexcept {
  std::uint32_t number = 0;
  static_cast<void>(visit_lists([&](const Lists& lists) {
    number = find_slab(lists[size_class], stream);
    return number != 0;
  }));
  if (number == 0) return kNoBlock;
  Slab& slab = slabs_[number];
  // Whoever asks has the others of it next, and a share's slabs serve its stream alone.
  if (slab.owner != nullptr) disown(number);
  const std::uint32_t id = pop(slab, stream);
  if (slab.free == 0) unlink<&Slab::place>(list_of(slab), number);
  return id;
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
  // Where holes are short a smaller one serves as well.
  std::uint32_t slots = std::min(most, std::max(kFewSlots, wanted_[size_class]));
  for (int tries = 0; tries < kHalvings && slots > 1; ++tries, slots /= 2) {
    const std::uint32_t number = make_slab_of(slots, size_class, stream);
    if (number != 0) return number;
  }
  return 0;
}

std::uint32_t Slabs::make_slab_of(std::uint32_t slots, std::uint32_t size_class,
                                  StreamId stream) noexcept {
  const std::uint64_t bytes = slots * SlotSize::granules(size_class) * space_.granule();
  std::uint32_t& spare = spare_[run_bits(slots)];
  try {
    reserve_for(&strays_, slot_count_ + slots);
    reserve_for(&frozen_, slot_count_ + slots);
    if (spare == 0) make_spare(run_bits(slots));
    records_.ensure(2);  // for the block
  } catch (const std::bad_alloc&) {
    return 0;
  }
  const std::uint32_t block = space_.take(Space::kSharedHome, stream, bytes, space_.granule());
  if (block == kNoBlock) return 0;
  const std::uint32_t number = spare;
  spare = slabs_[number].place.next;
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

/// A slab without a block, and the records of as many slots as it may ever have.
void Slabs::make_spare(std::size_t bits) {
  records_.ensure_run(1u << bits);
  slabs_.emplace_back().first_id = records_.acquire_run(1u << bits);
  spare_[bits] = static_cast<std::uint32_t>(slabs_.size() - 1);
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
    const std::uint32_t id = slab.first_id + place;
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
  }
  slot_count_ += slab.slots;
  link<&Slab::place>(lists_[slab.size_class], number, true);
}

// ---- giving back ---------------------------------------------------------------------------

void Slabs::push(List& list, std::uint32_t number, std::uint32_t id) noexcept {
  Slab& slab = slabs_[number];
  BlockRecord& slot = records_[id];
  slot.state = BlockState::kCached;
  slot.bin_next = slab.first_free;
  slab.first_free = id;
  if (slab.free++ == 0) {
    link<&Slab::place>(list, number, true);
  } else if (is_empty(slab)) {
    unlink<&Slab::place>(list, number);
    link<&Slab::place>(list, number, false);
  }
}

bool Slabs::give_owned(Share& share, std::uint32_t id) noexcept {
  const BlockRecord& slot = records_[id];
  if (!slot.is_slot()) return false;
  const std::uint32_t number = slot.slab();
  Slab& slab = slabs_[number];
  if (slab.owner != &share) return false;
  List& list = share.lists[slab.size_class];
  // One empty slab a class is kept: what comes and goes around it costs nothing.
  if (slab.free + 1 == slab.slots && ends_empty(list)) return false;
  if (slot.ticket != 0) {
    if (slot.stream != slab.stream) return false;
    slab.newest = std::max(slab.newest, slot.ticket.get());
  }
  push(list, number, id);
  return true;
}

std::uint32_t Slabs::give(std::uint32_t id, Share* share) noexcept {
  BlockRecord& slot = records_[id];
  const std::uint32_t number = slot.slab();
  Slab& slab = slabs_[number];
  Share* const owner = slab.owner;
  const bool reachable = owner == nullptr || owner == share || opened_ != 0;
  if (slot.ticket != 0 && slot.stream != slab.stream) {
    if (owner != nullptr || slab.newest != 0) {
      slot.state = BlockState::kWaiting;
      strays_.push_back(id);
      return kNoBlock;
    }
    slab.stream = slot.stream;
  }
  if (!reachable) {
    give_later(number, id);
    if (slab.returned_slots != slab.slots) return kNoBlock;
    disown(number);  // its thread has nothing of it in hand
  } else {
    slab.newest = std::max(slab.newest, slot.ticket.get());
    push(list_of(slab), number, id);
  }
  const std::uint32_t before = slab.place.previous;
  return is_empty(slab) && before != 0 && is_empty(slabs_[before]) ? give_up(number) : kNoBlock;
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
  unlink<&Slab::place>(list_of(slab), number);
  if (Share* owner = slab.owner; owner != nullptr) unlink<&Slab::owned>(owner->owned, number);
  for (std::uint32_t place = 0; place < slab.slots; ++place) records_.retire(slab.first_id + place);
  slot_count_ -= slab.slots;
  std::uint32_t& spare = spare_[run_bits(slab.slots)];
  const std::uint32_t first_id = slab.first_id;
  slab = Slab{};
  slab.first_id = first_id;
  slab.place.next = spare;
  spare = number;
  return unused;
}

bool Slabs::fold_in(const Lists& lists) noexcept {
  bool any = false;
  for (const List& list : lists) {
    for (std::uint32_t number = list.last; number != 0 && is_empty(slabs_[number]); any = true) {
      const std::uint32_t before = slabs_[number].place.previous;
      static_cast<void>(give_up(number));
      number = before;
    }
  }
  return any;
}

bool Slabs::fold(Share& share) noexcept {
  const bool own = fold_in(share.lists);
  return fold_in(lists_) || own;
}

void Slabs::fold() noexcept {
  static_cast<void>(visit_lists([&](const Lists& lists) {
    static_cast<void>(fold_in(lists));
    return false;
  }));
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
    static_cast<void>(give(entry.id, nullptr));
  }
}

// ---- completed work ------------------------------------------------------------------------

void Slabs::list_streams(std::vector<StreamId>* streams) const {
  const auto add = [&](StreamId stream) {
    if (std::find(streams->begin(), streams->end(), stream) == streams->end()) {
      streams->push_back(stream);
    }
  };
  for_each([&](std::uint32_t number) {
    if (slabs_[number].newest != 0) add(slabs_[number].stream);
  });
  for (const std::uint32_t id : strays_) add(records_[id].stream);
}

Ticket Slabs::newest_ticket(StreamId stream) const noexcept {
  Ticket newest = 0;
  for_each([&](std::uint32_t number) {
    if (slabs_[number].stream == stream) newest = std::max(newest, slabs_[number].newest);
  });
  for (const std::uint32_t id : strays_) {
    if (records_[id].stream == stream) newest = std::max(newest, records_[id].ticket.get());
  }
  return newest;
}

void Slabs::complete(StreamId stream, Ticket ticket) noexcept {
  for_each([&](std::uint32_t number) {
    Slab& slab = slabs_[number];
    if (slab.stream == stream && slab.newest <= ticket) slab.newest = 0;
  });
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
    static_cast<void>(give(id, nullptr));
  }
}

std::uint32_t Slabs::find(std::uint32_t block, DeviceAddress address) const noexcept {
  const std::uint32_t number = records_[block].bin_next;
  const Slab& slab = slabs_[number];
  const std::uint64_t bytes = records_[block].bytes / slab.slots;
  const auto place = static_cast<std::uint32_t>((address - records_[block].address) / bytes);
  const std::uint32_t id = slab.first_id + place;
  return records_[id].state == BlockState::kLive ? id : kNoBlock;
}

}  // namespace nbx
