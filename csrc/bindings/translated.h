// Bodies of the C API inside what pybind11 calls.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/arguments.h"

namespace nbx::python {

/// Runs a body that may have set a Python exception; pybind11 knows that by another class.
template <class Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const PythonError&) {
    throw pybind11::error_already_set();
  }
}

}  // namespace nbx::python
