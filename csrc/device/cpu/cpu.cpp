#include "device/cpu/cpu.h"

#include <sys/utsname.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/clock.h"
#include "device/cpu/capture.h"
#include "device/cpu/memory.h"
#include "device/cpu/ranges.h"
#include "device/host_status.h"

namespace nbx::cpu {
namespace {

constexpr std::uint64_t kUnrecorded = ~std::uint64_t{0};

/// Streams and events carry no work: they are names, and times on the clock.
struct Handles {
  std::mutex mutex;
  std::uint64_t next = 1;
  std::unordered_set<StreamHandle> streams;
  std::unordered_map<EventHandle, std::uint64_t> events;
};

Handles& handles() {
  static auto* const instance = std::make_unique<Handles>().release();
  return *instance;
}

std::byte* pointer_to(DeviceAddress address) noexcept {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}
DeviceAddress address_of(const void* pointer) noexcept {
  return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
}

Status check_ordinal(std::int32_t ordinal) noexcept {
  return ordinal == 0 ? kSuccess : kInvalidDevice;
}

Status device_count(std::int32_t* count) {
  *count = 1;
  return kSuccess;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

Status properties(std::int32_t ordinal, DeviceProperties* result) {
  if (ordinal != 0) return kInvalidDevice;
  *result = DeviceProperties{};
  utsname system{};
  if (uname(&system) != 0) return kSystemFailure;
  static_cast<void>(std::snprintf(result->name, sizeof(result->name), "%s", model_name().c_str()));
  static_cast<void>(
      std::snprintf(result->architecture, sizeof(result->architecture), "%.31s", system.machine));
  result->total_bytes = host_memory().total_bytes;
  result->page_granularity = 0;
  result->base_alignment = kAlignment;
  result->host_readable = true;
  result->unified = true;
  result->integrated_work = true;
  return kSuccess;
}

Status open(std::int32_t ordinal) { return check_ordinal(ordinal); }
Status synchronize(std::int32_t ordinal) { return check_ordinal(ordinal); }
Status last_error(std::int32_t ordinal) { return check_ordinal(ordinal); }

Status memory_info(std::int32_t ordinal, MemoryInfo* info) {
  if (ordinal != 0) return kInvalidDevice;
  *info = host_memory();
  return info->total_bytes == 0 ? kSystemFailure : kSuccess;
}

Status budget(std::int32_t ordinal, std::uint64_t* bytes) {
  MemoryInfo info{};
  const Status status = memory_info(ordinal, &info);
  if (status == kSuccess) *bytes = info.total_bytes;
  return status;
}

Status allocate(std::int32_t ordinal, std::size_t bytes, DeviceAddress* address) {
  if (ordinal != 0) return kInvalidDevice;
  void* pointer = nullptr;
  const Status status = allocate_host(bytes, &pointer);
  if (status == kSuccess) *address = address_of(pointer);
  return status;
}

Status free_memory(std::int32_t ordinal, DeviceAddress address) {
  return ordinal == 0 ? free_host(pointer_to(address)) : kInvalidDevice;
}

Status host_allocate(std::int32_t ordinal, std::size_t bytes, void** pointer) {
  return ordinal == 0 ? allocate_host(bytes, pointer) : kInvalidDevice;
}

Status host_free(std::int32_t ordinal, void* pointer) {
  return ordinal == 0 ? free_host(pointer) : kInvalidDevice;
}

Status map_host(std::int32_t ordinal, void* pointer, std::size_t /*bytes*/,
                DeviceAddress* address) {
  if (ordinal != 0) return kInvalidDevice;
  if (pointer == nullptr) return kInvalidValue;
  *address = address_of(pointer);
  return kSuccess;
}

Status unmap_host(std::int32_t ordinal, void* pointer) {
  if (ordinal != 0) return kInvalidDevice;
  return pointer == nullptr ? kInvalidValue : kSuccess;
}

Status device_address(std::int32_t ordinal, const void* pointer, DeviceAddress* address) {
  if (ordinal != 0) return kInvalidDevice;
  *address = address_of(pointer);
  return kSuccess;
}

Status copy(std::int32_t ordinal, DeviceAddress destination, DeviceAddress source,
            std::size_t bytes, CopyKind /*kind*/, StreamHandle stream) {
  if (ordinal != 0) return kInvalidDevice;
  if (bytes == 0) return kSuccess;
  if (destination == 0 || source == 0) return kInvalidValue;
  const auto action = [to = pointer_to(destination), from = pointer_to(source), bytes] {
    std::memmove(to, from, bytes);
  };
  if (!recorded(stream, [&] { return action; })) action();
  return kSuccess;
}

Status fill(std::int32_t ordinal, DeviceAddress destination, std::uint32_t pattern,
            std::uint32_t pattern_bytes, std::size_t count, StreamHandle stream) {
  if (ordinal != 0) return kInvalidDevice;
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) return kInvalidValue;
  if (count == 0) return kSuccess;
  if (destination == 0 || destination % pattern_bytes != 0) return kInvalidValue;
  const auto action = [to = pointer_to(destination), pattern, pattern_bytes, count] {
    fill_pattern(to, pattern, pattern_bytes, count);
  };
  if (!recorded(stream, [&] { return action; })) action();
  return kSuccess;
}

Status stream_create(std::int32_t ordinal, std::int32_t /*priority*/, StreamHandle* stream) {
  if (ordinal != 0) return kInvalidDevice;
  Handles& all = handles();
  const std::lock_guard<std::mutex> guard(all.mutex);
  *stream = *all.streams.insert(all.next++).first;
  return kSuccess;
}

Status stream_destroy(std::int32_t ordinal, StreamHandle stream) {
  if (ordinal != 0) return kInvalidDevice;
  drop_captured(stream);
  Handles& all = handles();
  const std::lock_guard<std::mutex> guard(all.mutex);
  return all.streams.erase(stream) == 1 ? kSuccess : kInvalidHandle;
}

Status check_stream(std::int32_t ordinal, StreamHandle stream) {
  if (ordinal != 0) return kInvalidDevice;
  if (stream == 0) return kSuccess;
  Handles& all = handles();
  const std::lock_guard<std::mutex> guard(all.mutex);
  return all.streams.count(stream) == 1 ? kSuccess : kInvalidHandle;
}

Status stream_synchronize(std::int32_t ordinal, StreamHandle stream) {
  const Status status = check_stream(ordinal, stream);
  return status == kSuccess && is_captured(stream) ? kCaptureInvalid : status;
}

Status submitted_ticket(std::int32_t ordinal, StreamHandle stream, Ticket* ticket) {
  const Status status = check_stream(ordinal, stream);
  if (status == kSuccess) *ticket = 0;
  return status;
}

Status completed_ticket(std::int32_t ordinal, StreamHandle stream, Ticket* ticket) {
  return submitted_ticket(ordinal, stream, ticket);
}

Status wait_ticket(std::int32_t ordinal, StreamHandle stream, Ticket ticket) {
  if (ticket != 0) return kInvalidValue;  // no work was ever outstanding
  return check_stream(ordinal, stream);
}

Status event_create(std::int32_t ordinal, bool /*timing*/, EventHandle* event) {
  if (ordinal != 0) return kInvalidDevice;
  Handles& all = handles();
  const std::lock_guard<std::mutex> guard(all.mutex);
  *event = all.events.emplace(all.next++, kUnrecorded).first->first;
  return kSuccess;
}

Status event_destroy(std::int32_t ordinal, EventHandle event) {
  if (ordinal != 0) return kInvalidDevice;
  Handles& all = handles();
  const std::lock_guard<std::mutex> guard(all.mutex);
  return all.events.erase(event) == 1 ? kSuccess : kInvalidHandle;
}

/// The event's time; with `now`, records it first.
Status event_time(std::int32_t ordinal, EventHandle event, std::uint64_t now, std::uint64_t* time) {
  if (ordinal != 0) return kInvalidDevice;
  Handles& all = handles();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.events.find(event);
  if (found == all.events.end()) return kInvalidHandle;
  if (now != kUnrecorded) found->second = now;
  *time = found->second;
  return kSuccess;
}

Status event_record(std::int32_t ordinal, EventHandle event, StreamHandle stream) {
  const Status status = check_stream(ordinal, stream);
  if (status != kSuccess) return status;
  mark_captured(event, stream);
  std::uint64_t time = 0;
  return event_time(ordinal, event, clock_nanoseconds(), &time);
}

Status event_query(std::int32_t ordinal, EventHandle event, bool* complete) {
  std::uint64_t time = 0;
  const Status status = event_time(ordinal, event, kUnrecorded, &time);
  if (status == kSuccess) *complete = true;
  return status;
}

Status event_synchronize(std::int32_t ordinal, EventHandle event) {
  std::uint64_t time = 0;
  return event_time(ordinal, event, kUnrecorded, &time);
}

Status stream_wait_event(std::int32_t ordinal, StreamHandle stream, EventHandle event) {
  const Status status = check_stream(ordinal, stream);
  if (status != kSuccess) return status;
  join_captured(stream, event);
  return event_synchronize(ordinal, event);
}

Status event_elapsed(std::int32_t ordinal, EventHandle start, EventHandle end, double* seconds) {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  Status status = event_time(ordinal, start, kUnrecorded, &from);
  if (status == kSuccess) status = event_time(ordinal, end, kUnrecorded, &to);
  if (status != kSuccess) return status;
  if (from == kUnrecorded || to == kUnrecorded) return kInvalidHandle;
  *seconds = (static_cast<double>(to) - static_cast<double>(from)) * 1e-9;
  return kSuccess;
}

/// Host work of a graph, which owns the payload.
Action owned_work(const HostWork& work) {
  const std::shared_ptr<void> payload(work.payload, work.discard);
  return [run = work.run, payload] { run(payload.get()); };
}

Status launch_host(std::int32_t ordinal, const HostWork* work, double /*seconds*/,
                   StreamHandle stream) {
  if (ordinal == 0 && recorded(stream, [&] { return owned_work(*work); })) return kSuccess;
  if (ordinal == 0) work->run(work->payload);
  work->discard(work->payload);
  return check_ordinal(ordinal);
}

Primitives make_table() {
  Primitives table{};
  table.kind = DeviceKind::kCpu;
  table.kind_name = "cpu";
  table.status_text = &host_status_text;
  table.free = &free_memory;
#define NBX_SET(name) table.name = &name;
  NBX_SET(device_count)
  NBX_SET(properties)
  NBX_SET(open)
  NBX_SET(synchronize)
  NBX_SET(memory_info)
  NBX_SET(budget)
  NBX_SET(last_error)
  NBX_SET(allocate)
  NBX_SET(host_allocate)
  NBX_SET(host_free)
  NBX_SET(map_host)
  NBX_SET(unmap_host)
  NBX_SET(device_address)
  NBX_SET(copy)
  NBX_SET(fill)
  NBX_SET(stream_create)
  NBX_SET(stream_destroy)
  NBX_SET(stream_synchronize)
  NBX_SET(stream_wait_event)
  NBX_SET(submitted_ticket)
  NBX_SET(completed_ticket)
  NBX_SET(wait_ticket)
  NBX_SET(event_create)
  NBX_SET(event_destroy)
  NBX_SET(event_record)
  NBX_SET(event_query)
  NBX_SET(event_synchronize)
  NBX_SET(event_elapsed)
  NBX_SET(launch_host)
#undef NBX_SET
  set_capture_entries(&table);
  set_range_entries(&table);
  return table;
}

}  // namespace

const Primitives* primitives() {
  static const Primitives table = make_table();
  return &table;
}

}  // namespace nbx::cpu
