// A vendor's driver and its opened devices; `Api` is the thin layer over the vendor's functions.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/process.h"
#include "device/gpu/slots.h"
#include "device/gpu/stream_table.h"
#include "device/host_status.h"
#include "device/primitives.h"
#include "device/probe.h"

namespace nbx::gpu {

inline constexpr std::uint32_t kMostDevices = 64;
inline constexpr std::uint32_t kBaseAlignment = 256;  // what the drivers guarantee
inline constexpr std::uintptr_t kHostPage = 4096;
inline constexpr Status kPeerEnabledAlready = 704;
inline constexpr Status kHostRegisteredAlready = 712;
inline constexpr int kRelaxedCapture = 2;

struct EventState {
  std::int32_t ordinal = 0;
  bool timing = false;
  std::atomic<bool> recorded{false};
  void* event = nullptr;
};

struct GraphState {
  std::int32_t ordinal = 0;
  void* graph = nullptr;
  void* executable = nullptr;  // null until finished
};

/// Pages under an address range.
struct PageMapping {
  std::uint64_t bytes = 0;
  bool accessible = false;
};

/// Objects of all devices of a kind. Never destroyed, as work may be let go of while static objects
/// die.
struct Objects {
  StreamTable streams;
  Slots<EventState> events;
  Slots<GraphState> graphs;
};

struct DeviceState {
  std::int32_t ordinal = 0;
  std::uint32_t generation = 0;  // of forks, when the driver was opened
  DeviceProperties properties{};
  std::int32_t least_priority = 0;
  std::int32_t greatest_priority = 0;  // numerically the smaller
  bool has_clusters = false;
  void* never_recorded = nullptr;  // an event to ask for the state of the device with

  std::mutex mutex;  // of what follows
  std::map<DeviceAddress, PageMapping> mappings;
  std::vector<std::int32_t> accessors;               // peers that may use this device's pages
  std::map<std::uintptr_t, std::size_t> registered;  // host memory, by map_host
  std::set<ModuleHandle> modules;
  std::vector<StreamState*> idle_streams;
  std::array<std::vector<void*>, 2> idle_events;  // without and with timing
};

/// What was found when the library was looked for.
struct Found {
  Probe probe;
  std::uint32_t generation = 0;
};

template <class Api>
inline constinit std::array<std::atomic<DeviceState*>, kMostDevices> opened{};

template <class Api>
Objects& objects() {
  static auto* const instance = std::make_unique<Objects>().release();
  return *instance;
}

template <class Api>
std::string error_text(int code) {
  return std::string(Api::error_name(code)) + ": " + Api::error_string(code);
}

template <class Api>
Found look_for_driver() {
  watch_forks();
  Found found;
  found.generation = fork_generation();
  found.probe = Api::load();
  if (found.probe.availability != Availability::kReady) return found;
  found.probe.availability = Availability::kNoDevice;
  if (const int code = Api::init(0); code != 0) {
    found.probe.reason = std::string(Api::kInitName) + " failed: " + error_text<Api>(code);
    return found;
  }
  int count = 0;
  if (const int code = Api::get_count(&count); code != 0) {
    found.probe.reason = std::string(Api::kCountName) + " failed: " + error_text<Api>(code);
  } else if (count == 0) {
    found.probe.reason = std::string(Api::kCountName) + " reports no device";
  } else {
    found.probe.availability = Availability::kReady;
    found.probe.devices = std::min(count, static_cast<int>(kMostDevices));
  }
  return found;
}

template <class Api>
const Found& driver() {
  static const Found found = look_for_driver<Api>();
  return found;
}

/// Lets this thread make calls that a capture of another library, on another thread, forbids.
template <class Api>
class Unrestricted {
 public:
  explicit Unrestricted(bool wanted) noexcept : wanted_(wanted) { exchange(); }
  ~Unrestricted() { exchange(); }
  Unrestricted(const Unrestricted&) = delete;
  Unrestricted& operator=(const Unrestricted&) = delete;

 private:
  void exchange() noexcept {
    // Fails for an unknown mode only.
    if (wanted_) static_cast<void>(Api::exchange_capture_mode(&mode_));
  }
  bool wanted_;
  int mode_ = kRelaxedCapture;
};

template <class Api>
Status open_device(std::int32_t ordinal, DeviceState** state);

/// Every entry begins with one: it refuses forked children before the driver is called, opens the
/// device if need be, and makes it current on this thread.
template <class Api>
class Entry {
 public:
  explicit Entry(std::int32_t ordinal) {
    const auto index = static_cast<std::uint32_t>(ordinal);
    if (index < kMostDevices) device = opened<Api>[index].load(std::memory_order_acquire);
    if (device == nullptr) [[unlikely]] {
      status = open_device<Api>(ordinal, &device);
      if (status != kSuccess) return;
    }
    status = fork_generation() == device->generation ? Api::make_current(ordinal) : kForkedChild;
  }

  DeviceState* device = nullptr;
  Status status = kSuccess;
};

/// An entry whose calls a capture elsewhere might forbid.
template <class Api>
class FreeEntry : public Entry<Api> {
 public:
  explicit FreeEntry(std::int32_t ordinal)
      : Entry<Api>(ordinal), unrestricted_(this->status == kSuccess) {}

 private:
  Unrestricted<Api> unrestricted_;
};

/// A refusal that is answered leaves nothing behind for whoever asks the runtime next.
template <class Api>
Status answered(int code) {
  if (code != 0) [[unlikely]]
    Api::clear_error();
  return code;
}

template <class Api>
typename Api::Pointer pointer(DeviceAddress address) noexcept {
  if constexpr (std::is_pointer_v<typename Api::Pointer>) {
    return reinterpret_cast<typename Api::Pointer>(static_cast<std::uintptr_t>(address));
  } else {
    return address;
  }
}
template <class Pointer>
DeviceAddress address_of(Pointer value) noexcept {
  if constexpr (std::is_pointer_v<Pointer>) {
    return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(value));
  } else {
    return value;
  }
}
/// The driver's own handle in a handle of the table, and back.
inline void* raw(std::uint64_t handle) noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(handle));
}

}  // namespace nbx::gpu
