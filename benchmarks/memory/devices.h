// The heaps that are measured.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "storage/storage.h"
#include "stream/stream.h"

namespace bench {

inline constexpr std::uint64_t kAlignment = 64;

/// The cpu: work is complete on return.
nbx::DeviceMemory& host_memory();
/// One of two simulated GPUs of 1 TiB with books only, whose default stream has work that does not
/// end: blocks are freed with a ticket that stays open, as in a program that keeps its GPU busy.
nbx::DeviceMemory& gpu_memory(std::int32_t ordinal = 0);

/// Blocks of one heap, used and freed on the default stream.
class Blocks {
 public:
  explicit Blocks(nbx::DeviceMemory& memory);
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  nbx::Block take(std::uint64_t bytes) {
    return memory_.heap.allocate(bytes, kAlignment, stream_, memory_.tensors);
  }
  void give(const nbx::Block& block, std::uint64_t bytes) {
    memory_.heap.free(block, bytes, memory_.tensors, stream_.id(), ticket_);
  }

  /// Keeps one more block.
  void hold(std::uint64_t bytes) { held_.push_back(Held{take(bytes), bytes}); }
  void drop(std::size_t at) {
    give(held_[at].block, held_[at].bytes);
    held_[at] = held_.back();
    held_.pop_back();
  }
  /// Frees a block and takes one of another size in its place.
  void exchange(std::size_t at, std::uint64_t bytes) {
    Held& held = held_[at];
    give(held.block, held.bytes);
    held = Held{take(bytes), bytes};
  }
  /// Brings the handle that is exchanged next: the program's, not the allocator's.
  void fetch(std::size_t at) const noexcept { __builtin_prefetch(&held_[at], 1); }
  [[nodiscard]] std::size_t size() const noexcept { return held_.size(); }
  [[nodiscard]] nbx::HeapStatistics statistics() const { return memory_.heap.statistics(); }

 private:
  struct Held {
    nbx::Block block;
    std::uint64_t bytes;
  };
  nbx::DeviceMemory& memory_;
  nbx::Stream& stream_;
  nbx::Ticket ticket_;
  std::vector<Held> held_;
};

}  // namespace bench
