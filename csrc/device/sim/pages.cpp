// Virtual memory of simulated devices. With backing, a page is a piece of one unlinked file per
// device, so that mapping it elsewhere moves its bytes as on a card.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "device/sim/world.h"

namespace nbx::sim {
namespace {

bool is_granular(std::uint64_t value) noexcept { return value % kGranule == 0; }

int open_page_file() {
#ifdef __linux__
  return memfd_create("nbxtensor-sim", MFD_CLOEXEC);
#else
  const std::string name = "/nbxtensor-sim-" + std::to_string(getpid());
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file >= 0) static_cast<void>(shm_unlink(name.c_str()));
  return file;
#endif
}

/// A piece of the page file: one that is free and of this size or larger, else new at its end.
Status take_extent(SimDevice* device, std::uint64_t bytes, std::uint64_t* offset) {
  if (device->page_file < 0) device->page_file = open_page_file();
  if (device->page_file < 0) return kSystemFailure;
  const auto found = device->free_extents.lower_bound(bytes);
  if (found != device->free_extents.end()) {
    *offset = found->second;
    const std::uint64_t rest = found->first - bytes;
    device->free_extents.erase(found);
    if (rest != 0) device->free_extents.emplace(rest, *offset + bytes);
    return kSuccess;
  }
  const std::uint64_t end = device->page_file_bytes + bytes;
  if (ftruncate(device->page_file, static_cast<off_t>(end)) != 0) return kAllocationRefused;
  *offset = device->page_file_bytes;
  device->page_file_bytes = end;
  return kSuccess;
}

Status give_extent(SimDevice* device, const Page& page) {
  device->free_extents.emplace(page.bytes, page.offset);
#ifdef __linux__
  // The host gets its memory back; a later page of this piece starts as zeros.
  if (fallocate(device->page_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(page.offset), static_cast<off_t>(page.bytes)) != 0) {
    return kSystemFailure;
  }
#endif
  return kSuccess;
}

Status drop_page(SimDevice* device, std::map<PageHandle, Page>::iterator page) {
  const Page copy = page->second;
  device->used -= copy.bytes;
  device->pages.erase(page);
  return device->backing == Backing::kReal ? give_extent(device, copy) : kSuccess;
}

/// Makes host addresses of a range hold nothing again.
bool blank(DeviceAddress address, std::uint64_t bytes) {
  return mmap(pointer_to(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

Status range_reserve(std::int32_t ordinal, std::size_t bytes, DeviceAddress* base) {
  const Entry entry(ordinal, Primitive::k_range_reserve, kReserveCost);
  if (entry.status != kSuccess) return entry.status;
  if (bytes == 0 || !is_granular(bytes)) return kInvalidValue;
  SimDevice& device = entry.device();
  DeviceAddress start = device.next_address;
  if (device.backing == Backing::kReal) {
    // Larger than asked for by one granule, so that an aligned part can be kept.
    void* pointer = mmap(nullptr, bytes + kGranule, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) return kAllocationRefused;
    const DeviceAddress raw = address_of(pointer);
    start = (raw + kGranule - 1) / kGranule * kGranule;
    const bool trimmed = (start == raw || munmap(pointer, start - raw) == 0) &&
                         munmap(pointer_to(start + bytes), kGranule - (start - raw)) == 0;
    if (!trimmed) return kSystemFailure;
  } else {
    device.next_address += bytes;
  }
  device.ranges.emplace(start, bytes);
  *base = start;
  return kSuccess;
}

/// First mapping that touches the span.
std::map<DeviceAddress, Mapping>::iterator first_mapping(SimDevice* device, DeviceAddress address,
                                                         std::uint64_t bytes) {
  auto found = device->mappings.upper_bound(address);
  if (found != device->mappings.begin()) {
    const auto before = std::prev(found);
    if (address - before->first < before->second.bytes) return before;
  }
  if (found != device->mappings.end() && found->first - address < bytes) return found;
  return device->mappings.end();
}

/// True if whole mappings fill the span exactly.
bool covers(SimDevice* device, DeviceAddress address, std::uint64_t bytes) {
  auto mapping = device->mappings.find(address);
  std::uint64_t covered = 0;
  for (;
       mapping != device->mappings.end() && mapping->first == address + covered && covered < bytes;
       ++mapping) {
    covered += mapping->second.bytes;
  }
  return covered == bytes;
}

Status range_release(std::int32_t ordinal, DeviceAddress base, std::size_t bytes) {
  const Entry entry(ordinal, Primitive::k_range_release, kReserveCost);
  if (entry.status != kSuccess) return entry.status;
  SimDevice& device = entry.device();
  const auto found = device.ranges.find(base);
  if (found == device.ranges.end() || found->second != bytes) return kInvalidValue;
  if (first_mapping(&device, base, bytes) != device.mappings.end()) return kInvalidValue;
  device.ranges.erase(found);
  if (device.backing == Backing::kNone) return kSuccess;
  return munmap(pointer_to(base), bytes) == 0 ? kSuccess : kSystemFailure;
}

Status page_create(std::int32_t ordinal, std::size_t bytes, PageHandle* page) {
  const Entry entry(ordinal, Primitive::k_page_create, kPageCreateCost);
  if (entry.status != kSuccess) return entry.status;
  if (bytes == 0 || !is_granular(bytes)) return kInvalidValue;
  SimDevice& device = entry.device();
  if (bytes > device.total || device.used + device.pressure + bytes > device.total) {
    return kAllocationRefused;
  }
  Page made;
  made.bytes = bytes;
  if (device.backing == Backing::kReal) {
    const Status status = take_extent(&device, bytes, &made.offset);
    if (status != kSuccess) return status;
  }
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  *page = entry.world().next_handle++;
  device.pages.emplace(*page, made);
  return kSuccess;
}

Status page_release(std::int32_t ordinal, PageHandle handle) {
  const Entry entry(ordinal, Primitive::k_page_release, kPageReleaseCost);
  if (entry.status != kSuccess) return entry.status;
  SimDevice& device = entry.device();
  const auto page = device.pages.find(handle);
  if (page == device.pages.end() || page->second.released) return kInvalidHandle;
  entry.world().now += static_cast<double>(page->second.bytes) * kPageReleaseByteCost;
  if (page->second.mappings == 0) return drop_page(&device, page);
  page->second.released = true;
  return kSuccess;
}

Status page_map(std::int32_t ordinal, DeviceAddress address, std::size_t bytes, PageHandle handle) {
  const Entry entry(ordinal, Primitive::k_page_map, kPageMapCost);
  if (entry.status != kSuccess) return entry.status;
  SimDevice& device = entry.device();
  const auto page = device.pages.find(handle);
  if (page == device.pages.end() || page->second.released) return kInvalidHandle;
  if (page->second.bytes != bytes || !is_granular(address)) return kInvalidValue;
  auto range = device.ranges.upper_bound(address);
  if (range == device.ranges.begin()) return kInvalidValue;
  --range;
  const std::uint64_t offset = address - range->first;
  if (offset > range->second || range->second - offset < bytes) return kInvalidValue;
  if (first_mapping(&device, address, bytes) != device.mappings.end()) return kInvalidValue;
  if (device.backing == Backing::kReal &&
      mmap(pointer_to(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, device.page_file,
           static_cast<off_t>(page->second.offset)) == MAP_FAILED) {
    return kSystemFailure;
  }
  ++page->second.mappings;
  device.mappings.emplace(address, Mapping{bytes, handle, false});
  return kSuccess;
}

Status page_unmap(std::int32_t ordinal, DeviceAddress address, std::size_t bytes) {
  const Entry entry(ordinal, Primitive::k_page_unmap, 0.0);
  if (entry.status != kSuccess) return entry.status;
  SimDevice& device = entry.device();
  if (bytes == 0 || !covers(&device, address, bytes)) return kInvalidValue;
  if (device.backing == Backing::kReal && !blank(address, bytes)) return kSystemFailure;
  Status status = kSuccess;
  auto mapping = device.mappings.find(address);
  while (mapping != device.mappings.end() && mapping->first < address + bytes) {
    entry.world().now += kPageUnmapCost;
    const auto page = device.pages.find(mapping->second.page);
    if (--page->second.mappings == 0 && page->second.released) {
      const Status dropped = drop_page(&device, page);
      if (dropped != kSuccess) status = dropped;
    }
    mapping = device.mappings.erase(mapping);
  }
  return status;
}

Status page_access(std::int32_t ordinal, DeviceAddress address, std::size_t bytes) {
  const Entry entry(ordinal, Primitive::k_page_access, 0.0);
  if (entry.status != kSuccess) return entry.status;
  SimDevice& device = entry.device();
  if (bytes == 0 || !covers(&device, address, bytes)) return kInvalidValue;
  if (device.backing == Backing::kReal &&
      mprotect(pointer_to(address), bytes, PROT_READ | PROT_WRITE) != 0) {
    return kSystemFailure;
  }
  for (auto mapping = device.mappings.find(address);
       mapping != device.mappings.end() && mapping->first < address + bytes; ++mapping) {
    entry.world().now += kPageAccessCost;
    mapping->second.accessible = true;
  }
  return kSuccess;
}

}  // namespace

void set_page_entries(Primitives* table) {
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

}  // namespace nbx::sim
