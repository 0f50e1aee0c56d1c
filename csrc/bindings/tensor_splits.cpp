// Methods that return tuples of views.
#include <algorithm>

#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

/// A tuple of `count` tensors made by `part(i)`.
template <class Part>
PyObject* tuple_of_views(std::int64_t count, const Part& part) {
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::int64_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), wrapped(part(i)));
  }
  return tuple.detach();
}

std::int64_t axis_or_zero(const char* function, PyObject* axis, const TensorMeta& meta) {
  return normalized_axis(function, axis == nullptr ? 0 : to_integer(axis, function),
                         meta.layout.rank());
}

PyObject* unbind(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound = nullptr;
    bind_arguments("unbind", {"dim"}, 0, 1, arguments, count, names, &bound);
    const TensorMeta& meta = meta_of(self);
    const std::int64_t axis = axis_or_zero("unbind", bound, meta);
    return tuple_of_views(meta.layout.shape()[axis],
                          [&](std::int64_t i) { return select_view(meta, axis, i); });
  });
}

/// Pieces of `size` along an axis, the last one shorter; one empty piece of an empty axis.
PyObject* even_pieces(const TensorMeta& meta, std::int64_t axis, std::int64_t size) {
  const std::int64_t extent = meta.layout.shape()[axis];
  const std::int64_t pieces = size == 0 ? 1 : std::max<std::int64_t>(1, (extent + size - 1) / size);
  return tuple_of_views(pieces, [&](std::int64_t i) {
    return narrow_view(meta, axis, i * size, std::min(size, extent - i * size));
  });
}

PyObject* split(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("split", {"split_size", "dim"}, 1, 2, arguments, count, names, bound);
    const TensorMeta& meta = meta_of(self);
    const std::int64_t axis = axis_or_zero("split", bound[1], meta);
    const std::int64_t extent = meta.layout.shape()[axis];
    if (PyIndex_Check(bound[0]) != 0) {
      const std::int64_t size = to_integer(bound[0], "split: split_size");
      if (size < 0 || (size == 0 && extent != 0)) {
        throw Error(ErrorKind::kValue, "split: split_size must be positive, got " +
                                           std::to_string(size) + " for an axis of size " +
                                           std::to_string(extent));
      }
      return even_pieces(meta, axis, size);
    }
    const Owned sizes(PySequence_Tuple(bound[0]));
    const Py_ssize_t pieces = PyTuple_GET_SIZE(sizes.get());
    std::int64_t total = 0;
    for (Py_ssize_t i = 0; i < pieces; ++i) {
      const std::int64_t size = to_integer(PyTuple_GET_ITEM(sizes.get(), i), "split: split_size");
      if (size < 0 || __builtin_add_overflow(total, size, &total)) total = extent + 1;
    }
    if (total != extent) {
      PyErr_Format(PyExc_ValueError, "split: sizes %R must be 0 or more and add up to %lld",
                   sizes.get(), static_cast<long long>(extent));
      throw PythonError{};
    }
    std::int64_t start = 0;
    return tuple_of_views(pieces, [&](std::int64_t i) {
      const std::int64_t size =
          to_integer(PyTuple_GET_ITEM(sizes.get(), static_cast<Py_ssize_t>(i)), "split");
      start += size;
      return narrow_view(meta, axis, start - size, size);
    });
  });
}

PyObject* chunk(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("chunk", {"chunks", "dim"}, 1, 2, arguments, count, names, bound);
    const TensorMeta& meta = meta_of(self);
    const std::int64_t axis = axis_or_zero("chunk", bound[1], meta);
    const std::int64_t chunks = to_integer(bound[0], "chunk: chunks");
    if (chunks < 1) {
      throw Error(ErrorKind::kValue,
                  "chunk: chunks must be 1 or more, got " + std::to_string(chunks));
    }
    const std::int64_t extent = meta.layout.shape()[axis];
    return even_pieces(meta, axis, extent == 0 ? 0 : (extent - 1) / chunks + 1);
  });
}

const PyMethodDef kMethods[] = {
    method("unbind", &unbind, "A tuple of views, one for each index of an axis."),
    method("split", &split, "A tuple of views: pieces of one size, or of the sizes listed."),
    method("chunk", &chunk, "A tuple of at most `chunks` views of equal size."),
};

}  // namespace

MethodTable split_methods() { return {kMethods, std::size(kMethods)}; }

}  // namespace nbx::python
