// The parts of the tensor type: each file contributes a table of methods or slots.
#pragma once

#include <cstddef>

#include "bindings/arguments.h"

namespace nbx::python {

/// Every method takes (self, arguments, count, keyword names).
using FastMethod = PyObject* (*)(PyObject*, FastArguments, Py_ssize_t, PyObject*);

[[nodiscard]] inline PyMethodDef method(const char* name, FastMethod function, const char* doc) {
  return PyMethodDef{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                     METH_FASTCALL | METH_KEYWORDS, doc};
}

struct MethodTable {
  const PyMethodDef* methods;
  std::size_t count;
};

[[nodiscard]] MethodTable view_methods();
[[nodiscard]] MethodTable split_methods();
[[nodiscard]] MethodTable copy_methods();
[[nodiscard]] MethodTable read_methods();
[[nodiscard]] MethodTable interchange_methods();
[[nodiscard]] MethodTable query_methods();
[[nodiscard]] MethodTable use_methods();
/// Functions of the module itself.
[[nodiscard]] MethodTable module_functions();
[[nodiscard]] MethodTable buffer_functions();
[[nodiscard]] MethodTable interchange_functions();
[[nodiscard]] MethodTable use_functions();

// Attributes that are views.
PyObject* get_transposed(PyObject* self, void*);         // T
PyObject* get_matrix_transposed(PyObject* self, void*);  // mT
PyObject* get_real(PyObject* self, void*);
PyObject* get_imag(PyObject* self, void*);

/// The method storage().
PyObject* tensor_storage(PyObject* self, FastArguments arguments, Py_ssize_t count,
                         PyObject* names);

// Slots.
PyObject* tensor_subscript(PyObject* self, PyObject* key);
int tensor_assign_subscript(PyObject* self, PyObject* key, PyObject* value);
PyObject* tensor_item_at(PyObject* self, Py_ssize_t index);
Py_ssize_t tensor_length(PyObject* self);
PyObject* tensor_iterate(PyObject* self);
int tensor_contains(PyObject* self, PyObject* value);
int tensor_truth(PyObject* self);
PyObject* tensor_int(PyObject* self);
PyObject* tensor_float(PyObject* self);
PyObject* tensor_index_value(PyObject* self);
int tensor_get_buffer(PyObject* self, Py_buffer* buffer, int flags);
void tensor_release_buffer(PyObject* self, Py_buffer* buffer);

PyObject* register_tensor_class(PyObject* module, PyObject* type);
void bind_tensor_type(PyObject* module);
void bind_storage_type(PyObject* module);

}  // namespace nbx::python
