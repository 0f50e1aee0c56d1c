// Elements as Python numbers.
#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

PyObject* item(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    if (names == nullptr && count == 0) return number_of(element_of(meta_of(self), "item"));
    PyObject* index[kMaximumRank];
    bind_arguments("item", {}, 0, kMaximumRank, arguments, names == nullptr ? 0 : count, names,
                   index);
    TensorMeta view = meta_of(self);
    const Extents at = to_extents(arguments, count, "item: index");
    if (at.count != view.layout.rank()) {
      throw Error(ErrorKind::kIndex, "item: expected " + std::to_string(view.layout.rank()) +
                                         " indices, got " + std::to_string(at.count));
    }
    for (std::int32_t i = 0; i < at.count; ++i) view = select_view(view, 0, at.values[i]);
    return number_of(element_of(view, "item"));
  });
}

PyObject* nested_list(const TensorMeta& host, std::int32_t axis, std::int64_t* position) {
  if (axis == host.layout.rank()) {
    const auto* data = reinterpret_cast<const std::byte*>(host.data);
    return number_of(load_element(host.dtype, data, (*position)++));
  }
  const std::int64_t extent = host.layout.shape()[axis];
  Owned list(PyList_New(static_cast<Py_ssize_t>(extent)));
  for (std::int64_t i = 0; i < extent; ++i) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), nested_list(host, axis + 1, position));
  }
  return list.detach();
}

PyObject* tolist(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("tolist", {}, 0, 0, arguments, count, names, nullptr);
    const TensorMeta host = readable(meta_of(self));
    std::int64_t position = 0;
    return nested_list(host, 0, &position);
  });
}

PyObject* to_complex(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("__complex__", {}, 0, 0, arguments, count, names, nullptr);
    const Scalar value = element_of(meta_of(self), "complex");
    PyObject* number = PyComplex_FromDoubles(value.real, value.imaginary);
    if (number == nullptr) throw PythonError{};
    return number;
  });
}

void refuse_complex(const char* function, const Scalar& value) {
  if (value.kind != ScalarKind::kComplex) return;
  throw Error(ErrorKind::kType, std::string(function) +
                                    ": a complex element cannot become real; take .real or .imag");
}

const PyMethodDef kMethods[] = {
    method("item", &item, "The only element (or the one at an index) as a Python number."),
    method("tolist", &tolist, "The elements as nested lists of Python numbers."),
    method("__complex__", &to_complex, "The only element as a complex number."),
};

}  // namespace

MethodTable read_methods() { return {kMethods, std::size(kMethods)}; }

int tensor_truth(PyObject* self) {
  bool truth = false;
  const int status = guarded_status([&] {
    const Scalar value = element_of(meta_of(self), "bool");
    truth = value.integer != 0 || value.real != 0.0 || value.imaginary != 0.0;
  });
  return status < 0 ? -1 : static_cast<int>(truth);
}

PyObject* tensor_int(PyObject* self) {
  return guarded([&] {
    Scalar value = element_of(meta_of(self), "int");
    refuse_complex("int", value);
    if (value.kind == ScalarKind::kBoolean) value.kind = ScalarKind::kInteger;
    const Owned number(number_of(value));
    return Owned(PyNumber_Long(number.get())).detach();
  });
}

PyObject* tensor_float(PyObject* self) {
  return guarded([&] {
    const Scalar value = element_of(meta_of(self), "float");
    refuse_complex("float", value);
    return Owned(PyFloat_FromDouble(value.real)).detach();
  });
}

PyObject* tensor_index_value(PyObject* self) {
  return guarded([&] {
    const TensorMeta& meta = meta_of(self);
    // TypeError also for the count: callers such as bytes() then try the buffer protocol.
    if (!is_integer(meta.dtype) || meta.layout.element_count() != 1) {
      throw Error(
          ErrorKind::kType,
          std::string("index: only integer tensors of one element convert to an index, got ") +
              facts_of(meta.dtype).name + " of shape " +
              shape_text(meta.layout.shape(), meta.layout.rank()));
    }
    return number_of(element_of(meta_of(self), "index"));
  });
}

}  // namespace nbx::python
