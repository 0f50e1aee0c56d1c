#include "device/sim/world.h"

#include <algorithm>
#include <string>

#include "core/environment.h"
#include "core/error.h"
#include "core/process.h"

namespace nbx::sim {
namespace {

constexpr std::int64_t kMostDevices = 64;
/// Addresses without memory lie where no host mapping does; each device has 2^44 of them.
constexpr DeviceAddress kUnbackedBase = DeviceAddress{1} << 56;
constexpr int kUnbackedBits = 44;

Backing backing_from_environment() {
  const std::string text = environment_text("NBX_SIM_BACKING");
  if (text == "real") return Backing::kReal;
  if (text == "none") return Backing::kNone;
  throw Error(ErrorKind::kValue, "NBX_SIM_BACKING: expected \"real\" or \"none\", got '" + text +
                                     "'; correct it or unset it");
}

std::uint64_t round_down(std::uint64_t bytes) noexcept { return bytes / kGranule * kGranule; }

SimDevice& checked_device(std::int32_t ordinal) {
  World& all = world();
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= all.devices.size()) {
    throw Error(ErrorKind::kDevice, "sim: there is no device " + std::to_string(ordinal) + "; " +
                                        std::to_string(all.devices.size()) +
                                        " are configured (NBX_SIM_DEVICES)");
  }
  return all.device(ordinal);
}

bool holds_memory(const SimDevice& device) noexcept {
  return !device.allocations.empty() || !device.pages.empty() || !device.ranges.empty() ||
         !device.host_owned.empty() || !device.host_mapped.empty();
}

}  // namespace

World::World() {
  watch_forks();
  generation = fork_generation();
  const std::int64_t count = environment_integer("NBX_SIM_DEVICES");
  if (count < 0 || count > kMostDevices) {
    throw Error(ErrorKind::kValue, "NBX_SIM_DEVICES: expected 0 to " +
                                       std::to_string(kMostDevices) + ", got " +
                                       std::to_string(count) + "; correct it or unset it");
  }
  const std::uint64_t bytes = round_down(environment_bytes("NBX_SIM_MEMORY", 0));
  const Backing backing = backing_from_environment();
  devices.resize(static_cast<std::size_t>(count));
  DeviceAddress base = kUnbackedBase;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    SimDevice& device = devices[i];
    device.total = bytes;
    device.backing = backing;
    device.next_address = base;
    base += DeviceAddress{1} << kUnbackedBits;
    const auto stream = std::make_shared<SimStream>();
    stream->ordinal = static_cast<std::int32_t>(i);
    device.streams.emplace(StreamHandle{0}, stream);
  }
}

World& world() {
  static auto* const instance = std::make_unique<World>().release();
  return *instance;
}

Entry::Entry(std::int32_t ordinal, Primitive primitive, double cost)
    : world_(&sim::world()), ordinal_(ordinal) {
  // Before the lock: in a forked child some thread of the parent may hold it for ever.
  if (fork_generation() != world_->generation) {
    status = kForkedChild;
    return;
  }
  lock_ = Lock(world_->mutex);
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= world_->devices.size()) {
    status = kInvalidDevice;
    return;
  }
  SimDevice& own = device();
  ++own.calls[static_cast<std::size_t>(primitive)];
  world_->now += cost;
  for (ArmedFault& armed : own.faults) {
    const Fault& fault = armed.fault;
    if (fault.primitive != primitive && !fault.every_primitive) continue;
    ++armed.seen;
    if (armed.seen < fault.first_call || armed.seen - fault.first_call >= fault.call_count)
      continue;
    world_->now += fault.delay_seconds;
    misalignment = fault.misalignment;
    if (fault.status != kSuccess) status = fault.status;
  }
}

void add_fault(std::int32_t ordinal, const Fault& fault) {
  if (fault.first_call == 0) {
    throw Error(ErrorKind::kValue, "fault: first_call counts from 1, got 0");
  }
  const Lock lock(world().mutex);
  checked_device(ordinal).faults.push_back(ArmedFault{fault, 0});
}

void clear_faults(std::int32_t ordinal) {
  const Lock lock(world().mutex);
  checked_device(ordinal).faults.clear();
}

std::uint64_t call_count(std::int32_t ordinal, Primitive primitive) {
  const Lock lock(world().mutex);
  return checked_device(ordinal).calls[static_cast<std::size_t>(primitive)];
}

void set_pressure(std::int32_t ordinal, std::uint64_t bytes) {
  const Lock lock(world().mutex);
  checked_device(ordinal).pressure = bytes;
}

void set_memory(std::int32_t ordinal, std::uint64_t bytes) {
  const Lock lock(world().mutex);
  checked_device(ordinal).total = round_down(bytes);
}

void set_backing(std::int32_t ordinal, Backing backing) {
  const Lock lock(world().mutex);
  SimDevice& device = checked_device(ordinal);
  if (holds_memory(device)) {
    throw Error(ErrorKind::kValue, "set_backing: sim:" + std::to_string(ordinal) + " holds " +
                                       std::to_string(device.used) +
                                       " bytes; free them before the backing changes");
  }
  device.backing = backing;
}

Backing backing(std::int32_t ordinal) {
  const Lock lock(world().mutex);
  return checked_device(ordinal).backing;
}

double seconds() {
  const Lock lock(world().mutex);
  return world().now;
}

void advance(double seconds) {
  if (!(seconds >= 0.0)) {
    throw Error(ErrorKind::kValue,
                "advance: expected at least 0 seconds, got " + std::to_string(seconds));
  }
  const Lock lock(world().mutex);
  world().now += seconds;
}

Books books(std::int32_t ordinal) {
  const Lock lock(world().mutex);
  const SimDevice& device = checked_device(ordinal);
  Books result{};
  result.total_bytes = device.total;
  result.pressure_bytes = device.pressure;
  result.used_bytes = device.used;
  result.peak_bytes = device.peak;
  for (const auto& [address, bytes] : device.ranges) result.reserved_bytes += bytes;
  for (const auto& [address, bytes] : device.host_owned) result.pinned_bytes += bytes;
  for (const auto& [address, bytes] : device.host_mapped) result.pinned_bytes += bytes;
  result.allocations = device.allocations.size();
  result.pages = device.pages.size();
  result.mappings = device.mappings.size();
  result.streams = device.streams.size() - 1;
  for (const auto& [handle, stream] : device.streams) result.queued_work += stream->queue.size();
  for (const auto& stream : device.closing) result.queued_work += stream->queue.size();
  return result;
}

}  // namespace nbx::sim
