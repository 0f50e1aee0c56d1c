// Small blocks: slots of one size, cut out of blocks of the heap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "heap/block.h"
#include "heap/records.h"

namespace nbx {

class Space;

/// Sizes of slots, in granules: each up to 8, from there on 8 in each power of two.
struct SlotSize {
  static constexpr std::uint64_t kLargest = kMostSmallBytes;
  static constexpr std::uint32_t kCount = 64;

  /// The class of the smallest slots that hold this many granules, which are at least 1.
  [[nodiscard]] static constexpr std::uint32_t of(std::uint64_t granules) noexcept {
    const std::uint64_t last = granules - 1;
    if (last < 8) return static_cast<std::uint32_t>(last);
    const int shift = 60 - __builtin_clzll(last);
    return static_cast<std::uint32_t>(shift << 3) + static_cast<std::uint32_t>(last >> shift);
  }
  [[nodiscard]] static constexpr std::uint64_t granules(std::uint32_t size_class) noexcept {
    if (size_class < 8) return size_class + 1;
    return std::uint64_t{(size_class & 7) + 9} << ((size_class >> 3) - 1);
  }
};

/// What hot paths look up of the slots of a device, by its granule.
struct SlotTables {
  std::array<std::uint8_t, (SlotSize::kLargest >> 6)> classes;  // by (bytes - 1) / 64
  std::array<std::uint32_t, SlotSize::kCount> bytes;            // of a slot, by class
};
template <std::uint32_t kGranuleBits>
inline constexpr SlotTables kSlotTables = [] {
  SlotTables tables{};
  for (std::uint64_t i = 0; i < tables.classes.size(); ++i) {
    tables.classes[i] = static_cast<std::uint8_t>(SlotSize::of((i * 64 >> kGranuleBits) + 1));
  }
  for (std::uint32_t i = 0; i < SlotSize::kCount; ++i) {
    tables.bytes[i] = static_cast<std::uint32_t>(SlotSize::granules(i) << kGranuleBits);
  }
  return tables;
}();

/// A slab serves one stream at a time: its free slots may be touched by work of that stream alone.
///
/// Guarded by the heap's lock, held by the caller.
class Slabs {
 public:
  explicit Slabs(Space& space);

  /// Up to `count` free slots that `stream` can have at once; makes a slab if none has any and
  /// there is room for one. They stay kCached. Returns how many.
  std::uint32_t take(std::uint32_t size_class, StreamId stream, std::uint32_t count,
                     std::uint32_t* ids) noexcept;
  /// A slot that is free once the work that its record names is over. Returns what Space::give
  /// does, when that gave a slab back to the heap.
  std::uint32_t give(std::uint32_t id) noexcept;
  /// The graph of `capture` uses the slot until it is released.
  void freeze(std::uint32_t id, StreamId capture) noexcept { frozen_.push_back({id, capture}); }
  void release_capture(StreamId capture, const BlockUse& use) noexcept;

  /// Gives every empty slab back to the heap; `unused(id)` for each id that Space::give returned.
  template <class Unused>
  void fold(const Unused& unused) noexcept {
    for (std::uint32_t size_class = 0; size_class < SlotSize::kCount; ++size_class) {
      for (std::uint32_t number = lists_[size_class].first; number != 0;) {
        const std::uint32_t next = slabs_[number].next;
        if (is_empty(slabs_[number])) unused(give_up(number));
        number = next;
      }
    }
  }
  [[nodiscard]] bool has_empty() const noexcept { return empty_ != 0; }

  /// The live slot that holds the address, which lies in the slab of record `block`.
  [[nodiscard]] std::uint32_t find(std::uint32_t block, DeviceAddress address) const noexcept;

  void list_streams(std::vector<StreamId>* streams) const;
  [[nodiscard]] Ticket newest_ticket(StreamId stream) const noexcept;
  void complete(StreamId stream, Ticket ticket) noexcept;

 private:
  struct Slab {
    std::uint32_t block = kNoBlock;
    std::uint32_t size_class = 0;
    StreamId stream = kNoStream;
    Ticket newest = 0;  // of the free slots; 0: nothing uses them
    std::uint32_t slots = 0, free = 0, first_free = kNoBlock;
    std::uint32_t previous = 0, next = 0;  // with free slots; empty ones last
    std::unique_ptr<std::uint32_t[]> ids;
  };
  struct List {
    std::uint32_t first = 0, last = 0;
  };
  struct Frozen {
    std::uint32_t id;
    StreamId capture;
  };
  static constexpr std::uint64_t kSlabBytes = std::uint64_t{64} << 10;
  static constexpr std::uint32_t kFewSlots = 8;    // of a first slab
  static constexpr std::uint32_t kLeastSlots = 4;  // however large they are
  static constexpr std::uint32_t kHeapFirst = 4;   // blocks that a class has of the heap itself
  static constexpr int kLooked = 16;               // slabs looked at for one of the right stream

  [[nodiscard]] static bool is_empty(const Slab& slab) noexcept { return slab.free == slab.slots; }
  [[nodiscard]] std::uint32_t find_slab(std::uint32_t size_class, StreamId stream) const noexcept;
  [[nodiscard]] std::uint32_t make_slab(std::uint32_t size_class, StreamId stream) noexcept;
  void cut(std::uint32_t number) noexcept;
  std::uint32_t pop(Slab& slab, StreamId stream) noexcept;
  std::uint32_t give_up(std::uint32_t number) noexcept;
  void link(std::uint32_t number, bool first) noexcept;
  void unlink(std::uint32_t number) noexcept;

  Space& space_;
  RecordTable& records_;
  std::vector<Slab> slabs_{1};  // by number; 0 is none
  std::vector<std::uint32_t> spare_;
  std::array<List, SlotSize::kCount> lists_{};
  std::array<std::uint32_t, SlotSize::kCount> wanted_{};  // slots of the next slab
  std::array<std::uint32_t, SlotSize::kCount> misses_{};
  std::array<std::uint32_t, SlotSize::kCount> empties_{};
  std::uint32_t empty_ = 0;
  std::size_t slot_count_ = 0;
  std::vector<std::uint32_t> strays_;  // freed by another stream than their slab's
  std::vector<Frozen> frozen_;
};

}  // namespace nbx
