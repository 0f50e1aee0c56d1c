// A hint to the operating system: memory that is read in no order.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nbx {

/// A processor's page table needs one entry for so much at once.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

/// Asks for large pages under the whole ones among these bytes. Without them everything is the
/// same, in many small pages.
inline void prefer_large_pages(void* memory, std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const std::size_t skip =
      (kLargePage - reinterpret_cast<std::uintptr_t>(memory) % kLargePage) % kLargePage;
  if (bytes < skip + kLargePage) return;
  const std::size_t whole = (bytes - skip) / kLargePage * kLargePage;
  static_cast<void>(madvise(static_cast<std::byte*>(memory) + skip, whole, MADV_HUGEPAGE));
#else
  static_cast<void>(memory);
  static_cast<void>(bytes);
#endif
}

}  // namespace nbx
