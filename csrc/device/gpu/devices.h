// Devices: opening, properties, errors.
#pragma once

#include <algorithm>
#include <cstdio>

#include "device/gpu/driver.h"
#include "device/gpu/pages.h"

namespace nbx::gpu {

template <class Api>
struct Devices {
  static Status device_count(std::int32_t* count) {
    *count = driver<Api>().probe.devices;
    return kSuccess;
  }

  static Status properties(std::int32_t ordinal, DeviceProperties* properties) {
    const Entry<Api> entry(ordinal);
    if (entry.status == kSuccess) *properties = entry.device->properties;
    return entry.status;
  }

  static Status open(std::int32_t ordinal) { return Entry<Api>(ordinal).status; }

  static Status synchronize(std::int32_t ordinal) {
    const Entry<Api> entry(ordinal);
    return entry.status == kSuccess ? Api::synchronize() : entry.status;
  }

  static Status memory_info(std::int32_t ordinal, MemoryInfo* info) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    std::size_t free = 0;
    std::size_t total = 0;
    const int code = Api::memory_info(&free, &total);
    if (code == 0) *info = MemoryInfo{free, total};
    return code;
  }

  static Status budget(std::int32_t ordinal, std::uint64_t* bytes) {
    const Entry<Api> entry(ordinal);
    if (entry.status == kSuccess) *bytes = entry.device->properties.total_bytes;
    return entry.status;
  }

  /// An error that ended the device's work is the answer to every call from then on.
  static Status last_error(std::int32_t ordinal) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const int pending = Api::clear_error();
    return pending != 0 ? pending : Api::event_query(entry.device->never_recorded);
  }

  /// Texts stay for ever, one for each status.
  static const char* status_text(Status status) {
    static std::mutex mutex;
    static auto* const texts = std::make_unique<std::map<Status, std::string>>().release();
    const std::lock_guard<std::mutex> guard(mutex);
    std::string& text = (*texts)[status];
    if (text.empty()) text = make_text(status);
    return text.c_str();
  }

 private:
  static std::string make_text(Status status) {
    const bool loaded = driver<Api>().probe.availability == Availability::kReady;
    if (status == kForkedChild || status == kSuccess || !loaded) return host_status_text(status);
    std::string text = error_text<Api>(status);
    if (is_sticky(status)) {
      text +=
          "; nothing more can be done with the device in this process: its memory is lost, and "
          "every call will fail. End the process and start another";
    }
    return text;
  }

  static bool is_sticky(Status status) noexcept {
    // Uncorrectable memory and link errors, illegal addresses and instructions, time-outs, failed
    // assertions: the same numbers for both vendors.
    constexpr std::array kCodes = {214, 220, 226, 700, 702, 709, 710,
                                   714, 715, 716, 717, 718, 719, 721};
    return std::find(kCodes.begin(), kCodes.end(), status) != kCodes.end();
  }
};

/// A count that a driver does not know stays 0.
template <class Api>
void read_counts(std::int32_t ordinal, DeviceCounts* counts) {
  std::array<std::uint32_t, Api::kCounts.size()> values{};
  static_assert(sizeof(values) == sizeof(*counts));
  for (std::size_t i = 0; i < values.size(); ++i) {
    int value = 0;
    const int code = Api::attribute(&value, Api::kCounts[i], ordinal);
    if (code == 0 && value > 0) values[i] = static_cast<std::uint32_t>(value);
  }
  Api::clear_error();
  std::memcpy(counts, values.data(), sizeof(*counts));
}

template <class Api>
Status read_properties(DeviceState* state) {
  const std::int32_t ordinal = state->ordinal;
  DeviceProperties& to = state->properties;
  to.base_alignment = kBaseAlignment;
  int code = Api::name(ordinal, to.name, sizeof(to.name));
  if (code == 0) code = Api::architecture(ordinal, to.architecture, sizeof(to.architecture));
  std::size_t total = 0;
  if (code == 0) code = Api::total(ordinal, &total);
  to.total_bytes = total;
  int integrated = 0;
  int clusters = 0;
  if (code == 0) code = Api::attribute(&integrated, Api::kIntegrated, ordinal);
  if (code == 0 && Api::kClusters >= 0) {
    // Unknown to drivers that know no clusters.
    if (Api::attribute(&clusters, Api::kClusters, ordinal) != 0) clusters = 0;
  }
  to.unified = integrated != 0;
  read_counts<Api>(ordinal, &to.counts);
  state->has_clusters = clusters != 0;
  if (code == 0) code = Api::priority_range(&state->least_priority, &state->greatest_priority);
  return code;
}

/// Under the lock of all openings.
template <class Api>
Status open_new(std::int32_t ordinal) {
  int code = Api::attach(ordinal);
  if (code == 0) code = Api::make_current(ordinal);
  if (code != 0) return answered<Api>(code);
  const Unrestricted<Api> unrestricted(true);
  auto state = std::make_unique<DeviceState>();
  state->ordinal = ordinal;
  state->generation = driver<Api>().generation;
  code = read_properties<Api>(state.get());
  if (code == 0) code = Api::event_create(&state->never_recorded, 2);
  if (code == 0) state->properties.page_granularity = find_granularity<Api>(*state);
  if (code != 0) return answered<Api>(code);
  opened<Api>[static_cast<std::uint32_t>(ordinal)].store(state.release(),
                                                         std::memory_order_release);
  return kSuccess;
}

template <class Api>
Status open_device(std::int32_t ordinal, DeviceState** state) {
  const Found& found = driver<Api>();
  if (fork_generation() != found.generation) return kForkedChild;
  if (ordinal < 0 || ordinal >= found.probe.devices) return kInvalidDevice;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> guard(mutex);
  auto& slot = opened<Api>[static_cast<std::uint32_t>(ordinal)];
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    if (const Status status = open_new<Api>(ordinal); status != kSuccess) return status;
  }
  *state = slot.load(std::memory_order_relaxed);
  return kSuccess;
}

}  // namespace nbx::gpu
