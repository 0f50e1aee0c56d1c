// Small blocks: slots of one size, cut out of blocks of the heap.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/align.h"
#include "core/relaxed.h"
#include "core/stable_vector.h"
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
/// It may belong to a share, which has its free slots for itself; what others give back to it waits
/// until the share looks for it.
class Slabs {
 public:
  struct List {
    std::uint32_t first = 0, last = 0;
  };
  using Lists = std::array<List, SlotSize::kCount>;
  /// The slabs that one thread takes slots from and gives them to, for one stream. `lists` are the
  /// thread's while it is inside its gate; everything else belongs to the heap's lock.
  struct Share {
    const void* thread = nullptr;  // a mark: those of one thread help each other
    Lists lists{};                 // with free slots, empty ones last
    List owned;
    List returned;  // those that others gave slots back to
    Share* next = nullptr;
  };

  explicit Slabs(Space& space);

  // ---- by the thread of the share, inside its gate or with the heap's lock ---------------------
  /// Up to `count` free slots of the share's own; they stay kCached. Returns how many.
  std::uint32_t take_owned(Share& share, std::uint32_t size_class, StreamId stream,
                           std::uint32_t count, std::uint32_t* ids) noexcept;
  /// A block that is free on the share's stream; false if it is no slot of the share's, or not so
  /// simple.
  [[nodiscard]] bool give_owned(Share& share, std::uint32_t id) noexcept;

  // ---- with the heap's lock --------------------------------------------------------------------
  /// The same as `take_owned`, and then slots that `stream` can have at once of slabs that become
  /// the share's; makes one if none has any and there is room.
  std::uint32_t take(Share& share, std::uint32_t size_class, StreamId stream, std::uint32_t count,
                     std::uint32_t* ids) noexcept;
  /// One slot of a slab that is nobody's, or of any while shares are open; kNoBlock if there is
  /// none.
  [[nodiscard]] std::uint32_t take_open(std::uint32_t size_class, StreamId stream) noexcept;
  /// A slot that is free once the work that its record names is over, given by the thread of
  /// `share` (null: by any). Returns what Space::give does, when that gave a slab back to the heap.
  std::uint32_t give(std::uint32_t id, Share* share) noexcept;
  /// The share is known until the slabs go.
  void add(Share& share, const void* thread) noexcept;
  /// Its slabs are nobody's from here on. The thread of the share calls this, or is kept out.
  void disown(Share& share) noexcept;
  /// Until as many calls of `close_shares` the threads of all shares are kept out, so that what
  /// they have is looked at as well.
  void open_shares() noexcept;
  void close_shares() noexcept { --opened_; }
  /// In the child of a fork, where those who opened them may have been left behind.
  void reset_shares() noexcept { opened_ = 0; }
  /// The graph of `capture` uses the slot until it is released.
  void freeze(std::uint32_t id, StreamId capture) noexcept { frozen_.push_back({id, capture}); }
  void release_capture(StreamId capture, const BlockUse& use) noexcept;

  /// Gives empty slabs back to the heap: those that are nobody's, and all while shares are open.
  void fold() noexcept;
  /// Those of one share, by its thread, and nobody's; false if there were none.
  [[nodiscard]] bool fold(Share& share) noexcept;

  /// The live slot that holds the address, which lies in the slab of record `block`.
  [[nodiscard]] std::uint32_t find(std::uint32_t block, DeviceAddress address) const noexcept;

  // Of slabs that are nobody's, and of all while shares are open: a share's stream waits for
  // nothing.
  void list_streams(std::vector<StreamId>* streams) const;
  [[nodiscard]] Ticket newest_ticket(StreamId stream) const noexcept;
  void complete(StreamId stream, Ticket ticket) noexcept;

 private:
  struct Links {
    std::uint32_t previous = 0, next = 0;
  };
  struct alignas(kApart) Slab {
    Relaxed<Share*> owner{nullptr};  // changed with the heap's lock
    Relaxed<StreamId> stream{kNoStream};
    std::uint32_t size_class = 0;
    Ticket newest = 0;  // of the free slots; 0: nothing uses them
    std::uint32_t slots = 0, free = 0, first_free = kNoBlock;
    Links place;  // in a list of slabs with free slots, empty ones last
    // With the heap's lock, whoever the owner is:
    std::uint32_t block = kNoBlock;
    Links owned, returned;
    std::uint32_t returned_slots = 0, first_returned = kNoBlock;
    Ticket newest_returned = 0;
    std::uint32_t first_id = kNoBlock;  // of a run of records, which the slab keeps
  };
  struct Frozen {
    std::uint32_t id;
    StreamId capture;
  };
  static constexpr std::uint64_t kSlabBytes = std::uint64_t{64} << 10;
  static constexpr std::uint32_t kFewSlots = 8;    // of a first slab
  static constexpr std::uint32_t kLeastSlots = 4;  // however large they are
  static constexpr std::uint32_t kHeapFirst = 4;   // blocks that a class has of the heap itself
  static constexpr int kHalvings = 3;              // sizes of a slab that are tried
  static constexpr int kLooked = 16;               // slabs looked at for one of the right stream
  // A slab's records lie in a row of a power of two: of most slots where they are smallest.
  static constexpr std::size_t kMostBits = std::bit_width(kSlabBytes - 1) - kHostGranuleBits;
  [[nodiscard]] static std::size_t run_bits(std::uint32_t slots) noexcept {
    return static_cast<std::size_t>(std::bit_width(slots - 1));
  }

  [[nodiscard]] static bool is_empty(const Slab& slab) noexcept { return slab.free == slab.slots; }
  [[nodiscard]] bool ends_empty(const List& list) const noexcept {
    return list.last != 0 && is_empty(slabs_[list.last]);
  }
  [[nodiscard]] std::uint32_t find_slab(const List& list, StreamId stream) const noexcept;
  [[nodiscard]] std::uint32_t find_for(const Share& share, std::uint32_t size_class,
                                       StreamId stream) noexcept;
  [[nodiscard]] std::uint32_t make_slab(std::uint32_t size_class, StreamId stream) noexcept;
  [[nodiscard]] std::uint32_t make_slab_of(std::uint32_t slots, std::uint32_t size_class,
                                           StreamId stream) noexcept;
  void make_spare(std::size_t bits);
  void cut(std::uint32_t number) noexcept;
  std::uint32_t pop(Slab& slab, StreamId stream) noexcept;
  void push(List& list, std::uint32_t number, std::uint32_t id) noexcept;
  void adopt(std::uint32_t number, Share& share) noexcept;
  void disown(std::uint32_t number) noexcept;
  [[nodiscard]] List& list_of(const Slab& slab) noexcept {
    Share* const owner = slab.owner;
    return (owner != nullptr ? owner->lists : lists_)[slab.size_class];
  }
  bool fold_in(const Lists& lists) noexcept;
  void give_later(std::uint32_t number, std::uint32_t id) noexcept;
  void collect(std::uint32_t number) noexcept;
  void collect(Share& share) noexcept;
  std::uint32_t give_up(std::uint32_t number) noexcept;
  /// Calls `visit(lists)` until it returns true: with nobody's, and with all while shares are open.
  template <class Visit>
  bool visit_lists(const Visit& visit) const noexcept;
  /// Calls `visit(number)` for the slabs in them.
  template <class Visit>
  void for_each(const Visit& visit) const noexcept;
  template <Links Slab::* kLinks>
  void link(List& list, std::uint32_t number, bool first) noexcept;
  template <Links Slab::* kLinks>
  void unlink(List& list, std::uint32_t number) noexcept;

  Space& space_;
  RecordTable& records_;
  StableVector<Slab> slabs_;                          // by number; 0 is none
  std::array<std::uint32_t, kMostBits + 1> spare_{};  // by run_bits of their slots
  Lists lists_{};                                     // nobody's
  Share* shares_ = nullptr;
  std::uint32_t opened_ = 0;
  std::array<std::uint32_t, SlotSize::kCount> wanted_{};  // slots of the next slab
  std::array<std::uint32_t, SlotSize::kCount> misses_{};
  std::size_t slot_count_ = 0;
  std::vector<std::uint32_t> strays_;  // freed by another stream than their slab's
  std::vector<Frozen> frozen_;
};

}  // namespace nbx
