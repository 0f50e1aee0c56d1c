// Memory of the device and of the host, peers, and memory of other processes.
#pragma once

#include "device/gpu/devices.h"

namespace nbx::gpu {

template <class Api>
struct Memory {
  static Status allocate(std::int32_t ordinal, std::size_t bytes, DeviceAddress* address) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (bytes == 0) return kInvalidValue;
    // Sizes beyond the device are invalid to some drivers.
    if (bytes > entry.device->properties.total_bytes) return kAllocationRefused;
    typename Api::Pointer made{};
    const int code = Api::allocate(&made, bytes);
    if (code == 0) *address = address_of(made);
    return answered<Api>(code);
  }

  static Status free(std::int32_t ordinal, DeviceAddress address) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (address == 0) return kInvalidValue;  // which the drivers take for a free of nothing
    return answered<Api>(Api::free(pointer<Api>(address)));
  }

  static Status host_allocate(std::int32_t ordinal, std::size_t bytes, void** result) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (bytes == 0) return kInvalidValue;
    void* made = nullptr;
    const int code = Api::host_allocate(&made, bytes, kPortable);
    if (code == 0) *result = made;
    return answered<Api>(code);
  }

  static Status host_free(std::int32_t ordinal, void* memory) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (memory == nullptr) return kInvalidValue;
    return answered<Api>(Api::host_free(memory));
  }

  static Status map_host(std::int32_t ordinal, void* memory, std::size_t bytes,
                         DeviceAddress* address) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const auto first = reinterpret_cast<std::uintptr_t>(memory);
    if (first == 0 || first % kHostPage != 0 || bytes == 0) return kInvalidValue;
    DeviceState& device = *entry.device;
    const std::lock_guard<std::mutex> guard(device.mutex);
    const auto after = device.registered.upper_bound(first);
    if (after != device.registered.end() && after->first - first < bytes) {
      return kHostRegisteredAlready;
    }
    if (after != device.registered.begin()) {
      const auto before = std::prev(after);
      if (first - before->first < before->second) return kHostRegisteredAlready;
    }
    int code = Api::host_register(memory, bytes, kPortable | kMapped);
    if (code != 0) return answered<Api>(code);
    typename Api::Pointer made{};
    code = Api::host_pointer(&made, memory, 0);
    if (code != 0) {
      static_cast<void>(Api::host_unregister(memory));  // the failure before it is told
      return answered<Api>(code);
    }
    device.registered[first] = bytes;
    *address = address_of(made);
    return kSuccess;
  }

  static Status unmap_host(std::int32_t ordinal, void* memory) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    DeviceState& device = *entry.device;
    const std::lock_guard<std::mutex> guard(device.mutex);
    const auto found = device.registered.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == device.registered.end()) return kInvalidValue;
    const int code = Api::host_unregister(memory);
    if (code == 0) device.registered.erase(found);
    return answered<Api>(code);
  }

  static Status device_address(std::int32_t ordinal, const void* memory, DeviceAddress* address) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    typename Api::Pointer found{};
    const int code = Api::host_pointer(&found, const_cast<void*>(memory), 0);
    if (code == 0) *address = address_of(found);
    return answered<Api>(code);
  }

  static Status resolve(std::int32_t ordinal, DeviceAddress address, ResolvedAddress* resolved) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    typename Api::Pointer base{};
    std::size_t bytes = 0;
    const int code = Api::address_range(&base, &bytes, pointer<Api>(address));
    if (code == 0) *resolved = ResolvedAddress{address_of(base), address - address_of(base)};
    return answered<Api>(code);
  }

  static Status peer_supported(std::int32_t ordinal, std::int32_t peer, bool* supported) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (peer < 0 || peer >= driver<Api>().probe.devices) return kInvalidDevice;
    int can = 0;
    const int code = peer == ordinal ? 0 : Api::can_access(&can, ordinal, peer);
    if (code == 0) *supported = can != 0;
    return answered<Api>(code);
  }

  /// Enabling twice is no error.
  static Status peer_enable(std::int32_t ordinal, std::int32_t peer) {
    if (ordinal == peer) return kInvalidDevice;
    const FreeEntry<Api> other(peer);
    if (other.status != kSuccess) return other.status;
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const int code = Api::enable_access(peer);
    if (code != 0 && code != kPeerEnabledAlready) return answered<Api>(code);
    Api::clear_error();
    if (other.device->properties.page_granularity == 0) return kSuccess;
    const Status current = Api::make_current(peer);
    return current == kSuccess ? Pages<Api>::admit_peer(other.device, ordinal) : current;
  }

  static Status ipc_export(std::int32_t ordinal, DeviceAddress address, IpcHandle* handle) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    typename Api::IpcMemory made{};
    const int code = Api::ipc_get(&made, pointer<Api>(address));
    static_assert(sizeof(made) == sizeof(handle->bytes));
    if (code == 0) std::memcpy(handle->bytes, &made, sizeof(made));
    return answered<Api>(code);
  }

  static Status ipc_open(std::int32_t ordinal, const IpcHandle* handle, DeviceAddress* address) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    typename Api::IpcMemory given{};
    std::memcpy(&given, handle->bytes, sizeof(given));
    typename Api::Pointer made{};
    const int code = Api::ipc_map(&made, given, 1);
    if (code == 0) *address = address_of(made);
    return answered<Api>(code);
  }

  static Status ipc_close(std::int32_t ordinal, DeviceAddress address) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    return answered<Api>(Api::ipc_unmap(pointer<Api>(address)));
  }

 private:
  static constexpr unsigned kPortable = 1;  // for all devices
  static constexpr unsigned kMapped = 2;
};

}  // namespace nbx::gpu
