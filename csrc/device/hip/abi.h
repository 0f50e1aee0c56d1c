// The part of the runtime's binary interface that is used here, declared by hand: no vendor's
// header is needed to build. A test compares it with one where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nbx::hip {

using Pointer = void*;
using Page = void*;
using Handle = void*;  // streams, events, graphs, nodes, modules, functions

struct Extent {
  unsigned x, y, z;
};
/// In another order than CUDA's.
struct KernelNode {
  Extent block;
  void** extra;
  Handle function;
  Extent grid;
  void** arguments;
  unsigned shared_bytes;
};

struct Location {
  int type;  // 1 is a device
  int id;
};
struct PageProperties {
  int type;  // 1 is pinned
  int handle_types;
  Location location;
  void* security;
  struct {
    unsigned char compression, rdma;
    unsigned short usage;
  } flags;
};
struct PageAccess {
  Location location;
  int flags;  // 3 is reading and writing
};

struct IpcMemory {
  char bytes[64];
};

/// What `hipGetDevicePropertiesR0600` writes, by its size and the one text that is read: everything
/// else has a call of its own whose form does not change.
inline constexpr std::size_t kPropertiesRoom = 4096;
inline constexpr std::size_t kArchitectureOffset = 1160;

// One row per entry: member, symbol, whether the runtime cannot do without it, signature.
// clang-format off
#define NBX_HIP_FUNCTIONS(X) \
  X(init, hipInit, true, int(unsigned)) \
  X(get_version, hipRuntimeGetVersion, true, int(int*)) \
  X(get_count, hipGetDeviceCount, true, int(int*)) \
  X(get_attribute, hipDeviceGetAttribute, true, int(int*, int, int)) \
  X(get_name, hipDeviceGetName, true, int(char*, int, int)) \
  X(get_total, hipDeviceTotalMem, true, int(std::size_t*, int)) \
  X(get_properties, hipGetDevicePropertiesR0600, true, int(void*, int)) \
  X(error_name_of, hipGetErrorName, true, const char*(int)) \
  X(error_text_of, hipGetErrorString, true, const char*(int)) \
  X(take_error, hipGetLastError, true, int()) \
  X(device_get, hipGetDevice, true, int(int*)) \
  X(device_set, hipSetDevice, true, int(int)) \
  X(synchronize, hipDeviceSynchronize, true, int()) \
  X(priority_range, hipDeviceGetStreamPriorityRange, true, int(int*, int*)) \
  X(memory_info, hipMemGetInfo, true, int(std::size_t*, std::size_t*)) \
  X(allocate, hipMalloc, true, int(Pointer*, std::size_t)) \
  X(free, hipFree, true, int(Pointer)) \
  X(address_range, hipMemGetAddressRange, true, int(Pointer*, std::size_t*, Pointer)) \
  X(host_allocate, hipHostMalloc, true, int(void**, std::size_t, unsigned)) \
  X(host_free, hipHostFree, true, int(void*)) \
  X(host_register, hipHostRegister, true, int(void*, std::size_t, unsigned)) \
  X(host_unregister, hipHostUnregister, true, int(void*)) \
  X(host_pointer, hipHostGetDevicePointer, true, int(Pointer*, void*, unsigned)) \
  X(range_reserve, hipMemAddressReserve, false, int(Pointer*, std::size_t, std::size_t, Pointer, unsigned long long)) \
  X(range_free, hipMemAddressFree, false, int(Pointer, std::size_t)) \
  X(page_create, hipMemCreate, false, int(Page*, std::size_t, const PageProperties*, unsigned long long)) \
  X(page_release, hipMemRelease, false, int(Page)) \
  X(page_map, hipMemMap, false, int(Pointer, std::size_t, std::size_t, Page, unsigned long long)) \
  X(page_unmap, hipMemUnmap, false, int(Pointer, std::size_t)) \
  X(page_access, hipMemSetAccess, false, int(Pointer, std::size_t, const PageAccess*, std::size_t)) \
  X(page_granularity, hipMemGetAllocationGranularity, false, int(std::size_t*, const PageProperties*, int)) \
  X(copy_to_device, hipMemcpyHtoDAsync, true, int(Pointer, const void*, std::size_t, Handle)) \
  X(copy_to_host, hipMemcpyDtoHAsync, true, int(void*, Pointer, std::size_t, Handle)) \
  X(copy_on_device, hipMemcpyDtoDAsync, true, int(Pointer, Pointer, std::size_t, Handle)) \
  X(copy_unified_kind, hipMemcpyAsync, true, int(void*, const void*, std::size_t, int, Handle)) \
  X(copy_between, hipMemcpyPeerAsync, true, int(void*, int, const void*, int, std::size_t, Handle)) \
  X(fill8, hipMemsetD8Async, true, int(Pointer, unsigned char, std::size_t, Handle)) \
  X(fill16, hipMemsetD16Async, true, int(Pointer, unsigned short, std::size_t, Handle)) \
  X(fill32, hipMemsetD32Async, true, int(Pointer, int, std::size_t, Handle)) \
  X(stream_create, hipStreamCreateWithPriority, true, int(Handle*, unsigned, int)) \
  X(stream_synchronize, hipStreamSynchronize, true, int(Handle)) \
  X(stream_query, hipStreamQuery, true, int(Handle)) \
  X(stream_wait, hipStreamWaitEvent, true, int(Handle, Handle, unsigned)) \
  X(event_create, hipEventCreateWithFlags, true, int(Handle*, unsigned)) \
  X(event_record, hipEventRecord, true, int(Handle, Handle)) \
  X(event_query, hipEventQuery, true, int(Handle)) \
  X(event_synchronize, hipEventSynchronize, true, int(Handle)) \
  X(event_elapsed, hipEventElapsedTime, true, int(float*, Handle, Handle)) \
  X(launch_host, hipLaunchHostFunc, true, int(Handle, void (*)(void*), void*)) \
  X(can_access, hipDeviceCanAccessPeer, true, int(int*, int, int)) \
  X(enable_peer, hipDeviceEnablePeerAccess, true, int(int, unsigned)) \
  X(ipc_get, hipIpcGetMemHandle, true, int(IpcMemory*, Pointer)) \
  X(ipc_map, hipIpcOpenMemHandle, true, int(Pointer*, IpcMemory, unsigned)) \
  X(ipc_unmap, hipIpcCloseMemHandle, true, int(Pointer)) \
  X(module_load, hipModuleLoadData, true, int(Handle*, const void*)) \
  X(module_unload, hipModuleUnload, true, int(Handle)) \
  X(module_function, hipModuleGetFunction, true, int(Handle*, Handle, const char*)) \
  X(function_attribute, hipFuncGetAttribute, true, int(int*, int, Handle)) \
  X(launch_plain, hipModuleLaunchKernel, true, int(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**)) \
  X(launch_cooperative, hipModuleLaunchCooperativeKernel, true, int(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**)) \
  X(exchange_capture_mode, hipThreadExchangeStreamCaptureMode, true, int(int*)) \
  X(capture_begin, hipStreamBeginCapture, true, int(Handle, int)) \
  X(capture_end, hipStreamEndCapture, true, int(Handle, Handle*)) \
  X(is_capturing, hipStreamIsCapturing, true, int(Handle, int*)) \
  X(capture_info_plain, hipStreamGetCaptureInfo_v2, true, int(Handle, int*, unsigned long long*, Handle*, const Handle**, std::size_t*)) \
  X(object_create, hipUserObjectCreate, true, int(Handle*, void*, void (*)(void*), unsigned, unsigned)) \
  X(graph_retain, hipGraphRetainUserObject, true, int(Handle, Handle, unsigned, unsigned)) \
  X(graph_create, hipGraphCreate, true, int(Handle*, unsigned)) \
  X(graph_destroy, hipGraphDestroy, true, int(Handle)) \
  X(graph_add_kernel, hipGraphAddKernelNode, true, int(Handle*, Handle, const Handle*, std::size_t, const KernelNode*)) \
  X(graph_instantiate, hipGraphInstantiateWithFlags, true, int(Handle*, Handle, unsigned long long)) \
  X(graph_set_kernel, hipGraphExecKernelNodeSetParams, true, int(Handle, Handle, const KernelNode*)) \
  X(graph_launch, hipGraphLaunch, true, int(Handle, Handle)) \
  X(exec_destroy, hipGraphExecDestroy, true, int(Handle))
// clang-format on

}  // namespace nbx::hip
