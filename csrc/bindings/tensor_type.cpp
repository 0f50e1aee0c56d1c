// The type object `_core.TensorBase`: attributes, slots, creation and destruction.
#include <cstddef>
#include <new>
#include <vector>

#include "bindings/kernel_arguments.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"

#include <structmember.h>

namespace nbx::python {

PyTypeObject* tensor_base_type = nullptr;
/// What functions return: TensorBase until the Python layer registers its subclass.
PyTypeObject* tensor_class = nullptr;

namespace {

void destroy_tensor(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* tensor = reinterpret_cast<TensorObject*>(self);
  if (tensor->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  tensor->meta.~TensorMeta();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError,
               "%s has no constructor: use asarray() for values, empty() or zeros() for shapes",
               type->tp_name);
  return nullptr;
}

PyObject* get_shape(PyObject* self, void*) {
  return guarded([&] {
    const Layout& layout = meta_of(self).layout;
    return tuple_of(layout.shape(), layout.rank());
  });
}

PyObject* get_strides(PyObject* self, void*) {
  return guarded([&] {
    const Layout& layout = meta_of(self).layout;
    return tuple_of(layout.strides(), layout.rank());
  });
}

PyObject* get_dtype(PyObject* self, void*) { return Py_XNewRef(dtype_object(meta_of(self).dtype)); }

PyObject* get_device(PyObject* self, void*) {
  return Py_XNewRef(device_object(meta_of(self).device()));
}

PyObject* get_ndim(PyObject* self, void*) { return PyLong_FromLong(meta_of(self).layout.rank()); }

PyObject* get_size(PyObject* self, void*) {
  return guarded([&] { return PyLong_FromLongLong(meta_of(self).layout.element_count()); });
}

PyObject* get_nbytes(PyObject* self, void*) {
  return guarded([&] {
    const TensorMeta& meta = meta_of(self);
    return PyLong_FromUnsignedLongLong(bytes_of(meta.dtype, meta.layout.element_count()));
  });
}

PyObject* get_itemsize(PyObject* self, void*) {
  return PyLong_FromLong(itemsize_of(meta_of(self).dtype));
}

PyObject* get_array_interface(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    const TensorMeta& meta = meta_of(self);
    if (meta.device().kind() != DeviceKind::kCuda) {
      PyErr_Format(PyExc_AttributeError,
                   "__cuda_array_interface__: the tensor lives on %s, not on a cuda device",
                   meta.device().name().c_str());
      throw PythonError{};
    }
    PyObject* describe = hooks.array_interface;
    return Owned(PyObject_CallOneArg(describe, self)).detach();
  });
}

PyGetSetDef attributes[] = {
    {"shape", &get_shape, nullptr, "Extents of the axes, a tuple.", nullptr},
    {"strides", &get_strides, nullptr, "Elements between neighbours of each axis.", nullptr},
    {"dtype", &get_dtype, nullptr, "Element type.", nullptr},
    {"device", &get_device, nullptr, "The device that holds the memory.", nullptr},
    {"ndim", &get_ndim, nullptr, "Number of axes.", nullptr},
    {"size", &get_size, nullptr, "Number of elements.", nullptr},
    {"nbytes", &get_nbytes, nullptr, "Bytes that the elements fill without gaps.", nullptr},
    {"itemsize", &get_itemsize, nullptr, "Bytes of one element; 0 for packed types.", nullptr},
    {"T", &get_transposed, nullptr, "The transposed matrix; a view.", nullptr},
    {"mT", &get_matrix_transposed, nullptr, "The last two axes exchanged; a view.", nullptr},
    {"real", &get_real, nullptr, "The real part; a view.", nullptr},
    {"imag", &get_imag, nullptr, "The imaginary part of a complex tensor; a view.", nullptr},
    {"__cuda_array_interface__", &get_array_interface, nullptr,
     "Description for CUDA libraries; only on cuda devices.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TensorObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

/// The type keeps a pointer to its methods, so they live for ever.
PyMethodDef* all_methods() {
  static std::vector<PyMethodDef> methods;
  for (const MethodTable& table : {query_methods(), use_methods(), view_methods(), split_methods(),
                                   copy_methods(), read_methods(), interchange_methods()}) {
    methods.insert(methods.end(), table.methods, table.methods + table.count);
  }
  methods.push_back({nullptr, nullptr, 0, nullptr});
  return methods.data();
}

template <class Function>
void* slot(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyObject* wrap_tensor(TensorMeta&& meta) noexcept {
  PyTypeObject* type = tensor_class;
  auto* object = reinterpret_cast<TensorObject*>(PyObject_Malloc(sizeof(TensorObject)));
  if (object == nullptr) return PyErr_NoMemory();
  new (&object->meta) TensorMeta(std::move(meta));
  object->weak_references = nullptr;
  return PyObject_Init(reinterpret_cast<PyObject*>(object), type);
}

PyObject* register_tensor_class(PyObject*, PyObject* type) {
  const auto* given = reinterpret_cast<PyTypeObject*>(type);
  if (!PyType_Check(type) ||
      PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), tensor_base_type) == 0 ||
      given->tp_basicsize != sizeof(TensorObject) || given->tp_dictoffset != 0) {
    PyErr_Format(PyExc_TypeError,
                 "register_tensor_class: expected a subclass of TensorBase with empty __slots__, "
                 "got %R",
                 type);
    return nullptr;
  }
  auto* made = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
  // Python gives every class of its own a cycle collector's header. A tensor refers to no Python
  // object, so it can be in no cycle; without the header it is made and dropped in half the time.
  made->tp_flags &= ~static_cast<unsigned long>(Py_TPFLAGS_HAVE_GC);
  made->tp_traverse = nullptr;
  made->tp_clear = nullptr;
  made->tp_dealloc = &destroy_tensor;
  made->tp_free = &PyObject_Free;
  tensor_class = made;
  Py_RETURN_NONE;
}

void bind_tensor_type(PyObject* module) {
  PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("A strided window into memory of one device.")},
      {Py_tp_dealloc, slot(&destroy_tensor)},
      {Py_tp_new, slot(&refuse_new)},
      {Py_tp_methods, all_methods()},
      {Py_tp_getset, attributes},
      {Py_tp_members, members},
      {Py_tp_iter, slot(&tensor_iterate)},
      {Py_mp_length, slot(&tensor_length)},
      {Py_mp_subscript, slot(&tensor_subscript)},
      {Py_mp_ass_subscript, slot(&tensor_assign_subscript)},
      {Py_sq_item, slot(&tensor_item_at)},
      {Py_sq_length, slot(&tensor_length)},
      {Py_sq_contains, slot(&tensor_contains)},
      {Py_nb_bool, slot(&tensor_truth)},
      {Py_nb_int, slot(&tensor_int)},
      {Py_nb_float, slot(&tensor_float)},
      {Py_nb_index, slot(&tensor_index_value)},
      {Py_bf_getbuffer, slot(&tensor_get_buffer)},
      {Py_bf_releasebuffer, slot(&tensor_release_buffer)},
      {0, nullptr},
  };
  PyType_Spec spec{"nbxtensor._core.TensorBase", sizeof(TensorObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  Owned type(PyType_FromSpec(&spec));
  if (PyModule_AddObjectRef(module, "TensorBase", type.get()) < 0) throw PythonError{};
  tensor_base_type = reinterpret_cast<PyTypeObject*>(type.detach());
  tensor_class = tensor_base_type;
}

}  // namespace nbx::python
