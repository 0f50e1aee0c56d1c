// Registration of the per-call types, and what they share: dtype objects, hooks, the module's
// functions.
#include "bindings/hot.h"

#include <vector>

#include "bindings/bindings.h"
#include "bindings/tensor_methods.h"

namespace nbx::python {
namespace {

PyObject* dtype_objects[kDTypeCount] = {};

PyObject* register_dtypes(PyObject*, PyObject* dtypes) {
  const Py_ssize_t count = PySequence_Size(dtypes);
  if (count != kDTypeCount) {
    if (count >= 0) {
      PyErr_Format(PyExc_ValueError,
                   "register_dtypes: expected %d dtypes in order of code, got %zd", kDTypeCount,
                   count);
    }
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    // Kept for ever: tensors answer with these objects.
    PyObject* dtype = PySequence_GetItem(dtypes, i);
    if (dtype == nullptr) return nullptr;
    Py_XSETREF(dtype_objects[i], dtype);
  }
  Py_RETURN_NONE;
}

PyObject* register_hooks(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[4];
    bind_arguments("register_hooks", {"as_dtype", "as_tensor", "index_tensor", "array_interface"},
                   4, 0, arguments, count, names, bound);
    Py_XSETREF(hooks.as_dtype, Py_NewRef(bound[0]));
    Py_XSETREF(hooks.as_tensor, Py_NewRef(bound[1]));
    Py_XSETREF(hooks.index_tensor, Py_NewRef(bound[2]));
    Py_XSETREF(hooks.array_interface, Py_NewRef(bound[3]));
    return Py_NewRef(Py_None);
  });
}

void add_functions(PyObject* module) {
  static std::vector<PyMethodDef> functions;
  functions.push_back({"register_dtypes", &register_dtypes, METH_O,
                       "register_dtypes(dtypes): the objects of all dtypes, in order of code."});
  functions.push_back({"register_tensor_class", &register_tensor_class, METH_O,
                       "register_tensor_class(type): the class of all tensors made from now on."});
  functions.push_back(method("register_hooks", &register_hooks,
                             "register_hooks(*, as_dtype, as_tensor, index_tensor, "
                             "array_interface): functions that the core calls."));
  for (const MethodTable& table :
       {module_functions(), buffer_functions(), interchange_functions(), use_functions()}) {
    functions.insert(functions.end(), table.methods, table.methods + table.count);
  }
  functions.push_back({nullptr, nullptr, 0, nullptr});
  if (PyModule_AddFunctions(module, functions.data()) < 0) throw PythonError{};
}

}  // namespace

PyObject* dtype_object(DType dtype) noexcept {
  PyObject* object = dtype_objects[static_cast<int>(dtype)];
  if (object == nullptr) PyErr_SetString(PyExc_RuntimeError, "no dtypes are registered yet");
  return object;
}

bool dtype_from_object(PyObject* object, DType* dtype) noexcept {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (dtype_objects[i] == object) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  if (hooks.as_dtype == nullptr) {
    PyErr_Format(PyExc_TypeError, "dtype: expected a dtype, got %R", object);
    return false;
  }
  PyObject* found = PyObject_CallOneArg(hooks.as_dtype, object);
  if (found == nullptr) return false;
  bool known = false;
  for (int i = 0; i < kDTypeCount && !known; ++i) {
    if (dtype_objects[i] == found) {
      *dtype = static_cast<DType>(i);
      known = true;
    }
  }
  Py_DECREF(found);
  if (!known) PyErr_Format(PyExc_TypeError, "dtype: expected a dtype, got %R", object);
  return known;
}

}  // namespace nbx::python

namespace nbx {

void bind_hot(pybind11::module_& module) {
  try {
    python::bind_storage_type(module.ptr());
    python::bind_tensor_type(module.ptr());
    python::add_functions(module.ptr());
    module.attr("MAXIMUM_RANK") = kMaximumRank;
  } catch (const python::PythonError&) {
    throw pybind11::error_already_set();
  }
}

}  // namespace nbx
