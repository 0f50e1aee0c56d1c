// The books of a heap: segments cut into blocks, and lanes of free blocks. Calls no driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "heap/bins.h"
#include "heap/records.h"
#include "heap/uses.h"

namespace nbx {

/// One piece of memory from the driver.
struct Segment {
  DeviceAddress driver_address = 0;
  std::uint64_t driver_bytes = 0;
  DeviceAddress base = 0;   // first granule
  std::uint64_t bytes = 0;  // whole granules from base
  std::uint32_t home = 0;   // lane of its free blocks that no stream uses
  std::uint32_t first = kNoBlock;
  std::vector<std::uint32_t> pages;  // first block that starts in each 64 KiB; 0 none
};

/// Free blocks lie in lanes. The first two are homes: blocks that nothing uses, of shared and of
/// single-block segments. Each other lane is a stream's: blocks that only work of that stream may
/// still use, so that the same stream can have them at once. Neighbours merge within a lane.
///
/// Guarded by the heap's lock, held by the caller.
class Space {
 public:
  static constexpr std::uint32_t kSharedHome = 0;
  static constexpr std::uint32_t kSingleHome = 1;

  explicit Space(std::uint32_t granule_bits);

  [[nodiscard]] std::uint64_t granule() const noexcept { return std::uint64_t{1} << granule_bits_; }
  [[nodiscard]] BlockRecord& record(std::uint32_t id) noexcept { return records_[id]; }
  [[nodiscard]] const BlockRecord& record(std::uint32_t id) const noexcept { return records_[id]; }
  [[nodiscard]] RecordTable& records() noexcept { return records_; }

  /// A live block of `bytes` (whole granules) at `alignment` for `stream`, by the two bitmaps;
  /// kNoBlock when no quick fit is found or two records are not ready.
  [[nodiscard]] std::uint32_t take(std::uint32_t home, StreamHandle stream, std::uint64_t bytes,
                                   std::uint64_t alignment) noexcept {
    const std::uint64_t granules = bytes >> granule_bits_;
    if (granules < kCachedSizes && cached_[granules] != kNoBlock) [[likely]] {
      const std::uint32_t id = cached_[granules];
      BlockRecord& found = records_[id];
      if ((found.address & (alignment - 1)) == 0) [[likely]] {
        cached_[granules] = found.bin_next;
        cached_bytes_ -= bytes;
        found.state = BlockState::kLive;
        found.stream = stream;
        found.ticket = 0;
        return id;
      }
    }
    return take_from_bins(home, stream, bytes, alignment);
  }
  /// The same, looking at every free block that `stream` may have in this home, or in both.
  [[nodiscard]] std::uint32_t take_any(std::uint32_t home, bool both, StreamHandle stream,
                                       std::uint64_t bytes, std::uint64_t alignment);

  /// True if the handle names a live block.
  [[nodiscard]] bool is_live(std::uint32_t id, std::uint32_t generation) const noexcept {
    if (!records_.holds(id)) return false;
    const BlockRecord& found = records_[id];
    return found.state == BlockState::kLive && found.generation == generation;
  }
  /// Frees a live block that `uses` may still touch, besides earlier work it was taken with.
  /// Returns the id of the free block it became part of when that fills its segment and nothing
  /// uses it, else kNoBlock. Throws std::bad_alloc, and the block stays live then.
  std::uint32_t give(std::uint32_t id, const BlockUse* uses, std::size_t count) {
    BlockRecord& freed = records_[id];
    const std::uint64_t granules = freed.bytes >> granule_bits_;
    const bool idle = freed.ticket == 0 && (count == 0 || (count == 1 && uses[0].ticket == 0));
    if (idle && granules < kCachedSizes && freed.home == kSharedHome &&
        cached_bytes_ + freed.bytes <= kCachedBytes) [[likely]] {
      ++freed.generation;
      freed.state = BlockState::kCached;
      freed.bin_next = cached_[granules];
      cached_[granules] = id;
      cached_bytes_ += freed.bytes;
      return kNoBlock;
    }
    return give_to_lane(id, uses, count);
  }
  /// Merges the cached blocks into the holes around them.
  void flush() noexcept;

  /// Streams whose work keeps blocks from being free, each once.
  [[nodiscard]] std::vector<StreamHandle> pending_streams() const;
  /// The newest ticket of `stream` that a block waits for; 0 if none does.
  [[nodiscard]] Ticket newest_ticket(StreamHandle stream) const noexcept;
  /// Moves home what waited only for work of `stream` up to `ticket`.
  void complete(StreamHandle stream, Ticket ticket) noexcept;

  void add_segment(Segment segment);
  /// Takes an unused segment out of the books, by its only block; the caller gives it to the
  /// driver.
  [[nodiscard]] Segment remove_segment(std::uint32_t block) noexcept;
  /// The block of an unused segment, the largest first; kNoBlock if every segment is in use.
  [[nodiscard]] std::uint32_t unused_segment() noexcept;
  [[nodiscard]] std::uint64_t unused_bytes(std::uint32_t home) const noexcept {
    return unused_bytes_[home];
  }
  [[nodiscard]] std::uint64_t home_bytes(std::uint32_t home) const noexcept {
    return segment_bytes_[home];
  }

  /// The live block that holds the address; kNoBlock if none does.
  [[nodiscard]] std::uint32_t find(DeviceAddress address) const noexcept;

  [[nodiscard]] std::uint64_t pending_bytes() const noexcept;
  [[nodiscard]] std::uint64_t free_blocks() const noexcept;
  [[nodiscard]] std::uint64_t largest_hole() const noexcept;

 private:
  struct Lane {
    explicit Lane(std::uint32_t granule_bits) : bins(granule_bits) {}
    StreamHandle stream = 0;
    Bins bins;
  };
  struct Waiting {
    std::uint32_t block;
    std::vector<BlockUse> uses;
  };
  static constexpr std::uint32_t kHomes = 2;
  // Small blocks are kept whole for the next request of their size, up to this many bytes.
  static constexpr std::uint64_t kCachedSizes = 256;  // granules
  static constexpr std::uint64_t kCachedBytes = 512 * std::uint64_t{1024};
  static constexpr std::uint32_t kPageBits = 16;

  [[nodiscard]] std::uint32_t lane_of(StreamHandle stream) const noexcept;  // 0: it has none
  [[nodiscard]] std::uint32_t make_lane(StreamHandle stream);
  [[nodiscard]] std::uint32_t take_from_bins(std::uint32_t home, StreamHandle stream,
                                             std::uint64_t bytes, std::uint64_t alignment) noexcept;
  std::uint32_t give_to_lane(std::uint32_t id, const BlockUse* uses, std::size_t count);
  [[nodiscard]] std::uint32_t carve(std::uint32_t id, StreamHandle stream, std::uint64_t bytes,
                                    std::uint64_t alignment) noexcept;
  void split(std::uint32_t id, std::uint64_t bytes) noexcept;
  std::uint32_t put(std::uint32_t id, std::uint32_t lane) noexcept;
  std::uint32_t merge(std::uint32_t left, std::uint32_t right) noexcept;
  void pull(std::uint32_t id) noexcept;
  [[nodiscard]] bool fills_segment(const BlockRecord& record) const noexcept {
    return record.previous == kNoBlock && record.next == kNoBlock;
  }
  void index(std::uint32_t id) noexcept;
  void unindex(std::uint32_t id) noexcept;

  std::uint32_t granule_bits_;
  RecordTable records_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Waiting> waiting_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> spare_segments_;
  std::map<DeviceAddress, std::uint32_t> by_base_;
  std::array<std::uint32_t, kCachedSizes> cached_{};
  std::uint64_t cached_bytes_ = 0;
  std::uint64_t unused_bytes_[kHomes] = {};
  std::uint64_t segment_bytes_[kHomes] = {};
};

}  // namespace nbx
