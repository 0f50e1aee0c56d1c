// Questions about a tensor's metadata, and `empty`.
#include <algorithm>

#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

PyObject* storage_offset(PyObject* self, FastArguments arguments, Py_ssize_t count,
                         PyObject* names) {
  return guarded([&] {
    bind_arguments("storage_offset", {}, 0, 0, arguments, count, names, nullptr);
    const TensorMeta& meta = meta_of(self);
    const auto bits = static_cast<DeviceAddress>(bits_of(meta.dtype));
    return PyLong_FromUnsignedLongLong((meta.data - meta.storage->address()) * 8 / bits);
  });
}

PyObject* data_ptr(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("data_ptr", {}, 0, 0, arguments, count, names, nullptr);
    meta_of(self).storage->require_current();
    return PyLong_FromUnsignedLongLong(meta_of(self).data);
  });
}

PyObject* is_contiguous_method(PyObject* self, FastArguments arguments, Py_ssize_t count,
                               PyObject* names) {
  return guarded([&] {
    bind_arguments("is_contiguous", {}, 0, 0, arguments, count, names, nullptr);
    return PyBool_FromLong(meta_of(self).layout.contiguous() ? 1 : 0);
  });
}

PyObject* is_expanded(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("is_expanded", {}, 0, 0, arguments, count, names, nullptr);
    return PyBool_FromLong(repeats_elements(meta_of(self).layout) ? 1 : 0);
  });
}

PyObject* is_floating_point(PyObject* self, FastArguments arguments, Py_ssize_t count,
                            PyObject* names) {
  return guarded([&] {
    bind_arguments("is_floating_point", {}, 0, 0, arguments, count, names, nullptr);
    return PyBool_FromLong(is_floating(meta_of(self).dtype) ? 1 : 0);
  });
}

PyObject* is_complex_method(PyObject* self, FastArguments arguments, Py_ssize_t count,
                            PyObject* names) {
  return guarded([&] {
    bind_arguments("is_complex", {}, 0, 0, arguments, count, names, nullptr);
    return PyBool_FromLong(is_complex(meta_of(self).dtype) ? 1 : 0);
  });
}

PyObject* is_read_only(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("is_read_only", {}, 0, 0, arguments, count, names, nullptr);
    return PyBool_FromLong(meta_of(self).storage->writable() ? 0 : 1);
  });
}

PyObject* is_view(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("is_view", {}, 0, 0, arguments, count, names, nullptr);
    const TensorMeta& meta = meta_of(self);
    const bool whole = meta.layout.contiguous() && meta.data == meta.storage->address() &&
                       bytes_of(meta.dtype, meta.layout.element_count()) == meta.storage->bytes();
    return PyBool_FromLong(whole ? 0 : 1);
  });
}

PyObject* shares_storage(PyObject* self, FastArguments arguments, Py_ssize_t count,
                         PyObject* names) {
  return guarded([&] {
    PyObject* other = nullptr;
    bind_arguments("shares_storage", {"other"}, 1, 1, arguments, count, names, &other);
    const TensorMeta& that = to_tensor(other, "shares_storage");
    return PyBool_FromLong(meta_of(self).storage.get() == that.storage.get() ? 1 : 0);
  });
}

PyObject* numel(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("numel", {}, 0, 0, arguments, count, names, nullptr);
    return PyLong_FromLongLong(meta_of(self).layout.element_count());
  });
}

PyObject* dim(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("dim", {}, 0, 0, arguments, count, names, nullptr);
    return PyLong_FromLong(meta_of(self).layout.rank());
  });
}

PyObject* element_size(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("element_size", {}, 0, 0, arguments, count, names, nullptr);
    return PyLong_FromLong(itemsize_of(meta_of(self).dtype));
  });
}

PyObject* stride(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* axis = nullptr;
    bind_arguments("stride", {"dim"}, 0, 1, arguments, count, names, &axis);
    const Layout& layout = meta_of(self).layout;
    if (axis == nullptr || axis == Py_None) return tuple_of(layout.strides(), layout.rank());
    const std::int32_t at =
        normalized_axis("stride", to_integer(axis, "stride: dim"), layout.rank());
    return PyLong_FromLongLong(layout.strides()[at]);
  });
}

const PyMethodDef kMethods[] = {
    method("storage_offset", &storage_offset, "Elements from the storage's start to element 0."),
    method("storage", &tensor_storage, "The memory itself, shared by all views of it."),
    method("data_ptr", &data_ptr, "Address of element 0."),
    method("is_contiguous", &is_contiguous_method, "Whether elements are row-major without gaps."),
    method("is_expanded", &is_expanded, "Whether several indices name one element."),
    method("is_floating_point", &is_floating_point, "Whether elements are real floats."),
    method("is_complex", &is_complex_method, "Whether elements are complex."),
    method("is_read_only", &is_read_only, "Whether the memory may not be written."),
    method("is_view", &is_view, "Whether it is less than, or not laid out as, its whole storage."),
    method("shares_storage", &shares_storage, "Whether both are windows of one storage."),
    method("numel", &numel, "Number of elements."),
    method("dim", &dim, "Number of axes."),
    method("element_size", &element_size, "Bytes of one element."),
    method("stride", &stride, "Strides in elements: all, or that of one axis."),
};

PyObject* empty(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("empty", {"shape", "dtype", "device"}, 1, 3, arguments, count, names, bound);
    const Extents shape = to_extents(bound[0], "empty: shape");
    const DType dtype =
        bound[1] == nullptr || bound[1] == Py_None ? DType::float32 : to_dtype(bound[1]);
    return wrapped(empty_tensor(memory_of(to_device(bound[2])), dtype, shape.values, shape.count));
  });
}

PyObject* as_bytes(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* tensor = nullptr;
    bind_arguments("as_bytes", {"tensor"}, 1, 1, arguments, count, names, &tensor);
    const TensorMeta& meta = to_tensor(tensor, "as_bytes");
    if (!meta.layout.contiguous()) {
      throw Error(ErrorKind::kValue, "as_bytes: the tensor must be contiguous, shape " +
                                         shape_text(meta.layout.shape(), meta.layout.rank()) +
                                         " has strides " +
                                         shape_text(meta.layout.strides(), meta.layout.rank()));
    }
    const std::int64_t shape[] = {
        static_cast<std::int64_t>(bytes_of(meta.dtype, meta.layout.element_count()))};
    const std::int64_t strides[] = {1};
    TensorMeta bytes;
    bytes.storage = meta.storage;
    bytes.data = meta.data;
    bytes.dtype = DType::uint8;
    bytes.layout = Layout(shape, strides, 1);
    return wrapped(std::move(bytes));
  });
}

PyObject* from_bytes(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("from_bytes", {"bytes", "shape", "dtype"}, 3, 3, arguments, count, names, bound);
    const TensorMeta& bytes = to_tensor(bound[0], "from_bytes");
    const Extents shape = to_extents(bound[1], "from_bytes: shape");
    TensorMeta meta;
    meta.dtype = to_dtype(bound[2]);
    meta.layout.resize(shape.count);
    std::copy_n(shape.values, shape.count, meta.layout.shape());
    meta.layout.set_contiguous_strides();
    const bool negative = std::any_of(shape.values, shape.values + shape.count,
                                      [](std::int64_t extent) { return extent < 0; });
    const std::string text = shape_text(shape.values, shape.count);
    if (negative || bytes.dtype != DType::uint8 || bytes.layout.rank() != 1 ||
        !bytes.layout.contiguous()) {
      throw Error(ErrorKind::kValue,
                  "from_bytes: expected a contiguous uint8 tensor of one axis and extents of 0 or "
                  "more, got " +
                      std::string(facts_of(bytes.dtype).name) + " of shape " +
                      shape_text(bytes.layout.shape(), bytes.layout.rank()) + " and shape " + text);
    }
    const std::uint64_t wanted = bytes_of(meta.dtype, meta.layout.element_count());
    if (wanted != static_cast<std::uint64_t>(bytes.layout.shape()[0])) {
      throw Error(ErrorKind::kValue, "from_bytes: shape " + text + " of " +
                                         facts_of(meta.dtype).name + " needs " +
                                         std::to_string(wanted) + " bytes, got " +
                                         std::to_string(bytes.layout.shape()[0]));
    }
    const auto width = static_cast<DeviceAddress>(std::max(itemsize_of(meta.dtype), 1));
    const DeviceAddress alignment = is_complex(meta.dtype) ? width / 2 : width;
    if (wanted != 0 && bytes.data % alignment != 0) {
      throw Error(ErrorKind::kValue, "from_bytes: the first byte is not aligned to " +
                                         std::to_string(alignment) + "; clone() the bytes first");
    }
    meta.storage = bytes.storage;
    meta.data = bytes.data;
    return wrapped(std::move(meta));
  });
}

const PyMethodDef kFunctions[] = {
    method("as_bytes", &as_bytes, "as_bytes(tensor): its memory as uint8, a view."),
    method("from_bytes", &from_bytes,
           "from_bytes(bytes, shape, dtype): a uint8 tensor's memory as another type, a view."),
    method("empty", &empty,
           "empty(shape, dtype=float32, device=None): a tensor of undefined contents."),
};

}  // namespace

MethodTable query_methods() { return {kMethods, std::size(kMethods)}; }
MethodTable module_functions() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace nbx::python
