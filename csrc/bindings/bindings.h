// The areas of nbxtensor._core. Each is registered by one file of this folder; module.cpp lists
// them.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace nbx {

struct DeviceMemory;

namespace python {

/// `to_text` and the memory of `to_device`, for what pybind11 calls.
[[nodiscard]] std::string text_of(const pybind11::object& object, const char* name);
[[nodiscard]] DeviceMemory& memory_named(const pybind11::object& device);

}  // namespace python

void bind_core(pybind11::module_& module);      // errors, byte sizes, log, environment
void bind_device(pybind11::module_& module);    // devices, streams, events
void bind_capture(pybind11::module_& module);   // captures and their graphs
void bind_memory(pybind11::module_& module);    // accounts, heap reports, recorder
void bind_recorder(pybind11::module_& module);  // events, recordings, origins
void bind_hot(pybind11::module_& module);       // Storage, TensorBase: C API types
void bind_arena(pybind11::module_& module);     // arenas, slabs, static plans
void bind_op(pybind11::module_& module);        // Op, Plan: C API types
void bind_kernel(pybind11::module_& module);    // compiled kernels, Kernel: C API type
void bind_cpu(pybind11::module_& module);       // kernels of the CPU device
void bind_sleep(pybind11::module_& module);     // sleep by tag, reserved blocks
void bind_replay(pybind11::module_& module);    // traces on a heap of their own
void bind_reclaim(pybind11::module_& module);   // reclaimers, epochs, page-locked memory

}  // namespace nbx
