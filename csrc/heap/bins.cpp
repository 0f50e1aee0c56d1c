#include "heap/bins.h"

#include <algorithm>
#include <climits>

namespace nbx {
void Bins::insert(RecordTable& records, std::uint32_t id) noexcept {
  BlockRecord& record = records[id];
  const Bin bin = bin_of(record.bytes);
  std::uint32_t& first =
      heads_[static_cast<std::size_t>(bin.row)][static_cast<std::size_t>(bin.column)];
  record.bin_previous = kNoBlock;
  record.bin_next = first;
  if (first != kNoBlock) records[first].bin_previous = id;
  first = id;
  columns_[static_cast<std::size_t>(bin.row)] |= 1u << bin.column;
  rows_ |= std::uint64_t{1} << bin.row;
  bytes_ += record.bytes;
  ++count_;
}

void Bins::remove(RecordTable& records, std::uint32_t id) noexcept {
  const BlockRecord& record = records[id];
  bytes_ -= record.bytes;
  --count_;
  if (record.bin_next != kNoBlock) records[record.bin_next].bin_previous = record.bin_previous;
  if (record.bin_previous != kNoBlock) {
    records[record.bin_previous].bin_next = record.bin_next;
    return;
  }
  const Bin bin = bin_of(record.bytes);
  const auto row = static_cast<std::size_t>(bin.row);
  heads_[row][static_cast<std::size_t>(bin.column)] = record.bin_next;
  if (record.bin_next != kNoBlock) return;
  columns_[row] &= ~(1u << bin.column);
  if (columns_[row] == 0) rows_ &= ~(std::uint64_t{1} << bin.row);
}

bool Bins::next_filled(Bin* bin) const noexcept {
  const auto row = static_cast<std::size_t>(bin->row);
  // Two shifts: a shift by the full width is undefined.
  const std::uint32_t right = columns_[row] & ((~0u << bin->column) << 1);
  if (right != 0) {
    bin->column = __builtin_ctz(right);
    return true;
  }
  const std::uint64_t above = rows_ & ((~std::uint64_t{0} << bin->row) << 1);
  if (above == 0) return false;
  bin->row = __builtin_ctzll(above);
  bin->column = __builtin_ctz(columns_[static_cast<std::size_t>(bin->row)]);
  return true;
}

std::uint32_t Bins::find(const RecordTable& records, std::uint64_t bytes) const noexcept {
  std::uint32_t best = kNoBlock;
  Bin bin = bin_of(bytes);
  const int most = bytes >= kLarge ? INT_MAX : kCandidates;
  int seen = 0;
  for (std::uint32_t id = head(bin); id != kNoBlock && seen < most; ++seen) {
    if (records[id].bytes >= bytes) prefer(records, id, &best);
    id = records[id].bin_next;
  }
  visited_ += static_cast<std::uint64_t>(seen);
  if (best != kNoBlock || !next_filled(&bin)) return best;
  seen = 0;
  for (std::uint32_t id = head(bin); id != kNoBlock && seen < most; ++seen) {
    prefer(records, id, &best);
    id = records[id].bin_next;
  }
  visited_ += static_cast<std::uint64_t>(seen);
  return best;
}

std::uint64_t Bins::largest(const RecordTable& records) const noexcept {
  if (rows_ == 0) return 0;
  const int row = 63 - __builtin_clzll(rows_);
  const int column = 31 - __builtin_clz(columns_[static_cast<std::size_t>(row)]);
  std::uint64_t bytes = 0;
  for (std::uint32_t id = head(Bin{row, column}); id != kNoBlock; id = records[id].bin_next) {
    bytes = std::max(bytes, records[id].bytes);
  }
  return bytes;
}

}  // namespace nbx
