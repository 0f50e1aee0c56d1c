// What the heap knows of each block, kept outside device memory and named by 32-bit ids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/relaxed.h"
#include "stream/order.h"

namespace nbx {

enum class BlockState : std::uint8_t {
  kUnused,   // the record names no block
  kFree,     // in the bins of its lane, with memory under every byte
  kGap,      // addresses without memory, whole pages
  kLive,     // handed out
  kCached,   // free, in the cache of a thread or on a list of its slab
  kWaiting,  // freed, used by work of several streams that may still run
  kSlab,     // cut into slots of one size, which have records of their own
  kMoving,   // pages come or go under it
  kAsleep,   // handed out, its contents and the pages it has for itself are away
  kDormant,  // free addresses in a page that went away with a sleeping block
};

inline constexpr std::uint32_t kNoBlock = 0;

/// The fields that are Relaxed belong, while the block is live or in a thread's cache, to the
/// thread that holds it; everything else, and they in every other state, to the heap's lock.
struct alignas(64) BlockRecord {
  DeviceAddress address = 0;
  std::uint64_t bytes = 0;
  Relaxed<Ticket> ticket;    // newest work that may still use the bytes
  Relaxed<StreamId> stream;  // the stream of `ticket`
  // Neighbours in the segment; of a slot: its slab's number, and its class.
  std::uint32_t previous = kNoBlock, next = kNoBlock;
  Relaxed<std::uint32_t> bin_previous{kNoBlock}, bin_next{kNoBlock};
  Relaxed<std::uint32_t> generation{1};
  Relaxed<std::uint32_t> account;  // of a live block: its Account::id
  Relaxed<std::uint32_t> origin;   // of a live block: where it was asked for
  std::uint32_t segment = 0;
  Relaxed<std::uint16_t> lane;  // of the bins that hold it, when free
  Relaxed<BlockState> state{BlockState::kUnused};
  std::uint8_t home = 0;  // the lane of its segment

  /// Bytes that the holder of a live block asked for, kept where free blocks keep their links.
  [[nodiscard]] std::uint64_t requested() const noexcept {
    return std::uint64_t{bin_previous.get()} | (std::uint64_t{bin_next.get()} << 32);
  }
  /// The same for blocks below 4 GiB.
  [[nodiscard]] std::uint32_t requested_low() const noexcept { return bin_previous; }
  void set_requested(std::uint64_t value) noexcept {
    bin_previous = static_cast<std::uint32_t>(value);
    bin_next = static_cast<std::uint32_t>(value >> 32);
  }

  void set_requested_low(std::uint32_t value) noexcept {
    bin_previous = value;
    bin_next = 0;
  }

  /// A slot of a slab: no block is its neighbour.
  [[nodiscard]] bool is_slot() const noexcept { return (previous & kSlotBit) != 0; }
  [[nodiscard]] std::uint32_t slab() const noexcept { return previous & ~kSlotBit; }
  [[nodiscard]] std::uint32_t size_class() const noexcept { return next; }
  void set_slot(std::uint32_t number, std::uint32_t slot_class) noexcept {
    previous = number | kSlotBit;
    next = slot_class;
  }
  static constexpr std::uint32_t kSlotBit = std::uint32_t{1} << 31;  // no block's number has it
};
static_assert(sizeof(BlockRecord) == 64);

/// Records at addresses that are reserved from the start, so that they stay and a live block's
/// record is read without the heap's lock, which guards everything else.
class RecordTable {
 public:
  static constexpr std::uint32_t kChunk = 1u << 10;  // records that come at once

  RecordTable();
  /// Copies hold the same records: the books of a heap, to try something on.
  RecordTable(const RecordTable& other);
  RecordTable& operator=(const RecordTable&) = delete;
  ~RecordTable();

  [[nodiscard]] BlockRecord& operator[](std::uint32_t id) noexcept { return records_[id]; }
  [[nodiscard]] const BlockRecord& operator[](std::uint32_t id) const noexcept {
    return records_[id];
  }
  /// Brings a record that will be read soon.
  void fetch(std::uint32_t id) const noexcept { __builtin_prefetch(&(*this)[id], 1); }
  /// True if there is such a record; that of kNoBlock is always kUnused. Needs no lock, as records
  /// stay.
  [[nodiscard]] bool holds(std::uint32_t id) const noexcept {
    return id < size_.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint32_t size() const noexcept {
    return size_.load(std::memory_order_acquire);
  }

  /// Makes the next `count` calls of `acquire` succeed. Throws std::bad_alloc.
  void ensure(std::uint32_t count) {
    while (!ready(count)) [[unlikely]]
      grow();
  }
  [[nodiscard]] bool ready(std::uint32_t count) const noexcept {
    return unused_count_ + size() - fresh_ >= count;
  }
  [[nodiscard]] std::uint32_t acquire() noexcept {
    if (unused_ == kNoBlock) return fresh_++;
    const std::uint32_t id = unused_;
    unused_ = (*this)[id].bin_next;
    --unused_count_;
    return id;
  }
  /// Makes the next call of `acquire_run` succeed. Throws std::bad_alloc.
  void ensure_run(std::uint32_t count);
  /// The first of so many records in a row, a power of two and at most kChunk, for good: threads
  /// that have runs of their own share no cache line, nor a pair of lines that is fetched together.
  [[nodiscard]] std::uint32_t acquire_run(std::uint32_t count) noexcept;
  /// Every handle of the block is void from here on.
  void release(std::uint32_t id) noexcept {
    retire(id);
    (*this)[id].bin_next = unused_;
    unused_ = id;
    ++unused_count_;
  }
  /// The same for a record of a run.
  void retire(std::uint32_t id) noexcept {
    BlockRecord& record = (*this)[id];
    record.state = BlockState::kUnused;
    record.generation += 1;
  }

 private:
  explicit RecordTable(std::size_t bytes);
  void grow();
  void extend();  // memory for the next kChunk records

  const std::size_t bytes_;  // that are reserved
  BlockRecord* const records_;
  std::atomic<std::uint32_t> size_{0};
  std::uint32_t fresh_ = kNoBlock + 1;  // from here on records were never acquired
  std::uint32_t unused_ = kNoBlock;
  std::uint32_t unused_count_ = 0;
};

}  // namespace nbx
