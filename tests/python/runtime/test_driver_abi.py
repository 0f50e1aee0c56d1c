"""The hand-written declarations of the drivers against the vendors' headers, where they are."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Two signatures agree if their results and parameters are passed the same way.
COMMON = """
#include <cstddef>
#include <type_traits>
template <class A, class B>
constexpr bool same_way = sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B> &&
                          std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <class A, class B>
struct agree : std::false_type {};
template <class R, class... P, class S, class... Q>
struct agree<R (*)(P...), S (*)(Q...)> {
  static constexpr bool check() {
    if constexpr (sizeof...(P) != sizeof...(Q)) {
      return false;
    } else {
      return same_way<R, S> && (same_way<P, Q> && ...);
    }
  }
  static constexpr bool value = check();
};
#define SAME(A, B) static_assert(sizeof(A) == sizeof(B) && alignof(A) == alignof(B))
#define OFFSET(A, a, B, b) static_assert(offsetof(A, a) == offsetof(B, b))
"""

CUDA = """
#include <cuda.h>
#include <cudaTypedefs.h>
#include "device/cuda/api.h"
using namespace nbx::cuda;
#define CHECK(member, symbol, version, needed, ...) \\
  static_assert(agree<std::add_pointer_t<__VA_ARGS__>, PFN_##symbol##_v##version>::value, #symbol);
NBX_CUDA_FUNCTIONS(CHECK)
SAME(LaunchConfig, CUlaunchConfig);
OFFSET(LaunchConfig, block, CUlaunchConfig, blockDimX);
OFFSET(LaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
OFFSET(LaunchConfig, stream, CUlaunchConfig, hStream);
OFFSET(LaunchConfig, attributes, CUlaunchConfig, attrs);
OFFSET(LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);
SAME(LaunchAttribute, CUlaunchAttribute);
OFFSET(LaunchAttribute, value, CUlaunchAttribute, value);
SAME(AttributeValue, CUlaunchAttributeValue);
static_assert(kAttributeCooperative == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
static_assert(kAttributeCluster == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
static_assert(kAttributeClusterPolicy == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
static_assert(kAttributeProgrammatic == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(CU_CLUSTER_SCHEDULING_POLICY_SPREAD == 1);
SAME(KernelNode, CUDA_KERNEL_NODE_PARAMS);
OFFSET(KernelNode, shared_bytes, CUDA_KERNEL_NODE_PARAMS, sharedMemBytes);
OFFSET(KernelNode, arguments, CUDA_KERNEL_NODE_PARAMS, kernelParams);
OFFSET(KernelNode, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
OFFSET(KernelNode, context, CUDA_KERNEL_NODE_PARAMS, ctx);
SAME(PageProperties, CUmemAllocationProp);
OFFSET(PageProperties, location, CUmemAllocationProp, location);
OFFSET(PageProperties, flags, CUmemAllocationProp, allocFlags);
SAME(PageAccess, CUmemAccessDesc);
OFFSET(PageAccess, flags, CUmemAccessDesc, flags);
SAME(IpcMemory, CUipcMemHandle);
static_assert(CU_MEM_ALLOCATION_TYPE_PINNED == 1 && CU_MEM_LOCATION_TYPE_DEVICE == 1);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3 && CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0);
static_assert(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == 102);
static_assert(CU_DEVICE_ATTRIBUTE_INTEGRATED == 18 && CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH == 120);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76);
static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8);
static_assert(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED == 14);
static_assert(CU_FUNC_ATTRIBUTE_NUM_REGS == 4 && CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES == 3);
static_assert(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == 1);
static_assert(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK == 0);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == 2 && CU_STREAM_CAPTURE_STATUS_ACTIVE == 1);
static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_EVENT_DISABLE_TIMING == 2);
static_assert(CU_MEMHOSTALLOC_PORTABLE == 1 && CU_MEMHOSTREGISTER_PORTABLE == 1);
static_assert(CU_MEMHOSTREGISTER_DEVICEMAP == 2);
static_assert(CU_GRAPH_USER_OBJECT_MOVE == 1 && CU_USER_OBJECT_NO_DESTRUCTOR_SYNC == 1);
static_assert(CU_GET_PROC_ADDRESS_LEGACY_STREAM == 1 && CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1);
static_assert(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED == 704);
static_assert(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED == 712);
constexpr int kNumbers[] = {
    CU_DEVICE_ATTRIBUTE_WARP_SIZE,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
};
"""

HIP = """
#define __HIP_PLATFORM_AMD__
#define __HIP_DISABLE_CPP_FUNCTIONS__
#include <hip/hip_runtime_api.h>
#include "device/hip/api.h"
#ifdef hipGetDevicePropertiesR0600
#undef hipGetDevicePropertiesR0600
#endif
using namespace nbx::hip;
#define CHECK(member, symbol, needed, ...) \\
  static_assert(agree<std::add_pointer_t<__VA_ARGS__>, \\
                      decltype(&symbol)>::value, #symbol);
"""

HIP_AFTER = """
SAME(KernelNode, hipKernelNodeParams);
OFFSET(KernelNode, extra, hipKernelNodeParams, extra);
OFFSET(KernelNode, function, hipKernelNodeParams, func);
OFFSET(KernelNode, grid, hipKernelNodeParams, gridDim);
OFFSET(KernelNode, arguments, hipKernelNodeParams, kernelParams);
OFFSET(KernelNode, shared_bytes, hipKernelNodeParams, sharedMemBytes);
SAME(PageProperties, hipMemAllocationProp);
OFFSET(PageProperties, location, hipMemAllocationProp, location);
OFFSET(PageProperties, flags, hipMemAllocationProp, allocFlags);
SAME(PageAccess, hipMemAccessDesc);
OFFSET(PageAccess, flags, hipMemAccessDesc, flags);
SAME(IpcMemory, hipIpcMemHandle_t);
static_assert(sizeof(hipDeviceProp_tR0600) <= kPropertiesRoom);
static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) == kArchitectureOffset);
static_assert(hipMemAllocationTypePinned == 1 && hipMemLocationTypeDevice == 1);
static_assert(hipMemAccessFlagsProtReadWrite == 3 && hipMemAllocationGranularityMinimum == 0);
static_assert(hipDeviceAttributeVirtualMemoryManagementSupported == 89);
static_assert(hipDeviceAttributeIntegrated == 16);
static_assert(hipDeviceAttributeMaxSharedMemoryPerBlock == 74);
static_assert(HIP_FUNC_ATTRIBUTE_NUM_REGS == 4 && HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES == 3);
static_assert(HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == 1);
static_assert(HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK == 0);
static_assert(hipStreamCaptureModeRelaxed == 2 && hipStreamCaptureStatusActive == 1);
static_assert(hipStreamNonBlocking == 1 && hipEventDisableTiming == 2 && hipMemcpyDefault == 4);
static_assert(hipHostMallocPortable == 1 && hipHostRegisterPortable == 1);
static_assert(hipHostRegisterMapped == 2 && hipIpcMemLazyEnablePeerAccess == 1);
static_assert(hipGraphUserObjectMove == 1 && hipUserObjectNoDestructorSync == 1);
static_assert(hipErrorPeerAccessAlreadyEnabled == 704);
static_assert(hipErrorHostMemoryAlreadyRegistered == 712);
constexpr int kNumbers[] = {
    hipDeviceAttributeWarpSize,
    hipDeviceAttributeMaxThreadsPerBlock,
    hipDeviceAttributeMaxSharedMemoryPerBlock,
    hipDeviceAttributeMaxRegistersPerBlock,
    hipDeviceAttributeMultiprocessorCount,
    hipDeviceAttributeMaxThreadsPerMultiProcessor,
    hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
    hipDeviceAttributeMaxRegistersPerMultiprocessor,
    hipDeviceAttributeL2CacheSize,
    hipDeviceAttributeClockRate,
    hipDeviceAttributeMemoryClockRate,
    hipDeviceAttributeMemoryBusWidth,
};
"""


# The drivers' numbers of the counts, `kNumbers`, are those that the table asks for.
COUNTS_AGREE = """
constexpr bool counts_agree() {
  for (std::size_t i = 0; i < Api::kCounts.size(); ++i) {
    if (Api::kCounts[i] != kNumbers[i]) return false;
  }
  return sizeof(kNumbers) / sizeof(int) == Api::kCounts.size();
}
static_assert(counts_agree());
"""


def include_folder(backend: str, header: str) -> Path | None:
    """Where the triton wheel carries the vendor's headers; None without them."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "backends" / backend / "include"
    return folder if (folder / header).exists() else None


def hip_source() -> str:
    """The source for HIP, whose header has no types of functions to compare with."""
    return COMMON + HIP + "NBX_HIP_FUNCTIONS(CHECK)\n" + HIP_AFTER


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_declarations_agree_with_the_vendors_headers(kind: str, tmp_path: Path) -> None:
    backend, header = {
        "cuda": ("nvidia", "cudaTypedefs.h"),
        "hip": ("amd", "hip/hip_runtime_api.h"),
    }[kind]
    folder = include_folder(backend, header)
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if folder is None or compiler is None:
        return  # nothing to compare with
    source = tmp_path / f"{kind}.cpp"
    declarations = COMMON + CUDA if kind == "cuda" else hip_source()
    source.write_text(declarations + COUNTS_AGREE)
    command = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        f"-I{ROOT / 'csrc'}",
        "-isystem",
        str(folder),
    ]
    result = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[:4000]
