// The system puts memory under an address when it is first written, so a page here is a promise of
// bytes: mapping it opens the addresses, zeroed, and unmapping it gives the bytes to the system.
#include "device/cpu/ranges.h"

#include <sys/mman.h>

#include <atomic>

#include "device/cpu/memory.h"
#include "device/host_status.h"

namespace nbx::cpu {
namespace {

#ifdef MAP_NORESERVE
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS;
#endif

void* pointer_to(DeviceAddress address) noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// Replaces whatever lies there.
Status place(DeviceAddress address, std::size_t bytes, int protection) noexcept {
  if (address == 0 || bytes == 0) return kInvalidValue;
  void* made = mmap(pointer_to(address), bytes, protection, kNothing | MAP_FIXED, -1, 0);
  return made == MAP_FAILED ? kAllocationRefused : kSuccess;
}

Status range_reserve(std::int32_t ordinal, std::size_t bytes, DeviceAddress* base) {
  if (ordinal != 0) return kInvalidDevice;
  if (bytes == 0) return kInvalidValue;
  void* made = mmap(nullptr, bytes, PROT_NONE, kNothing, -1, 0);
  if (made == MAP_FAILED) return kAllocationRefused;
  *base = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(made));
  return kSuccess;
}

Status range_release(std::int32_t ordinal, DeviceAddress base, std::size_t bytes) {
  if (ordinal != 0) return kInvalidDevice;
  return munmap(pointer_to(base), bytes) == 0 ? kSuccess : kInvalidValue;
}

Status page_create(std::int32_t ordinal, std::size_t bytes, PageHandle* page) {
  static std::atomic<PageHandle> next{1};
  if (ordinal != 0) return kInvalidDevice;
  if (bytes == 0) return kInvalidValue;
  *page = next.fetch_add(1, std::memory_order_relaxed);
  return kSuccess;
}

Status page_release(std::int32_t ordinal, PageHandle page) {
  if (ordinal != 0) return kInvalidDevice;
  return page == 0 ? kInvalidHandle : kSuccess;
}

Status page_map(std::int32_t ordinal, DeviceAddress address, std::size_t bytes, PageHandle page) {
  if (ordinal != 0) return kInvalidDevice;
  return page == 0 ? kInvalidHandle : place(address, bytes, PROT_NONE);
}

Status page_unmap(std::int32_t ordinal, DeviceAddress address, std::size_t bytes) {
  return ordinal == 0 ? place(address, bytes, PROT_NONE) : kInvalidDevice;
}

Status page_access(std::int32_t ordinal, DeviceAddress address, std::size_t bytes) {
  if (ordinal != 0) return kInvalidDevice;
  // The kernel admits or refuses the bytes here, by its own rule of overcommitment.
  return mprotect(pointer_to(address), bytes, PROT_READ | PROT_WRITE) == 0 ? kSuccess
                                                                           : kAllocationRefused;
}

}  // namespace

void set_range_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(range_reserve)
  NBX_SET(range_release)
  NBX_SET(page_create)
  NBX_SET(page_release)
  NBX_SET(page_map)
  NBX_SET(page_unmap)
  NBX_SET(page_access)
#undef NBX_SET
}

}  // namespace nbx::cpu
