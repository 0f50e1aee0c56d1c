// The per-call Python types, written in the C API: what hot.cpp and op.cpp share.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "storage/tensor.h"

namespace nbx::python {

/// `_core.TensorBase`: the tensor's metadata inline in the Python object.
struct TensorObject {
  PyObject_HEAD TensorMeta meta;
  PyObject* weak_references;
};

/// `_core.Storage`: one counted reference.
struct StorageObject {
  PyObject_HEAD Reference<Storage> storage;
  PyObject* weak_references;
};

extern PyTypeObject* tensor_base_type;

/// True for TensorBase and its subclasses.
[[nodiscard]] inline bool is_tensor(PyObject* object) noexcept {
  return PyObject_TypeCheck(object, tensor_base_type) != 0;
}
[[nodiscard]] inline TensorMeta& meta_of(PyObject* tensor) noexcept {
  return reinterpret_cast<TensorObject*>(tensor)->meta;
}

/// A new Python tensor of the registered class (`_core.register_tensor_class`); null with an
/// exception set on failure.
[[nodiscard]] PyObject* wrap_tensor(TensorMeta&& meta) noexcept;

/// The registered Python dtype object of a code, borrowed; and the code of a Python dtype object
/// (false with TypeError set if it is none).
[[nodiscard]] PyObject* dtype_object(DType dtype) noexcept;
[[nodiscard]] bool dtype_from_object(PyObject* object, DType* dtype) noexcept;

/// The Python object of a device (`_core.Device`), borrowed, one per device for ever.
[[nodiscard]] PyObject* device_object(Device& device) noexcept;

/// Sets the Python exception for the C++ exception in flight (call inside a catch block).
void set_python_error() noexcept;

}  // namespace nbx::python
