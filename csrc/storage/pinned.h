// Page-locked host memory of a device, pooled: a driver needs most of a millisecond a MiB to lock
// it.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "heap/heap.h"

namespace nbx {

/// A heap over the host memory that one device locks. A block that queued work still reads or
/// writes is handed out again only when that work is complete: the host knows no order of streams.
class PinnedPool {
 public:
  /// Throws Error(kUnsupported) naming the primitive if the device locks no memory.
  explicit PinnedPool(Device& device);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  [[nodiscard]] Heap& heap() noexcept { return heap_; }
  [[nodiscard]] const Heap& heap() const noexcept { return heap_; }
  [[nodiscard]] Block allocate(std::uint64_t bytes, std::uint64_t alignment, Account& account);
  /// True if the address lies in memory that is handed out.
  [[nodiscard]] bool holds(DeviceAddress address) const noexcept;

 private:
  Primitives table_;  // the device's, with its page-locked memory in place of its own
  Device locker_;     // what the heap takes for a device
  Heap heap_;
};

}  // namespace nbx
