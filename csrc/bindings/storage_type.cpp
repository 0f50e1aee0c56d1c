// The type object `_core.Storage`: one counted reference to memory.
#include <cstddef>
#include <new>

#include "bindings/tensor_methods.h"
#include "core/error.h"

#include <structmember.h>

namespace nbx::python {
namespace {

PyTypeObject* storage_type = nullptr;

Storage& storage_of(PyObject* self) noexcept {
  return *reinterpret_cast<StorageObject*>(self)->storage;
}

PyObject* wrap_storage(Reference<Storage> storage) {
  auto* object = reinterpret_cast<StorageObject*>(PyObject_Malloc(sizeof(StorageObject)));
  if (object == nullptr) {
    PyErr_NoMemory();
    throw PythonError{};
  }
  new (&object->storage) Reference<Storage>(std::move(storage));
  object->weak_references = nullptr;
  return PyObject_Init(reinterpret_cast<PyObject*>(object), storage_type);
}

void destroy_storage(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* object = reinterpret_cast<StorageObject*>(self);
  if (object->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  object->storage.~Reference<Storage>();
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* allocate(PyObject* size, PyObject* device) {
  return guarded([&] {
    const std::int64_t bytes = to_integer(size, "Storage: nbytes");
    if (bytes < 0) {
      throw Error(ErrorKind::kValue,
                  "Storage: nbytes must be 0 or more, got " + std::to_string(bytes));
    }
    return wrap_storage(
        Storage::allocate(memory_of(to_device(device)), static_cast<std::uint64_t>(bytes)));
  });
}

PyObject* new_storage(PyTypeObject*, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"nbytes", "device", nullptr};
  PyObject* size = nullptr;
  PyObject* device = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O", const_cast<char**>(names), &size,
                                  &device) == 0) {
    return nullptr;
  }
  return allocate(size, device);
}

/// The call without a tuple: what makes a storage from Python as cheap as the heap.
PyObject* new_storage_fast(PyObject*, PyObject* const* arguments, std::size_t flags,
                           PyObject* names) {
  return guarded([&]() -> PyObject* {
    PyObject* bound[2];
    bind_arguments("Storage", {"nbytes", "device"}, 1, 2, arguments, PyVectorcall_NARGS(flags),
                   names, bound);
    return allocate(bound[0], bound[1]);
  });
}

PyObject* get_nbytes(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(storage_of(self).bytes());
}
PyObject* get_device(PyObject* self, void*) {
  return Py_XNewRef(device_object(storage_of(self).device()));
}
PyObject* get_writable(PyObject* self, void*) {
  return PyBool_FromLong(storage_of(self).writable() ? 1 : 0);
}
PyObject* get_borrowed(PyObject* self, void*) {
  return PyBool_FromLong(storage_of(self).borrowed() ? 1 : 0);
}
PyObject* get_pinned(PyObject* self, void*) {
  return PyBool_FromLong(storage_of(self).pinned() ? 1 : 0);
}
PyObject* get_owners(PyObject* self, void*) {
  return PyLong_FromUnsignedLong(storage_of(self).owners());
}
PyObject* get_generation(PyObject* self, void*) {
  return PyLong_FromUnsignedLong(storage_of(self).generation());
}
PyObject* get_account(PyObject* self, void*) {
  return guarded([&] { return PyUnicode_FromString(storage_of(self).account().path().c_str()); });
}

PyObject* data_ptr(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("data_ptr", {}, 0, 0, arguments, count, names, nullptr);
    storage_of(self).require_current();
    return PyLong_FromUnsignedLongLong(storage_of(self).address());
  });
}

Py_hash_t hash_storage(PyObject* self) {
  const auto bits = reinterpret_cast<std::uintptr_t>(&storage_of(self)) >> 4;
  return static_cast<Py_hash_t>(bits);
}

PyObject* compare_storage(PyObject* self, PyObject* other, int operation) {
  if (!Py_IS_TYPE(other, storage_type) || (operation != Py_EQ && operation != Py_NE)) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  const bool same = &storage_of(self) == &storage_of(other);
  return PyBool_FromLong(same == (operation == Py_EQ) ? 1 : 0);
}

PyGetSetDef attributes[] = {
    {"nbytes", &get_nbytes, nullptr, "Bytes that were asked for.", nullptr},
    {"device", &get_device, nullptr, "The device that holds the memory.", nullptr},
    {"writable", &get_writable, nullptr, "False for read-only memory of others.", nullptr},
    {"borrowed", &get_borrowed, nullptr, "Whether it is memory of others.", nullptr},
    {"pinned", &get_pinned, nullptr, "Whether it is page-locked host memory.", nullptr},
    {"owners", &get_owners, nullptr, "References to it, this one included.", nullptr},
    {"generation", &get_generation, nullptr, "Number of the block's use.", nullptr},
    {"account", &get_account, nullptr, "Path of the account that it is charged to.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    method("data_ptr", &data_ptr, "Address of the first byte."),
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(StorageObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

template <class Function>
void* slot(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyObject* tensor_storage(PyObject* self, FastArguments arguments, Py_ssize_t count,
                         PyObject* names) {
  return guarded([&] {
    bind_arguments("storage", {}, 0, 0, arguments, count, names, nullptr);
    return wrap_storage(meta_of(self).storage);
  });
}

void bind_storage_type(PyObject* module) {
  PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("Storage(nbytes, device=None): counted memory of a device.")},
      {Py_tp_dealloc, slot(&destroy_storage)},
      {Py_tp_new, slot(&new_storage)},
      {Py_tp_hash, slot(&hash_storage)},
      {Py_tp_richcompare, slot(&compare_storage)},
      {Py_tp_methods, methods},
      {Py_tp_getset, attributes},
      {Py_tp_members, members},
      {0, nullptr},
  };
  PyType_Spec spec{"nbxtensor._core.Storage", sizeof(StorageObject), 0, Py_TPFLAGS_DEFAULT, slots};
  Owned type(PyType_FromSpec(&spec));
  if (PyModule_AddObjectRef(module, "Storage", type.get()) < 0) throw PythonError{};
  storage_type = reinterpret_cast<PyTypeObject*>(type.detach());
  storage_type->tp_vectorcall = &new_storage_fast;
}

}  // namespace nbx::python
