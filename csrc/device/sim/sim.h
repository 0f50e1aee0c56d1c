// Simulated GPUs in host memory: address spaces, pages, asynchronous streams on a virtual clock.
//
// NBX_SIM_DEVICES, NBX_SIM_MEMORY and NBX_SIM_BACKING are read when the first device is used.
// Queued work runs when somebody waits for it or asks after its virtual time has passed, in the
// order of its stream and never earlier: a missing wait shows as old bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "device/primitives.h"

namespace nbx::sim {

[[nodiscard]] const Primitives* primitives();

inline constexpr const char* kArchitecture = "sim";
/// True of simulated devices, in a dry run under the names of other kinds as well.
[[nodiscard]] inline bool simulates(const DeviceProperties& properties) noexcept {
  return std::strcmp(properties.architecture, kArchitecture) == 0;
}

enum class Backing : std::uint8_t {
  kReal,  // host pages lie under every address
  kNone,  // addresses and books only: copies, fills and host work are not performed
};

/// What to do to calls of one primitive, counted from when the fault is added.
struct Fault {
  Primitive primitive;
  std::uint64_t first_call = 1;
  std::uint64_t call_count = 1;
  Status status = kSuccess;        // returned instead of doing the work, unless kSuccess
  double delay_seconds = 0.0;      // on the virtual clock
  std::uint32_t misalignment = 0;  // bytes added to the address that `allocate` returns
  bool every_primitive = false;    // calls of all primitives are counted, not only of `primitive`
};

/// The controls below throw Error(kDevice) for an ordinal that does not exist.
void add_fault(std::int32_t ordinal, const Fault& fault);
void clear_faults(std::int32_t ordinal);
/// Calls of a primitive so far, refused ones included.
[[nodiscard]] std::uint64_t call_count(std::int32_t ordinal, Primitive primitive);
/// Bytes that another process holds.
void set_pressure(std::int32_t ordinal, std::uint64_t bytes);
void set_memory(std::int32_t ordinal, std::uint64_t bytes);
/// Throws Error(kValue) while the device holds memory.
void set_backing(std::int32_t ordinal, Backing backing);
[[nodiscard]] Backing backing(std::int32_t ordinal);

// ---- kernels are functions of the host
// --------------------------------------------------------------------

/// Runs a whole grid: `arguments` are the addresses of copies of the values that were launched.
using KernelFunction = void (*)(const LaunchGeometry& geometry, void* const* arguments,
                                std::size_t count, void* context);
/// From now on the bytes of `name` are an image: `module_load` makes a module of them whose only
/// kernel is this function, with parameters of these sizes. Throws Error(kValue) for a name that is
/// empty or registered.
void register_kernel(const std::string& name, KernelFunction function, void* context,
                     std::vector<std::uint32_t> argument_bytes);
/// The function is not called once this has returned (but for a call that makes this one itself);
/// launches and replays of it fail. Throws Error(kValue) for an unknown name.
void unregister_kernel(const std::string& name);

/// The virtual clock that all simulated devices share.
[[nodiscard]] double seconds();
void advance(double seconds);

struct Books {
  std::uint64_t total_bytes;
  std::uint64_t pressure_bytes;
  std::uint64_t used_bytes;  // by allocations and pages
  std::uint64_t peak_bytes;
  std::uint64_t reserved_bytes;  // of address ranges
  std::uint64_t pinned_bytes;    // of host memory
  std::uint64_t allocations;
  std::uint64_t pages;
  std::uint64_t mappings;
  std::uint64_t streams;  // the default one left out
  std::uint64_t queued_work;
};
[[nodiscard]] Books books(std::int32_t ordinal);

}  // namespace nbx::sim
