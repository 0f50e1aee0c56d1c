#include "device/cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>

#include "core/align.h"
#include "core/large_pages.h"
#include "device/host_status.h"

namespace nbx::cpu {
namespace {

/// From here on a block is a mapping of its own: freeing it lowers the resident size at once.
constexpr std::size_t kMappedBytes = std::size_t{1} << 20;

/// Live blocks and their sizes; 0 for those of the C library. Never destroyed, as storages may die
/// after static objects have.
struct Blocks {
  std::mutex mutex;
  std::unordered_map<void*, std::size_t> sizes;
};

Blocks& blocks() {
  static auto* const instance = std::make_unique<Blocks>().release();
  return *instance;
}

std::byte* map(std::size_t bytes) noexcept {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : static_cast<std::byte*>(block);
}

void unmap(std::byte* block, std::size_t bytes) noexcept {
  if (bytes != 0) static_cast<void>(munmap(block, bytes));  // cannot fail for a mapping of our own
}

/// A mapping that begins on a large page, so that writing it for the first time costs few faults.
std::byte* map_large(std::size_t bytes) noexcept {
  std::byte* block = map(bytes + kLargePage);
  if (block == nullptr) return map(bytes);
  const std::size_t odd = reinterpret_cast<std::uintptr_t>(block) % kLargePage;
  const std::size_t skip = odd == 0 ? 0 : kLargePage - odd;
  unmap(block, skip);
  unmap(block + skip + bytes, kLargePage - skip);
  prefer_large_pages(block + skip, bytes);
  return block + skip;
}

void* obtain(std::size_t bytes, std::size_t mapped) noexcept {
  if (mapped == 0) return std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
  return mapped < kLargePage ? map(mapped) : map_large(mapped);
}

void give_back(void* block, std::size_t mapped) noexcept {
  if (mapped == 0) {
    std::free(block);
  } else {
    unmap(static_cast<std::byte*>(block), mapped);
  }
}

}  // namespace

Status allocate_host(std::size_t bytes, void** pointer) noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0) return kInvalidValue;
  if (bytes > static_cast<std::size_t>(-1) - page - kLargePage) return kAllocationRefused;
  const std::size_t mapped = bytes >= kMappedBytes ? round_up(bytes, page) : 0;
  void* block = obtain(bytes, mapped);
  if (block == nullptr) return kAllocationRefused;
  try {
    Blocks& all = blocks();
    const std::lock_guard<std::mutex> guard(all.mutex);
    all.sizes.emplace(block, mapped);
  } catch (const std::bad_alloc&) {
    give_back(block, mapped);
    return kAllocationRefused;
  }
  *pointer = block;
  return kSuccess;
}

Status free_host(void* pointer) noexcept {
  std::size_t mapped = 0;
  {
    Blocks& all = blocks();
    const std::lock_guard<std::mutex> guard(all.mutex);
    const auto found = all.sizes.find(pointer);
    if (found == all.sizes.end()) return kInvalidValue;
    mapped = found->second;
    all.sizes.erase(found);
  }
  give_back(pointer, mapped);
  return kSuccess;
}

void fill_pattern(std::byte* destination, std::uint32_t pattern, std::uint32_t pattern_bytes,
                  std::size_t count) noexcept {
  if (pattern_bytes == 1) {
    std::memset(destination, static_cast<int>(pattern & 0xff), count);
  } else if (pattern_bytes == 2) {
    std::fill_n(reinterpret_cast<std::uint16_t*>(destination), count,
                static_cast<std::uint16_t>(pattern));
  } else {
    std::fill_n(reinterpret_cast<std::uint32_t*>(destination), count, pattern);
  }
}

}  // namespace nbx::cpu
