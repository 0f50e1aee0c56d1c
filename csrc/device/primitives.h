// The contract of a device kind: one table of entry points.
//
// What every caller may assume:
// - An entry point returns a Status; 0 is success and every other value is the driver's own code,
//   which `status_text` explains. Results go through out-parameters, written only on success.
// - `ordinal` names the device within its kind. It need not be current: an implementation that
//   works on a current device makes it so per thread.
// - A null entry is an unsupported primitive: `supports` answers false and a call is refused by
//   name before it is made. Nothing slower is put in its place.
// - Entry points count nothing and cache nothing; accounts and heaps above do.
// - All entry points may be called from any thread. None takes the Python lock.
// - Work is asynchronous in the order of its stream. On the cpu device it is complete on return.
// - Device addresses are 64-bit numbers; only `host_readable` memory may be read through them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/error.h"

namespace nbx {

enum class DeviceKind : std::uint8_t { kCpu, kSim, kCuda, kHip, kMetal };
inline constexpr int kDeviceKindCount = 5;

using Status = std::int32_t;
inline constexpr Status kSuccess = 0;
/// "The memory does not suffice": each table translates its driver's code to this one.
inline constexpr Status kAllocationRefused = 2;
/// A primitive whose entry is null.
inline constexpr Status kUnsupported = 801;

using DeviceAddress = std::uint64_t;
using StreamHandle = std::uint64_t;  // 0 is the device's default stream
using EventHandle = std::uint64_t;
using PageHandle = std::uint64_t;
using ModuleHandle = std::uint64_t;
using KernelHandle = std::uint64_t;
using GraphHandle = std::uint64_t;
using NodeHandle = std::uint64_t;  // one piece of work of a graph
/// Completed work of a stream: all that was submitted up to a ticket, waits included, is done once
/// `completed_ticket` has reached it. Starts at 0, never decreases, nor for a handle used again.
using Ticket = std::uint64_t;

enum class CopyKind : std::uint8_t { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice };

struct MemoryInfo {
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
};

/// What a driver reports of a chip; 0 where it says nothing.
struct DeviceCounts {
  std::uint32_t lanes;  // threads that run in lockstep
  std::uint32_t threads_per_block;
  std::uint32_t shared_bytes_per_block;  // most that a block can be allowed
  std::uint32_t registers_per_block;
  std::uint32_t multiprocessors;
  std::uint32_t threads_per_multiprocessor;
  std::uint32_t shared_bytes_per_multiprocessor;
  std::uint32_t registers_per_multiprocessor;
  std::uint32_t l2_bytes;
  std::uint32_t clock_kilohertz;
  std::uint32_t memory_clock_kilohertz;
  std::uint32_t memory_bus_bits;
};

struct DeviceProperties {
  char name[128];
  char architecture[32];  // key of the device file: "sm_90", "gfx942", "apple9", "x86_64"
  std::uint64_t total_bytes;
  std::uint64_t page_granularity;  // bytes of the smallest page handle; 0 without virtual memory
  std::uint32_t base_alignment;    // bytes to which `allocate` aligns
  bool host_readable;              // device memory may be read by the host at its own address
  bool unified;          // device memory is the host's memory: mapping a file needs no copy
  bool integrated_work;  // work is complete when the call returns
  DeviceCounts counts{};
};

struct ResolvedAddress {
  std::uint64_t object;  // the driver's object that holds the address
  std::uint64_t offset;  // bytes into it
};

struct LaunchGeometry {
  std::uint32_t grid[3];       // blocks
  std::uint32_t block[3];      // threads of a block
  std::uint32_t shared_bytes;  // dynamic shared memory of a block
  std::uint32_t cluster[3];    // blocks of a cluster; all 1 without clusters
  bool cooperative;            // all blocks run at the same time
  bool programmatic;  // may start before the stream's former kernel ends; it waits for that itself
};

/// What the compiler and the driver made of a kernel.
struct KernelAttributes {
  std::uint32_t registers;          // of one thread
  std::uint32_t local_bytes;        // of one thread: stack and spilled registers
  std::uint32_t shared_bytes;       // static, of one block
  std::uint32_t threads_per_block;  // most that can be launched
};

/// Memory of `allocate` as another process can open it.
struct IpcHandle {
  unsigned char bytes[64];
};

/// Host work in stream order: `run(payload)` once, then `discard(payload)` once, also on failure.
struct HostWork {
  void (*run)(void* payload);
  void (*discard)(void* payload);
  void* payload;
};

// clang-format off
#define NBX_PRIMITIVES(X)                                                                          \
  /* devices */                                                                                    \
  X(device_count,      Status, (std::int32_t* count))                                              \
  X(properties,        Status, (std::int32_t ordinal, DeviceProperties* properties))               \
  X(open,              Status, (std::int32_t ordinal))                                             \
  X(synchronize,       Status, (std::int32_t ordinal))                                             \
  X(memory_info,       Status, (std::int32_t ordinal, MemoryInfo* info))                           \
  X(budget,            Status, (std::int32_t ordinal, std::uint64_t* bytes))                       \
  X(last_error,        Status, (std::int32_t ordinal)) /* reads and clears a sticky error */       \
  X(status_text,       const char*, (Status status))                                               \
  /* memory */                                                                                     \
  X(allocate,          Status, (std::int32_t ordinal, std::size_t bytes, DeviceAddress* address))  \
  X(free,              Status, (std::int32_t ordinal, DeviceAddress address))                      \
  X(host_allocate,     Status, (std::int32_t ordinal, std::size_t bytes, void** pointer))          \
  X(host_free,         Status, (std::int32_t ordinal, void* pointer))                              \
  X(map_host,          Status, (std::int32_t ordinal, void* pointer, std::size_t bytes,            \
                                DeviceAddress* address))                                           \
  X(unmap_host,        Status, (std::int32_t ordinal, void* pointer))                              \
  X(device_address,    Status, (std::int32_t ordinal, const void* pointer,                         \
                                DeviceAddress* address))                                           \
  X(resolve,           Status, (std::int32_t ordinal, DeviceAddress address,                       \
                                ResolvedAddress* resolved))                                        \
  X(make_resident,     Status, (std::int32_t ordinal, const DeviceAddress* addresses,              \
                                std::size_t count, bool resident))                                 \
  /* virtual memory: pages are physical, ranges are addresses */                                   \
  X(range_reserve,     Status, (std::int32_t ordinal, std::size_t bytes, DeviceAddress* base))     \
  X(range_release,     Status, (std::int32_t ordinal, DeviceAddress base, std::size_t bytes))      \
  X(page_create,       Status, (std::int32_t ordinal, std::size_t bytes, PageHandle* page))        \
  X(page_release,      Status, (std::int32_t ordinal, PageHandle page))                            \
  X(page_map,          Status, (std::int32_t ordinal, DeviceAddress address, std::size_t bytes,    \
                                PageHandle page))                                                  \
  X(page_unmap,        Status, (std::int32_t ordinal, DeviceAddress address, std::size_t bytes))   \
  X(page_access,       Status, (std::int32_t ordinal, DeviceAddress address, std::size_t bytes))   \
  /* copies and fills in stream order */                                                           \
  X(copy,              Status, (std::int32_t ordinal, DeviceAddress destination,                   \
                                DeviceAddress source, std::size_t bytes, CopyKind kind,            \
                                StreamHandle stream))                                              \
  X(copy_peer,         Status, (std::int32_t destination_ordinal, DeviceAddress destination,       \
                                std::int32_t source_ordinal, DeviceAddress source,                 \
                                std::size_t bytes, StreamHandle stream))                           \
  X(fill,              Status, (std::int32_t ordinal, DeviceAddress destination,                   \
                                std::uint32_t pattern, std::uint32_t pattern_bytes,                \
                                std::size_t count, StreamHandle stream))                           \
  /* streams, events, tickets; a wait refers to the event's mark as of the call */                 \
  X(stream_create,     Status, (std::int32_t ordinal, std::int32_t priority,                       \
                                StreamHandle* stream))                                             \
  X(stream_destroy,    Status, (std::int32_t ordinal, StreamHandle stream))                        \
  X(stream_synchronize, Status, (std::int32_t ordinal, StreamHandle stream))                       \
  X(stream_wait_event, Status, (std::int32_t ordinal, StreamHandle stream, EventHandle event))     \
  X(submitted_ticket,  Status, (std::int32_t ordinal, StreamHandle stream, Ticket* ticket))        \
  X(completed_ticket,  Status, (std::int32_t ordinal, StreamHandle stream, Ticket* ticket))        \
  X(wait_ticket,       Status, (std::int32_t ordinal, StreamHandle stream, Ticket ticket))         \
  X(event_create,      Status, (std::int32_t ordinal, bool timing, EventHandle* event))            \
  X(event_destroy,     Status, (std::int32_t ordinal, EventHandle event))                          \
  X(event_record,      Status, (std::int32_t ordinal, EventHandle event, StreamHandle stream))     \
  X(event_query,       Status, (std::int32_t ordinal, EventHandle event, bool* complete))          \
  X(event_synchronize, Status, (std::int32_t ordinal, EventHandle event))                          \
  X(event_elapsed,     Status, (std::int32_t ordinal, EventHandle start, EventHandle end,          \
                                double* seconds))                                                  \
  /* peers */                                                                                      \
  X(peer_supported,    Status, (std::int32_t ordinal, std::int32_t peer, bool* supported))         \
  X(peer_enable,       Status, (std::int32_t ordinal, std::int32_t peer))                          \
  /* other processes: the memory stays its maker's, who frees it after they have closed it */      \
  X(ipc_export,        Status, (std::int32_t ordinal, DeviceAddress address, IpcHandle* handle))   \
  X(ipc_open,          Status, (std::int32_t ordinal, const IpcHandle* handle,                     \
                                DeviceAddress* address))                                           \
  X(ipc_close,         Status, (std::int32_t ordinal, DeviceAddress address))                      \
  /* kernels */                                                                                    \
  X(module_load,       Status, (std::int32_t ordinal, const void* image, std::size_t bytes,        \
                                ModuleHandle* module))                                             \
  X(module_unload,     Status, (std::int32_t ordinal, ModuleHandle module))                        \
  /* allows this much dynamic shared memory; the code is on the device when the call returns */     \
  X(kernel_find,       Status, (std::int32_t ordinal, ModuleHandle module, const char* name,       \
                                std::uint32_t dynamic_shared_bytes, KernelHandle* kernel))         \
  X(kernel_attributes, Status, (std::int32_t ordinal, KernelHandle kernel,                         \
                                KernelAttributes* attributes))                                     \
  /* arguments: one address of a value for each parameter, read before the call returns */         \
  X(launch,            Status, (std::int32_t ordinal, KernelHandle kernel,                         \
                                const LaunchGeometry* geometry, void* const* arguments,            \
                                std::size_t argument_count, StreamHandle stream))                  \
  X(launch_host,       Status, (std::int32_t ordinal, const HostWork* work, double seconds,        \
                                StreamHandle stream))                                              \
  /* graphs: captured from a stream, or built node by node and then finished */                    \
  X(capture_begin,     Status, (std::int32_t ordinal, StreamHandle stream))                        \
  X(capture_end,       Status, (std::int32_t ordinal, StreamHandle stream, GraphHandle* graph))    \
  /* the newest node that the stream's capture recorded */                                         \
  X(capture_node,      Status, (std::int32_t ordinal, StreamHandle stream, NodeHandle* node))      \
  X(graph_create,      Status, (std::int32_t ordinal, GraphHandle* graph))                         \
  /* runs after its dependencies, which are nodes of the same graph */                             \
  X(graph_add_kernel,  Status, (std::int32_t ordinal, GraphHandle graph, KernelHandle kernel,      \
                                const LaunchGeometry* geometry, void* const* arguments,            \
                                std::size_t argument_count, const NodeHandle* dependencies,        \
                                std::size_t dependency_count, NodeHandle* node))                   \
  X(graph_finish,      Status, (std::int32_t ordinal, GraphHandle graph))                          \
  /* what the node of a captured or finished graph runs from its next launch on */                 \
  X(graph_set_kernel,  Status, (std::int32_t ordinal, GraphHandle graph, NodeHandle node,          \
                                KernelHandle kernel, const LaunchGeometry* geometry,               \
                                void* const* arguments, std::size_t argument_count))               \
  X(graph_launch,      Status, (std::int32_t ordinal, GraphHandle graph, StreamHandle stream))     \
  X(graph_destroy,     Status, (std::int32_t ordinal, GraphHandle graph))
// clang-format on

enum class Primitive : std::uint8_t {
#define NBX_ENUMERATE(name, result, parameters) k_##name,
  NBX_PRIMITIVES(NBX_ENUMERATE)
#undef NBX_ENUMERATE
};

inline constexpr std::size_t kPrimitiveCount = []() constexpr {
  std::size_t count = 0;
#define NBX_COUNT(name, result, parameters) ++count;
  NBX_PRIMITIVES(NBX_COUNT)
#undef NBX_COUNT
  return count;
}();

struct Primitives {
  DeviceKind kind;
  const char* kind_name;
#define NBX_ENTRY(name, result, parameters) result(*name) parameters;
  NBX_PRIMITIVES(NBX_ENTRY)
#undef NBX_ENTRY
};

/// True if the table has an entry for this primitive.
[[nodiscard]] bool supports(const Primitives& primitives, Primitive primitive) noexcept;
/// The primitive's name as written in this table; `primitive_named` throws Error(kValue) if
/// unknown.
[[nodiscard]] const char* name_of(Primitive primitive) noexcept;
[[nodiscard]] Primitive primitive_named(const char* name);

}  // namespace nbx
