// Grids and numbers of launches, read from Python.
#include <string>

#include "bindings/arguments.h"
#include "bindings/kernel_type.h"

namespace nbx::python {
namespace {

[[noreturn]] void refuse_extent(PyObject* extent, const char* kernel) {
  PyErr_Clear();
  PyErr_Format(PyExc_ValueError,
               "%s: the grid has the extent %R; expected integers from 0 to 2147483647", kernel,
               extent);
  throw PythonError{};
}

std::uint64_t extent_of(PyObject* extent, const char* kernel) {
  if (PyLong_Check(extent) == 0) {
    if (PyIndex_Check(extent) == 0) {
      PyErr_Format(PyExc_TypeError, "%s: the grid has the extent %R; expected an integer", kernel,
                   extent);
      throw PythonError{};
    }
    const Owned index(PyNumber_Index(extent));
    return extent_of(index.get(), kernel);
  }
  const long value = PyLong_AsLong(extent);
  if (value < 0 || value > 0x7fffffff) refuse_extent(extent, kernel);
  return static_cast<std::uint64_t>(value);
}

}  // namespace

Grid read_grid(PyObject* grid, const char* kernel) {
  if (PyTuple_Check(grid) || PyList_Check(grid)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(grid);
    if (count < 1 || count > 3) {
      PyErr_Format(PyExc_ValueError, "%s: the grid has %zd extents; expected one to three", kernel,
                   count);
      throw PythonError{};
    }
    std::uint64_t extents[3] = {1, 1, 1};
    for (Py_ssize_t i = 0; i < count; ++i) {
      extents[i] = extent_of(PySequence_Fast_GET_ITEM(grid, i), kernel);
    }
    return Grid{extents[0], extents[1], extents[2]};
  }
  if (PyIndex_Check(grid) == 0) {
    PyErr_Format(PyExc_TypeError,
                 "%s: the grid is %R; expected an integer, a tuple of one to three, or a function "
                 "of the arguments",
                 kernel, grid);
    throw PythonError{};
  }
  return Grid{extent_of(grid, kernel), 1, 1};
}

std::uint64_t packed_number(Slot slot, PyObject* number, const char* name) {
  if (is_real(slot)) {
    const double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred() != nullptr) throw PythonError{};
    return pack_real(slot, value);
  }
  if (PyIndex_Check(number) == 0) {
    PyErr_Format(PyExc_TypeError, "%s: expected an integer, got %R", name, number);
    throw PythonError{};
  }
  const Owned index(PyNumber_Index(number));
  const unsigned bits = 8 * bytes_of(slot);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.get(), &overflow);
  if (overflow == 0 && (bits == 64 || (value >= -(1LL << (bits - 1)) && value < (1LL << bits)))) {
    return static_cast<std::uint64_t>(value);
  }
  if (overflow > 0 && bits == 64) {
    const unsigned long long large = PyLong_AsUnsignedLongLong(index.get());
    if (PyErr_Occurred() == nullptr) return large;
    PyErr_Clear();
  }
  PyErr_Format(PyExc_OverflowError, "%s: the integer %R does not fit in %u bytes", name, number,
               bytes_of(slot));
  throw PythonError{};
}

}  // namespace nbx::python
