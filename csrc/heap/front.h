// Free blocks that one thread keeps for itself: taken and given without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "account/account.h"
#include "account/recorder.h"
#include "heap/records.h"
#include "heap/slabs.h"

namespace nbx {

/// What a thread keeps of one heap: stacks of blocks by size class, a few large blocks by exact
/// size, for up to four streams; and a lease of the account that it counts in.
///
/// The contents belong to the thread while it is inside the lease's gate, or holds the heap's lock;
/// to others once they hold that lock and have closed the gate.
class Front {
 public:
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 20;  // bytes of a cached block
  static constexpr std::uint32_t kBatch = 8;                         // blocks moved at a time
  static constexpr std::uint32_t kMostCredit = 8;  // misses until a size is forgotten

  using Retire = void (*)(void* heap, Front& front) noexcept;
  Front(void* owner, Retire retirement, RecordTable& records, std::uint32_t granule_bits,
        bool is_host, Lease& owned) noexcept
      : heap(owner),
        retire(retirement),
        records_(records),
        granule_bits_(granule_bits),
        host_(is_host),
        lease_(owned) {}
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  [[nodiscard]] bool enter() noexcept { return lease_.gate.enter(); }
  void leave() noexcept { lease_.gate.leave(); }
  [[nodiscard]] Lease& lease() noexcept { return lease_; }
  [[nodiscard]] const Lease& lease() const noexcept { return lease_; }
  [[nodiscard]] std::uint64_t cached_bytes() const noexcept { return cached_[0] + cached_[1]; }
  /// At most this much is kept in slots, and as much in larger blocks.
  void set_bounds(std::uint64_t slots, std::uint64_t larger) noexcept {
    bounds_[0] = slots;
    bounds_[1] = larger;
  }

  /// A cached block for the stream, counted and marked as handed out; kNoBlock if there is none or
  /// the lease does not cover it.
  [[nodiscard]] std::uint32_t take(StreamId stream, std::uint64_t bytes, Account& account,
                                   std::uint32_t origin) noexcept {
    Set* set = set_of(key_of(stream));
    if (set == nullptr || lease_.account != &account) return kNoBlock;
    const std::uint64_t granted = granted_of(bytes);
    std::uint32_t id = kNoBlock;
    if (granted <= SlotSize::kLargest) [[likely]] {
      Stack& stack = set->stacks[SlotSize::of(granted >> granule_bits_)];
      if (stack.count == 0 || !lease_.charge(bytes, granted)) return kNoBlock;
      id = stack.ids[--stack.count];
    } else {
      Exact& exact = exact_of(*set, granted);
      if (exact.bytes != granted || exact.count == 0 || !lease_.charge(bytes, granted)) {
        return kNoBlock;
      }
      id = exact.ids[--exact.count];
    }
    BlockRecord& record = records_[id];
    uncount(record.bytes);
    mark(record, bytes, account, origin);
    return id;
  }

  /// Keeps a live block of this handle for its stream and counts it as given back; false if that
  /// is not so simple.
  [[nodiscard]] bool give(std::uint32_t id, std::uint32_t generation, Account& account,
                          const BlockUse& use) noexcept {
    if (!records_.holds(id) || lease_.account != &account) return false;
    BlockRecord& record = records_[id];
    return record.state == BlockState::kLive && record.generation == generation &&
           keep(id, record, use);
  }

  // ---- with the heap's lock held
  // -----------------------------------------------------------------
  /// Blocks of one class and stream.
  struct Stack {
    static constexpr std::uint32_t kPlaces = 2 * kBatch;
    std::uint32_t count = 0;
    std::uint32_t ids[kPlaces];
  };
  /// Blocks of one size, which is forgotten when others come more often.
  struct Exact {
    static constexpr std::uint32_t kPlaces = 4;
    std::uint64_t bytes = 0;
    std::uint32_t count = 0;
    std::uint32_t credit = 0;
    std::uint32_t ids[kPlaces];
  };
  struct Set {
    StreamId stream = kNoStream;
    std::array<Stack, SlotSize::kCount> stacks{};
    std::array<Exact, 16> exact{};
  };

  /// The set of the stream; null if it has none.
  [[nodiscard]] Set* set_of(StreamId stream) noexcept {
    if (sets_[0] != nullptr && sets_[0]->stream == stream) [[likely]]
      return sets_[0].get();
    return find_set(stream);
  }
  /// The same, made if there is room; a set that is empty is given to another stream.
  [[nodiscard]] Set* make_set(StreamId stream) noexcept;
  [[nodiscard]] Exact& exact_of(Set& set, std::uint64_t granted) const noexcept {
    const std::uint64_t mixed = (granted >> granule_bits_) * 0x9E3779B97F4A7C15U;
    return set.exact[mixed >> 60];
  }
  /// Where a free block of these bytes belongs; null if its size is no class's.
  [[nodiscard]] Stack* stack_for(Set& set, std::uint64_t bytes) const noexcept {
    const std::uint64_t granules = bytes >> granule_bits_;
    const std::uint32_t size_class = SlotSize::of(granules);
    return SlotSize::granules(size_class) == granules ? &set.stacks[size_class] : nullptr;
  }
  [[nodiscard]] std::uint64_t room(std::uint64_t bytes) const noexcept {
    const std::uint64_t cached = cached_[bytes > SlotSize::kLargest];
    const std::uint64_t bound = bounds_[bytes > SlotSize::kLargest];
    return bound > cached ? bound - cached : 0;
  }
  void count(std::uint64_t each, std::uint64_t blocks) noexcept {
    cached_[each > SlotSize::kLargest] += each * blocks;
  }
  void uncount(std::uint64_t bytes) noexcept { cached_[bytes > SlotSize::kLargest] -= bytes; }
  /// A freed block is kept: its handles are void.
  void hide(BlockRecord& record) noexcept {
    record.generation += 1;
    record.state = BlockState::kCached;
    count(record.bytes, 1);
  }
  [[nodiscard]] std::uint64_t granted_of(std::uint64_t bytes) const noexcept {
    const std::uint64_t granule = std::uint64_t{1} << granule_bits_;
    return (bytes + granule - 1) & ~(granule - 1);
  }
  static void mark(BlockRecord& record, std::uint64_t bytes, const Account& account,
                   std::uint32_t origin) noexcept {
    record.state = BlockState::kLive;
    record.account = account.id();
    record.origin = origin;
    record.set_requested(bytes);
  }
  /// The set where a freed block can be kept, for the stream of its last use; null if it must go
  /// another way. `record.stream` and `.ticket` include the use then.
  [[nodiscard]] Set* adopt(BlockRecord& record, const BlockUse& use) noexcept;
  /// Calls `visit(id)` for every block kept, and keeps none.
  template <class Visit>
  void drain(const Visit& visit) noexcept {
    for (const auto& set : sets_) {
      if (set == nullptr) continue;
      for (Stack& stack : set->stacks) {
        while (stack.count != 0) visit(stack.ids[--stack.count]);
      }
      for (Exact& exact : set->exact) {
        while (exact.count != 0) visit(exact.ids[--exact.count]);
      }
    }
    cached_[0] = cached_[1] = 0;
  }

  // ---- who holds it
  // ------------------------------------------------------------------------------
  /// A thread holds it, until that ends; then it waits for another one. The heap may go first.
  enum class Holder : std::uint8_t { kThread, kEnding, kNobody, kOrphan };
  std::atomic<Holder> holder{Holder::kThread};
  Relaxed<void*> heap;  // null: it is gone
  const Retire retire;  // what the heap does when the thread ends
  Front* next_of_heap = nullptr;
  Front* next_of_thread = nullptr;

 private:
  static constexpr std::size_t kSets = 4;
  static constexpr std::uint16_t kHomes = 2;  // lanes of blocks that belong to no capture

  [[nodiscard]] Set* find_set(StreamId stream) noexcept;
  /// Where streams do not matter, all of them share one set; captures stay apart.
  [[nodiscard]] StreamId key_of(StreamId stream) const noexcept {
    return host_ && !is_capture(stream) ? kNoStream : stream;
  }
  [[nodiscard]] bool keep(std::uint32_t id, BlockRecord& record, const BlockUse& use) noexcept {
    const std::uint64_t requested = record.requested(), bytes = record.bytes;
    // Work of a second stream, or of a graph, is for the slow path to look at.
    const bool simple = use.stream == record.stream || (use.stream == kNoStream && use.ticket == 0);
    if (!simple || record.lane >= kHomes || bytes > kLargest || room(bytes) < bytes) return false;
    Set* set = set_of(key_of(record.stream));
    if (set == nullptr) return false;
    const std::uint64_t granted = granted_of(requested);
    if (granted <= SlotSize::kLargest) [[likely]] {
      Stack* stack = stack_for(*set, bytes);
      if (stack == nullptr || stack->count == Stack::kPlaces) return false;
      if (!lease_.refund(requested, granted)) return false;
      stack->ids[stack->count++] = id;
    } else {
      Exact& exact = exact_of(*set, bytes);
      if (exact.bytes != bytes || exact.count == Exact::kPlaces) return false;
      if (!lease_.refund(requested, granted)) return false;
      if (exact.credit < kMostCredit) ++exact.credit;
      exact.ids[exact.count++] = id;
    }
    if (use.ticket > record.ticket) record.ticket = use.ticket;
    hide(record);
    return true;
  }

  RecordTable& records_;
  const std::uint32_t granule_bits_;
  const bool host_;
  Lease& lease_;
  Relaxed<std::uint64_t> cached_[2];  // slots, larger blocks
  std::uint64_t bounds_[2] = {kLargest, 0};
  std::array<std::unique_ptr<Set>, kSets> sets_;
};

/// The fronts of a thread, the one that it used last first.
struct ThreadFronts {
  Front* last = nullptr;
  Front* all = nullptr;
  bool closed = false;  // the thread is ending
};
NBX_RECORDER_TLS inline constinit thread_local ThreadFronts thread_fronts;

/// Makes the front the calling thread's, until that ends.
void hold_front(Front& front);
/// The calling thread's front of the heap; null if it has none.
[[nodiscard]] Front* find_front_slowly(const void* heap) noexcept;
[[nodiscard]] inline Front* find_front(const void* heap) noexcept {
  Front* front = thread_fronts.last;
  if (front != nullptr && front->heap.get() == heap) [[likely]]
    return front;
  return find_front_slowly(heap);
}

}  // namespace nbx
