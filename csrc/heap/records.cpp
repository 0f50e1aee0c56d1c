#include "heap/records.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace nbx {
namespace {

BlockRecord** make_directory(std::size_t places) {
  auto* directory = static_cast<BlockRecord**>(std::calloc(places, sizeof(BlockRecord*)));
  if (directory == nullptr) throw std::bad_alloc();
  return directory;
}

}  // namespace

RecordTable::RecordTable() : chunks_(make_directory(kChunks)), places_(kChunks) {
  grow();
  // Id 0 means "no block": it is taken out of the table for good.
  static_cast<void>(acquire());
}

RecordTable::RecordTable(const RecordTable& other)
    : chunks_(make_directory(other.size() / kChunk)), places_(other.size() / kChunk) {
  for (std::uint32_t chunk = 0; chunk < other.size() / kChunk; ++chunk) {
    chunks_[chunk] = std::make_unique<BlockRecord[]>(kChunk).release();
    std::copy_n(other.chunks_[chunk], kChunk, chunks_[chunk]);
  }
  size_.store(other.size(), std::memory_order_relaxed);
  unused_ = other.unused_;
  unused_count_ = other.unused_count_;
}

RecordTable::~RecordTable() {
  for (std::uint32_t chunk = 0; chunk < size() / kChunk; ++chunk) {
    const std::unique_ptr<BlockRecord[]> owner(chunks_[chunk]);
  }
  std::free(chunks_);
}

/// Of a copy, which nobody reads meanwhile.
void RecordTable::enlarge_directory() {
  const std::uint32_t places = std::min(2 * places_, kChunks);
  BlockRecord** larger = make_directory(places);
  std::copy_n(chunks_, places_, larger);
  std::free(chunks_);
  chunks_ = larger;
  places_ = places;
}

void RecordTable::grow() {
  const std::uint32_t first = size();
  if (first / kChunk == kChunks) throw std::bad_alloc();
  if (first / kChunk == places_) enlarge_directory();
  chunks_[first / kChunk] = std::make_unique<BlockRecord[]>(kChunk).release();
  for (std::uint32_t i = kChunk; i-- > 0;) {
    (*this)[first + i].bin_next = unused_;
    unused_ = first + i;
  }
  unused_count_ += kChunk;
  size_.store(first + kChunk, std::memory_order_release);
}

}  // namespace nbx
