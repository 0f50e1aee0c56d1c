#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "core/environment.h"
#include "core/error.h"
#include "core/process.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "device/device.h"
#include "device/hip/hip.h"
#include "device/probe.h"
#include "device/sim/sim.h"

namespace nbx {
namespace {

/// One kind: a table of this build where it has one, and for kinds with a vendor's library a probe
/// that says whether it can be used.
struct KindRow {
  DeviceKind kind;
  const char* name;
  const Primitives* (*table)();
  const Probe& (*probe)();
  bool is_default;  // may be chosen when the caller names none
};

constexpr std::array kKinds = {
    KindRow{DeviceKind::kCuda, "cuda", &cuda::primitives, &cuda::probe, true},
    KindRow{DeviceKind::kHip, "hip", &hip::primitives, &hip::probe, true},
    KindRow{DeviceKind::kMetal, "metal", nullptr, &probe_metal, true},
    KindRow{DeviceKind::kCpu, "cpu", &cpu::primitives, nullptr, true},
    KindRow{DeviceKind::kSim, "sim", &sim::primitives, nullptr, false},
};

/// A dry run: every kind but the host's is a simulated one without memory behind its addresses.
bool census() {
  static const bool chosen = environment_flag("NBX_CENSUS");
  return chosen;
}

constexpr std::uint64_t kCensusMemory = std::uint64_t{1} << 42;

/// The simulated table under the name of the kind that it stands for.
const Primitives& simulated(const KindRow& row) {
  static std::array<Primitives, kDeviceKindCount> tables = [] {
    std::array<Primitives, kDeviceKindCount> made{};
    for (const KindRow& known : kKinds) {
      Primitives& table = made[static_cast<std::size_t>(known.kind)];
      table = *sim::primitives();
      table.kind = known.kind;
      table.kind_name = known.name;
    }
    return made;
  }();
  return tables[static_cast<std::size_t>(row.kind)];
}

/// The row's table; null if this build has none.
const Primitives* table_of(const KindRow& row) {
  if (row.kind != DeviceKind::kCpu && census()) return &simulated(row);
  return row.table == nullptr ? nullptr : row.table();
}

/// Once for each simulated device, whatever the names that lead to it.
void prepare_census(std::int32_t ordinal) {
  if (sim::backing(ordinal) == sim::Backing::kNone) return;
  sim::set_backing(ordinal, sim::Backing::kNone);
  const char* memory = std::getenv("NBX_SIM_MEMORY");
  if (memory == nullptr || *memory == '\0') sim::set_memory(ordinal, kCensusMemory);
}

std::string known_names() {
  std::string text;
  for (const KindRow& row : kKinds) {
    if (!text.empty()) text += ", ";
    text += std::string("\"") + row.name + "\"";
  }
  return text;
}

const KindRow& row_of(DeviceKind kind) {
  for (const KindRow& row : kKinds) {
    if (row.kind == kind) return row;
  }
  throw Error(ErrorKind::kDevice, "device: unknown kind " + std::to_string(static_cast<int>(kind)) +
                                      "; this build knows " + known_names());
}

KindReport report(const KindRow& row) {
  KindReport result{row.kind, row.name, Availability::kNoDevice, 0, {}};
  const bool simulated_now = row.kind != DeviceKind::kCpu && census();
  if (row.probe != nullptr && !simulated_now) {
    const Probe& probe = row.probe();
    result.availability = probe.availability;
    result.device_count = probe.devices;
    result.reason = probe.reason;
    return result;
  }
  const Primitives& table = *table_of(row);
  const Status status = table.device_count(&result.device_count);
  if (status != kSuccess) {
    result.reason = std::string("device_count failed: ") + table.status_text(status);
  } else if (result.device_count == 0) {
    result.reason = "no device is configured";
  } else {
    result.availability = Availability::kReady;
  }
  return result;
}

constexpr std::size_t kQuickOrdinals = 16;

/// Never destroyed: addresses of devices stay valid while static objects die.
struct Registry {
  std::mutex mutex;
  std::map<std::pair<DeviceKind, std::int32_t>, std::unique_ptr<Device>> devices;
  std::atomic<Device*> quick[kDeviceKindCount][kQuickOrdinals] = {};
};

Registry& registry() {
  static auto* const instance = std::make_unique<Registry>().release();
  return *instance;
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error(ErrorKind::kDevice, "device \"" + name + "\": " + why).with("device", name);
}

std::unique_ptr<Device> open_new(const KindRow& row, std::int32_t ordinal) {
  const std::string name = row.name + (":" + std::to_string(ordinal));
  const KindReport state = report(row);
  if (state.availability != Availability::kReady) {
    refuse(name, state.reason +
                     "; nothing else is used in its place. `nbx.devices()` lists what "
                     "can be used");
  }
  if (ordinal < 0 || ordinal >= state.device_count) {
    refuse(name, "the index must be from 0 to " + std::to_string(state.device_count - 1) + ", as " +
                     std::to_string(state.device_count) + " device(s) of this kind exist");
  }
  watch_forks();
  const Primitives& table = *table_of(row);
  if (table.kind != DeviceKind::kCpu && census()) prepare_census(ordinal);
  if (const Status status = table.open(ordinal); status != kSuccess) {
    refuse(name, std::string("open failed: ") + table.status_text(status));
  }
  DeviceProperties properties{};
  if (const Status status = table.properties(ordinal, &properties); status != kSuccess) {
    refuse(name, std::string("properties failed: ") + table.status_text(status));
  }
  return std::make_unique<Device>(table, ordinal, properties);
}

constinit thread_local Device* thread_default = nullptr;

Device& choose_default() {
  const std::string wanted = environment_text("NBX_DEVICE");
  if (!wanted.empty()) {
    const DeviceName name = parse_device(wanted);
    return open_device(name.kind, name.ordinal);
  }
  for (const KindRow& row : kKinds) {
    // A kind without a table is never ready, so its library need not be searched.
    if (!row.is_default || table_of(row) == nullptr) continue;
    if (report(row).availability == Availability::kReady) return open_device(row.kind, 0);
  }
  throw Error(ErrorKind::kDevice, "device: no device can be used");
}

}  // namespace

std::vector<KindReport> report_kinds() {
  std::vector<KindReport> reports;
  for (const KindRow& row : kKinds) reports.push_back(report(row));
  return reports;
}

Device& open_device(DeviceKind kind, std::int32_t ordinal) {
  Registry& all = registry();
  const auto index = static_cast<std::size_t>(ordinal);
  const bool quick = ordinal >= 0 && index < kQuickOrdinals;
  std::atomic<Device*>* slot = quick ? &all.quick[static_cast<std::size_t>(kind)][index] : nullptr;
  if (slot != nullptr) {
    if (Device* known = slot->load(std::memory_order_acquire)) return *known;
  }
  const KindRow& row = row_of(kind);
  const std::lock_guard<std::mutex> guard(all.mutex);
  std::unique_ptr<Device>& device = all.devices[{kind, ordinal}];
  if (device == nullptr) device = open_new(row, ordinal);
  if (slot != nullptr) slot->store(device.get(), std::memory_order_release);
  return *device;
}

DeviceName parse_device(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  for (const KindRow& row : kKinds) {
    if (kind != row.name) continue;
    if (colon == std::string::npos) return {row.kind, 0};
    std::int32_t ordinal = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + colon + 1, end, ordinal);
    if (code == std::errc() && stop == end && ordinal >= 0) return {row.kind, ordinal};
    throw Error(ErrorKind::kValue, "device: the index of \"" + text +
                                       "\" is no number from 0 on; write, for example, \"" + kind +
                                       ":0\"");
  }
  throw Error(ErrorKind::kValue, "device: unknown name \"" + text + "\"; known are " +
                                     known_names() +
                                     ", each with an optional index as in \"sim:1\"");
}

Device& default_device() {
  if (thread_default != nullptr) return *thread_default;
  // A failed choice is made again: NBX_DEVICE may have been corrected.
  static Device& chosen = choose_default();
  return chosen;
}

Device* set_thread_default(Device* device) noexcept {
  Device* former = thread_default;
  thread_default = device;
  return former;
}

}  // namespace nbx
