#include "heap/bins.h"

#include <algorithm>
#include <climits>

namespace nbx {

void Bins::insert(RecordTable& records, std::uint32_t id) noexcept {
  BlockRecord& record = records[id];
  const std::uint32_t bin = bin_of(record.bytes);
  const std::uint32_t first = heads_[bin];
  record.bin_previous = kNoBlock;
  record.bin_next = first;
  heads_[bin] = id;
  bytes_ += record.bytes;
  ++count_;
  if (first != kNoBlock) {
    records[first].bin_previous = id;
    return;
  }
  filled_[bin / 64] |= std::uint64_t{1} << bin % 64;
  filled_words_ |= std::uint64_t{1} << bin / 64;
}

void Bins::remove(RecordTable& records, std::uint32_t id) noexcept {
  const BlockRecord& record = records[id];
  const std::uint32_t bin = bin_of(record.bytes);
  const std::uint32_t next = record.bin_next;
  bytes_ -= record.bytes;
  --count_;
  if (heads_[bin] != id) {
    records[record.bin_previous].bin_next = next;
    if (next != kNoBlock) records[next].bin_previous = record.bin_previous;
    return;
  }
  heads_[bin] = next;
  if (next != kNoBlock) return;
  filled_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
  if (filled_[bin / 64] == 0) filled_words_ &= ~(std::uint64_t{1} << bin / 64);
}

std::uint32_t Bins::find(const RecordTable& records, std::uint64_t bytes) const noexcept {
  std::uint32_t best = kNoBlock;
  std::uint32_t bin = bin_of(bytes);
  const int most = bytes >= kLarge ? INT_MAX : kCandidates;
  int seen = 0;
  if (bin >= kExact) {
    for (std::uint32_t id = heads_[bin]; id != kNoBlock && seen < most; ++seen) {
      if (records[id].bytes >= bytes) prefer(records, id, &best);
      id = records[id].bin_next;
    }
    visited_ += static_cast<std::uint64_t>(seen);
    if (best != kNoBlock || !next_filled(&bin)) return best;
    seen = 0;
  } else if (!first_filled(&bin)) {
    return kNoBlock;
  } else if (bin < kExact) {
    ++visited_;
    return heads_[bin];
  }
  for (std::uint32_t id = heads_[bin]; id != kNoBlock && seen < most; ++seen) {
    prefer(records, id, &best);
    id = records[id].bin_next;
  }
  visited_ += static_cast<std::uint64_t>(seen);
  return best;
}

std::uint64_t Bins::largest(const RecordTable& records) const noexcept {
  if (empty()) return 0;
  const auto word = static_cast<std::size_t>(63 - __builtin_clzll(filled_words_));
  const std::size_t bin = word * 64 + static_cast<std::size_t>(63 - __builtin_clzll(filled_[word]));
  std::uint64_t bytes = 0;
  for (std::uint32_t id = heads_[bin]; id != kNoBlock; id = records[id].bin_next) {
    bytes = std::max(bytes, records[id].bytes);
  }
  return bytes;
}

}  // namespace nbx
