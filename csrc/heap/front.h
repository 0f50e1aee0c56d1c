// Free blocks that one thread keeps for itself: taken and given without a lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "account/account.h"
#include "account/recorder.h"
#include "core/align.h"
#include "core/inline.h"
#include "heap/block.h"
#include "heap/records.h"
#include "heap/slabs.h"
#include "pages/pages.h"

namespace nbx {

/// What a thread keeps of one heap: stacks of blocks by size class, a few large blocks by exact
/// size, for up to four streams; and a lease of the account that it counts in.
///
/// The contents belong to the thread while it is inside the lease's gate, or holds the heap's lock;
/// to others once they hold that lock and have closed the gate.
class alignas(kApart) Front {
 public:
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 20;   // bytes of a cached block
  static constexpr std::uint64_t kMostKept = std::uint64_t{8} << 20;  // bytes
  static constexpr std::uint32_t kMostCredit = 8;  // misses until a size is forgotten

  using Retire = void (*)(void* heap, Front& front) noexcept;
  Front(void* owner, std::uint8_t recorded, Retire retirement, RecordTable& records, Slabs& slabs,
        bool is_host, Lease& owned) noexcept
      : heap(owner),
        retire(retirement),
        lease_(owned),
        records_(records),
        slabs_(slabs),
        mask_((std::uint64_t{1} << (is_host ? kHostGranuleBits : kDeviceGranuleBits)) - 1),
        tables_(is_host ? kSlotTables<kHostGranuleBits> : kSlotTables<kDeviceGranuleBits>),
        recorded_(RecordedEvent::place(0, recorded, RecordedAction{})),
        host_(is_host) {}
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

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
  /// A cached block for the stream: counted, marked as handed out and noted; false if there is none
  /// or the lease does not cover it.
  [[nodiscard]] bool take(StreamId stream, std::uint64_t bytes, Account& account,
                          Block* block) noexcept;
  /// Keeps a live block of this handle for its stream, counts it as given back and notes it; false
  /// if that is not so simple.
  [[nodiscard]] bool give(const Block& block, Account& account, StreamId stream,
                          Ticket ticket) noexcept;
  // The same, without a call on the way, for what comes most often: small blocks at the alignment
  // of tensors, for the stream that was used last. False says nothing of the other two. They read
  // some values twice rather than keep them, so that no register has to be saved for the caller.
  [[nodiscard]] NBX_INLINE bool take_quickly(StreamId stream, std::uint64_t bytes, Account& account,
                                             Block* block) noexcept {
    Lease& lease = lease_;
    if (!lease.gate.enter(&account)) [[unlikely]]
      return false;
    if (stream == recent_stream_) [[likely]] {
      Stack& stack = *whole(&recent_->stacks[class_of(bytes)]);
      const std::uint64_t granted = granted_of(bytes);
      block->granted = granted;
      if (stack.count != 0 && lease.charge_quickly(bytes, granted)) [[likely]] {
        const std::uint32_t id = stack.pop(stack.count);
        block->id = id;
        BlockRecord& record = records_[id];
        mark_small(record, bytes, account);
        block->address = record.address;
        block->generation = record.generation;
        if (!Recorder::enabled()) {
          lease.gate.leave();
          return true;
        }
        const std::uint64_t owner = lease.recorded;
        lease.gate.leave();
        return write(RecordedAction::kAllocate, block->address, bytes, owner, block->generation);
      }
    }
    lease.gate.leave();
    return false;
  }
  [[nodiscard]] NBX_INLINE bool give_quickly(const Block& block, Account& account, StreamId stream,
                                             Ticket ticket) noexcept {
    Lease& lease = lease_;
    if (!lease.gate.enter(&account)) [[unlikely]]
      return false;
    const std::uint32_t id = block.id;
    if (records_.holds(id)) [[likely]] {
      BlockRecord& record = records_[id];
      const StreamId last = recent_stream_;
      const std::uint64_t granted = block.granted;
      if (record.generation == block.generation && record.state == BlockState::kLive &&
          record.stream == last && granted - 1 < SlotSize::kLargest &&
          (stream == last || (stream == kNoStream && ticket == 0))) [[likely]] {
        // By the handle, so that nothing waits for the record: the count goes on from pair to pair.
        const std::size_t size_class = class_of(granted);
        if (tables_.bytes[size_class] == record.bytes) [[likely]] {
          Stack& stack = *whole(&recent_->stacks[size_class]);
          if (ticket > record.ticket) record.ticket = ticket;  // whoever frees it, that is so
          const std::uint64_t requested = record.requested_low();
          if (stack.count < stack.limit && lease.refund(requested, granted)) [[likely]] {
            stack.push(block.id, stack.count);
            hide(record, block.generation);
            if (!Recorder::enabled()) {
              lease.gate.leave();
              return true;
            }
            const std::uint64_t owner = lease.recorded;
            lease.gate.leave();
            return write(RecordedAction::kFree, block.address, requested, owner, block.generation);
          }
        }
      }
    }
    lease.gate.leave();
    return false;
  }

  // ---- with the heap's lock held ---------------------------------------------------------------

  /// Blocks of one class and stream.
  struct alignas(64) Stack {
    static constexpr std::uint32_t kPlaces = 30;
    Relaxed<std::uint32_t> count;
    std::uint32_t limit = 0;  // grows with use, as far as the front's bound allows
    std::uint32_t ids[kPlaces];

    [[nodiscard]] bool is_full() const noexcept { return count >= limit; }
    // `present`: the count.
    [[nodiscard]] NBX_INLINE std::uint32_t pop(std::uint32_t present) noexcept {
      count = present - 1;
      return ids[present - 1];
    }
    NBX_INLINE void push(std::uint32_t id, std::uint32_t present) noexcept {
      ids[present] = id;
      count = present + 1;
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
    std::array<Stack, SlotSize::kCount> stacks{};
    std::array<Exact, 16> exact{};
    Slabs::Share share;  // what fills the stacks and takes what they cannot hold
    StreamId stream = kNoStream;
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
    const std::uint64_t mixed = (granted >> kHostGranuleBits) * 0x9E3779B97F4A7C15U;
    return set.exact[mixed >> 60];
  }
  /// The class of slots for this many bytes, from 1 to SlotSize::kLargest.
  [[nodiscard]] NBX_INLINE std::size_t class_of(std::uint64_t bytes) const noexcept {
    return tables_.classes[(bytes - 1) >> 6];
  }
  /// Where a free block of these bytes belongs; null if its size is no class's.
  [[nodiscard]] NBX_INLINE Stack* stack_for(Set& set, std::uint64_t bytes) const noexcept {
    const std::size_t size_class = class_of(bytes);
    return tables_.bytes[size_class] == bytes ? &set.stacks[size_class] : nullptr;
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
  /// Puts slots into an empty stack: the share's own, or with the heap's lock any.
  void fill(Set& set, std::size_t size_class, StreamId stream, bool locked) noexcept;
  /// Makes room in a stack that is full: it may hold more, or gives its oldest slots away. With the
  /// heap's lock `give(id)` is where those go that are not the share's own. False if none could go.
  template <class Give>
  [[nodiscard]] bool make_room(Set& set, Stack& stack, std::uint64_t bytes,
                               const Give& give) noexcept {
    raise(stack, bytes);
    if (!stack.is_full()) return true;
    // The newest are warm.
    const std::uint32_t half = stack.limit / 2;
    std::uint32_t gone = 0;
    while (gone < half &&
           (slabs_.give_owned(set.share, stack.ids[gone]) || give(stack.ids[gone]))) {
      ++gone;
    }
    std::copy(stack.ids + gone, stack.ids + stack.count, stack.ids);
    stack.count -= gone;
    return gone != 0;
  }
  /// Lets a stack of blocks of `bytes` hold more: a few, and as far as all stacks together may.
  void raise(Stack& stack, std::uint64_t bytes) noexcept;
  /// A freed block is kept: its handles are void.
  static void hide(BlockRecord& record, std::uint32_t generation) noexcept {
    record.generation = generation + 1;
    record.state = BlockState::kCached;
  }
  [[nodiscard]] std::uint64_t granted_of(std::uint64_t bytes) const noexcept {
    return ((bytes - 1) | mask_) + 1;
  }
  static void mark(BlockRecord& record, std::uint64_t bytes, const Account& account,
                   std::uint32_t origin) noexcept {
    record.state = BlockState::kLive;
    record.account = account.id();
    record.origin = origin;
    record.set_requested(bytes);
  }
  /// The same for blocks below 4 GiB, of no known origin.
  static void mark_small(BlockRecord& record, std::uint64_t bytes,
                         const Account& account) noexcept {
    record.state = BlockState::kLive;
    record.account = account.id();
    record.origin = 0;
    record.set_requested_low(static_cast<std::uint32_t>(bytes));
  }
  /// The set where a freed block can be kept, for the stream of its last use; null if it must go
  /// another way. `record.stream` and `.ticket` include the use then.
  [[nodiscard]] Set* adopt(BlockRecord& record, const BlockUse& use) noexcept;
  /// Calls `visit(id, share)` for every block kept, and keeps none.
  template <class Visit>
  void drain(const Visit& visit) noexcept {
    for (const auto& set : sets_) {
      if (set == nullptr) continue;
      for (Stack& stack : set->stacks) {
        while (stack.count != 0) visit(stack.pop(stack.count), &set->share);
        stack.limit = 0;
      }
      for (Exact& exact : set->exact) {
        while (exact.count != 0) visit(pop(exact), &set->share);
      }
    }
    allotted_ = 0;
  }
  /// What the front had for itself is nobody's.
  void disown_slabs() noexcept {
    for (const auto& set : sets_) {
      if (set != nullptr) slabs_.disown(set->share);
    }
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
  /// The bytes that were asked for; 0 if the block is not kept. Work of a second stream, or of a
  /// graph, is for the slow path to look at.
  [[nodiscard]] std::uint64_t keep(std::uint32_t id, std::uint32_t generation, StreamId stream,
                                   Ticket ticket) noexcept;
  /// An event of the recent stream; true.
  bool note(RecordedAction action, DeviceAddress address, std::uint64_t bytes, std::uint64_t owner,
            std::uint32_t generation) const noexcept {
    return !Recorder::enabled() || write(action, address, bytes, owner, generation);
  }
  /// The same while the recorder is on.
  NBX_INLINE bool write(RecordedAction action, DeviceAddress address, std::uint64_t bytes,
                        std::uint64_t owner, std::uint32_t generation) const noexcept {
    return Recorder::write_packed(
        recorded_ + address + static_cast<std::uint64_t>(action),
        bytes << RecordedEvent::kBytesAt | recent_extent_,
        std::uint64_t{generation} << RecordedEvent::kGenerationAt | owner);
  }

  Lease& lease_;
  RecordTable& records_;
  Slabs& slabs_;
  StreamId recent_stream_ = ~StreamId{0};
  std::uint64_t recent_extent_ = 0;  // the stream's part of an event
  Set* recent_ = nullptr;            // null: no stream's
  const std::uint64_t mask_;         // of the bytes below a granule
  const SlotTables& tables_;
  const std::uint64_t recorded_;  // the heap's part of an event
  const bool host_;
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
