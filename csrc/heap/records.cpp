#include "heap/records.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "core/align.h"
#include "core/large_pages.h"

namespace nbx {
namespace {

// The first chunks are allocated one by one; from there on those of a large page together: the
// blocks of a large heap are read in no order.
constexpr std::uint32_t kGroup = kLargePage / sizeof(BlockRecord) / RecordTable::kChunk;

BlockRecord** make_directory(std::size_t places) {
  auto* directory = static_cast<BlockRecord**>(std::calloc(places, sizeof(BlockRecord*)));
  if (directory == nullptr) throw std::bad_alloc();
  return directory;
}

bool is_allocated_alone(std::uint32_t chunk) noexcept { return chunk < kGroup; }

/// Memory alone: whoever fills it makes the records.
BlockRecord* make_chunks(std::size_t count) {
  const std::size_t bytes = count * RecordTable::kChunk * sizeof(BlockRecord);
  void* memory = std::aligned_alloc(bytes, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  prefer_large_pages(memory, bytes);
  return static_cast<BlockRecord*>(memory);
}

}  // namespace

RecordTable::RecordTable() : chunks_(make_directory(kChunks)), places_(kChunks) { grow(); }

RecordTable::RecordTable(const RecordTable& other)
    : chunks_(make_directory(other.size() / kChunk)), places_(other.size() / kChunk) {
  for (std::uint32_t chunk = 0; chunk < other.size() / kChunk; ++chunk) {
    allocate(chunk);
    std::uninitialized_copy_n(other.chunks_[chunk], kChunk, chunks_[chunk]);
  }
  size_.store(other.size(), std::memory_order_relaxed);
  fresh_ = other.fresh_;
  unused_ = other.unused_;
  unused_count_ = other.unused_count_;
}

RecordTable::~RecordTable() {
  static_assert(std::is_trivially_destructible_v<BlockRecord>);
  for (std::uint32_t chunk = 0; chunk < size() / kChunk; ++chunk) {
    if (is_allocated_alone(chunk) || chunk % kGroup == 0) std::free(chunks_[chunk]);
  }
  std::free(chunks_);
}

/// Room for the chunk, which is the next one.
void RecordTable::allocate(std::uint32_t chunk) {
  if (is_allocated_alone(chunk)) {
    chunks_[chunk] = make_chunks(1);
  } else if (chunk % kGroup == 0) {
    chunks_[chunk] = make_chunks(kGroup);
  } else {
    chunks_[chunk] = chunks_[chunk - 1] + kChunk;
  }
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
  allocate(first / kChunk);
  std::uninitialized_value_construct_n(chunks_[first / kChunk], kChunk);
  size_.store(first + kChunk, std::memory_order_release);
}

void RecordTable::ensure_run(std::uint32_t count) {
  while (round_up(fresh_, count) + count > size()) grow();
}

std::uint32_t RecordTable::acquire_run(std::uint32_t count) noexcept {
  const auto first = static_cast<std::uint32_t>(round_up(fresh_, count));
  for (; fresh_ < first; ++fresh_) {
    (*this)[fresh_].bin_next = unused_;
    unused_ = fresh_;
    ++unused_count_;
  }
  fresh_ += count;
  return first;
}

}  // namespace nbx
