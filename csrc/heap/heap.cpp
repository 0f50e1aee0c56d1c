#include "heap/heap.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "account/recorder.h"
#include "core/error.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "heap/state.h"

namespace nbx {
namespace {

void check_alignment(std::uint64_t alignment) {
  if (alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= kMaximumAlignment) {
    return;
  }
  throw Error(ErrorKind::kValue, "allocate: alignment is " + std::to_string(alignment) +
                                     "; give a power of two up to " +
                                     std::to_string(kMaximumAlignment));
}

}  // namespace

Heap::State::State(Device& opened, ShortLock* shared, bool virtual_memory)
    : device(opened),
      primitives(opened.primitives()),
      host(opened.properties().integrated_work),
      space(host ? kHostGranuleBits : kDeviceGranuleBits),
      pages(virtual_memory && Pages::supported(opened) ? std::make_unique<Pages>(opened) : nullptr),
      lock(shared != nullptr ? *shared : own_lock) {
  recorded = Recorder::open_heap(opened.name());
  space.attach(slabs, recorded);
}

Heap::State::~State() { Recorder::close_heap(recorded); }

Heap::Heap(Device& device, ShortLock* lock, bool virtual_memory)
    : state_(std::make_unique<State>(device, lock, virtual_memory)) {}

Heap::~Heap() {
  // Blocks that are still live keep their segments: somebody may still read them.
  try {
    // While all is recalled, slabs whose last slots were waited for go back as well.
    const State::Recall recall(*state_);
    recall.drain();
    static_cast<void>(state_->wait_for_pending());
    state_->release_unused(0);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, std::string("heap: ") + error.what());
  }
  state_->close_fronts();
}

bool Heap::take_quickly(Block* block, std::uint64_t bytes, StreamId stream,
                        Account& account) noexcept {
  Front* const front = thread_fronts.last;
  return front != nullptr && front->heap.get() == state_.get() && !Recorder::captures_origins() &&
         front->take_quickly(stream, bytes, account, block);
}

bool Heap::give_quickly(const Block& block, Account& account, StreamId stream,
                        Ticket ticket) noexcept {
  Front* const front = thread_fronts.last;
  return front != nullptr && front->heap.get() == state_.get() && !Recorder::captures_origins() &&
         front->give_quickly(block, account, stream, ticket);
}

void Heap::allocate_slowly(Block* block, std::uint64_t bytes, std::uint64_t alignment,
                           Stream& stream, Account& account, Lifetime lifetime) {
  State& s = *state_;
  const std::uint32_t origin = Recorder::origin();
  const StreamId name = stream.id();
  Front* const front = find_front(&s);
  if (front != nullptr && origin == 0 && front->serves(bytes, alignment, lifetime) &&
      front->take(name, bytes, account, block)) {
    return;
  }
  check_alignment(alignment);
  const std::uint32_t counted = account.id();  // the account may end when it is refused
  HeapRequest request{bytes, bytes, alignment, name, account, lifetime, origin};
  try {
    if (bytes > kMaximumBytes) throw refusal(s.figures(request));
    request.granted = round_up(bytes, s.space.granule());
    *block = allocate_asking(request);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kOutOfMemory) {
      Recorder::note_now(RecordedAction::kRefuse, s.recorded, 0, bytes, name, counted, 0, origin);
    }
    throw;
  }
  Recorder::note(RecordedAction::kAllocate, s.recorded, block->address, bytes, name, counted,
                 block->generation, origin);
  if (account.has_crossings()) [[unlikely]]
    relieve(account);
}

Block Heap::allocate_locked(const HeapRequest& request) {
  State& s = *state_;
  Account& account = request.account;
  const bool shared = &account.tree_lock() == &s.lock;
  Front* const front = s.front_for(account);
  Account* refused = shared ? nullptr : account.reserve(request.bytes, request.granted);
  if (refused == nullptr) {
    bool charged = false;
    const std::lock_guard<ShortLock> guard(s.lock);
    Front::Set* set = nullptr;
    if (front != nullptr && front->serves(request.bytes, request.alignment, request.lifetime)) {
      set = front->make_set(request.stream);
    }
    if (shared) refused = s.admit(front, request, &charged);
    if (refused == nullptr) {
      if (request.bytes == 0) return Block{};
      const std::uint32_t id = s.take_quickly(front, set, request);
      if (id != kNoBlock) [[likely]] {
        s.hand_out_from(front, id, request, charged);
        return s.block_of(id);
      }
      if (front != nullptr) s.uncharge(*front, request, charged);
    }
  }
  return allocate_growing(request, refused);
}

/// What is free at once does not serve the request, or `refused` does not admit it.
Block Heap::allocate_growing(const HeapRequest& request, Account* refused) {
  State& s = *state_;
  const BlockingScope scope;
  // Reclaimers may set another tag, which lets go of this one's account.
  const AccountHold held(request.account);
  std::unique_lock<GrowthLock> growing(s.growth, std::defer_lock);
  try {
    growing.lock();
  } catch (...) {
    if (refused == nullptr) request.account.release(request.bytes, request.granted);
    throw;
  }
  if (refused != nullptr) {
    const auto admitted = [&] {
      refused = request.account.reserve(request.bytes, request.granted);
      return refused == nullptr;
    };
    if (!admitted() && !s.reclaim(request.granted, admitted)) {
      throw s.over_budget(request, *refused);
    }
    if (request.bytes == 0) return Block{};
  }
  try {
    const std::uint32_t id = s.serve(request);
    if (id == kNoBlock) throw refusal(s.figures(request));
    const std::lock_guard<ShortLock> guard(s.lock);
    return s.block_of(id);
  } catch (...) {
    request.account.release(request.bytes, request.granted);
    throw;
  }
}

void Heap::allocate_many(const BlockRequest* requests, std::size_t count, Stream& stream,
                         Account& account, Block* blocks) {
  std::size_t made = 0;
  try {
    for (; made < count; ++made) {
      const BlockRequest& request = requests[made];
      blocks[made] = allocate(request.bytes, request.alignment, stream, account, request.lifetime);
    }
  } catch (...) {
    while (made-- > 0) {
      free(blocks[made], requests[made].bytes, account, stream.id(), 0);
      blocks[made] = Block{};
    }
    throw;
  }
}

void Heap::free_slowly(const Block& block, std::uint64_t requested, Account& account,
                       StreamId stream, Ticket ticket) noexcept {
  Front* const front = find_front(state_.get());
  if (front != nullptr && !Recorder::captures_origins() &&
      front->give(block, account, stream, ticket)) {
    return;
  }
  const BlockUse use{stream, ticket};
  free_after(block, requested, account, &use, 1);
}

void Heap::free_after(const Block& block, std::uint64_t requested, Account& account,
                      const BlockUse* uses, std::size_t count) noexcept {
  State& s = *state_;
  const std::uint32_t counted = account.id();  // the account may end with the block
  if (block.id == kNoBlock) {
    account.release(requested, 0);
    return;
  }
  Front* const front = s.front_for(account);
  State::Surplus surplus;
  const bool shared = &account.tree_lock() == &s.lock;
  std::uint64_t granted = 0;
  try {
    const std::lock_guard<ShortLock> guard(s.lock);
    if (s.space.is_live(block.id, block.generation)) [[likely]] {
      const BlockRecord& record = s.space.record(block.id);
      granted = s.granted_of(record);
      const std::uint64_t asked = record.requested();
      const BlockUse last = count != 0 ? uses[0] : BlockUse{};
      if (front == nullptr || count > 1 || !s.keep(*front, block.id, last, &surplus)) {
        surplus.add(s, s.space.give(block.id, uses, count));
      }
      s.count_free(front, account, asked, granted);
      if (!shared) requested = asked;
    }
  } catch (const std::exception& error) {
    // The block stays live: nobody can have it, and nothing that uses it is hurt.
    log(LogLevel::kError, std::string("free: the block is kept: ") + error.what());
    return;
  }
  if (granted == 0) {
    if (s.free_asleep(block, requested, uses, count)) return;
    log(LogLevel::kError, "free: block " + std::to_string(block.id) + " of " + s.device.name() +
                              " is not live: it was freed before, or is of another heap");
    return;
  }
  if (!shared) account.release(requested, granted);
  surplus.give(s);
  Recorder::note(count > 1 ? RecordedAction::kFreePending : RecordedAction::kFree, s.recorded,
                 block.address, requested, count != 0 ? uses[0].stream : kNoStream, counted,
                 block.generation, Recorder::origin());
}

void Heap::require_live(const Block& block) const {
  const std::lock_guard<ShortLock> guard(state_->lock);
  if (state_->space.is_live(block.id, block.generation) &&
      state_->space.record(block.id).address == block.address) {
    return;
  }
  throw Error(ErrorKind::kValue, "block: id " + std::to_string(block.id) + ", generation " +
                                     std::to_string(block.generation) + " is not live on " +
                                     state_->device.name() +
                                     ": it was freed, or is of another heap");
}

Error Heap::over_budget(std::uint64_t bytes, Account& refused) const {
  return state_->over_budget(HeapRequest{bytes, bytes, 1, kNoStream, refused}, refused);
}

// ---- captures, reclaimers, options ---------------------------------------------------------

std::uint32_t Heap::begin_capture(Stream& stream) {
  const StreamId capture = begin_stream_capture(stream.id());
  try {
    const std::lock_guard<ShortLock> guard(state_->lock);
    state_->space.begin_capture(capture, capture);
  } catch (...) {
    end_stream_capture(capture);
    throw;
  }
  return capture;
}

void Heap::end_capture(std::uint32_t capture) noexcept { end_stream_capture(capture); }

void Heap::release_capture(std::uint32_t capture, const BlockUse& use) {
  end_stream_capture(capture);
  note_replay(capture, use);
  retire_capture(capture);
  const std::lock_guard<ShortLock> guard(state_->lock);
  state_->space.release_capture(capture, use);
}

void Heap::note_epoch(std::uint32_t number) const noexcept {
  Recorder::note_now(RecordedAction::kEpoch, state_->recorded, 0, number, kNoStream, 0, 0);
}

std::uint64_t Heap::add_reclaimer(double cost, Reclaimer reclaimer, Account* account) {
  const auto call = std::make_shared<Reclaimer>(std::move(reclaimer));
  const AccountHold held = account != nullptr ? AccountHold(*account) : AccountHold();
  const std::lock_guard<ShortLock> guard(state_->lock);
  auto& known = state_->reclaimers;
  const auto after = std::find_if(known.begin(), known.end(),
                                  [&](const auto& other) { return other.cost > cost; });
  const std::uint64_t number = state_->next_number++;
  known.insert(after, State::KnownReclaimer{cost, number, call, held, state_.get()});
  return number;
}

void Heap::remove_reclaimer(std::uint64_t number) {
  std::shared_ptr<Reclaimer> dropped;  // after the lock: it may own anything
  const std::lock_guard<ShortLock> guard(state_->lock);
  auto& known = state_->reclaimers;
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const auto& other) { return other.number == number; });
  if (found == known.end()) return;
  dropped = found->call;
  known.erase(found);
}

void Heap::ask_also(Heap& helper) { state_->helpers.push_back(helper.state_.get()); }

void Heap::set_options(const HeapOptions& options) {
  if (!(options.slack >= 0.0 && options.slack <= 1.0)) {
    throw Error(ErrorKind::kValue, "slack: got " + std::to_string(options.slack) +
                                       "; give a share of the peak, from 0 to 1");
  }
  const std::lock_guard<GrowthLock> growing(state_->growth);
  state_->options = options;
}

HeapOptions Heap::options() const {
  const std::lock_guard<GrowthLock> growing(state_->growth);
  return state_->options;
}

// ---- forks, figures ------------------------------------------------------------------------

bool Heap::try_before_fork() noexcept {
  if (!state_->growth.try_lock()) return false;
  before_fork();
  state_->growth.unlock();
  return true;
}

void Heap::before_fork() noexcept {
  state_->growth.lock();
  state_->shut_for_fork = state_->shut_fronts();
  state_->lock.lock();
}

void Heap::after_fork(bool child) noexcept {
  state_->open_fronts_after_fork(child, state_->shut_for_fork);
  state_->lock.unlock();
  // The mutex knows its owner by a thread id that the child's thread no longer has.
  if (child) {
    new (&state_->growth) GrowthLock();
  } else {
    state_->growth.unlock();
  }
}

void Heap::recall() {
  const BlockingScope scope;
  const std::lock_guard<GrowthLock> growing(state_->growth);
  State::Recall(*state_).drain();
}

std::uint64_t Heap::trim(std::uint64_t keep) {
  const BlockingScope scope;
  const std::lock_guard<GrowthLock> growing(state_->growth);
  const State::Recall recall(*state_);
  recall.drain();
  state_->poll();
  return state_->release_unused(keep);
}

HeapStatistics Heap::statistics() const {
  State& s = *state_;
  const std::lock_guard<ShortLock> guard(s.lock);
  HeapStatistics result{};
  const State::Live live = s.live_now();
  result.live = live.bytes;
  result.pending = s.space.pending_bytes() + s.space.frozen_bytes();
  result.mapped = s.held();
  result.parked = s.parked();
  if (s.pages || s.ranges) result.banked = s.reservable().banked_bytes();
  result.peak_live = live.peak;
  result.peak_mapped = s.peak_mapped;
  result.live_blocks = live.blocks;
  result.kept = s.kept_bytes();
  result.free_blocks = s.space.free_blocks();
  result.largest_hole = s.space.largest_hole();
  result.driver_calls = s.driver_calls.load(std::memory_order_relaxed);
  if (s.pages || s.ranges) result.driver_calls += s.reservable().driver_calls();
  result.created_bytes = s.created;
  result.stolen_bytes = s.stolen;
  result.remaps = s.remaps;
  result.inserted_waits = s.waits;
  result.visited = s.space.visited();
  result.asleep = s.asleep;
  result.asleep_held = s.asleep_held;
  result.asleep_blocks = s.sleepers.size() + s.reserved_asleep;
  result.asleep_contents = s.asleep_contents;
  return result;
}

void Heap::reset_peak() {
  const std::lock_guard<GrowthLock> growing(state_->growth);
  const State::Recall recall(*state_);
  recall.drain();
  const std::lock_guard<ShortLock> guard(state_->lock);
  state_->peak_live = state_->live;
  state_->peak_mapped = state_->held();
}

bool Heap::find(DeviceAddress address, Block* block) const noexcept {
  const std::lock_guard<ShortLock> guard(state_->lock);
  const std::uint32_t id = state_->space.find(address);
  if (id == kNoBlock) return false;
  *block = state_->block_of(id);
  return true;
}

}  // namespace nbx
