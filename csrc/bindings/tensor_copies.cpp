// Methods that copy, cast, move and fill.
#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

/// The tensor object itself when nothing changes, else a converted copy.
PyObject* converted_object(PyObject* self, DType dtype, Device& device, bool copy,
                           bool waited = true) {
  const TensorMeta& meta = meta_of(self);
  if (!copy && dtype == meta.dtype && &device == &meta.device()) return Py_NewRef(self);
  return wrapped(converted(meta, dtype, device, copy, waited));
}

PyObject* contiguous_method(PyObject* self, FastArguments arguments, Py_ssize_t count,
                            PyObject* names) {
  return guarded([&] {
    bind_arguments("contiguous", {}, 0, 0, arguments, count, names, nullptr);
    const TensorMeta& meta = meta_of(self);
    return meta.layout.contiguous() ? Py_NewRef(self) : wrapped(cloned(meta));
  });
}

PyObject* clone(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("clone", {}, 0, 0, arguments, count, names, nullptr);
    return wrapped(cloned(meta_of(self)));
  });
}

PyObject* copy_into(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&]() -> PyObject* {
    PyObject* bound[2];
    bind_arguments("copy_", {"source", "non_blocking"}, 1, 2, arguments, count, names, bound);
    if (is_tensor(bound[0])) {
      assign("copy_", meta_of(self), meta_of(bound[0]), !to_boolean(bound[1], false));
    } else if (is_number(bound[0])) {
      fill("copy_", meta_of(self), to_scalar(bound[0], "copy_"));
    } else {
      const TensorMeta& meta = meta_of(self);
      const Owned source(PyObject_CallFunctionObjArgs(hooks.as_tensor, bound[0],
                                                      device_object(meta.device()),
                                                      dtype_object(meta.dtype), nullptr));
      assign("copy_", meta_of(self), to_tensor(source.get(), "copy_"));
    }
    return Py_NewRef(self);
  });
}

PyObject* fill_with(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* value = nullptr;
    bind_arguments("fill_", {"value"}, 1, 1, arguments, count, names, &value);
    fill("fill_", meta_of(self), to_scalar(value, "fill_"));
    return Py_NewRef(self);
  });
}

PyObject* zero(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("zero_", {}, 0, 0, arguments, count, names, nullptr);
    Scalar value;
    value.kind = ScalarKind::kInteger;
    fill("zero_", meta_of(self), value);
    return Py_NewRef(self);
  });
}

PyObject* to(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[7];
    // The first two take a dtype, a device or a tensor in any order, as model code writes them.
    bind_arguments("to", {"first", "second", "dtype", "device", "copy", "non_blocking", "other"}, 0,
                   2, arguments, count, names, bound);
    DType dtype = meta_of(self).dtype;
    Device* device = &meta_of(self).device();
    for (PyObject* object : {bound[6], bound[0], bound[1]}) {
      if (object == nullptr || object == Py_None) continue;
      if (is_tensor(object)) {
        dtype = meta_of(object).dtype;
        device = &meta_of(object).device();
      } else if (names_device(object)) {
        device = &to_device(object);
      } else {
        dtype = to_dtype(object);
      }
    }
    if (bound[2] != nullptr && bound[2] != Py_None) dtype = to_dtype(bound[2]);
    if (bound[3] != nullptr && bound[3] != Py_None) device = &to_device(bound[3]);
    return converted_object(self, dtype, *device, to_boolean(bound[4], false),
                            !to_boolean(bound[5], false));
  });
}

PyObject* astype(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("astype", {"dtype", "copy", "device"}, 1, 1, arguments, count, names, bound);
    Device& device =
        bound[2] == nullptr || bound[2] == Py_None ? meta_of(self).device() : to_device(bound[2]);
    return converted_object(self, to_dtype(bound[0]), device, to_boolean(bound[1], true));
  });
}

PyObject* type_as(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* other = nullptr;
    bind_arguments("type_as", {"other"}, 1, 1, arguments, count, names, &other);
    const TensorMeta& like = to_tensor(other, "type_as");
    return converted_object(self, like.dtype, like.device(), false);
  });
}

PyObject* cpu(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("cpu", {}, 0, 0, arguments, count, names, nullptr);
    return converted_object(self, meta_of(self).dtype, open_device(DeviceKind::kCpu, 0), false);
  });
}

template <DType kDType>
PyObject* cast(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments(facts_of(kDType).name, {}, 0, 0, arguments, count, names, nullptr);
    return converted_object(self, kDType, meta_of(self).device(), false);
  });
}

const PyMethodDef kMethods[] = {
    method("contiguous", &contiguous_method, "The tensor if it is row-major, else such a copy."),
    method("clone", &clone, "A row-major copy in new memory on the same device."),
    method("copy_", &copy_into, "Writes `source` into this tensor: broadcast, cast, moved."),
    method("fill_", &fill_with, "Writes one number to all elements."),
    method("zero_", &zero, "Writes zero to all elements."),
    method("to", &to,
           "Another dtype, device, or both (also those of another tensor); the tensor itself if "
           "nothing changes and `copy` is false."),
    method("astype", &astype, "A copy in another dtype; `copy=False` allows the tensor itself."),
    method("type_as", &type_as, "The dtype and device of another tensor."),
    method("cpu", &cpu, "The tensor in host memory; itself if it is there."),
    method("bool", &cast<DType::bool_>, "As bool."),
    method("char", &cast<DType::int8>, "As int8."),
    method("byte", &cast<DType::uint8>, "As uint8."),
    method("short", &cast<DType::int16>, "As int16."),
    method("int", &cast<DType::int32>, "As int32."),
    method("long", &cast<DType::int64>, "As int64."),
    method("half", &cast<DType::float16>, "As float16."),
    method("bfloat16", &cast<DType::bfloat16>, "As bfloat16."),
    method("float", &cast<DType::float32>, "As float32."),
    method("double", &cast<DType::float64>, "As float64."),
};

}  // namespace

MethodTable copy_methods() { return {kMethods, std::size(kMethods)}; }

}  // namespace nbx::python
