#include "storage/pinned.h"

#include "core/error.h"
#include "stream/stream.h"

namespace nbx {
namespace {

/// Entry points that lead to the device of the same ordinal; a plain function knows no more of it
/// than its kind.
template <DeviceKind kKind>
struct Entries {
  static const Primitives& real(std::int32_t ordinal) {
    return open_device(kKind, ordinal).primitives();
  }
  static Status allocate(std::int32_t ordinal, std::size_t bytes, DeviceAddress* address) {
    void* pointer = nullptr;
    const Status status = real(ordinal).host_allocate(ordinal, bytes, &pointer);
    if (status == kSuccess) {
      *address = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
    }
    return status;
  }
  static Status free(std::int32_t ordinal, DeviceAddress address) {
    return real(ordinal).host_free(ordinal,
                                   reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)));
  }
};

/// What bounds it is the host's memory.
Status host_memory_info(std::int32_t /*ordinal*/, MemoryInfo* info) {
  return open_device(DeviceKind::kCpu, 0).primitives().memory_info(0, info);
}

template <DeviceKind kKind>
void redirect(Primitives* table, const char* name) {
  table->kind_name = name;
  table->allocate = &Entries<kKind>::allocate;
  table->free = &Entries<kKind>::free;
}

Primitives pinned_table(const Device& device) {
  device.require(Primitive::k_host_allocate);
  device.require(Primitive::k_host_free);
  Primitives table = device.primitives();
  table.memory_info = &host_memory_info;
  table.budget = nullptr;
  switch (device.kind()) {
    case DeviceKind::kCpu:
      redirect<DeviceKind::kCpu>(&table, "pinned cpu");
      break;
    case DeviceKind::kSim:
      redirect<DeviceKind::kSim>(&table, "pinned sim");
      break;
    case DeviceKind::kCuda:
      redirect<DeviceKind::kCuda>(&table, "pinned cuda");
      break;
    case DeviceKind::kHip:
      redirect<DeviceKind::kHip>(&table, "pinned hip");
      break;
    case DeviceKind::kMetal:
      redirect<DeviceKind::kMetal>(&table, "pinned metal");
      break;
  }
  return table;
}

DeviceProperties pinned_properties(const Device& device) {
  DeviceProperties properties = device.properties();
  properties.page_granularity = 0;
  properties.host_readable = true;
  properties.unified = true;
  return properties;
}

}  // namespace

PinnedPool::PinnedPool(Device& device)
    : table_(pinned_table(device)),
      locker_(table_, device.ordinal(), pinned_properties(device)),
      heap_(locker_, nullptr, false) {
  HeapOptions options;
  options.reuse_ordered = false;
  options.reuse_waits = false;
  heap_.set_options(options);
}

Block PinnedPool::allocate(std::uint64_t bytes, std::uint64_t alignment, Account& account) {
  // No work is ever queued on the host's stream, so that it is ordered after no other.
  Stream& host = default_stream(open_device(DeviceKind::kCpu, 0));
  return heap_.allocate(bytes, alignment, host, account);
}

bool PinnedPool::holds(DeviceAddress address) const noexcept {
  Block block;
  return heap_.find(address, &block);
}

}  // namespace nbx
