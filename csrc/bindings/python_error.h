// The Python classes of core errors.
#pragma once

#include <pybind11/pybind11.h>

#include "core/error.h"

namespace nbx::python {

/// Creates the classes in the module and makes pybind11 raise them for nbx::Error.
void add_error_classes(pybind11::module_& module);
/// Sets the Python exception of an error, figures as attributes.
void set_error(const Error& error) noexcept;

}  // namespace nbx::python
