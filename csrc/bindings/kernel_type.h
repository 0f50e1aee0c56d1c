// `_core.Kernel`, and what reads the grids and numbers of launches.
#pragma once

#include "bindings/hot.h"

#include <cstdint>

#include "launch/device_kernel.h"

namespace nbx::python {

/// Reads an integer or a tuple of one to three. Throws Error, or PythonError with an exception set.
[[nodiscard]] Grid read_grid(PyObject* grid, const char* kernel);

/// A number of Python as a slot passes it. Throws Error(kType) and Error(kOverflow).
[[nodiscard]] std::uint64_t packed_number(Slot slot, PyObject* number, const char* name);

/// Whether the driver may wait for room in its queue, while queued work waits for the Python lock:
/// giving it up costs as much as half of a launch. Queues have room for about a thousand launches.
[[nodiscard]] bool may_wait(Stream& stream);

void bind_kernel_type(PyObject* module);

}  // namespace nbx::python
