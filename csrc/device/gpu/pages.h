// Virtual memory: address ranges, and the pages that are mapped into them.
#pragma once

#include "device/gpu/driver.h"

namespace nbx::gpu {

template <class Api>
typename Api::PageProperties page_properties(std::int32_t ordinal) noexcept {
  typename Api::PageProperties properties{};
  properties.type = 1;
  properties.location = {1, ordinal};
  return properties;
}

template <class Api>
typename Api::PageAccess read_and_write(std::int32_t ordinal) noexcept {
  return {{1, ordinal}, 3};
}

/// Makes, maps, writes, reads and gives back one page: some runtimes report what they cannot do.
template <class Api>
bool pages_work(std::int32_t ordinal, std::size_t granularity) {
  const auto properties = page_properties<Api>(ordinal);
  const auto access = read_and_write<Api>(ordinal);
  typename Api::Pointer base{};
  typename Api::Page page{};
  if (Api::range_reserve(&base, granularity, 0, typename Api::Pointer{}, 0) != 0) return false;
  bool works = Api::page_create(&page, granularity, &properties, 0) == 0;
  if (works) {
    works = Api::page_map(base, granularity, 0, page, 0) == 0;
    if (works) {
      std::uint32_t seen = 0;
      constexpr std::uint32_t kPattern = 0x5eed5eed;
      works = Api::page_access(base, granularity, &access, 1) == 0 &&
              Api::fill32(base, static_cast<typename Api::Word>(kPattern), granularity / 4,
                          nullptr) == 0 &&
              Api::copy_to_host(&seen, base, sizeof(seen), nullptr) == 0 &&
              Api::stream_synchronize(nullptr) == 0 && seen == kPattern;
      works = Api::page_unmap(base, granularity) == 0 && works;
    }
    works = Api::page_release(page) == 0 && works;
  }
  return Api::range_free(base, granularity) == 0 && works;
}

/// Bytes of the smallest page; 0 if the device has no virtual memory, or none that works.
template <class Api>
std::uint64_t find_granularity(const DeviceState& state) {
  if (Api::range_reserve == nullptr || Api::range_free == nullptr || Api::page_create == nullptr ||
      Api::page_release == nullptr || Api::page_map == nullptr || Api::page_unmap == nullptr ||
      Api::page_access == nullptr || Api::page_granularity == nullptr) {
    return 0;
  }
  int supported = 0;
  std::size_t granularity = 0;
  const auto properties = page_properties<Api>(state.ordinal);
  if (Api::attribute(&supported, Api::kVirtualMemory, state.ordinal) != 0 || supported == 0 ||
      Api::page_granularity(&granularity, &properties, 0) != 0) {
    Api::clear_error();
    return 0;
  }
  if (Api::kTestsPages && !pages_work<Api>(state.ordinal, granularity)) {
    Api::clear_error();
    return 0;
  }
  return granularity;
}

template <class Api>
struct Pages {
  /// Refuses where there are no pages.
  class PageEntry : public FreeEntry<Api> {
   public:
    explicit PageEntry(std::int32_t ordinal) : FreeEntry<Api>(ordinal) {
      if (this->status == kSuccess && this->device->properties.page_granularity == 0) {
        this->status = kUnsupported;
      }
    }
  };

  static Status range_reserve(std::int32_t ordinal, std::size_t bytes, DeviceAddress* base) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    typename Api::Pointer made{};
    const int code = Api::range_reserve(&made, bytes, 0, typename Api::Pointer{}, 0);
    if (code == 0) *base = address_of(made);
    return answered<Api>(code);
  }

  static Status range_release(std::int32_t ordinal, DeviceAddress base, std::size_t bytes) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    return answered<Api>(Api::range_free(pointer<Api>(base), bytes));
  }

  static Status page_create(std::int32_t ordinal, std::size_t bytes, PageHandle* page) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const auto properties = page_properties<Api>(ordinal);
    typename Api::Page made{};
    const int code = Api::page_create(&made, bytes, &properties, 0);
    if (code == 0) *page = address_of(made);
    return answered<Api>(code);
  }

  static Status page_release(std::int32_t ordinal, PageHandle page) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    return answered<Api>(Api::page_release(page_of(page)));
  }

  static Status page_map(std::int32_t ordinal, DeviceAddress address, std::size_t bytes,
                         PageHandle page) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    const int code = Api::page_map(pointer<Api>(address), bytes, 0, page_of(page), 0);
    if (code == 0) entry.device->mappings[address] = PageMapping{bytes, false};
    return answered<Api>(code);
  }

  static Status page_unmap(std::int32_t ordinal, DeviceAddress address, std::size_t bytes) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    if (!covers_whole(*entry.device, address, bytes)) return kInvalidValue;
    auto& mappings = entry.device->mappings;
    const auto first = mappings.find(address);
    const auto last = mappings.lower_bound(address + bytes);
    if (!Api::kOneMappingACall) {
      const int code = Api::page_unmap(pointer<Api>(address), bytes);
      if (code == 0) mappings.erase(first, last);
      return answered<Api>(code);
    }
    for (auto mapping = first; mapping != last; mapping = mappings.erase(mapping)) {
      const int code = Api::page_unmap(pointer<Api>(mapping->first), mapping->second.bytes);
      if (code != 0) return answered<Api>(code);
    }
    return kSuccess;
  }

  static Status page_access(std::int32_t ordinal, DeviceAddress address, std::size_t bytes) {
    const PageEntry entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    if (!covers_whole(*entry.device, address, bytes)) return kInvalidValue;
    std::vector<typename Api::PageAccess> access = {read_and_write<Api>(ordinal)};
    for (const std::int32_t peer : entry.device->accessors) {
      access.push_back(read_and_write<Api>(peer));
    }
    auto& mappings = entry.device->mappings;
    const auto first = mappings.find(address);
    const auto last = mappings.lower_bound(address + bytes);
    int code = 0;
    if (!Api::kOneMappingACall) {
      code = Api::page_access(pointer<Api>(address), bytes, access.data(), access.size());
    } else {
      for (auto mapping = first; mapping != last && code == 0; ++mapping) {
        code = Api::page_access(pointer<Api>(mapping->first), mapping->second.bytes, access.data(),
                                access.size());
      }
    }
    if (code != 0) return answered<Api>(code);
    for (auto mapping = first; mapping != last; ++mapping) mapping->second.accessible = true;
    return kSuccess;
  }

  /// Lets the peer use the pages of the device that are mapped, and those that will be. The device
  /// is current.
  static Status admit_peer(DeviceState* device, std::int32_t peer) {
    const std::lock_guard<std::mutex> guard(device->mutex);
    for (const std::int32_t known : device->accessors) {
      if (known == peer) return kSuccess;
    }
    const auto access = read_and_write<Api>(peer);
    for (const auto& [address, mapping] : device->mappings) {
      if (!mapping.accessible) continue;
      const int code = Api::page_access(pointer<Api>(address), mapping.bytes, &access, 1);
      if (code != 0) return answered<Api>(code);
    }
    device->accessors.push_back(peer);
    return kSuccess;
  }

 private:
  static typename Api::Page page_of(PageHandle page) noexcept {
    if constexpr (std::is_pointer_v<typename Api::Page>) {
      return raw(page);
    } else {
      return page;
    }
  }

  /// True if whole mappings without a gap are what the span holds.
  static bool covers_whole(const DeviceState& device, DeviceAddress address, std::size_t bytes) {
    const DeviceAddress end = address + bytes;
    auto mapping = device.mappings.find(address);
    while (address != end) {
      if (mapping == device.mappings.end() || mapping->first != address) return false;
      address += mapping->second.bytes;
      if (address > end) return false;
      ++mapping;
    }
    return bytes != 0;
  }
};

}  // namespace nbx::gpu
