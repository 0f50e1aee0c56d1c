// The inside of a heap: its books, its lock, and the order in which memory is looked for.
#pragma once

#include <atomic>
#include <mutex>

#include "heap/heap.h"
#include "heap/refusal.h"
#include "heap/space.h"

namespace nbx {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kMaximumAlignment = 4 * kKiB;
/// Sizes above this are refused before any arithmetic on them can wrap.
inline constexpr std::uint64_t kMaximumBytes = std::uint64_t{1} << 56;

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

struct HeapRequest {
  std::uint64_t bytes;    // as asked
  std::uint64_t granted;  // whole granules
  std::uint64_t alignment;
  StreamHandle stream;
  Account& account;
};

struct Heap::State {
  State(Device& opened, ShortLock* shared);

  // The fast path; the lock is held.
  [[nodiscard]] std::uint32_t home_of(std::uint64_t granted) const noexcept {
    return host && granted >= kMiB ? Space::kSingleHome : Space::kSharedHome;
  }
  void count_live(std::uint64_t granted) noexcept {
    live += granted;
    ++live_blocks;
    if (live > peak_live) peak_live = live;
  }
  [[nodiscard]] Block block_of(std::uint32_t id) const noexcept {
    const BlockRecord& record = space.record(id);
    return Block{record.address, record.bytes, id, record.generation};
  }

  // The slow path: `growth` is held, the lock is not; driver calls happen here only.
  [[nodiscard]] std::uint32_t serve(const HeapRequest& request);
  [[nodiscard]] std::uint32_t search(const HeapRequest& request, bool both_homes);
  [[nodiscard]] std::uint32_t grow(const HeapRequest& request, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t exact_growth(const HeapRequest& request) const noexcept;
  [[nodiscard]] std::uint64_t generous_growth(const HeapRequest& request);
  void poll();
  bool wait_for_pending();
  std::uint64_t release_unused(std::uint64_t keep);
  Status give_to_driver(DeviceAddress address) noexcept;
  [[nodiscard]] RefusalFigures figures(const HeapRequest& request);
  [[nodiscard]] Error over_budget(const HeapRequest& request, const Account& account);

  /// Whether a segment that has just become unused goes back at once: host memory only, where that
  /// is cheap and the process's size is what people watch. The lock is held.
  [[nodiscard]] bool surplus(std::uint32_t unused) const noexcept;

  Device& device;
  const Primitives& primitives;
  const bool host;  // work is complete on return, so every free block is free for all
  Space space;
  ShortLock own_lock;
  ShortLock& lock;
  // Recursive: work that a wait runs may come back here on the same thread.
  std::recursive_mutex growth;
  std::atomic<std::uint64_t> driver_calls{0};
  std::uint64_t live = 0, live_blocks = 0, peak_live = 0;
  std::uint64_t mapped = 0, peak_mapped = 0;
};

}  // namespace nbx
