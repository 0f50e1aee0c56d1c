// The part of the driver's binary interface that is used here, declared by hand: no vendor's header
// is needed to build. A test compares it with one where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nbx::cuda {

using Pointer = unsigned long long;
using Page = unsigned long long;
using Handle = void*;  // contexts, streams, events, graphs, nodes, libraries, functions

union AttributeValue {
  char bytes[64];
  int flag;
  struct {
    unsigned x, y, z;
  } cluster;
  unsigned long long alignment;
};
struct LaunchAttribute {
  int id;
  char padding[4];
  AttributeValue value;
};
enum : int {
  kAttributeCooperative = 2,
  kAttributeCluster = 4,
  kAttributeClusterPolicy = 5,  // 1 spreads the blocks of a cluster
  kAttributeProgrammatic = 6,
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Handle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct KernelNode {
  Handle function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void** arguments;
  void** extra;
  Handle kernel;
  Handle context;
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
    unsigned char reserved[4];
  } flags;
};
struct PageAccess {
  Location location;
  int flags;  // 3 is reading and writing
};

struct IpcMemory {
  char bytes[64];
};

// One row per entry: member, symbol, the version that fixes its binary interface, whether the
// runtime cannot do without it, signature. A later version may name another interface, so that
// neither the driver's version nor one for all is ever asked for.
// clang-format off
#define NBX_CUDA_FUNCTIONS(X) \
  X(init, cuInit, 2000, true, int(unsigned)) \
  X(get_version, cuDriverGetVersion, 2020, true, int(int*)) \
  X(get_count, cuDeviceGetCount, 2000, true, int(int*)) \
  X(get_device, cuDeviceGet, 2000, true, int(int*, int)) \
  X(get_attribute, cuDeviceGetAttribute, 2000, true, int(int*, int, int)) \
  X(get_name, cuDeviceGetName, 2000, true, int(char*, int, int)) \
  X(get_total, cuDeviceTotalMem, 3020, true, int(std::size_t*, int)) \
  X(error_name_of, cuGetErrorName, 6000, true, int(int, const char**)) \
  X(error_text_of, cuGetErrorString, 6000, true, int(int, const char**)) \
  X(context_retain, cuDevicePrimaryCtxRetain, 7000, true, int(Handle*, int)) \
  X(context_get, cuCtxGetCurrent, 4000, true, int(Handle*)) \
  X(context_set, cuCtxSetCurrent, 4000, true, int(Handle)) \
  X(synchronize, cuCtxSynchronize, 2000, true, int()) \
  X(priority_range, cuCtxGetStreamPriorityRange, 5050, true, int(int*, int*)) \
  X(memory_info, cuMemGetInfo, 3020, true, int(std::size_t*, std::size_t*)) \
  X(allocate, cuMemAlloc, 3020, true, int(Pointer*, std::size_t)) \
  X(free, cuMemFree, 3020, true, int(Pointer)) \
  X(address_range, cuMemGetAddressRange, 3020, true, int(Pointer*, std::size_t*, Pointer)) \
  X(host_allocate, cuMemHostAlloc, 2020, true, int(void**, std::size_t, unsigned)) \
  X(host_free, cuMemFreeHost, 2000, true, int(void*)) \
  X(host_register, cuMemHostRegister, 6050, true, int(void*, std::size_t, unsigned)) \
  X(host_unregister, cuMemHostUnregister, 4000, true, int(void*)) \
  X(host_pointer, cuMemHostGetDevicePointer, 3020, true, int(Pointer*, void*, unsigned)) \
  X(range_reserve, cuMemAddressReserve, 10020, false, int(Pointer*, std::size_t, std::size_t, Pointer, unsigned long long)) \
  X(range_free, cuMemAddressFree, 10020, false, int(Pointer, std::size_t)) \
  X(page_create, cuMemCreate, 10020, false, int(Page*, std::size_t, const PageProperties*, unsigned long long)) \
  X(page_release, cuMemRelease, 10020, false, int(Page)) \
  X(page_map, cuMemMap, 10020, false, int(Pointer, std::size_t, std::size_t, Page, unsigned long long)) \
  X(page_unmap, cuMemUnmap, 10020, false, int(Pointer, std::size_t)) \
  X(page_access, cuMemSetAccess, 10020, false, int(Pointer, std::size_t, const PageAccess*, std::size_t)) \
  X(page_granularity, cuMemGetAllocationGranularity, 10020, false, int(std::size_t*, const PageProperties*, int)) \
  X(copy_to_device, cuMemcpyHtoDAsync, 3020, true, int(Pointer, const void*, std::size_t, Handle)) \
  X(copy_to_host, cuMemcpyDtoHAsync, 3020, true, int(void*, Pointer, std::size_t, Handle)) \
  X(copy_on_device, cuMemcpyDtoDAsync, 3020, true, int(Pointer, Pointer, std::size_t, Handle)) \
  X(copy_unified, cuMemcpyAsync, 4000, true, int(Pointer, Pointer, std::size_t, Handle)) \
  X(copy_between, cuMemcpyPeerAsync, 4000, true, int(Pointer, Handle, Pointer, Handle, std::size_t, Handle)) \
  X(fill8, cuMemsetD8Async, 3020, true, int(Pointer, unsigned char, std::size_t, Handle)) \
  X(fill16, cuMemsetD16Async, 3020, true, int(Pointer, unsigned short, std::size_t, Handle)) \
  X(fill32, cuMemsetD32Async, 3020, true, int(Pointer, unsigned, std::size_t, Handle)) \
  X(stream_create, cuStreamCreateWithPriority, 5050, true, int(Handle*, unsigned, int)) \
  X(stream_synchronize, cuStreamSynchronize, 2000, true, int(Handle)) \
  X(stream_query, cuStreamQuery, 2000, true, int(Handle)) \
  X(stream_wait, cuStreamWaitEvent, 3020, true, int(Handle, Handle, unsigned)) \
  X(event_create, cuEventCreate, 2000, true, int(Handle*, unsigned)) \
  X(event_record, cuEventRecord, 2000, true, int(Handle, Handle)) \
  X(event_query, cuEventQuery, 2000, true, int(Handle)) \
  X(event_synchronize, cuEventSynchronize, 2000, true, int(Handle)) \
  X(event_elapsed, cuEventElapsedTime, 2000, true, int(float*, Handle, Handle)) \
  X(launch_host, cuLaunchHostFunc, 10000, true, int(Handle, void (*)(void*), void*)) \
  X(can_access_peer, cuDeviceCanAccessPeer, 4000, true, int(int*, int, int)) \
  X(enable_peer, cuCtxEnablePeerAccess, 4000, true, int(Handle, unsigned)) \
  X(ipc_get, cuIpcGetMemHandle, 4010, true, int(IpcMemory*, Pointer)) \
  X(ipc_map, cuIpcOpenMemHandle, 11000, true, int(Pointer*, IpcMemory, unsigned)) \
  X(ipc_unmap, cuIpcCloseMemHandle, 4010, true, int(Pointer)) \
  X(library_load, cuLibraryLoadData, 12000, true, int(Handle*, const void*, void*, void**, unsigned, void*, void**, unsigned)) \
  X(library_unload, cuLibraryUnload, 12000, true, int(Handle)) \
  X(library_kernel, cuLibraryGetKernel, 12000, true, int(Handle*, Handle, const char*)) \
  X(kernel_function, cuKernelGetFunction, 12000, true, int(Handle*, Handle)) \
  X(function_attribute, cuFuncGetAttribute, 2020, true, int(int*, int, Handle)) \
  X(function_set, cuFuncSetAttribute, 9000, true, int(Handle, int, int)) \
  X(function_load, cuFuncLoad, 12040, false, int(Handle)) \
  X(launch_configured, cuLaunchKernelEx, 11060, true, int(const LaunchConfig*, Handle, void**, void**)) \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, true, int(int*)) \
  X(capture_begin, cuStreamBeginCapture, 10010, true, int(Handle, int)) \
  X(capture_end, cuStreamEndCapture, 10000, true, int(Handle, Handle*)) \
  X(is_capturing, cuStreamIsCapturing, 10000, true, int(Handle, int*)) \
  X(capture_info_edges, cuStreamGetCaptureInfo, 12030, false, int(Handle, int*, unsigned long long*, Handle*, const Handle**, const void**, std::size_t*)) \
  X(capture_info_plain, cuStreamGetCaptureInfo, 11030, false, int(Handle, int*, unsigned long long*, Handle*, const Handle**, std::size_t*)) \
  X(object_create, cuUserObjectCreate, 11030, true, int(Handle*, void*, void (*)(void*), unsigned, unsigned)) \
  X(graph_retain, cuGraphRetainUserObject, 11030, true, int(Handle, Handle, unsigned, unsigned)) \
  X(graph_create, cuGraphCreate, 10000, true, int(Handle*, unsigned)) \
  X(graph_destroy, cuGraphDestroy, 10000, true, int(Handle)) \
  X(graph_add_kernel, cuGraphAddKernelNode, 12000, true, int(Handle*, Handle, const Handle*, std::size_t, const KernelNode*)) \
  X(graph_node_destroy, cuGraphDestroyNode, 10000, true, int(Handle)) \
  X(graph_node_get, cuGraphKernelNodeGetParams, 12000, true, int(Handle, KernelNode*)) \
  X(graph_node_set_attribute, cuGraphKernelNodeSetAttribute, 11000, true, int(Handle, int, const AttributeValue*)) \
  X(graph_instantiate, cuGraphInstantiateWithFlags, 11040, true, int(Handle*, Handle, unsigned long long)) \
  X(graph_set_kernel, cuGraphExecKernelNodeSetParams, 12000, true, int(Handle, Handle, const KernelNode*)) \
  X(graph_launch, cuGraphLaunch, 10000, true, int(Handle, Handle)) \
  X(exec_destroy, cuGraphExecDestroy, 10000, true, int(Handle))
// clang-format on

}  // namespace nbx::cuda
