// What is particular to CUDA; streams, memory and graphs stand in device/gpu.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <type_traits>

#include "device/cuda/abi.h"
#include "device/host_status.h"
#include "device/primitives.h"
#include "device/probe.h"

namespace nbx::cuda {

/// A device of the driver, and its primary context.
struct Place {
  int device = 0;
  std::atomic<Handle> context{nullptr};
};

/// The driver's functions under the names that device/gpu calls them by; null until loaded.
struct Api {
  static constexpr DeviceKind kKind = DeviceKind::kCuda;
  static constexpr const char* kKindName = "cuda";
  static constexpr const char* kInitName = "cuInit";
  static constexpr const char* kCountName = "cuDeviceGetCount";
  static constexpr int kIntegrated = 18;
  static constexpr int kVirtualMemory = 102;
  static constexpr int kClusters = 120;
  /// Numbers of the attributes that DeviceCounts holds, in its order.
  static constexpr std::array kCounts = {10, 1, 97, 12, 16, 39, 81, 82, 38, 13, 36, 37};
  static constexpr bool kTestsPages = false;
  static constexpr bool kOneMappingACall = false;
  using Pointer = cuda::Pointer;
  using Page = cuda::Page;
  using PageProperties = cuda::PageProperties;
  using PageAccess = cuda::PageAccess;
  using IpcMemory = cuda::IpcMemory;
  using Word = unsigned;

#define NBX_MEMBER(member, symbol, version, needed, ...) \
  static inline constinit std::add_pointer_t<__VA_ARGS__> member = nullptr;
  NBX_CUDA_FUNCTIONS(NBX_MEMBER)
#undef NBX_MEMBER

  /// Opens the library and finds every function.
  [[nodiscard]] static Probe load();

  // ---- devices ---------------------------------------------------------------------------------

  /// The primary context, which other libraries use as well. It is never released: at the end of
  /// the process the driver may be gone before us.
  static int attach(std::int32_t ordinal) {
    Place& place = places[static_cast<std::size_t>(ordinal)];
    int code = get_device(&place.device, ordinal);
    Handle context = nullptr;
    if (code == 0) code = context_retain(&context, place.device);
    if (code == 0) place.context.store(context, std::memory_order_release);
    return code;
  }

  /// Other libraries make theirs current, so this thread's is asked for each time.
  static int make_current(std::int32_t ordinal) {
    Handle current = nullptr;
    if (const int code = context_get(&current); code != 0) return code;
    const Handle own = context(ordinal);
    return current == own ? 0 : context_set(own);
  }

  static int attribute(int* value, int id, std::int32_t ordinal) {
    return get_attribute(value, id, device(ordinal));
  }
  static int name(std::int32_t ordinal, char* text, std::size_t bytes) {
    return get_name(text, static_cast<int>(bytes), device(ordinal));
  }
  static int total(std::int32_t ordinal, std::size_t* bytes) {
    return get_total(bytes, device(ordinal));
  }
  static int architecture(std::int32_t ordinal, char* text, std::size_t bytes) {
    int major = 0;
    int minor = 0;
    int code = attribute(&major, 75, ordinal);
    if (code == 0) code = attribute(&minor, 76, ordinal);
    if (code == 0) static_cast<void>(std::snprintf(text, bytes, "sm_%d%d", major, minor));
    return code;
  }

  static const char* error_name(int code) {
    const char* text = nullptr;
    return error_name_of(code, &text) == 0 && text != nullptr ? text : "unknown error";
  }
  static const char* error_string(int code) {
    const char* text = nullptr;
    return error_text_of(code, &text) == 0 && text != nullptr ? text : host_status_text(code);
  }
  /// The driver keeps no error for later.
  static int clear_error() noexcept { return 0; }

  // ---- copies and peers ------------------------------------------------------------------------

  static int copy_peer(Pointer to, std::int32_t to_ordinal, Pointer from, std::int32_t from_ordinal,
                       std::size_t bytes, Handle stream) {
    return copy_between(to, context(to_ordinal), from, context(from_ordinal), bytes, stream);
  }
  static int enable_access(std::int32_t peer) { return enable_peer(context(peer), 0); }
  static int can_access(int* can, std::int32_t ordinal, std::int32_t peer) {
    return can_access_peer(can, device(ordinal), device(peer));
  }

  // ---- kernels ---------------------------------------------------------------------------------

  static int load_module(Handle* module, const void* image) {
    return library_load(module, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  }
  static int unload_module(Handle module) { return library_unload(module); }
  static int find_function(Handle* function, Handle module, const char* name) {
    Handle kernel = nullptr;
    const int code = library_kernel(&kernel, module, name);
    return code == 0 ? kernel_function(function, kernel) : code;
  }

  /// Shared memory is only ever raised: launches that need less run with more as well.
  static int prepare_function(std::int32_t /*ordinal*/, Handle function,
                              std::uint32_t dynamic_shared_bytes, bool clusters) {
    constexpr int kDynamicShared = 8;
    constexpr int kLargeClusters = 14;  // of more than 8 blocks
    int allowed = 0;
    int code = function_attribute(&allowed, kDynamicShared, function);
    if (code == 0 && static_cast<std::uint32_t>(allowed) < dynamic_shared_bytes) {
      code = function_set(function, kDynamicShared, static_cast<int>(dynamic_shared_bytes));
    }
    if (code == 0 && clusters) code = function_set(function, kLargeClusters, 1);
    // A first launch would load the code, which a capture forbids.
    if (code == 0 && function_load != nullptr) code = function_load(function);
    return code;
  }

  static int launch(Handle function, const LaunchGeometry& geometry, void** arguments,
                    Handle stream) {
    std::array<LaunchAttribute, 4> attributes;
    const LaunchConfig config{
        {geometry.grid[0], geometry.grid[1], geometry.grid[2]},
        {geometry.block[0], geometry.block[1], geometry.block[2]},
        geometry.shared_bytes,
        stream,
        attributes.data(),
        set_attributes(geometry, attributes.data()),
    };
    return launch_configured(&config, function, arguments, nullptr);
  }

  // ---- graphs ----------------------------------------------------------------------------------

  /// The graph that the stream is captured into, and what the next work will depend on.
  static int capture_state(Handle stream, Handle* graph, Handle* node, std::size_t* count) {
    int status = 0;
    unsigned long long id = 0;
    const Handle* nodes = nullptr;
    const void* edges = nullptr;
    const int code = capture_info_edges != nullptr
                         ? capture_info_edges(stream, &status, &id, graph, &nodes, &edges, count)
                         : capture_info_plain(stream, &status, &id, graph, &nodes, count);
    if (code != 0) return code;
    if (status != 1) return kCaptureInvalid;
    if (*count != 0) *node = nodes[0];
    return 0;
  }

  /// A dependency that starts early needs edges of its own; a full one is as right.
  static int add_kernel_node(Handle* node, Handle graph, const Handle* dependencies,
                             std::size_t count, Handle function, const LaunchGeometry& geometry,
                             void** arguments) {
    const KernelNode parameters = kernel_node(function, geometry, arguments);
    int code = graph_add_kernel(node, graph, dependencies, count, &parameters);
    std::array<LaunchAttribute, 4> attributes;
    LaunchGeometry plain = geometry;
    plain.programmatic = false;
    const unsigned wanted = set_attributes(plain, attributes.data());
    if (code != 0) return code;
    for (unsigned i = 0; i < wanted && code == 0; ++i) {
      code = graph_node_set_attribute(*node, attributes[i].id, &attributes[i].value);
    }
    if (code != 0) static_cast<void>(graph_node_destroy(*node));  // the failure before it is told
    return code;
  }

  /// The node keeps the context that it was made with.
  static int set_kernel_node(Handle executable, Handle node, Handle function,
                             const LaunchGeometry& geometry, void** arguments) {
    KernelNode former{};
    if (const int code = graph_node_get(node, &former); code != 0) return code;
    KernelNode parameters = kernel_node(function, geometry, arguments);
    parameters.context = former.context;
    return graph_set_kernel(executable, node, &parameters);
  }

 private:
  static inline constinit std::array<Place, 64> places{};

  static int device(std::int32_t ordinal) noexcept {
    return places[static_cast<std::size_t>(ordinal)].device;
  }
  static Handle context(std::int32_t ordinal) noexcept {
    return places[static_cast<std::size_t>(ordinal)].context.load(std::memory_order_relaxed);
  }

  static unsigned set_attributes(const LaunchGeometry& geometry, LaunchAttribute* to) noexcept {
    unsigned count = 0;
    if (geometry.cooperative) {
      to[count].id = kAttributeCooperative;
      to[count++].value.flag = 1;
    }
    const auto* const cluster = geometry.cluster;
    if (cluster[0] > 1 || cluster[1] > 1 || cluster[2] > 1) {
      to[count].id = kAttributeCluster;
      to[count++].value.cluster = {cluster[0], cluster[1], cluster[2]};
      to[count].id = kAttributeClusterPolicy;
      to[count++].value.flag = 1;
    }
    if (geometry.programmatic) {
      to[count].id = kAttributeProgrammatic;
      to[count++].value.flag = 1;
    }
    return count;
  }

  static KernelNode kernel_node(Handle function, const LaunchGeometry& geometry,
                                void** arguments) noexcept {
    return {function,
            {geometry.grid[0], geometry.grid[1], geometry.grid[2]},
            {geometry.block[0], geometry.block[1], geometry.block[2]},
            geometry.shared_bytes,
            arguments,
            nullptr,
            nullptr,
            nullptr};
  }
};

}  // namespace nbx::cuda
