#include "heap/records.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

#include "core/align.h"
#include "core/large_pages.h"

namespace nbx {
namespace {

// As many records as there may ever be.
constexpr std::size_t kMostBytes = (std::size_t{1} << 28) * sizeof(BlockRecord);

std::byte* bytes_of(BlockRecord* records) noexcept { return reinterpret_cast<std::byte*>(records); }

/// Bytes of addresses for one table: few of those that a process with a limit may have.
std::size_t bytes_to_reserve() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMostBytes;
  const auto share = static_cast<std::size_t>(limit.rlim_cur) / 64 / kLargePage * kLargePage;
  return std::clamp(share, kLargePage, kMostBytes);
}

/// Addresses without memory, from a large page's start on.
BlockRecord* reserve(std::size_t bytes) {
  constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, bytes + kLargePage, PROT_NONE, kNothing, -1, 0);
  if (made == MAP_FAILED) throw std::bad_alloc();
  auto* const first = static_cast<std::byte*>(made);
  const std::size_t skip =
      (kLargePage - reinterpret_cast<std::uintptr_t>(made) % kLargePage) % kLargePage;
  if (skip != 0) munmap(first, skip);
  munmap(first + skip + bytes, kLargePage - skip);
  return reinterpret_cast<BlockRecord*>(first + skip);
}

}  // namespace

RecordTable::RecordTable(std::size_t bytes) : bytes_(bytes), records_(reserve(bytes)) {}

RecordTable::RecordTable() : RecordTable(bytes_to_reserve()) { grow(); }

RecordTable::RecordTable(const RecordTable& other) : RecordTable(other.bytes_) {
  while (size() < other.size()) {
    extend();
    std::uninitialized_copy_n(other.records_ + size(), kChunk, records_ + size());
    size_.store(size() + kChunk, std::memory_order_relaxed);
  }
  fresh_ = other.fresh_;
  unused_ = other.unused_;
  unused_count_ = other.unused_count_;
}

RecordTable::~RecordTable() {
  static_assert(std::is_trivially_destructible_v<BlockRecord>);
  munmap(records_, bytes_);
}

/// A large page at a time; only the first one comes in small pages, as most tables stay small.
void RecordTable::extend() {
  const std::size_t used = size() * sizeof(BlockRecord);
  if (used % kLargePage != 0) return;
  std::byte* const end = bytes_of(records_) + used;
  if (used == bytes_ || mprotect(end, kLargePage, PROT_READ | PROT_WRITE) != 0) {
    throw std::bad_alloc();
  }
  if (used != 0) prefer_large_pages(end, kLargePage);
}

void RecordTable::grow() {
  extend();
  const std::uint32_t first = size();
  std::uninitialized_value_construct_n(records_ + first, kChunk);
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
