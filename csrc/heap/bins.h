// Free blocks by size: lists under a bitmap of two levels, so that a fitting one is found at once.
#pragma once

#include <array>
#include <cstdint>

#include "heap/records.h"

namespace nbx {

/// Below 2048 granules a bin has blocks of one size, and any of them fits as well as the others;
/// above, each power of two is cut into 32 bins.
class Bins {
 public:
  /// `granule_bits`, at least 6: every size and address is a multiple of 2^granule_bits bytes.
  explicit Bins(std::uint32_t granule_bits) noexcept : granule_bits_(granule_bits) {}

  void insert(RecordTable& records, std::uint32_t id) noexcept;
  void remove(RecordTable& records, std::uint32_t id) noexcept;

  /// The best fit: below 2048 granules the block of the smallest size that was freed last, above
  /// the best among the candidates of the request's own bin and the next one that has any, at
  /// equal size the one at the lowest address. kNoBlock if none was seen. Not removed.
  [[nodiscard]] std::uint32_t find(const RecordTable& records, std::uint64_t bytes) const noexcept;
  /// The same over every block that can hold `bytes` at `alignment` and that `admits(record)`:
  /// slow, misses nothing.
  template <class Admits>
  [[nodiscard]] std::uint32_t find_any(const RecordTable& records, std::uint64_t bytes,
                                       std::uint64_t alignment, const Admits& admits) const {
    std::uint32_t best = kNoBlock;
    std::uint32_t bin = bin_of(bytes);
    do {
      for (std::uint32_t id = heads_[bin]; id != kNoBlock; id = records[id].bin_next) {
        const BlockRecord& record = records[id];
        const std::uint64_t skip = (alignment - record.address % alignment) % alignment;
        if (record.bytes >= skip && record.bytes - skip >= bytes && admits(record)) {
          prefer(records, id, &best);
        }
      }
    } while (best == kNoBlock && next_filled(&bin));
    return best;
  }

  [[nodiscard]] bool empty() const noexcept { return filled_words_ == 0; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t largest(const RecordTable& records) const noexcept;
  /// Records that `find` has looked at so far.
  [[nodiscard]] std::uint64_t visited() const noexcept { return visited_; }

  /// Calls `visit(id)` for every block, or every one of a size class from that of `bytes` on;
  /// `visit` may remove the block it was given.
  template <class Visit>
  void for_each(const RecordTable& records, const Visit& visit, std::uint64_t bytes = 0) const {
    std::uint32_t bin = bin_of(bytes);
    do {
      for (std::uint32_t id = heads_[bin]; id != kNoBlock;) {
        const std::uint32_t next = records[id].bin_next;
        visit(id);
        id = next;
      }
    } while (next_filled(&bin));
  }

 private:
  static constexpr std::uint32_t kExactBits = 11;
  static constexpr std::uint32_t kExact = 1u << kExactBits;
  static constexpr std::uint32_t kColumnBits = 5;
  static constexpr std::uint32_t kWords = 56;  // (2048 + 32 * 47) / 64, for 2^58 granules
  static constexpr int kCandidates = 8;
  // Of large blocks there are few, and a bad fit costs much: all of the bin are looked at.
  static constexpr std::uint64_t kLarge = std::uint64_t{128} << 20;

  [[nodiscard]] std::uint32_t bin_of(std::uint64_t bytes) const noexcept {
    const std::uint64_t granules = bytes >> granule_bits_;
    if (granules < kExact) return static_cast<std::uint32_t>(granules);
    const auto top = static_cast<std::uint32_t>(63 - __builtin_clzll(granules));
    // The top bit stands for a row of its own, so the next five count on from the row's number.
    return kExact + ((top - kExactBits) << kColumnBits) +
           static_cast<std::uint32_t>((granules >> (top - kColumnBits)) &
                                      ((1u << kColumnBits) - 1));
  }
  /// Moves on to the next bin that has a block; false if there is none.
  [[nodiscard]] bool next_filled(std::uint32_t* bin) const noexcept {
    ++*bin;
    return first_filled(bin);
  }
  /// The same, where `bin` may stay.
  [[nodiscard]] bool first_filled(std::uint32_t* bin) const noexcept {
    const std::uint32_t word = *bin / 64;
    if (word == kWords) return false;
    const std::uint64_t right = filled_[word] & (~std::uint64_t{0} << *bin % 64);
    if (right != 0) {
      *bin = word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(right));
      return true;
    }
    const std::uint64_t above = filled_words_ & ((~std::uint64_t{0} << word) << 1);
    if (above == 0) return false;
    const auto next = static_cast<std::uint32_t>(__builtin_ctzll(above));
    *bin = next * 64 + static_cast<std::uint32_t>(__builtin_ctzll(filled_[next]));
    return true;
  }
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
  std::uint64_t filled_words_ = 0;  // bit w: word w of `filled_` is not zero
  std::uint64_t bytes_ = 0;
  std::uint64_t count_ = 0;
  mutable std::uint64_t visited_ = 0;
  std::array<std::uint64_t, kWords> filled_{};  // bit b: bin b has a block
  // Which record is first is known here alone: its `bin_previous` may be old, so that the one
  // before it is taken without touching it.
  std::array<std::uint32_t, std::size_t{64} * kWords> heads_{};
};

}  // namespace nbx
