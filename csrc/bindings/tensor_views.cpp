// Methods that return views: metadata only, one C call each.
#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

void no_keywords(const char* function, PyObject* keyword_names) {
  if (keyword_names == nullptr || PyTuple_GET_SIZE(keyword_names) == 0) return;
  PyErr_Format(PyExc_TypeError, "%s: takes no keyword arguments, got %R", function, keyword_names);
  throw PythonError{};
}

Extents shape_of(const TensorMeta& meta) {
  Extents shape;
  for (std::int32_t i = 0; i < meta.layout.rank(); ++i) shape.push(meta.layout.shape()[i]);
  return shape;
}

PyObject* viewed(const TensorMeta& meta, const Extents& wanted) {
  const Extents shape = resolved_shape(meta, wanted);
  TensorMeta view;
  if (!try_reshape_view(meta, shape, &view)) {
    throw Error(ErrorKind::kValue,
                "view: shape " + shape_text(meta.layout.shape(), meta.layout.rank()) +
                    " with strides " + shape_text(meta.layout.strides(), meta.layout.rank()) +
                    " cannot become " + shape_text(shape.values, shape.count) +
                    " without moving elements; use reshape()");
  }
  return wrapped(std::move(view));
}

PyObject* reshaped(const TensorMeta& meta, const Extents& wanted) {
  const Extents shape = resolved_shape(meta, wanted);
  TensorMeta view;
  if (try_reshape_view(meta, shape, &view)) return wrapped(std::move(view));
  const TensorMeta copy = contiguous(meta);
  static_cast<void>(try_reshape_view(copy, shape, &view));
  return wrapped(std::move(view));
}

PyObject* view(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    if (count == 0 && names != nullptr && PyTuple_GET_SIZE(names) == 1) {
      PyObject* dtype = nullptr;
      bind_arguments("view", {"dtype"}, 1, 0, arguments, count, names, &dtype);
      return wrapped(retyped_view(meta_of(self), to_dtype(dtype)));
    }
    no_keywords("view", names);
    if (count == 1 && PyIndex_Check(arguments[0]) == 0 && !PyTuple_Check(arguments[0]) &&
        !PyList_Check(arguments[0])) {
      return wrapped(retyped_view(meta_of(self), to_dtype(arguments[0])));
    }
    return viewed(meta_of(self), to_extents(arguments, count, "view: shape"));
  });
}

PyObject* reshape(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    no_keywords("reshape", names);
    return reshaped(meta_of(self), to_extents(arguments, count, "reshape: shape"));
  });
}

PyObject* view_as(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* other = nullptr;
    bind_arguments("view_as", {"other"}, 1, 1, arguments, count, names, &other);
    return viewed(meta_of(self), shape_of(to_tensor(other, "view_as")));
  });
}

PyObject* reshape_as(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* other = nullptr;
    bind_arguments("reshape_as", {"other"}, 1, 1, arguments, count, names, &other);
    return reshaped(meta_of(self), shape_of(to_tensor(other, "reshape_as")));
  });
}

PyObject* permute(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    no_keywords("permute", names);
    return wrapped(permute_view(meta_of(self), to_extents(arguments, count, "permute: axes")));
  });
}

PyObject* transpose(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* axes[2];
    bind_arguments("transpose", {"dim0", "dim1"}, 2, 2, arguments, count, names, axes);
    return wrapped(transpose_view(meta_of(self), to_integer(axes[0], "transpose: dim0"),
                                  to_integer(axes[1], "transpose: dim1")));
  });
}

PyObject* transpose_matrix(PyObject* self, FastArguments arguments, Py_ssize_t count,
                           PyObject* names) {
  return guarded([&] {
    bind_arguments("t", {}, 0, 0, arguments, count, names, nullptr);
    const TensorMeta& meta = meta_of(self);
    if (meta.layout.rank() > 2) {
      throw Error(ErrorKind::kValue, "t: expected at most 2 axes, shape is " +
                                         shape_text(meta.layout.shape(), meta.layout.rank()) +
                                         "; use mT or permute()");
    }
    return wrapped(meta.layout.rank() < 2 ? TensorMeta(meta) : transpose_view(meta, 0, 1));
  });
}

PyObject* movedim(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("movedim", {"source", "destination"}, 2, 2, arguments, count, names, bound);
    return wrapped(move_view(meta_of(self), to_extents(bound[0], "movedim: source"),
                             to_extents(bound[1], "movedim: destination")));
  });
}

PyObject* unsqueeze(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* axis = nullptr;
    bind_arguments("unsqueeze", {"dim"}, 1, 1, arguments, count, names, &axis);
    return wrapped(unsqueeze_view(meta_of(self), to_integer(axis, "unsqueeze: dim")));
  });
}

PyObject* squeeze(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* axes = nullptr;
    bind_arguments("squeeze", {"dim"}, 0, 1, arguments, count, names, &axes);
    if (axes == nullptr || axes == Py_None) {
      return wrapped(squeeze_view(meta_of(self), nullptr, false));
    }
    const Extents dropped = to_extents(axes, "squeeze: dim");
    return wrapped(squeeze_view(meta_of(self), &dropped, false));
  });
}

PyObject* expand(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    no_keywords("expand", names);
    return wrapped(expand_view(meta_of(self), to_extents(arguments, count, "expand: shape")));
  });
}

PyObject* expand_as(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* other = nullptr;
    bind_arguments("expand_as", {"other"}, 1, 1, arguments, count, names, &other);
    return wrapped(expand_view(meta_of(self), shape_of(to_tensor(other, "expand_as"))));
  });
}

PyObject* narrow(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("narrow", {"dim", "start", "length"}, 3, 3, arguments, count, names, bound);
    return wrapped(narrow_view(meta_of(self), to_integer(bound[0], "narrow: dim"),
                               to_integer(bound[1], "narrow: start"),
                               to_integer(bound[2], "narrow: length")));
  });
}

PyObject* select(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("select", {"dim", "index"}, 2, 2, arguments, count, names, bound);
    return wrapped(select_view(meta_of(self), to_integer(bound[0], "select: dim"),
                               to_integer(bound[1], "select: index")));
  });
}

PyObject* flatten(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("flatten", {"start_dim", "end_dim"}, 0, 2, arguments, count, names, bound);
    const TensorMeta& meta = meta_of(self);
    const std::int64_t first = bound[0] == nullptr ? 0 : to_integer(bound[0], "flatten: start_dim");
    const std::int64_t last = bound[1] == nullptr ? -1 : to_integer(bound[1], "flatten: end_dim");
    return reshaped(meta, flattened_shape(meta, first, last));
  });
}

PyObject* unflatten(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("unflatten", {"dim", "sizes"}, 2, 2, arguments, count, names, bound);
    const TensorMeta& meta = meta_of(self);
    return viewed(meta, unflattened_shape(meta, to_integer(bound[0], "unflatten: dim"),
                                          to_extents(bound[1], "unflatten: sizes")));
  });
}

PyObject* as_strided(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("as_strided", {"size", "stride", "storage_offset"}, 2, 3, arguments, count,
                   names, bound);
    const TensorMeta& meta = meta_of(self);
    DeviceAddress origin = meta.data;
    if (bound[2] != nullptr && bound[2] != Py_None) {
      const std::int64_t offset = to_integer(bound[2], "as_strided: storage_offset");
      std::int64_t bytes = 0;
      if (__builtin_mul_overflow(offset, itemsize_of(meta.dtype), &bytes)) {
        throw Error(ErrorKind::kOverflow, "as_strided: storage_offset " + std::to_string(offset) +
                                              " exceeds 2^63 - 1 bytes");
      }
      origin = meta.storage->address() + static_cast<DeviceAddress>(bytes);
    }
    return wrapped(as_strided_view(meta, to_extents(bound[0], "as_strided: size"),
                                   to_extents(bound[1], "as_strided: stride"), origin));
  });
}

PyObject* diagonal(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("diagonal", {"offset", "dim1", "dim2"}, 0, 3, arguments, count, names, bound);
    const auto value = [&](int i, const char* name, std::int64_t fallback) {
      return bound[i] == nullptr ? fallback : to_integer(bound[i], name);
    };
    return wrapped(diagonal_view(meta_of(self), value(0, "diagonal: offset", 0),
                                 value(1, "diagonal: dim1", 0), value(2, "diagonal: dim2", 1)));
  });
}

PyObject* unfold(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("unfold", {"dimension", "size", "step"}, 3, 3, arguments, count, names, bound);
    return wrapped(unfold_view(meta_of(self), to_integer(bound[0], "unfold: dimension"),
                               to_integer(bound[1], "unfold: size"),
                               to_integer(bound[2], "unfold: step")));
  });
}

PyObject* flip(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    no_keywords("flip", names);
    if (count == 0) return wrapped(flip_view(meta_of(self), nullptr));
    const Extents axes = to_extents(arguments, count, "flip: dims");
    return wrapped(flip_view(meta_of(self), &axes));
  });
}

PyObject* view_as_real(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("view_as_real", {}, 0, 0, arguments, count, names, nullptr);
    return wrapped(real_pairs_view(meta_of(self)));
  });
}

PyObject* view_as_complex(PyObject* self, FastArguments arguments, Py_ssize_t count,
                          PyObject* names) {
  return guarded([&] {
    bind_arguments("view_as_complex", {}, 0, 0, arguments, count, names, nullptr);
    return wrapped(complex_view(meta_of(self)));
  });
}

PyObject* detach(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    bind_arguments("detach", {}, 0, 0, arguments, count, names, nullptr);
    return wrapped(TensorMeta(meta_of(self)));
  });
}

const PyMethodDef kMethods[] = {
    method("view", &view,
           "Another shape of the same memory, or the same bytes as another dtype. Refuses what "
           "needs a copy."),
    method("reshape", &reshape, "Another shape; a view where strides allow, else a copy."),
    method("view_as", &view_as, "`view` with the shape of another tensor."),
    method("reshape_as", &reshape_as, "`reshape` with the shape of another tensor."),
    method("permute", &permute, "A view with the axes in the given order."),
    method("permute_dims", &permute, "A view with the axes in the given order."),
    method("transpose", &transpose, "A view with two axes exchanged."),
    method("swapaxes", &transpose, "A view with two axes exchanged."),
    method("t", &transpose_matrix, "The transposed matrix; a view."),
    method("movedim", &movedim, "A view with axes moved to other places."),
    method("moveaxis", &movedim, "A view with axes moved to other places."),
    method("unsqueeze", &unsqueeze, "A view with an axis of size 1 inserted."),
    method("squeeze", &squeeze, "A view without axes of size 1 (all, or those named)."),
    method("expand", &expand, "A view broadcast to a shape; -1 keeps a size."),
    method("broadcast_to", &expand, "A view broadcast to a shape; -1 keeps a size."),
    method("expand_as", &expand_as, "A view broadcast to the shape of another tensor."),
    method("narrow", &narrow, "A view of `length` elements of an axis from `start` on."),
    method("select", &select, "A view of one index of an axis, without that axis."),
    method("flatten", &flatten, "Axes `start_dim` to `end_dim` merged into one."),
    method("unflatten", &unflatten, "A view with one axis split into several."),
    method("as_strided", &as_strided, "A view by shape and strides, checked against the storage."),
    method("diagonal", &diagonal, "A view of a diagonal, as the last axis."),
    method("unfold", &unfold, "A view of all windows of an axis, as a new last axis."),
    method("flip", &flip, "A view reversed along axes (all by default)."),
    method("view_as_real", &view_as_real, "Complex as real with a last axis of size 2; a view."),
    method("view_as_complex", &view_as_complex, "Pairs of reals as complex; a view."),
    method("detach", &detach, "A new tensor object over the same memory."),
};

}  // namespace

MethodTable view_methods() { return {kMethods, std::size(kMethods)}; }

PyObject* get_transposed(PyObject* self, void*) {
  return guarded([&] {
    const TensorMeta& meta = meta_of(self);
    if (meta.layout.rank() != 2) {
      throw Error(ErrorKind::kValue, "T: expected a matrix, shape is " +
                                         shape_text(meta.layout.shape(), meta.layout.rank()) +
                                         "; use mT or permute()");
    }
    return wrapped(transpose_view(meta, 0, 1));
  });
}

PyObject* get_matrix_transposed(PyObject* self, void*) {
  return guarded([&] {
    const TensorMeta& meta = meta_of(self);
    if (meta.layout.rank() < 2) {
      throw Error(ErrorKind::kValue, "mT: expected 2 or more axes, shape is " +
                                         shape_text(meta.layout.shape(), meta.layout.rank()));
    }
    return wrapped(transpose_view(meta, -2, -1));
  });
}

PyObject* get_real(PyObject* self, void*) {
  if (!is_complex(meta_of(self).dtype)) return Py_NewRef(self);
  return guarded([&] { return wrapped(complex_part_view(meta_of(self), 0)); });
}

PyObject* get_imag(PyObject* self, void*) {
  return guarded([&] { return wrapped(complex_part_view(meta_of(self), 1)); });
}

}  // namespace nbx::python
