#include "heap/heap.h"

#include <mutex>
#include <new>

#include "core/error.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "heap/state.h"

namespace nbx {
namespace {

// A cache line on the host; what vector loads and copies of every device like elsewhere.
constexpr std::uint32_t kHostGranuleBits = 6;
constexpr std::uint32_t kDeviceGranuleBits = 8;

void check_alignment(std::uint64_t alignment) {
  if (alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= kMaximumAlignment) {
    return;
  }
  throw Error(ErrorKind::kValue, "allocate: alignment is " + std::to_string(alignment) +
                                     "; give a power of two up to " +
                                     std::to_string(kMaximumAlignment));
}

}  // namespace

Heap::State::State(Device& opened, ShortLock* shared)
    : device(opened),
      primitives(opened.primitives()),
      host(opened.properties().integrated_work),
      space(host ? kHostGranuleBits : kDeviceGranuleBits),
      lock(shared != nullptr ? *shared : own_lock) {}

Heap::Heap(Device& device, ShortLock* lock) : state_(std::make_unique<State>(device, lock)) {}

Heap::~Heap() {
  // Blocks that are still live keep their segments: somebody may still read them.
  try {
    state_->poll();
    state_->release_unused(0);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, std::string("heap: ") + error.what());
  }
}

Block Heap::allocate(std::uint64_t bytes, std::uint64_t alignment, Stream& stream,
                     Account& account) {
  State& s = *state_;
  check_alignment(alignment);
  if (bytes > kMaximumBytes) {
    throw refusal(s.figures(HeapRequest{bytes, bytes, alignment, stream.handle(), account}));
  }
  const std::uint64_t granule = s.space.granule();
  const HeapRequest request{bytes, (bytes + granule - 1) & ~(granule - 1), alignment,
                            stream.handle(), account};
  Account* refused = nullptr;
  const bool shared = &account.tree_lock() == &s.lock;
  if (!shared) refused = account.reserve(bytes, request.granted);
  if (refused == nullptr) {
    const std::lock_guard<ShortLock> guard(s.lock);
    if (shared) refused = account.reserve_locked(bytes, request.granted);
    if (refused == nullptr) {
      if (bytes == 0) return Block{};
      const std::uint32_t id =
          s.space.take(s.home_of(request.granted), request.stream, request.granted, alignment);
      if (id != kNoBlock) [[likely]] {
        s.count_live(request.granted);
        return s.block_of(id);
      }
    }
  }
  if (refused != nullptr) throw s.over_budget(request, *refused);
  try {
    const BlockingScope scope;
    const std::lock_guard<std::recursive_mutex> growing(s.growth);
    const std::uint32_t id = s.serve(request);
    if (id == kNoBlock) throw refusal(s.figures(request));
    const std::lock_guard<ShortLock> guard(s.lock);
    return s.block_of(id);
  } catch (...) {
    account.release(bytes, request.granted);
    throw;
  }
}

void Heap::free(const Block& block, std::uint64_t requested, Account& account, StreamHandle stream,
                Ticket ticket) noexcept {
  const BlockUse use{stream, ticket};
  free_after(block, requested, account, &use, 1);
}

void Heap::free_after(const Block& block, std::uint64_t requested, Account& account,
                      const BlockUse* uses, std::size_t count) noexcept {
  State& s = *state_;
  if (block.id == kNoBlock) {
    account.release(requested, 0);
    return;
  }
  DeviceAddress surplus = 0;
  const bool shared = &account.tree_lock() == &s.lock;
  std::uint64_t granted = 0;
  try {
    const std::lock_guard<ShortLock> guard(s.lock);
    if (s.space.is_live(block.id, block.generation)) [[likely]] {
      granted = s.space.record(block.id).bytes;
      const std::uint32_t unused = s.space.give(block.id, uses, count);
      s.live -= granted;
      --s.live_blocks;
      if (shared) account.release_locked(requested, granted);
      if (unused != kNoBlock && s.surplus(unused)) {
        const Segment segment = s.space.remove_segment(unused);
        s.mapped -= segment.driver_bytes;
        surplus = segment.driver_address;
      }
    }
  } catch (const std::exception& error) {
    // The block stays live: nobody can have it, and nothing that uses it is hurt.
    log(LogLevel::kError, std::string("free: the block is kept: ") + error.what());
    return;
  }
  if (granted == 0) {
    log(LogLevel::kError, "free: block " + std::to_string(block.id) + " of " + s.device.name() +
                              " is not live: it was freed before, or is of another heap");
    return;
  }
  if (!shared) account.release(requested, granted);
  if (surplus != 0) static_cast<void>(s.give_to_driver(surplus));
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
  return state_->over_budget(HeapRequest{bytes, bytes, 1, 0, refused}, refused);
}

void Heap::before_fork() noexcept {
  state_->growth.lock();
  state_->lock.lock();
}

void Heap::after_fork(bool child) noexcept {
  state_->lock.unlock();
  // The mutex knows its owner by a thread id that the child's thread no longer has.
  if (child) {
    new (&state_->growth) std::recursive_mutex();
  } else {
    state_->growth.unlock();
  }
}

std::uint64_t Heap::trim(std::uint64_t keep) {
  const BlockingScope scope;
  const std::lock_guard<std::recursive_mutex> growing(state_->growth);
  state_->poll();
  return state_->release_unused(keep);
}

HeapStatistics Heap::statistics() const {
  State& s = *state_;
  const std::lock_guard<ShortLock> guard(s.lock);
  s.space.flush();
  HeapStatistics result{};
  result.live = s.live;
  result.pending = s.space.pending_bytes();
  result.mapped = s.mapped;
  result.parked = s.mapped - s.live - result.pending;
  result.peak_live = s.peak_live;
  result.peak_mapped = s.peak_mapped;
  result.live_blocks = s.live_blocks;
  result.free_blocks = s.space.free_blocks();
  result.largest_hole = s.space.largest_hole();
  result.driver_calls = s.driver_calls.load(std::memory_order_relaxed);
  return result;
}

void Heap::reset_peak() noexcept {
  const std::lock_guard<ShortLock> guard(state_->lock);
  state_->peak_live = state_->live;
  state_->peak_mapped = state_->mapped;
}

bool Heap::find(DeviceAddress address, Block* block) const noexcept {
  const std::lock_guard<ShortLock> guard(state_->lock);
  const std::uint32_t id = state_->space.find(address);
  if (id == kNoBlock) return false;
  *block = state_->block_of(id);
  return true;
}

}  // namespace nbx
