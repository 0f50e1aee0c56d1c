// What the heap knows of each block, kept outside device memory and named by 32-bit ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/primitives.h"

namespace nbx {

enum class BlockState : std::uint8_t {
  kUnused,   // the record names no block
  kFree,     // in the bins of its lane
  kLive,     // handed out
  kCached,   // free, kept whole for the next request of its size
  kWaiting,  // freed, used by work of several streams that may still run
};

inline constexpr std::uint32_t kNoBlock = 0;

struct alignas(64) BlockRecord {
  DeviceAddress address = 0;
  std::uint64_t bytes = 0;
  StreamHandle stream = 0;                             // the stream of `ticket`
  Ticket ticket = 0;                                   // newest work that may still use the bytes
  std::uint32_t previous = kNoBlock, next = kNoBlock;  // neighbours in the segment
  std::uint32_t bin_previous = kNoBlock, bin_next = kNoBlock;
  std::uint32_t generation = 1;
  std::uint32_t segment = 0;
  std::uint32_t lane = 0;  // of the bins that hold it, when free
  BlockState state = BlockState::kUnused;
  std::uint8_t home = 0;  // the lane of its segment
};

/// Records in chunks, so that their addresses stay. Guarded by the heap's lock.
class RecordTable {
 public:
  RecordTable();

  [[nodiscard]] BlockRecord& operator[](std::uint32_t id) noexcept {
    return chunks_[id >> kChunkBits][id & (kChunk - 1)];
  }
  [[nodiscard]] const BlockRecord& operator[](std::uint32_t id) const noexcept {
    return chunks_[id >> kChunkBits][id & (kChunk - 1)];
  }
  [[nodiscard]] bool holds(std::uint32_t id) const noexcept {
    return id != kNoBlock && id < chunks_.size() * kChunk;
  }

  /// Makes the next `count` calls of `acquire` succeed. Throws std::bad_alloc.
  void ensure(std::uint32_t count) {
    if (!ready(count)) [[unlikely]]
      grow();
  }
  [[nodiscard]] bool ready(std::uint32_t count) const noexcept { return unused_count_ >= count; }
  [[nodiscard]] std::uint32_t acquire() noexcept {
    const std::uint32_t id = unused_;
    unused_ = (*this)[id].bin_next;
    --unused_count_;
    return id;
  }
  /// Every handle of the block is void from here on.
  void release(std::uint32_t id) noexcept {
    BlockRecord& record = (*this)[id];
    record.state = BlockState::kUnused;
    ++record.generation;
    record.bin_next = unused_;
    unused_ = id;
    ++unused_count_;
  }

 private:
  static constexpr std::uint32_t kChunkBits = 10;
  static constexpr std::uint32_t kChunk = 1u << kChunkBits;

  void grow();

  std::vector<std::unique_ptr<BlockRecord[]>> chunks_;
  std::uint32_t unused_ = kNoBlock;
  std::uint32_t unused_count_ = 0;
};

}  // namespace nbx
