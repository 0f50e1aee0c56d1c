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
#include "pages/pages.h"

namespace nbx {

/// What a thread keeps of one heap: stacks of blocks by size class, a few large blocks by exact
/// size, for up to four streams; and a lease of the account that it counts in.
///
/// The contents belong to the thread while it is inside the lease's gate, or holds the heap's lock;
/// to others once they hold that lock and have closed the gate.
class Front {
 public:
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 20;   // bytes of a cached block
  static constexpr std::uint64_t kMostKept = std::uint64_t{8} << 20;  // bytes
  static constexpr std::uint32_t kBatch = 8;                          // blocks moved at a time
  static constexpr std::uint32_t kMostCredit = 8;  // misses until a size is forgotten

  using Retire = void (*)(void* heap, Front& front) noexcept;
  Front(void* owner, Retire retirement, RecordTable& records, std::uint32_t granule_bits,
        bool is_host, Lease& owned) noexcept
      : heap(owner),
        retire(retirement),
        records_(records),
        granule_bits_(granule_bits),
        mask_((std::uint64_t{1} << granule_bits) - 1),
        host_(is_host),
        lease_(owned) {}
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  [[nodiscard]] bool enter() noexcept { return lease_.gate.enter(); }
  void leave() noexcept { lease_.gate.leave(); }
  [[nodiscard]] Lease& lease() noexcept { return lease_; }
  [[nodiscard]] const Lease& lease() const noexcept { return lease_; }
  /// Bytes of the blocks kept; exact while the thread rests.
  [[nodiscard]] std::uint64_t kept_bytes() const noexcept;

  /// True for requests that blocks in a front could serve.
  [[nodiscard]] bool serves(std::uint64_t bytes, std::uint64_t alignment,
                            Lifetime lifetime) const noexcept {
    return bytes - 1 < kLargest && alignment - 1 <= mask_ && (alignment & (alignment - 1)) == 0 &&
           lifetime == Lifetime::kTransient;
  }
  /// A cached block for the stream, counted and marked as handed out, and its name; null if there
  /// is none or the lease does not cover it.
  [[nodiscard]] BlockRecord* take(StreamId stream, std::uint64_t bytes, Account& account,
                                  std::uint32_t origin, std::uint32_t* id) noexcept {
    if (lease_.account != &account) return nullptr;
    Set* set = recent_;
    if (stream != recent_stream_) [[unlikely]] {
      set = find_set(stream);
      if (set == nullptr) return nullptr;
    }
    const std::uint64_t granted = granted_of(bytes);
    std::uint32_t found = kNoBlock;
    if (granted <= SlotSize::kLargest) [[likely]] {
      Stack& stack = set->stacks[kSlotSizeTable[granted >> granule_bits_]];
      if (stack.count == 0 || !lease_.charge(bytes, granted)) return nullptr;
      found = stack.pop();
    } else {
      Exact& exact = exact_of(*set, granted);
      if (exact.bytes != granted || exact.count == 0 || !lease_.charge(bytes, granted)) {
        return nullptr;
      }
      found = pop(exact);
    }
    BlockRecord& record = records_[found];
    *id = found;
    mark(record, bytes, account, origin);
    return &record;
  }

  /// Keeps a live block of this handle for its stream and counts it as given back; false if that
  /// is not so simple.
  [[nodiscard]] bool give(std::uint32_t id, std::uint32_t generation, Account& account,
                          const BlockUse& use) noexcept {
    if (!records_.holds(id) || lease_.account != &account) return false;
    BlockRecord& record = records_[id];
    if (record.state != BlockState::kLive || record.generation != generation) return false;
    // Work of a second stream, or of a graph, is for the slow path to look at.
    const StreamId stream = record.stream;
    const bool simple = use.stream == stream || (use.stream == kNoStream && use.ticket == 0);
    if (!simple || record.lane >= kHomes) return false;
    Set* set = recent_;
    if (stream != recent_stream_) [[unlikely]] {
      set = find_set(stream);
      if (set == nullptr) return false;
    }
    const std::uint64_t requested = record.requested(), bytes = record.bytes;
    if (bytes <= SlotSize::kLargest) [[likely]] {
      Stack* stack = stack_for(*set, bytes);
      if (stack == nullptr || stack->is_full()) return false;
      if (!lease_.refund(requested, granted_of(requested))) return false;
      stack->push(id);
    } else if (!keep_exact(*set, id, requested, bytes)) {
      return false;
    }
    if (use.ticket > record.ticket) record.ticket = use.ticket;
    hide(record);
    return true;
  }

  // ---- with the heap's lock held ---------------------------------------------------------------

  /// Blocks of one class and stream.
  struct Stack {
    static constexpr std::uint32_t kPlaces = 16;
    Relaxed<std::uint32_t> count;
    std::uint32_t limit = 0;  // grows with use, as far as the front's bound allows
    std::uint32_t ids[kPlaces];

    [[nodiscard]] bool is_full() const noexcept { return count >= limit; }
    [[nodiscard]] std::uint32_t pop() noexcept {
      count -= 1;
      return ids[count];
    }
    void push(std::uint32_t id) noexcept {
      ids[count] = id;
      count += 1;
    }
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
    if (stream == recent_stream_) [[likely]]
      return recent_;
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
    const std::uint8_t size_class = kSlotSizeTable[granules];
    return kSlotGranules[size_class] == granules ? &set.stacks[size_class] : nullptr;
  }
  [[nodiscard]] std::uint32_t pop(Exact& exact) noexcept {
    exact_bytes_ -= exact.bytes;
    return exact.ids[--exact.count];
  }
  [[nodiscard]] bool has_room(const Exact& exact) const noexcept {
    return exact.count < Exact::kPlaces && exact_bytes_ + exact.bytes <= exact_bound_;
  }
  void push(Exact& exact, std::uint32_t id) noexcept {
    exact_bytes_ += exact.bytes;
    exact.ids[exact.count++] = id;
  }
  /// At most this much is kept in stacks, and in blocks by exact size.
  void set_bounds(std::uint64_t stacks, std::uint64_t exact) noexcept {
    bound_ = stacks < kMostKept ? stacks : kMostKept;
    exact_bound_ = exact < kMostKept ? exact : kMostKept;
  }
  /// Lets a stack of blocks of `bytes` hold more, as far as all stacks together may.
  void raise(Stack& stack, std::uint64_t bytes) noexcept;
  /// A freed block is kept: its handles are void.
  static void hide(BlockRecord& record) noexcept {
    record.generation += 1;
    record.state = BlockState::kCached;
  }
  [[nodiscard]] std::uint64_t granted_of(std::uint64_t bytes) const noexcept {
    return (bytes + mask_) & ~mask_;
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
        while (stack.count != 0) visit(stack.pop());
        stack.limit = 0;
      }
      for (Exact& exact : set->exact) {
        while (exact.count != 0) visit(pop(exact));
      }
    }
    allotted_ = 0;
  }

  // ---- who holds it ----------------------------------------------------------------------------

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
  [[nodiscard]] bool keep_exact(Set& set, std::uint32_t id, std::uint64_t requested,
                                std::uint64_t bytes) noexcept {
    if (bytes > kLargest) return false;
    Exact& exact = exact_of(set, bytes);
    if (exact.bytes != bytes || !has_room(exact) || !lease_.refund(requested, bytes)) return false;
    if (exact.credit < kMostCredit) ++exact.credit;
    push(exact, id);
    return true;
  }

  RecordTable& records_;
  const std::uint32_t granule_bits_;
  const std::uint64_t mask_;  // of the bytes below a granule
  const bool host_;
  Lease& lease_;
  StreamId recent_stream_ = ~StreamId{0};
  Set* recent_ = nullptr;
  Relaxed<std::uint64_t> exact_bytes_;
  std::uint64_t allotted_ = 0;  // bytes that the stacks may hold
  std::uint64_t bound_ = 0, exact_bound_ = 0;
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
