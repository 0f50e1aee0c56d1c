// Allocations, page-locked host memory and address queries of simulated devices.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/align.h"
#include "core/process.h"
#include "device/sim/world.h"

namespace nbx::sim {
namespace {

constexpr std::uint64_t kHostPage = 4096;
constexpr std::uint64_t kChargeUnit = 512;
constexpr std::uint64_t kLargestRequest = std::uint64_t{1} << 43;

/// Host pages, or bare addresses without backing; 0 if the system refuses.
DeviceAddress obtain(SimDevice& device, std::uint64_t bytes) {
  if (device.backing == Backing::kNone) {
    const DeviceAddress address = device.next_address;
    device.next_address += round_up(bytes, kGranule);
    return address;
  }
  void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pointer == MAP_FAILED ? 0 : address_of(pointer);
}

Status give_back(const SimDevice& device, DeviceAddress base, std::uint64_t bytes) {
  if (device.backing == Backing::kNone) return kSuccess;
  return munmap(pointer_to(base), bytes) == 0 ? kSuccess : kSystemFailure;
}

Status device_count(std::int32_t* count) {
  World& all = world();
  if (fork_generation() != all.generation) return kForkedChild;
  const Lock lock(all.mutex);
  *count = static_cast<std::int32_t>(all.devices.size());
  return kSuccess;
}

Status properties(std::int32_t ordinal, DeviceProperties* result) {
  const Entry entry(ordinal, Primitive::k_properties, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  *result = DeviceProperties{};
  static_cast<void>(std::snprintf(result->name, sizeof(result->name), "simulated GPU %d", ordinal));
  static_cast<void>(
      std::snprintf(result->architecture, sizeof(result->architecture), "%s", kArchitecture));
  result->total_bytes = entry.device().total;
  result->page_granularity = kGranule;
  result->base_alignment = static_cast<std::uint32_t>(kBaseAlignment);
  result->host_readable = false;
  result->unified = false;
  result->integrated_work = false;
  return kSuccess;
}

Status open(std::int32_t ordinal) { return Entry(ordinal, Primitive::k_open, kTrivialCost).status; }

Status memory_info(std::int32_t ordinal, MemoryInfo* info) {
  const Entry entry(ordinal, Primitive::k_memory_info, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const SimDevice& device = entry.device();
  const std::uint64_t held = device.used + device.pressure;
  *info = MemoryInfo{device.total - std::min(device.total, held), device.total};
  return kSuccess;
}

Status budget(std::int32_t ordinal, std::uint64_t* bytes) {
  const Entry entry(ordinal, Primitive::k_budget, kTrivialCost);
  if (entry.status == kSuccess) *bytes = entry.device().total;
  return entry.status;
}

Status last_error(std::int32_t ordinal) {
  const Entry entry(ordinal, Primitive::k_last_error, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  return std::exchange(entry.device().sticky, kSuccess);
}

Status allocate(std::int32_t ordinal, std::size_t bytes, DeviceAddress* address) {
  const Entry entry(ordinal, Primitive::k_allocate, kAllocateCost);
  if (entry.status != kSuccess) return entry.status;
  if (bytes == 0) return kInvalidValue;
  if (bytes > kLargestRequest) return kAllocationRefused;
  SimDevice& device = entry.device();
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.charged = round_up(bytes, kChargeUnit);
  allocation.mapped = round_up(bytes + entry.misalignment, kHostPage);
  if (device.used + device.pressure + allocation.charged > device.total) return kAllocationRefused;
  allocation.base = obtain(device, allocation.mapped);
  if (allocation.base == 0) return kAllocationRefused;
  device.used += allocation.charged;
  device.peak = std::max(device.peak, device.used);
  *address = allocation.base + entry.misalignment;
  device.allocations.emplace(*address, allocation);
  return kSuccess;
}

Status free_memory(std::int32_t ordinal, DeviceAddress address) {
  const Entry entry(ordinal, Primitive::k_free, kFreeCost);
  if (entry.status != kSuccess) return entry.status;
  SimDevice& device = entry.device();
  const auto found = device.allocations.find(address);
  if (found == device.allocations.end()) return kInvalidValue;
  const Allocation allocation = found->second;
  device.allocations.erase(found);
  device.used -= allocation.charged;
  return give_back(device, allocation.base, allocation.mapped);
}

Status host_allocate(std::int32_t ordinal, std::size_t bytes, void** pointer) {
  const Entry entry(ordinal, Primitive::k_host_allocate, static_cast<double>(bytes) * kPinByteCost);
  if (entry.status != kSuccess) return entry.status;
  if (bytes == 0) return kInvalidValue;
  if (bytes > kLargestRequest) return kAllocationRefused;
  // Host memory is real whatever lies under the device's addresses.
  const std::uint64_t mapped = round_up(bytes, kHostPage);
  void* made = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return kAllocationRefused;
  entry.device().host_owned.emplace(address_of(made), mapped);
  *pointer = made;
  return kSuccess;
}

Status host_free(std::int32_t ordinal, void* pointer) {
  const Entry entry(ordinal, Primitive::k_host_free, kFreeCost);
  if (entry.status != kSuccess) return entry.status;
  auto& owned = entry.device().host_owned;
  const auto found = owned.find(address_of(pointer));
  if (found == owned.end()) return kInvalidValue;
  const std::uint64_t mapped = found->second;
  owned.erase(found);
  return munmap(pointer, mapped) == 0 ? kSuccess : kSystemFailure;
}

using Spans = std::map<DeviceAddress, std::uint64_t>;

/// The span that holds the address; `end()` if none does.
Spans::const_iterator span_at(const Spans& spans, DeviceAddress address) {
  auto found = spans.upper_bound(address);
  if (found == spans.begin()) return spans.end();
  --found;
  return address - found->first < found->second ? found : spans.end();
}

bool within(const Spans& spans, DeviceAddress address, std::uint64_t bytes) {
  const auto found = span_at(spans, address);
  return found != spans.end() && found->second - (address - found->first) >= bytes;
}

Status map_host(std::int32_t ordinal, void* pointer, std::size_t bytes, DeviceAddress* address) {
  const Entry entry(ordinal, Primitive::k_map_host, static_cast<double>(bytes) * kPinByteCost);
  if (entry.status != kSuccess) return entry.status;
  if (pointer == nullptr || bytes == 0) return kInvalidValue;
  SimDevice& device = entry.device();
  const DeviceAddress start = address_of(pointer);
  const auto next = device.host_mapped.lower_bound(start);
  if (span_at(device.host_mapped, start) != device.host_mapped.end() ||
      (next != device.host_mapped.end() && next->first - start < bytes)) {
    return kInvalidValue;  // mapped already
  }
  device.host_mapped.emplace(start, bytes);
  *address = start;
  return kSuccess;
}

Status unmap_host(std::int32_t ordinal, void* pointer) {
  const Entry entry(ordinal, Primitive::k_unmap_host, kFreeCost);
  if (entry.status != kSuccess) return entry.status;
  return entry.device().host_mapped.erase(address_of(pointer)) == 1 ? kSuccess : kInvalidValue;
}

Status device_address(std::int32_t ordinal, const void* pointer, DeviceAddress* address) {
  const Entry entry(ordinal, Primitive::k_device_address, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const SimDevice& device = entry.device();
  const DeviceAddress start = address_of(pointer);
  if (!within(device.host_owned, start, 1) && !within(device.host_mapped, start, 1)) {
    return kInvalidValue;
  }
  *address = start;
  return kSuccess;
}

Status resolve(std::int32_t ordinal, DeviceAddress address, ResolvedAddress* resolved) {
  const Entry entry(ordinal, Primitive::k_resolve, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const SimDevice& device = entry.device();
  auto allocation = device.allocations.upper_bound(address);
  if (allocation != device.allocations.begin() &&
      address - (--allocation)->first < allocation->second.bytes) {
    *resolved = {allocation->first, address - allocation->first};
    return kSuccess;
  }
  for (const Spans* spans : {&device.ranges, &device.host_owned, &device.host_mapped}) {
    const auto found = span_at(*spans, address);
    if (found == spans->end()) continue;
    *resolved = {found->first, address - found->first};
    return kSuccess;
  }
  return kInvalidValue;
}

}  // namespace

bool World::addressable(std::int32_t ordinal, DeviceAddress address, std::uint64_t bytes) {
  const SimDevice& own = device(ordinal);
  auto allocation = own.allocations.upper_bound(address);
  if (allocation != own.allocations.begin()) {
    --allocation;
    const std::uint64_t offset = address - allocation->first;
    if (offset < allocation->second.bytes) return allocation->second.bytes - offset >= bytes;
  }
  if (within(own.host_owned, address, bytes) || within(own.host_mapped, address, bytes)) {
    return true;
  }
  // A span may cross any number of neighbouring pages.
  auto mapping = own.mappings.upper_bound(address);
  if (mapping == own.mappings.begin()) return false;
  --mapping;
  DeviceAddress at = address;
  while (mapping != own.mappings.end() && mapping->second.accessible && mapping->first <= at &&
         at - mapping->first < mapping->second.bytes) {
    at = mapping->first + mapping->second.bytes;
    if (at - address >= bytes) return true;
    ++mapping;
  }
  return false;
}

bool World::pinned(DeviceAddress address, std::uint64_t bytes) {
  return std::any_of(devices.begin(), devices.end(), [&](const SimDevice& own) {
    return within(own.host_owned, address, bytes) || within(own.host_mapped, address, bytes);
  });
}

void set_memory_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(device_count)
  NBX_SET(properties)
  NBX_SET(open)
  NBX_SET(memory_info)
  NBX_SET(budget)
  NBX_SET(last_error)
  NBX_SET(allocate)
  NBX_SET(host_allocate)
  NBX_SET(host_free)
  NBX_SET(map_host)
  NBX_SET(unmap_host)
  NBX_SET(device_address)
  NBX_SET(resolve)
#undef NBX_SET
  table->free = &free_memory;
  table->status_text = &host_status_text;
}

}  // namespace nbx::sim
