// Free blocks by size: two levels of bitmaps over lists, so that a fitting list is found at once.
#pragma once

#include <array>
#include <cstdint>

#include "heap/records.h"

namespace nbx {

/// Bins are exact below 32 granules; above, each power of two is cut into 32 bins.
class Bins {
 public:
  /// `granule_bits`: every size and address is a multiple of 2^granule_bits bytes.
  explicit Bins(std::uint32_t granule_bits) noexcept : granule_bits_(granule_bits) {}

  void insert(RecordTable& records, std::uint32_t id) noexcept;
  void remove(RecordTable& records, std::uint32_t id) noexcept;

  /// The best fit among the candidates of the request's own bin and the next one that has any;
  /// kNoBlock if none was seen. Ties go to the lowest address. Not removed.
  [[nodiscard]] std::uint32_t find(const RecordTable& records, std::uint64_t bytes) const noexcept;
  /// The same over every block that can hold `bytes` at `alignment` and that `admits(record)`:
  /// slow, misses nothing.
  template <class Admits>
  [[nodiscard]] std::uint32_t find_any(const RecordTable& records, std::uint64_t bytes,
                                       std::uint64_t alignment, const Admits& admits) const {
    std::uint32_t best = kNoBlock;
    Bin bin = bin_of(bytes);
    do {
      for (std::uint32_t id = head(bin); id != kNoBlock; id = records[id].bin_next) {
        const BlockRecord& record = records[id];
        const std::uint64_t skip = (alignment - record.address % alignment) % alignment;
        if (record.bytes >= skip && record.bytes - skip >= bytes && admits(record)) {
          prefer(records, id, &best);
        }
      }
    } while (best == kNoBlock && next_filled(&bin));
    return best;
  }

  [[nodiscard]] bool empty() const noexcept { return rows_ == 0; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t largest(const RecordTable& records) const noexcept;
  /// Records that `find` has looked at so far.
  [[nodiscard]] std::uint64_t visited() const noexcept { return visited_; }

  /// Calls `visit(id)` for every block, or every one of a size class from that of `bytes` on;
  /// `visit` may remove the block it was given.
  template <class Visit>
  void for_each(const RecordTable& records, const Visit& visit, std::uint64_t bytes = 0) const {
    Bin bin = bin_of(bytes);
    do {
      for (std::uint32_t id = head(bin); id != kNoBlock;) {
        const std::uint32_t next = records[id].bin_next;
        visit(id);
        id = next;
      }
    } while (next_filled(&bin));
  }

 private:
  static constexpr int kColumnBits = 5;
  static constexpr int kColumns = 1 << kColumnBits;
  static constexpr int kRows = 56;
  static constexpr int kCandidates = 8;
  // Of large blocks there are few, and a bad fit costs much: all of the bin are looked at.
  static constexpr std::uint64_t kLarge = std::uint64_t{128} << 20;

  struct Bin {
    int row;
    int column;
  };
  [[nodiscard]] Bin bin_of(std::uint64_t bytes) const noexcept {
    const std::uint64_t granules = bytes >> granule_bits_;
    if (granules < kColumns) return Bin{0, static_cast<int>(granules)};
    const int top = 63 - __builtin_clzll(granules);
    return Bin{top - kColumnBits + 1,
               static_cast<int>((granules >> (top - kColumnBits)) & (kColumns - 1))};
  }
  [[nodiscard]] std::uint32_t head(Bin bin) const noexcept {
    return heads_[static_cast<std::size_t>(bin.row)][static_cast<std::size_t>(bin.column)];
  }
  [[nodiscard]] bool next_filled(Bin* bin) const noexcept;
  /// Keeps the smaller block, at equal size the one at the lower address.
  static void prefer(const RecordTable& records, std::uint32_t id, std::uint32_t* best) noexcept {
    if (*best != kNoBlock) {
      const BlockRecord& a = records[id];
      const BlockRecord& b = records[*best];
      if (a.bytes > b.bytes || (a.bytes == b.bytes && a.address > b.address)) return;
    }
    *best = id;
  }

  std::uint32_t granule_bits_;
  std::uint64_t rows_ = 0;  // bit r: row r has a filled bin
  std::uint64_t bytes_ = 0;
  std::uint64_t count_ = 0;
  mutable std::uint64_t visited_ = 0;
  std::array<std::uint32_t, kRows> columns_{};
  std::array<std::array<std::uint32_t, kColumns>, kRows> heads_{};
};

}  // namespace nbx
