// A device of addresses only, whose refusals and completed tickets the test decides.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>

#include "device/device.h"

namespace nbx::testing {

/// A fresh seed, printed, so that a failure can be repeated.
inline std::uint64_t fresh_seed(const char* test) {
  const std::uint64_t seed =
      (std::getenv("TEST_SEED") ? std::strtoull(std::getenv("TEST_SEED"), nullptr, 10)
                                : std::random_device{}());
  std::printf("%s: seed %llu\n", test, static_cast<unsigned long long>(seed));
  return seed;
}

struct FakeDriver {
  std::mutex mutex;
  std::map<DeviceAddress, std::size_t> held;
  std::uint64_t capacity = std::uint64_t{1} << 40;
  std::uint64_t used = 0;
  DeviceAddress next = std::uint64_t{1} << 32;
  std::uint64_t misalignment = 0;     // added to every address
  std::int64_t fail_allocation = -1;  // counts down to the call that fails; below 0: none
  Status fail_status = kAllocationRefused;
  std::uint64_t allocations = 0;
  std::uint64_t bad_frees = 0;
  std::uint64_t waits = 0;
  std::uint64_t synchronizations = 0;
  std::map<StreamHandle, Ticket> completed;
  std::map<StreamHandle, Ticket> submitted;
  std::map<StreamHandle, bool> gone;

  void reset() {
    held.clear();
    capacity = std::uint64_t{1} << 40;
    used = misalignment = allocations = bad_frees = waits = synchronizations = 0;
    fail_allocation = -1;
    fail_status = kAllocationRefused;
    completed.clear();
    submitted.clear();
    gone.clear();
  }
};

inline FakeDriver& driver() {
  static FakeDriver instance;
  return instance;
}

inline Status fake_allocate(std::int32_t, std::size_t bytes, DeviceAddress* address) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  ++d.allocations;
  if (d.fail_allocation >= 0 && d.fail_allocation-- == 0) return d.fail_status;
  if (d.used + bytes > d.capacity) return kAllocationRefused;
  *address = d.next + d.misalignment;
  // A gap, so that blocks of two segments never touch.
  d.next += (bytes + 3 * 4096) & ~std::uint64_t{4095};
  d.held[*address] = bytes;
  d.used += bytes;
  return kSuccess;
}

inline Status fake_free(std::int32_t, DeviceAddress address) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  const auto found = d.held.find(address);
  if (found == d.held.end()) {
    ++d.bad_frees;
    return 1;
  }
  d.used -= found->second;
  d.held.erase(found);
  return kSuccess;
}

inline Status fake_memory_info(std::int32_t, MemoryInfo* info) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  *info = MemoryInfo{d.capacity - d.used, d.capacity};
  return kSuccess;
}

inline Status fake_completed(std::int32_t, StreamHandle stream, Ticket* ticket) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  if (d.gone[stream]) return 400;
  *ticket = d.completed[stream];
  return kSuccess;
}

inline Status fake_submitted(std::int32_t, StreamHandle stream, Ticket* ticket) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  *ticket = d.submitted[stream];
  return d.gone[stream] ? 400 : kSuccess;
}

inline Status fake_wait(std::int32_t, StreamHandle stream, Ticket ticket) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  if (d.gone[stream]) return 400;
  ++d.waits;
  if (d.completed[stream] < ticket) d.completed[stream] = ticket;
  return kSuccess;
}

inline Status fake_synchronize(std::int32_t) {
  FakeDriver& d = driver();
  const std::lock_guard<std::mutex> guard(d.mutex);
  ++d.synchronizations;
  return kSuccess;
}

inline const char* fake_status_text(Status) { return "a status of the fake driver"; }

inline Primitives fake_primitives(DeviceKind kind) {
  Primitives table{};
  table.kind = kind;
  table.kind_name = "fake";
  table.allocate = fake_allocate;
  table.free = fake_free;
  table.memory_info = fake_memory_info;
  table.completed_ticket = fake_completed;
  table.submitted_ticket = fake_submitted;
  table.wait_ticket = fake_wait;
  table.synchronize = fake_synchronize;
  table.status_text = fake_status_text;
  return table;
}

/// `host`: work complete on return, as on the cpu. Resets the driver; a new device each time, as
/// what is known of a device's streams stays.
inline Device& fake_device(bool host) {
  // Kinds that this build cannot open: streams are known by kind and ordinal.
  static const Primitives tables[] = {fake_primitives(DeviceKind::kHip),
                                      fake_primitives(DeviceKind::kMetal)};
  static std::deque<Device> devices;
  const auto ordinal = static_cast<std::int32_t>(devices.size());
  if (host) {
    devices.emplace_back(tables[1], ordinal,
                         DeviceProperties{"fake", "fake", 1ull << 40, 0, 64, true, true, true});
  } else {
    devices.emplace_back(
        tables[0], ordinal,
        DeviceProperties{"fake", "fake", 1ull << 40, 2 << 20, 256, false, false, false});
  }
  driver().reset();
  return devices.back();
}

}  // namespace nbx::testing
