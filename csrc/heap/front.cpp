// The slow side of the fronts: where they are filled, emptied, recalled and handed on.
#include "heap/front.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>

#include "core/log.h"
#include "heap/state.h"

namespace nbx {
namespace {

constinit char idle_mark = 0;  // the owner of leases whose front no thread holds

/// Hands on what a thread leaves.
struct Leaver {
  ~Leaver() {
    thread_fronts.closed = true;
    thread_fronts.last = nullptr;
    while (Front* front = thread_fronts.all) {
      thread_fronts.all = front->next_of_thread;
      void* const heap = front->heap;
      Front::Holder held = Front::Holder::kThread;
      if (!front->holder.compare_exchange_strong(held, Front::Holder::kEnding)) {
        const std::unique_ptr<Front> orphan(front);
        continue;
      }
      if (heap != nullptr) front->retire(heap, *front);
      front->holder.store(Front::Holder::kNobody, std::memory_order_release);
    }
  }
};

}  // namespace

void hold_front(Front& front) {
  static thread_local Leaver leaver;
  static_cast<void>(&leaver);
  front.next_of_thread = thread_fronts.all;
  thread_fronts.all = thread_fronts.last = &front;
}

Front* find_front_slowly(const void* heap) noexcept {
  Front* found = nullptr;
  for (Front** place = &thread_fronts.all; *place != nullptr;) {
    Front* front = *place;
    if (front->holder.load(std::memory_order_acquire) == Front::Holder::kOrphan) {
      *place = front->next_of_thread;
      if (thread_fronts.last == front) thread_fronts.last = nullptr;
      const std::unique_ptr<Front> orphan(front);
      continue;
    }
    if (front->heap.get() == heap) found = front;
    place = &front->next_of_thread;
  }
  if (found != nullptr) thread_fronts.last = found;
  return found;
}

// ---- sets ----------------------------------------------------------------------------------

Front::Set* Front::find_set(StreamId stream) noexcept {
  const StreamId key = key_of(stream);
  for (const auto& set : sets_) {
    if (set == nullptr || set->stream != key) continue;
    recent_stream_ = stream;
    recent_extent_ = RecordedEvent::extent(0, stream);
    return recent_ = set.get();
  }
  return nullptr;
}

Front::Set* Front::make_set(StreamId stream) noexcept {
  const StreamId key = key_of(stream);
  if (is_capture(key)) return nullptr;
  if (Set* known = set_of(stream)) return known;
  const auto is_empty = [](const Set& set) {
    return std::all_of(set.stacks.begin(), set.stacks.end(),
                       [](const Stack& stack) { return stack.count == 0; }) &&
           std::all_of(set.exact.begin(), set.exact.end(),
                       [](const Exact& exact) { return exact.count == 0; });
  };
  for (auto& set : sets_) {
    if (set == nullptr) {
      set.reset(new (std::nothrow) Set());
      if (set == nullptr) return nullptr;
      slabs_.add(set->share, this);
    } else if (!is_empty(*set)) {
      continue;
    }
    slabs_.disown(set->share);
    recent_stream_ = ~StreamId{0};
    set->stream = key;
    return find_set(stream);
  }
  return nullptr;
}

void Front::fill(Set& set, std::size_t size_class, StreamId stream, bool locked) noexcept {
  Stack& stack = set.stacks[size_class];
  raise(stack, tables_.bytes[size_class]);
  const auto number = static_cast<std::uint32_t>(size_class);
  const std::uint32_t wanted = std::max(stack.limit / 2, 1u);
  const std::uint32_t count = locked
                                  ? slabs_.take(set.share, number, stream, wanted, stack.ids)
                                  : slabs_.take_owned(set.share, number, stream, wanted, stack.ids);
  std::reverse(stack.ids, stack.ids + count);
  stack.count = count;
}

void Front::raise(Stack& stack, std::uint64_t bytes) noexcept {
  const auto most =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bound_ / 32 / bytes, 2, Stack::kPlaces));
  if (bound_ == 0 || stack.limit >= most) return;
  const std::uint32_t more = std::min(std::max(stack.limit, 2u), most - stack.limit);
  if (allotted_ + more * bytes > bound_ && stack.limit != 0) return;
  allotted_ += more * bytes;
  stack.limit += more;
}

std::uint64_t Front::kept_bytes() const noexcept {
  std::uint64_t bytes = exact_bytes_;
  for (const auto& set : sets_) {
    if (set == nullptr) continue;
    for (std::uint32_t size_class = 0; size_class < SlotSize::kCount; ++size_class) {
      bytes += std::uint64_t{set->stacks[size_class].count} * tables_.bytes[size_class];
    }
  }
  return bytes;
}

bool Front::take(StreamId stream, std::uint64_t bytes, Account& account, Block* block) noexcept {
  if (!lease_.gate.enter(&account)) return false;
  std::uint32_t id = kNoBlock;
  const std::uint64_t granted = granted_of(bytes);
  if (Set* set = set_of(stream); set != nullptr && granted <= SlotSize::kLargest) {
    const std::size_t size_class = class_of(bytes);
    Stack& stack = set->stacks[size_class];
    if (stack.count == 0) fill(*set, size_class, stream, false);
    if (stack.count != 0 && lease_.charge(bytes, granted)) id = stack.pop(stack.count);
  } else if (set != nullptr) {
    Exact& exact = exact_of(*set, granted);
    if (exact.bytes == granted && exact.count != 0 && lease_.charge(bytes, granted)) {
      id = pop(exact);
    }
  }
  if (id == kNoBlock) {
    lease_.gate.leave();
    return false;
  }
  BlockRecord& record = records_[id];
  mark(record, bytes, account, 0);
  *block = Block{record.address, granted, id, record.generation};
  const std::uint64_t owner = lease_.recorded;
  lease_.gate.leave();
  return note(RecordedAction::kAllocate, block->address, bytes, owner, block->generation);
}

bool Front::give(const Block& block, Account& account, StreamId stream, Ticket ticket) noexcept {
  if (!lease_.gate.enter(&account)) return false;
  std::uint64_t requested = 0;
  if (records_.holds(block.id)) requested = keep(block.id, block.generation, stream, ticket);
  const std::uint64_t owner = lease_.recorded;
  lease_.gate.leave();
  return requested != 0 &&
         note(RecordedAction::kFree, block.address, requested, owner, block.generation);
}

std::uint64_t Front::keep(std::uint32_t id, std::uint32_t generation, StreamId stream,
                          Ticket ticket) noexcept {
  BlockRecord& record = records_[id];
  const StreamId last = record.stream;
  const bool is_simple = stream == last || (stream == kNoStream && ticket == 0);
  if (record.state != BlockState::kLive || record.generation != generation || !is_simple ||
      record.lane >= kHomes) {
    return 0;
  }
  Set* const set = set_of(last);
  const std::uint64_t requested = record.requested(), bytes = record.bytes;
  if (set == nullptr || bytes > kLargest) return 0;
  if (bytes <= SlotSize::kLargest) {
    Stack* const stack = stack_for(*set, bytes);
    if (stack == nullptr) return 0;
    const auto nowhere = [](std::uint32_t) { return false; };
    if (stack->is_full() && !make_room(*set, *stack, bytes, nowhere)) return 0;
    if (!lease_.refund(requested, granted_of(requested))) return 0;
    stack->push(id, stack->count);
  } else {
    Exact& exact = exact_of(*set, bytes);
    if (exact.bytes != bytes || !has_room(exact) || !lease_.refund(requested, bytes)) return 0;
    if (exact.credit < kMostCredit) ++exact.credit;
    push(exact, id);
  }
  if (ticket > record.ticket) record.ticket = ticket;
  hide(record, record.generation);
  return requested;
}

Front::Set* Front::adopt(BlockRecord& record, const BlockUse& use) noexcept {
  if (record.lane >= kHomes || is_capture(use.stream) || is_capture(record.stream)) return nullptr;
  if (use.ticket != 0) {
    if (use.stream != record.stream && record.ticket != 0) return nullptr;
    record.ticket =
        use.stream == record.stream ? std::max(record.ticket.get(), use.ticket) : use.ticket;
    record.stream = use.stream;
  }
  return make_set(record.stream);
}

// ---- the fronts of a heap ------------------------------------------------------------------

Front* Heap::State::front_for(Account& account) noexcept {
  if (&account.tree_lock() != &lock || thread_fronts.closed) return nullptr;
  if (Front* known = find_front(this)) return known;
  try {
    Front* front = nullptr;
    {
      const std::lock_guard<ShortLock> guard(lock);
      for (front = fronts.load(std::memory_order_relaxed); front != nullptr;
           front = front->next_of_heap) {
        Front::Holder held = Front::Holder::kNobody;
        if (!front->holder.compare_exchange_strong(held, Front::Holder::kThread)) continue;
        front->lease().owner = &thread_mark;
        break;
      }
    }
    if (front == nullptr) front = make_front(account);
    hold_front(*front);
    return front;
  } catch (const std::bad_alloc&) {
    return nullptr;  // the locked path needs none
  }
}

Front* Heap::State::make_front(Account& account) {
  const auto leave = [](void* heap, Front& front) noexcept {
    static_cast<State*>(heap)->retire(front);
  };
  Lease& lease = account.open_lease();
  auto made = std::unique_ptr<Front>(
      new (std::nothrow) Front(this, recorded, leave, space.records(), slabs, host, lease));
  const std::lock_guard<ShortLock> guard(lock);
  if (made == nullptr) {
    Account::close_lease(lease);
    throw std::bad_alloc();
  }
  made->next_of_heap = fronts.load(std::memory_order_relaxed);
  fronts.store(made.get(), std::memory_order_release);
  return made.release();
}

void Heap::State::settle(Front& front) noexcept {
  Lease& lease = front.lease();
  note_live(live + static_cast<std::uint64_t>(lease.most_spent.get()));
  live += static_cast<std::uint64_t>(lease.spent.get());
  live_blocks += static_cast<std::uint64_t>(lease.spent_objects.get());
  lease.spent = lease.most_spent = lease.spent_objects = 0;
}

/// The blocks go back to the heap, the lease to its account.
void Heap::State::empty(Front& front) noexcept {
  front.drain(
      [&](std::uint32_t id, Slabs::Share* share) { static_cast<void>(return_kept(id, share)); });
  Account::fold_locked(front.lease());
  settle(front);
}

void Heap::State::retire(Front& front) noexcept {
  const std::lock_guard<ShortLock> guard(lock);
  empty(front);
  front.disown_slabs();
  front.lease().owner = &idle_mark;
}

void Heap::State::close_fronts() noexcept {
  Front* front = fronts.exchange(nullptr, std::memory_order_acq_rel);
  while (front != nullptr) {
    Front* const next = front->next_of_heap;
    front->heap = nullptr;
    {
      const std::lock_guard<ShortLock> guard(lock);
      Account::close_lease(front->lease());
    }
    Front::Holder held = Front::Holder::kThread;
    if (!front->holder.compare_exchange_strong(held, Front::Holder::kOrphan)) {
      while (front->holder.load(std::memory_order_acquire) != Front::Holder::kNobody) {
        std::this_thread::yield();
      }
      const std::unique_ptr<Front> owner(front);
    }
    front = next;
  }
}

// ---- taking and giving, with the lock held -------------------------------------------------

std::uint32_t Heap::State::take_kept(Front& front, Front::Set& set,
                                     const HeapRequest& request) noexcept {
  const std::uint64_t granted = request.granted;
  const std::uint64_t share = request.account.root().limit() / 256;
  // Larger blocks that lie aside cost a small heap the order of its holes. A front that was made
  // while others are recalled has no bounds until that is over.
  if (recalls == 0) front.set_bounds(std::min(share, held() / 8), std::min(share, held() / 256));
  if (granted <= SlotSize::kLargest) {
    const std::size_t size_class = front.class_of(granted);
    Front::Stack& stack = set.stacks[size_class];
    if (stack.count == 0 && recalls == 0) front.fill(set, size_class, request.stream, true);
    return stack.count != 0 ? stack.pop(stack.count) : kNoBlock;
  }
  Front::Exact& exact = front.exact_of(set, granted);
  if (exact.bytes != granted) {
    forget(front, exact, granted);
    return kNoBlock;
  }
  return exact.count != 0 ? front.pop(exact) : kNoBlock;
}

/// Another size was asked for: a place belongs to the size that comes most often.
void Heap::State::forget(Front& front, Front::Exact& exact, std::uint64_t bytes) noexcept {
  if (exact.credit > 1) {
    --exact.credit;
    return;
  }
  while (exact.count != 0) static_cast<void>(return_kept(front.pop(exact), nullptr));
  exact.bytes = bytes;
  exact.credit = 1;
}

bool Heap::State::keep(Front& front, std::uint32_t id, const BlockUse& use, Surplus* surplus) {
  BlockRecord& record = space.record(id);
  if (recalls != 0 || record.bytes > Front::kLargest) return false;
  Front::Set* set = front.adopt(record, use);
  if (set == nullptr) return false;
  if (record.bytes > SlotSize::kLargest) {
    Front::Exact& exact = front.exact_of(*set, record.bytes);
    if (exact.bytes != record.bytes || !front.has_room(exact)) return false;
    Front::hide(record, record.generation);
    front.push(exact, id);
    return true;
  }
  Front::Stack* stack = front.stack_for(*set, record.bytes);
  if (stack == nullptr) return false;
  const auto leave = [&](std::uint32_t kept) {
    surplus->add(*this, return_kept(kept, &set->share));
    return true;
  };
  if (stack->is_full() && !front.make_room(*set, *stack, record.bytes, leave)) return false;
  Front::hide(record, record.generation);
  stack->push(id, stack->count);
  return true;
}

std::uint32_t Heap::State::return_kept(std::uint32_t id, Slabs::Share* share) noexcept {
  BlockRecord& record = space.record(id);
  if (record.is_slot()) return slabs.give(id, share);
  record.state = BlockState::kLive;
  try {
    return space.give(id, nullptr, 0);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("heap: a free block is kept: ") + error.what());
    return kNoBlock;
  }
}

void Heap::State::Surplus::add(State& heap, std::uint32_t unused) noexcept {
  if (unused == kNoBlock || count == kMost || !heap.surplus(unused)) return;
  const Segment segment = heap.space.remove_segment(unused);
  heap.segment_bytes -= segment.driver_bytes;
  addresses[count++] = segment.driver_address;
  Recorder::note(RecordedAction::kUnmap, heap.recorded, segment.driver_address,
                 segment.driver_bytes, kNoStream, 0, 0);
}

void Heap::State::Surplus::give(State& heap) noexcept {
  while (count != 0) static_cast<void>(heap.give_to_driver(addresses[--count]));
}

// ---- counting, with the lock held ----------------------------------------------------------

Account* Heap::State::admit(Front* front, const HeapRequest& request, bool* charged) noexcept {
  *charged = false;
  if (front == nullptr || request.granted > Front::kLargest || request.bytes == 0) {
    return request.account.reserve_locked(request.bytes, request.granted);
  }
  Lease& lease = front->lease();
  if (lease.account == &request.account && lease.charge(request.bytes, request.granted)) {
    *charged = true;
    return nullptr;
  }
  return request.account.renew_locked(lease, request.bytes, request.granted);
}

void Heap::State::hand_out_from(Front* front, std::uint32_t id, const HeapRequest& request,
                                bool charged) noexcept {
  Front::mark(space.record(id), request.bytes, request.account, request.origin);
  if (charged) return;
  if (front != nullptr) settle(*front);
  count_live(request.granted);
}

/// A request that was admitted, and charged to the lease, goes the slow way: counted in the account
/// alone until it is served.
void Heap::State::uncharge(Front& front, const HeapRequest& request, bool charged) noexcept {
  Account::fold_locked(front.lease());
  settle(front);
  if (!charged) return;
  live -= request.granted;
  --live_blocks;
}

void Heap::State::count_free(Front* front, Account& account, std::uint64_t requested,
                             std::uint64_t granted) noexcept {
  if (front != nullptr) {
    Lease& lease = front->lease();
    if (granted <= Front::kLargest) {
      if (lease.account == &account && lease.refund(requested, granted)) return;
      account.renew_released_locked(lease, requested, granted);
    } else {
      account.release_locked(requested, granted);
    }
    settle(*front);
  } else if (&account.tree_lock() == &lock) {
    account.release_locked(requested, granted);
  }
  live -= granted;
  --live_blocks;
}

Heap::State::Live Heap::State::live_now() const noexcept {
  Live result{live, live_blocks, live};
  for (const Front* front = fronts.load(std::memory_order_acquire); front != nullptr;
       front = front->next_of_heap) {
    result.bytes += static_cast<std::uint64_t>(front->lease().spent_now());
    result.blocks += static_cast<std::uint64_t>(front->lease().objects_now());
    result.peak += static_cast<std::uint64_t>(front->lease().most_spent_now());
  }
  result.peak = is_more(result.peak, peak_live) ? result.peak : peak_live;
  return result;
}

// ---- recall --------------------------------------------------------------------------------

/// Nobody is inside a front from here on; returns what to open again.
Front* Heap::State::shut_fronts() noexcept {
  Front* newest = nullptr;
  {
    const std::lock_guard<ShortLock> guard(lock);
    ++recalls;
    newest = fronts.load(std::memory_order_relaxed);
    for (Front* front = newest; front != nullptr; front = front->next_of_heap) {
      front->lease().gate.close();
    }
  }
  if (newest == nullptr) return newest;
  Gate::barrier();
  for (Front* front = newest; front != nullptr; front = front->next_of_heap) {
    front->lease().gate.wait_empty();
  }
  return newest;
}

Heap::State::Recall::Recall(State& heap) noexcept : heap_(heap), fronts_(heap.shut_fronts()) {
  const std::lock_guard<ShortLock> guard(heap.lock);
  heap.slabs.open_shares();
  heap.slabs.fold();
}

void Heap::State::Recall::drain() const noexcept {
  const std::lock_guard<ShortLock> guard(heap_.lock);
  for (Front* front = fronts_; front != nullptr; front = front->next_of_heap) heap_.empty(*front);
  heap_.slabs.fold();
}

Heap::State::Recall::~Recall() {
  const std::lock_guard<ShortLock> guard(heap_.lock);
  --heap_.recalls;
  heap_.slabs.close_shares();
  for (Front* front = fronts_; front != nullptr; front = front->next_of_heap) {
    front->lease().gate.open();
  }
}

std::uint64_t Heap::State::kept_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const Front* front = fronts.load(std::memory_order_acquire); front != nullptr;
       front = front->next_of_heap) {
    bytes += front->kept_bytes();
  }
  return bytes;
}

// ---- forks ---------------------------------------------------------------------------------

void Heap::State::open_fronts_after_fork(bool child, Front* shut) noexcept {
  --recalls;
  for (Front* front = shut; front != nullptr; front = front->next_of_heap) {
    if (!child) {
      front->lease().gate.open();
      continue;
    }
    // Threads are gone, with what they kept and whatever they had closed.
    front->lease().gate.reset();
    if (front->lease().owner == &thread_mark) continue;
    empty(*front);
    front->disown_slabs();
    front->lease().owner = &idle_mark;
    front->holder.store(Front::Holder::kNobody, std::memory_order_relaxed);
  }
  if (!child) return;
  recalls = 0;
  slabs.reset_shares();
}

}  // namespace nbx
