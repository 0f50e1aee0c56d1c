// The books of a heap: addresses cut into blocks, and lanes of free blocks. Calls no driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "heap/bins.h"
#include "heap/records.h"
#include "heap/starts.h"
#include "pages/pages.h"

namespace nbx {

class Slabs;

/// Addresses next to each other: one piece of memory from the driver, or a range whose pages come
/// and go.
struct Segment {
  DeviceAddress driver_address = 0;
  std::uint64_t driver_bytes = 0;
  DeviceAddress base = 0;      // first granule
  std::uint64_t bytes = 0;     // whole granules from base
  PageRange* pages = nullptr;  // of a range
  std::uint32_t home = 0;      // lane of its free blocks that no stream uses
  std::uint32_t first = kNoBlock;
  BlockStarts starts;
};

using CaptureId = std::uint32_t;

/// Whose free blocks a search may have, besides those that nothing uses.
struct Reach {
  StreamId stream = kNoStream;
  bool ordered = false;  // of streams that `stream` waits for already
  bool waits = false;    // of any stream, after a wait for it
  Ticket follow = 0;     // covers the waits: once complete on `stream`, they are over
};

/// Where a request can lie once pages are put under the gaps between its holes.
struct GrowthPlan {
  std::uint32_t first = kNoBlock, last = kNoBlock;  // records, neighbours
  DeviceAddress start = 0, end = 0;
  std::uint64_t missing = 0;    // granules of the gaps
  std::uint64_t inside = 0;     // whole free pages of the holes, where pages are scarce
  std::vector<StreamId> waits;  // streams that must be waited for first
  [[nodiscard]] bool found() const noexcept { return first != kNoBlock; }
};

/// Whole pages of free blocks, taken out of the bins.
struct Victim {
  std::uint32_t record = kNoBlock;
  PageRun run;
};

/// Free blocks lie in lanes. The first two are homes: blocks that nothing uses, of shared and of
/// single-block segments. Each other lane is a stream's, with blocks that only work of that stream
/// may still use, so that the same stream can have them at once, or a capture's, with the blocks
/// that a graph will use. Neighbours merge within a lane.
///
/// Guarded by the heap's lock, held by the caller.
class Space {
 public:
  static constexpr std::uint32_t kSharedHome = 0;
  static constexpr std::uint32_t kSingleHome = 1;

  explicit Space(std::uint32_t granule_bits);
  /// A copy to try things on. Its segments share the page ranges, which it only reads.
  Space(const Space& other);
  Space& operator=(const Space&) = delete;

  /// Slots of these slabs are found, waited for and frozen like blocks. A copy of the books has
  /// no slabs: to it they are blocks in use.
  void attach(Slabs& slabs, std::uint8_t recorded) noexcept {
    slabs_ = &slabs;
    recorded_ = recorded;
  }

  [[nodiscard]] std::uint32_t granule_bits() const noexcept { return granule_bits_; }
  [[nodiscard]] std::uint64_t granule() const noexcept { return std::uint64_t{1} << granule_bits_; }
  [[nodiscard]] BlockRecord& record(std::uint32_t id) noexcept { return records_[id]; }
  [[nodiscard]] const BlockRecord& record(std::uint32_t id) const noexcept { return records_[id]; }
  [[nodiscard]] RecordTable& records() noexcept { return records_; }
  [[nodiscard]] const RecordTable& records() const noexcept { return records_; }
  [[nodiscard]] const std::vector<Segment>& segments() const noexcept { return segments_; }

  /// A live block of `bytes` (whole granules) at `alignment` for `stream`, by the two bitmaps;
  /// kNoBlock when no quick fit is found or two records are not ready.
  [[nodiscard]] std::uint32_t take(std::uint32_t home, StreamId stream, std::uint64_t bytes,
                                   std::uint64_t alignment) noexcept;
  /// The same, looking at every free block in reach in this home, or in both.
  [[nodiscard]] std::uint32_t take_any(std::uint32_t home, bool both, const Reach& reach,
                                       std::uint64_t bytes, std::uint64_t alignment);
  /// The stream whose freed block would fit best once it is waited for; kNoStream if none would.
  [[nodiscard]] StreamId stream_to_wait_for(StreamId stream, std::uint64_t bytes,
                                            std::uint64_t alignment) const;

  /// True if the handle names a live block.
  [[nodiscard]] bool is_live(std::uint32_t id, std::uint32_t generation) const noexcept {
    if (!records_.holds(id)) return false;
    const BlockRecord& found = records_[id];
    return found.state == BlockState::kLive && found.generation == generation;
  }
  /// Frees a live block that `uses` may still touch, besides earlier work it was taken with.
  /// Returns the id of the free block it became part of when that fills its segment and nothing
  /// uses it, else kNoBlock. Throws std::bad_alloc, and the block stays live then.
  std::uint32_t give(std::uint32_t id, const BlockUse* uses, std::size_t count);

  /// Streams whose work keeps blocks from being free, each once.
  [[nodiscard]] std::vector<StreamId> pending_streams() const;
  /// The newest ticket of `stream` that a block waits for; 0 if none does.
  [[nodiscard]] Ticket newest_ticket(StreamId stream) const noexcept;
  /// Moves home what waited only for work of `stream` up to `ticket`.
  void complete(StreamId stream, Ticket ticket) noexcept;

  // ---- captures: what `stream` takes and frees stays with the capture until it is released ----
  void begin_capture(CaptureId capture, StreamId stream);
  /// Its blocks are free after `use`.
  void release_capture(CaptureId capture, const BlockUse& use);
  void release_captures();  // all of them, as if their graphs had never run

  // ---- segments --------------------------------------------------------------------------------
  /// Makes the books of a piece of memory, all free, or of a range, all gap.
  void add_segment(Segment segment);
  /// Takes an unused segment out of the books, by its only block; the caller gives it to the
  /// driver.
  [[nodiscard]] Segment remove_segment(std::uint32_t block) noexcept;
  /// The block of an unused segment, the largest first; kNoBlock if every segment is in use.
  [[nodiscard]] std::uint32_t unused_segment() const noexcept;
  [[nodiscard]] std::uint64_t unused_bytes(std::uint32_t home) const noexcept {
    return unused_bytes_[home];
  }
  [[nodiscard]] std::uint64_t home_bytes(std::uint32_t home) const noexcept {
    return segment_bytes_[home];
  }

  // ---- pages (growth.cpp) ----------------------------------------------------------------------
  /// The window with the fewest missing granules, then the fewest waits.
  /// Where pages are scarce, free ones that lie in the window count like missing ones: they cannot
  /// be moved to its gaps.
  [[nodiscard]] GrowthPlan plan_growth(const Reach& reach, std::uint64_t bytes,
                                       std::uint64_t alignment, bool scarce = false) const;
  /// Turns the window into one block on the move, and lists its gaps. Throws std::bad_alloc.
  [[nodiscard]] std::uint32_t open_window(const GrowthPlan& plan, const Reach& reach,
                                          std::vector<PageRun>* gaps);
  /// Every gap has memory: a live block of `bytes`, the rest free.
  [[nodiscard]] std::uint32_t close_window(std::uint32_t window, std::uint64_t bytes,
                                           std::uint64_t alignment);
  /// Frees what a window holds, by what lies under it.
  void abandon_window(std::uint32_t window);
  /// Takes whole free pages out of the books, from the largest holes on, until `granules` of them
  /// are found or none is left; a large handle counts whole.
  [[nodiscard]] std::vector<Victim> take_victims(std::uint64_t granules);
  /// Granules that `take_victims` could find.
  [[nodiscard]] std::uint64_t free_granules() const;
  /// Whether a request would be served with `spare` bytes from the driver and the bank.
  [[nodiscard]] bool fits(std::uint32_t home, const Reach& reach, std::uint64_t bytes,
                          std::uint64_t alignment, std::uint64_t spare);
  void make_gap(std::uint32_t victim) noexcept;
  void return_victim(std::uint32_t victim) noexcept;

  // ---- sleep (dormant.cpp) ---------------------------------------------------------------------
  [[nodiscard]] bool is_asleep(std::uint32_t id, std::uint32_t generation) const noexcept {
    return records_.holds(id) && records_[id].state == BlockState::kAsleep &&
           records_[id].generation == generation;
  }
  [[nodiscard]] bool has_capture(CaptureId capture) const noexcept {
    return lane_of_capture(capture) != 0;
  }
  [[nodiscard]] bool is_captured(std::uint32_t id) const noexcept {
    return is_capturing(records_[id].lane);
  }
  /// Lists the handles under sleeping and free blocks only, with a sleeping one on each, and takes
  /// those free blocks out of the bins; `scatter` takes them back. Throws std::bad_alloc, and
  /// nothing has changed then.
  void take_dormant(std::vector<PageRun>* runs, std::vector<std::uint32_t>* holes);
  /// Gives addresses that nobody owns back, piece by piece, by what lies under them.
  void scatter(std::uint32_t id);
  /// A sleeping block is freed; its handles are void. Throws std::bad_alloc, and it sleeps on then.
  void drop_asleep(std::uint32_t id);
  /// The run has memory again: what is dormant there is free.
  void stir(const PageRun& run);
  /// True for a range that is no segment of this heap: a reserved block's.
  [[nodiscard]] bool is_reserved(const PageRange& range) const noexcept {
    return by_base_.find(range.base()) == by_base_.end();
  }
  /// Makes calls of `scatter` and `stir` for this many blocks succeed.
  void ensure_scatter(std::uint64_t blocks) {
    records_.ensure(static_cast<std::uint32_t>(4 * blocks + 8));
  }
  /// Whole pages under the block that have no memory, next to each other.
  void list_missing(std::uint32_t id, std::vector<PageRun>* runs) const;
  [[nodiscard]] std::uint64_t dormant_count(const PageRun& run) const noexcept;
  /// Bytes of the block with memory under them.
  [[nodiscard]] std::uint64_t mapped_bytes(std::uint32_t id) const noexcept;
  /// True if a handle of more than one page lies under the block.
  [[nodiscard]] bool has_large_handle(std::uint32_t id) const noexcept;

  /// The live block that holds the address; kNoBlock if none does.
  [[nodiscard]] std::uint32_t find(DeviceAddress address) const noexcept;

  [[nodiscard]] std::uint64_t pending_bytes() const noexcept;
  [[nodiscard]] std::uint64_t pending_bytes_of(StreamId stream) const noexcept;
  [[nodiscard]] std::uint64_t frozen_bytes() const noexcept;
  [[nodiscard]] std::uint64_t free_blocks() const noexcept;
  [[nodiscard]] std::uint64_t largest_hole() const noexcept;
  [[nodiscard]] std::uint64_t visited() const noexcept;

 private:
  struct Lane {
    explicit Lane(std::uint32_t granule_bits) : bins(granule_bits) {}
    StreamId stream = kNoStream;
    CaptureId capture = 0;
    Bins bins;
  };
  struct Waiting {
    std::uint32_t block;
    CaptureId capture;  // whose lane it goes to; 0: home
    std::vector<BlockUse> uses;
  };
  static constexpr std::uint32_t kHomes = 2;

  [[nodiscard]] std::uint32_t lane_of(StreamId stream) const noexcept;  // 0: it has none
  [[nodiscard]] std::uint32_t make_lane(StreamId stream);
  [[nodiscard]] std::uint32_t lane_of_capture(CaptureId capture) const noexcept;
  std::uint32_t new_lane();
  [[nodiscard]] bool is_capturing(std::uint32_t lane) const noexcept {
    return lane >= kHomes && lanes_[lane]->capture != 0;
  }
  /// The best block of the lanes of other streams that the reach admits.
  [[nodiscard]] std::uint32_t find_of_others(const Reach& reach, std::uint64_t bytes,
                                             std::uint64_t alignment) const;
  [[nodiscard]] std::uint64_t whole_pages(const BlockRecord& hole) const noexcept;
  /// Where the rests of a block on the move belong.
  [[nodiscard]] std::uint32_t lane_for(const BlockRecord& record);
  [[nodiscard]] bool reaches(const Reach& reach, const BlockRecord& record,
                             std::uint32_t own) const noexcept;
  std::uint32_t give_to_lane(std::uint32_t id, const BlockUse* uses, std::size_t count);
  std::uint32_t give_after_all(std::uint32_t id, const BlockUse* uses, std::size_t count);
  [[nodiscard]] std::uint64_t place_in(const BlockRecord& hole, std::uint64_t bytes,
                                       std::uint64_t alignment) const noexcept;
  [[nodiscard]] std::uint32_t carve(std::uint32_t id, StreamId stream, std::uint64_t bytes,
                                    std::uint64_t alignment) noexcept;
  void split(std::uint32_t id, std::uint64_t bytes) noexcept;
  void fetch_around(const BlockRecord& record) const noexcept;
  void fetch_links(const BlockRecord& record) const noexcept;
  std::uint32_t put(std::uint32_t id, std::uint32_t lane) noexcept;
  std::uint32_t put_slot(std::uint32_t id, std::uint32_t lane) noexcept;
  std::uint32_t merge(std::uint32_t left, std::uint32_t right) noexcept;
  void pull(std::uint32_t id) noexcept;
  [[nodiscard]] bool fills_segment(const BlockRecord& record) const noexcept {
    return record.previous == kNoBlock && record.next == kNoBlock &&
           segments_[record.segment].pages == nullptr;
  }
  struct Search;
  void window_from(std::uint32_t first, DeviceAddress start, Search* search) const;
  void windows_of(std::uint32_t gap, Search* search) const;
  void return_pieces(std::uint32_t id, std::uint32_t lane);
  void settle(std::uint32_t id);
  [[nodiscard]] std::uint32_t holder(const Segment& segment, DeviceAddress address) const noexcept;
  [[nodiscard]] std::uint32_t segment_of(const PageRange& range) const noexcept;
  void index(std::uint32_t id) noexcept;
  void unindex(std::uint32_t id) noexcept;

  std::uint32_t granule_bits_;
  Slabs* slabs_ = nullptr;
  std::uint8_t recorded_ = 0;  // the recorder's number of the heap; a copy notes nothing
  RecordTable records_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Bins gaps_;
  std::vector<Waiting> waiting_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> spare_segments_;
  std::map<DeviceAddress, std::uint32_t> by_base_;
  std::uint64_t unused_bytes_[kHomes] = {};
  std::uint64_t segment_bytes_[kHomes] = {};
};

}  // namespace nbx
