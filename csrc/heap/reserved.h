// Reserved blocks: addresses of their own, under which memory grows and shrinks in place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "account/account.h"
#include "account/lock.h"
#include "heap/heap.h"
#include "pages/pages.h"
#include "stream/order.h"

namespace nbx {

/// What the heap keeps of a reserved block. Changed with the heap's `growth` held.
struct Reservation {
  PageRange* range = nullptr;
  Account* account = nullptr;
  Lifetime lifetime = Lifetime::kTransient;
  std::atomic<std::uint64_t> committed{0};  // bytes
  std::unique_ptr<std::byte[]> contents;    // while it sleeps; null: dropped
  std::atomic<bool> asleep{false};
  bool moving = false;     // on its way to sleep or from it
  bool resizing = false;   // grows or shrinks: it does not go to sleep meanwhile
  bool abandoned = false;  // its owner is gone
};

/// A range of addresses, the first `committed` bytes of which have memory. It never moves, so that
/// what lies in it stays valid while it grows. The heap outlives it.
class ReservedBlock {
 public:
  ReservedBlock(Heap& heap, std::uint64_t capacity, Account& account, Lifetime lifetime);
  /// Waits for the work that uses it. Views hold a reference, so none is left.
  ~ReservedBlock();
  ReservedBlock(const ReservedBlock&) = delete;
  ReservedBlock& operator=(const ReservedBlock&) = delete;

  [[nodiscard]] DeviceAddress address() const noexcept { return range_->base(); }
  [[nodiscard]] std::uint64_t capacity() const noexcept { return range_->bytes(); }
  [[nodiscard]] std::uint64_t granule() const noexcept { return range_->granule(); }
  [[nodiscard]] std::uint64_t committed() const noexcept {
    return held_->committed.load(std::memory_order_acquire);
  }
  /// It sleeps with its account (Heap::sleep): nothing may use it, and its size stays.
  [[nodiscard]] bool is_asleep() const noexcept {
    return held_->asleep.load(std::memory_order_acquire);
  }
  [[nodiscard]] Account& account() const noexcept { return *held_->account; }
  [[nodiscard]] std::uint64_t views() const noexcept;

  /// Memory under at least the first `bytes` bytes, by whole pages, admitted by the account; what
  /// has memory already keeps it. Throws Error(kValue) beyond the capacity, Error(kOutOfMemory) as
  /// `Heap::allocate` does, and nothing has changed then. Returns the committed bytes.
  std::uint64_t commit(std::uint64_t bytes);
  /// Memory under no more than the first `keep` bytes, rounded up to pages (to the ends of large
  /// ones), once the work on the rest is complete. Throws Error(kValue) naming a view that lies
  /// beyond. Returns the committed bytes.
  std::uint64_t decommit(std::uint64_t keep);

  /// Somebody looks at `bytes` from `offset` on. Throws Error(kValue) unless they are committed.
  void open_view(std::uint64_t offset, std::uint64_t bytes);
  /// The view is gone; work that used it may still run.
  void close_view(std::uint64_t offset, std::uint64_t bytes, const BlockUse* uses,
                  std::size_t count) noexcept;

 private:
  struct View {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  void grow(std::uint64_t bytes);
  void require_awake(const char* action) const;
  void check_views(std::uint64_t keep) const;
  void wait_for_uses();

  Heap& heap_;
  Reservation* held_ = nullptr;
  PageRange* range_ = nullptr;
  std::uint32_t fork_;      // generation of the process that it belongs to
  mutable ShortLock lock_;  // of what follows
  std::vector<View> views_;
  std::vector<BlockUse> uses_;  // of views that are gone, the newest of each stream
};

}  // namespace nbx
