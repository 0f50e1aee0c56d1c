// What is particular to HIP; streams, memory and graphs stand in device/gpu.
#pragma once

#include <array>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "device/hip/abi.h"
#include "device/host_status.h"
#include "device/primitives.h"
#include "device/probe.h"

namespace nbx::hip {

/// The runtime's functions under the names that device/gpu calls them by; null until loaded.
struct Api {
  static constexpr DeviceKind kKind = DeviceKind::kHip;
  static constexpr const char* kKindName = "hip";
  static constexpr const char* kInitName = "hipInit";
  static constexpr const char* kCountName = "hipGetDeviceCount";
  static constexpr int kIntegrated = 16;
  static constexpr int kVirtualMemory = 89;
  static constexpr int kClusters = -1;
  /// Numbers of the attributes that DeviceCounts holds, in its order.
  static constexpr std::array kCounts = {87, 56, 74, 71, 63, 57, 10002, 72, 19, 5, 60, 59};
  static constexpr bool kTestsPages = true;
  static constexpr bool kOneMappingACall = true;  // spans of several are refused by some versions
  using Pointer = hip::Pointer;
  using Page = hip::Page;
  using PageProperties = hip::PageProperties;
  using PageAccess = hip::PageAccess;
  using IpcMemory = hip::IpcMemory;
  using Word = int;

#define NBX_MEMBER(member, symbol, needed, ...) \
  static inline constinit std::add_pointer_t<__VA_ARGS__> member = nullptr;
  NBX_HIP_FUNCTIONS(NBX_MEMBER)
#undef NBX_MEMBER

  /// Opens the library and finds every function.
  [[nodiscard]] static Probe load();

  // ---- devices ---------------------------------------------------------------------------------

  static int attach(std::int32_t /*ordinal*/) { return 0; }

  /// Other libraries make theirs current, so this thread's is asked for each time.
  static int make_current(std::int32_t ordinal) {
    int current = 0;
    if (const int code = device_get(&current); code != 0) return code;
    return current == ordinal ? 0 : device_set(ordinal);
  }

  static int attribute(int* value, int id, std::int32_t ordinal) {
    return get_attribute(value, id, ordinal);
  }
  static int name(std::int32_t ordinal, char* text, std::size_t bytes) {
    return get_name(text, static_cast<int>(bytes), ordinal);
  }
  static int total(std::int32_t ordinal, std::size_t* bytes) { return get_total(bytes, ordinal); }
  /// "gfx942", without the features that follow it: "gfx942:sramecc+:xnack-".
  static int architecture(std::int32_t ordinal, char* text, std::size_t bytes) {
    std::array<char, kPropertiesRoom> properties{};
    if (const int code = get_properties(properties.data(), ordinal); code != 0) return code;
    const char* const name = properties.data() + kArchitectureOffset;
    if (std::strncmp(name, "gfx", 3) != 0) return kUnsupported;
    const int length = static_cast<int>(std::strcspn(name, ":"));
    static_cast<void>(std::snprintf(text, bytes, "%.*s", length, name));
    return 0;
  }

  static const char* error_name(int code) { return error_name_of(code); }
  static const char* error_string(int code) { return error_text_of(code); }
  static int clear_error() { return take_error(); }

  // ---- copies and peers ------------------------------------------------------------------------

  static int copy_unified(Pointer to, Pointer from, std::size_t bytes, Handle stream) {
    constexpr int kByAddress = 4;
    return copy_unified_kind(to, from, bytes, kByAddress, stream);
  }
  static int copy_peer(Pointer to, std::int32_t to_ordinal, Pointer from, std::int32_t from_ordinal,
                       std::size_t bytes, Handle stream) {
    return copy_between(to, to_ordinal, from, from_ordinal, bytes, stream);
  }
  static int enable_access(std::int32_t peer) { return enable_peer(peer, 0); }

  // ---- kernels ---------------------------------------------------------------------------------

  static int load_module(Handle* module, const void* image) { return module_load(module, image); }
  static int unload_module(Handle module) { return module_unload(module); }
  static int find_function(Handle* function, Handle module, const char* name) {
    return module_function(function, module, name);
  }

  /// Nothing is to be allowed here; what no block can have is refused before a launch fails.
  static int prepare_function(std::int32_t ordinal, Handle /*function*/,
                              std::uint32_t dynamic_shared_bytes, bool /*clusters*/) {
    constexpr int kSharedOfABlock = 74;
    int most = 0;
    const int code = attribute(&most, kSharedOfABlock, ordinal);
    if (code != 0) return code;
    return dynamic_shared_bytes <= static_cast<std::uint32_t>(most) ? 0 : kInvalidValue;
  }

  /// There is no early start; waiting for the former kernel is as right.
  static int launch(Handle function, const LaunchGeometry& geometry, void** arguments,
                    Handle stream) {
    if (has_clusters(geometry)) return kUnsupported;
    const auto* const grid = geometry.grid;
    const auto* const block = geometry.block;
    if (geometry.cooperative) {
      return launch_cooperative(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                geometry.shared_bytes, stream, arguments);
    }
    return launch_plain(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                        geometry.shared_bytes, stream, arguments, nullptr);
  }

  // ---- graphs ----------------------------------------------------------------------------------

  /// The graph that the stream is captured into, and what the next work will depend on.
  static int capture_state(Handle stream, Handle* graph, Handle* node, std::size_t* count) {
    int status = 0;
    unsigned long long id = 0;
    const Handle* nodes = nullptr;
    const int code = capture_info_plain(stream, &status, &id, graph, &nodes, count);
    if (code != 0) return code;
    if (status != 1) return kCaptureInvalid;
    if (*count != 0) *node = nodes[0];
    return 0;
  }

  static int add_kernel_node(Handle* node, Handle graph, const Handle* dependencies,
                             std::size_t count, Handle function, const LaunchGeometry& geometry,
                             void** arguments) {
    if (has_clusters(geometry) || geometry.cooperative) return kUnsupported;
    const KernelNode parameters = kernel_node(function, geometry, arguments);
    return graph_add_kernel(node, graph, dependencies, count, &parameters);
  }

  static int set_kernel_node(Handle executable, Handle node, Handle function,
                             const LaunchGeometry& geometry, void** arguments) {
    if (has_clusters(geometry) || geometry.cooperative) return kUnsupported;
    const KernelNode parameters = kernel_node(function, geometry, arguments);
    return graph_set_kernel(executable, node, &parameters);
  }

 private:
  static bool has_clusters(const LaunchGeometry& geometry) noexcept {
    return geometry.cluster[0] > 1 || geometry.cluster[1] > 1 || geometry.cluster[2] > 1;
  }

  static KernelNode kernel_node(Handle function, const LaunchGeometry& geometry,
                                void** arguments) noexcept {
    return {{geometry.block[0], geometry.block[1], geometry.block[2]},
            nullptr,
            function,
            {geometry.grid[0], geometry.grid[1], geometry.grid[2]},
            arguments,
            geometry.shared_bytes};
  }
};

}  // namespace nbx::hip
