// Indexing with NumPy's rules: x[key] and x[key] = value.
#include <vector>

#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"
#include "cpu/index.h"
#include "storage/transfer.h"

namespace nbx::python {
namespace {

enum class ItemKind : std::uint8_t { kInteger, kSlice, kNone, kEllipsis, kBoolean, kArray, kMask };

/// One item of a key: what it is and how many axes it takes.
struct Item {
  ItemKind kind;
  std::int32_t axes;
  std::uint32_t array;  // number among the key's arrays
  PyObject* object;
};

/// One index tensor: int64 positions along an axis of the intermediate view.
struct Advanced {
  std::int32_t view_axis;
  std::int64_t named_axis;  // in the indexed tensor, for messages
  TensorMeta indices;
};

/// A parsed key: a basic view, and the axes of it that arrays index.
struct Parsed {
  TensorMeta view;
  std::vector<Advanced> advanced;
  std::int32_t position = 0;  // where the arrays' axes go in the result
};

struct Key {
  Item items[2 * kMaximumRank];
  std::int32_t count = 0;
  std::int32_t consumed = 0;  // axes that the items take, the Ellipsis aside
  bool has_ellipsis = false;
  bool has_arrays = false;
  std::vector<Owned> arrays;
};

void classify_array(PyObject* object, Device& device, Key* key, Item* item) {
  if (!is_tensor(object)) {
    const Owned converted(
        PyObject_CallFunctionObjArgs(hooks.index_tensor, object, device_object(device), nullptr));
    classify_array(converted.get(), device, key, item);
    return;
  }
  const TensorMeta& meta = meta_of(object);
  if (meta.dtype == DType::bool_) {
    item->axes = meta.layout.rank();
    item->kind = item->axes == 0 ? ItemKind::kBoolean : ItemKind::kMask;
    if (item->kind == ItemKind::kBoolean) {
      item->object = element_of(meta, "index").integer != 0 ? Py_True : Py_False;
    }
  } else if (is_integer(meta.dtype)) {
    item->axes = 1;
    item->kind = meta.layout.rank() == 0 ? ItemKind::kInteger : ItemKind::kArray;
  } else {
    throw Error(ErrorKind::kIndex, std::string("index: tensors used as indices must be of integer "
                                               "or boolean dtype, got ") +
                                       facts_of(meta.dtype).name);
  }
  if (item->kind == ItemKind::kBoolean) {
    key->has_arrays = true;
    return;
  }
  item->array = static_cast<std::uint32_t>(key->arrays.size());
  item->object = object;
  key->arrays.emplace_back(Py_NewRef(object));
  key->has_arrays = key->has_arrays || item->kind != ItemKind::kInteger;
}

void add_item(PyObject* object, Device& device, Key* key) {
  if (key->count == 2 * kMaximumRank) {
    throw Error(ErrorKind::kIndex,
                "index: more than " + std::to_string(2 * kMaximumRank) + " items in one key");
  }
  Item item{ItemKind::kInteger, 1, 0, object};
  if (PyBool_Check(object)) {
    item.kind = ItemKind::kBoolean;
    item.axes = 0;
    key->has_arrays = true;
  } else if (PyLong_Check(object)) {
    // An integer, as set above.
  } else if (PySlice_Check(object)) {
    item.kind = ItemKind::kSlice;
  } else if (object == Py_None) {
    item.kind = ItemKind::kNone;
    item.axes = 0;
  } else if (object == Py_Ellipsis) {
    if (key->has_ellipsis) {
      throw Error(ErrorKind::kIndex, "index: only one Ellipsis ('...') is allowed in a key");
    }
    key->has_ellipsis = true;
    item.kind = ItemKind::kEllipsis;
    item.axes = 0;
  } else if (is_tensor(object) || PyIndex_Check(object) == 0 || PySequence_Check(object) != 0) {
    classify_array(object, device, key, &item);
  }
  key->consumed += item.axes;
  key->items[key->count++] = item;
}

void read_key(const TensorMeta& meta, PyObject* object, Key* key) {
  Device& device = meta.device();
  if (PyTuple_Check(object)) {
    const Py_ssize_t count = PyTuple_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < count; ++i) add_item(PyTuple_GET_ITEM(object, i), device, key);
  } else {
    add_item(object, device, key);
  }
  if (key->consumed > meta.layout.rank()) {
    throw Error(ErrorKind::kIndex, "index: too many indices: the tensor has " +
                                       std::to_string(meta.layout.rank()) + " axes, but " +
                                       std::to_string(key->consumed) + " were indexed");
  }
}

/// The view that basic items make, built from left to right.
class Builder {
 public:
  explicit Builder(const TensorMeta& base) : base_(base) {}

  void integer(std::int64_t index) {
    const std::int64_t extent = base_.layout.shape()[axis_];
    const std::int64_t at = index < 0 ? index + extent : index;
    if (at < 0 || at >= extent) {
      throw Error(ErrorKind::kIndex, "index " + std::to_string(index) +
                                         " is out of bounds for axis " + std::to_string(axis_) +
                                         " with size " + std::to_string(extent))
          .with("index", index)
          .with("axis", std::int64_t{axis_})
          .with("size", extent);
    }
    offset_ += at * base_.layout.strides()[axis_++];
  }

  void slice(PyObject* object) {
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    if (PySlice_Unpack(object, &start, &stop, &step) < 0) throw PythonError{};
    const std::int64_t extent = base_.layout.shape()[axis_];
    const Py_ssize_t length = PySlice_AdjustIndices(extent, &start, &stop, step);
    const std::int64_t stride = base_.layout.strides()[axis_++];
    if (length > 0) offset_ += start * stride;
    push(length, length > 1 ? stride * step : stride);
  }

  void insert() { push(1, 0); }

  void keep() {
    push(base_.layout.shape()[axis_], base_.layout.strides()[axis_]);
    ++axis_;
  }

  [[nodiscard]] std::int32_t axis() const noexcept { return axis_; }
  [[nodiscard]] std::int32_t rank() const noexcept { return shape_.count; }
  [[nodiscard]] std::int32_t left() const noexcept { return base_.layout.rank() - axis_; }
  [[nodiscard]] TensorMeta finish() {
    while (left() > 0) keep();
    return window(base_, Layout(shape_.values, strides_.values, shape_.count), offset_);
  }

 private:
  void push(std::int64_t extent, std::int64_t stride) {
    shape_.push(extent);
    strides_.push(stride);
  }
  const TensorMeta& base_;
  std::int32_t axis_ = 0;
  std::int64_t offset_ = 0;
  Extents shape_;
  Extents strides_;
};

/// The coordinates of a mask's true elements, one index tensor an axis.
void append_mask(const TensorMeta& base, const TensorMeta& mask, Builder* builder,
                 std::vector<Advanced>* advanced) {
  const std::int32_t rank = mask.layout.rank();
  for (std::int32_t i = 0; i < rank; ++i) {
    const std::int64_t extent = base.layout.shape()[builder->axis() + i];
    // An extent of 0 selects nothing from an axis of any extent, as in NumPy.
    if (mask.layout.shape()[i] != extent && mask.layout.shape()[i] != 0) {
      throw Error(ErrorKind::kIndex,
                  "index: a mask of shape " + shape_text(mask.layout.shape(), rank) +
                      " does not match axis " + std::to_string(builder->axis() + i) +
                      " with size " + std::to_string(extent));
    }
  }
  const TensorMeta host = readable(mask);
  const std::int64_t found = cpu::count_nonzero(host.view());
  const std::int64_t shape[] = {rank, found};
  TensorMeta coordinates = empty_tensor(host.storage->memory(), DType::int64, shape, 2);
  TensorMeta source = host;
  TensorMeta* const tensors[] = {&coordinates, &source};
  static const NamedKernel kernel = required_kernel("index:nonzero");
  run_on_device(kernel, tensors, 2, nullptr, 0, bytes_of(DType::bool_, found));
  const TensorMeta there = converted(coordinates, DType::int64, base.device(), false);
  for (std::int32_t i = 0; i < rank; ++i) {
    advanced->push_back({builder->rank(), builder->axis(), select_view(there, 0, i)});
    builder->keep();
  }
}

/// A boolean adds an axis of size 1 and takes it once (true) or not at all (false).
void append_boolean(const TensorMeta& base, bool value, Builder* builder,
                    std::vector<Advanced>* advanced) {
  const std::int64_t shape[] = {value ? 1 : 0};
  TensorMeta indices = empty_tensor(base.storage->memory(), DType::int64, shape, 1);
  Scalar zero;
  zero.kind = ScalarKind::kInteger;
  fill("index", indices, zero);
  advanced->push_back({builder->rank(), builder->axis(), std::move(indices)});
  builder->insert();
}

std::int64_t integer_of(const Item& item) {
  if (PyLong_Check(item.object) == 0) return to_integer(item.object, "index");
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(item.object, &overflow);
  if (overflow != 0) {
    PyErr_Format(PyExc_IndexError, "index %R does not fit in 64 bits", item.object);
    throw PythonError{};
  }
  return value;
}

Parsed parse(const TensorMeta& base, PyObject* object) {
  Key key;
  read_key(base, object, &key);
  Parsed parsed;
  Builder builder(base);
  // Arrays' axes go where the arrays stand if nothing but integers lies between them, else first.
  enum { kNone, kOpen, kClosed, kSplit } run = kNone;
  for (std::int32_t i = 0; i < key.count; ++i) {
    const Item& item = key.items[i];
    const bool is_advanced = item.kind == ItemKind::kInteger || item.kind >= ItemKind::kBoolean;
    if (is_advanced && run == kNone) {
      parsed.position = builder.rank();
      run = kOpen;
    } else if (is_advanced && run == kClosed) {
      parsed.position = 0;
      run = kSplit;
    } else if (!is_advanced && run == kOpen) {
      run = kClosed;
    }
    switch (item.kind) {
      case ItemKind::kInteger:
        builder.integer(integer_of(item));
        break;
      case ItemKind::kSlice:
        builder.slice(item.object);
        break;
      case ItemKind::kNone:
        builder.insert();
        break;
      case ItemKind::kEllipsis:
        for (std::int32_t left = base.layout.rank() - key.consumed; left > 0; --left) {
          builder.keep();
        }
        break;
      case ItemKind::kBoolean:
        append_boolean(base, item.object == Py_True, &builder, &parsed.advanced);
        break;
      case ItemKind::kMask:
        append_mask(base, meta_of(key.arrays[item.array].get()), &builder, &parsed.advanced);
        break;
      case ItemKind::kArray: {
        const TensorMeta& indices = meta_of(key.arrays[item.array].get());
        parsed.advanced.push_back({builder.rank(), builder.axis(),
                                   converted(indices, DType::int64, base.device(), false)});
        builder.keep();
        break;
      }
    }
  }
  parsed.view = builder.finish();
  return parsed;
}

/// Everything the kernels need: index tensors of one shape, the indexed axes in front.
struct Prepared {
  TensorMeta view;
  std::vector<TensorMeta> indices;
  std::vector<Scalar> scalars;
  Extents shape;    // of the result
  Extents forward;  // axes of the result in the kernel's order: arrays' first
};

Scalar integer_scalar(std::int64_t value) noexcept {
  Scalar scalar;
  scalar.kind = ScalarKind::kInteger;
  scalar.integer = value;
  scalar.real = static_cast<double>(value);
  return scalar;
}

Extents broadcast_shape(const std::vector<Advanced>& advanced) {
  Extents shape;
  for (const Advanced& part : advanced) {
    const Layout& layout = part.indices.layout;
    while (shape.count < layout.rank()) {
      for (std::int32_t i = shape.count; i > 0; --i) shape.values[i] = shape.values[i - 1];
      shape.values[0] = 1;
      ++shape.count;
    }
    for (std::int32_t i = 0; i < layout.rank(); ++i) {
      std::int64_t& extent = shape.values[shape.count - layout.rank() + i];
      if (extent == 1) {
        extent = layout.shape()[i];
      } else if (layout.shape()[i] != 1 && layout.shape()[i] != extent) {
        std::string shapes;
        for (const Advanced& each : advanced) {
          shapes += " " + shape_text(each.indices.layout.shape(), each.indices.layout.rank());
        }
        throw Error(ErrorKind::kIndex,
                    "index: index arrays could not be broadcast together with shapes" + shapes);
      }
    }
  }
  return shape;
}

Prepared prepare(const Parsed& parsed) {
  Prepared prepared;
  const Extents index_shape = broadcast_shape(parsed.advanced);
  Extents order;
  bool taken[kMaximumRank] = {};
  prepared.scalars.push_back(integer_scalar(static_cast<std::int64_t>(parsed.advanced.size())));
  for (const Advanced& part : parsed.advanced) {
    order.push(part.view_axis);
    taken[part.view_axis] = true;
    prepared.scalars.push_back(integer_scalar(part.named_axis));
    prepared.indices.push_back(expand_view(part.indices, index_shape));
  }
  Extents rest;
  for (std::int32_t i = 0; i < parsed.view.layout.rank(); ++i) {
    if (taken[i]) continue;
    order.push(i);
    rest.push(parsed.view.layout.shape()[i]);
  }
  prepared.view = permute_view(parsed.view, order);
  for (std::int32_t i = 0; i < index_shape.count; ++i) {
    prepared.forward.push(parsed.position + i);
  }
  for (std::int32_t i = 0; i < parsed.position; ++i) {
    prepared.shape.push(rest.values[i]);
    prepared.forward.push(i);
  }
  for (std::int32_t i = 0; i < index_shape.count; ++i) prepared.shape.push(index_shape.values[i]);
  for (std::int32_t i = parsed.position; i < rest.count; ++i) {
    prepared.shape.push(rest.values[i]);
    prepared.forward.push(index_shape.count + i);
  }
  return prepared;
}

void run_indexed(const NamedKernel& kernel, TensorMeta& first, TensorMeta& second,
                 Prepared* prepared) {
  std::vector<TensorMeta*> tensors{&first, &second};
  for (TensorMeta& indices : prepared->indices) tensors.push_back(&indices);
  run_on_device(kernel, tensors.data(), tensors.size(), prepared->scalars.data(),
                prepared->scalars.size(), bytes_of(first.dtype, second.layout.element_count()));
}

PyObject* take(const Parsed& parsed) {
  Prepared prepared = prepare(parsed);
  TensorMeta result = empty_tensor(parsed.view.storage->memory(), parsed.view.dtype,
                                   prepared.shape.values, prepared.shape.count);
  TensorMeta target = permute_view(result, prepared.forward);
  static const NamedKernel kernel = required_kernel("index:take");
  run_indexed(kernel, target, prepared.view, &prepared);
  return wrapped(std::move(result));
}

/// The value as a tensor of the destination's device; numbers become one element of its dtype.
TensorMeta value_tensor(const TensorMeta& destination, PyObject* value) {
  if (is_tensor(value)) return meta_of(value);
  if (is_number(value)) {
    TensorMeta one = empty_tensor(destination.storage->memory(), destination.dtype, nullptr, 0);
    fill("assignment", one, to_scalar(value, "assignment"));
    return one;
  }
  const Owned converted(PyObject_CallFunctionObjArgs(hooks.as_tensor, value,
                                                     device_object(destination.device()),
                                                     dtype_object(destination.dtype), nullptr));
  return to_tensor(converted.get(), "assignment");
}

void put(const Parsed& parsed, PyObject* value) {
  require_writable("assignment", parsed.view);
  Prepared prepared = prepare(parsed);
  const TensorMeta given = value_tensor(parsed.view, value);
  TensorMeta source =
      converted(given, parsed.view.dtype, parsed.view.device(), may_overlap(given, parsed.view));
  while (source.layout.rank() > prepared.shape.count && source.layout.shape()[0] == 1) {
    source = select_view(source, 0, 0);
  }
  source = permute_view(expand_view(source, prepared.shape), prepared.forward);
  for (TensorMeta& indices : prepared.indices) {
    if (may_overlap(indices, parsed.view)) indices = cloned(indices);
  }
  static const NamedKernel kernel = required_kernel("index:put");
  run_indexed(kernel, prepared.view, source, &prepared);
}

}  // namespace

PyObject* tensor_subscript(PyObject* self, PyObject* key) {
  return guarded([&]() -> PyObject* {
    const TensorMeta& meta = meta_of(self);
    if (PyLong_CheckExact(key) && meta.layout.rank() > 0) {
      return wrapped(select_view(meta, 0, integer_of({ItemKind::kInteger, 1, 0, key})));
    }
    if (PySlice_Check(key) && meta.layout.rank() > 0) {
      Builder builder(meta);
      builder.slice(key);
      return wrapped(builder.finish());
    }
    Parsed parsed = parse(meta, key);
    if (parsed.advanced.empty()) return wrapped(std::move(parsed.view));
    return take(parsed);
  });
}

int tensor_assign_subscript(PyObject* self, PyObject* key, PyObject* value) {
  if (value == nullptr) {
    PyErr_SetString(PyExc_TypeError, "elements of a tensor cannot be deleted");
    return -1;
  }
  return guarded_status([&] {
    Parsed parsed = parse(meta_of(self), key);
    if (!parsed.advanced.empty()) {
      put(parsed, value);
    } else if (is_number(value)) {
      fill("assignment", parsed.view, to_scalar(value, "assignment"));
    } else {
      assign("assignment", parsed.view, value_tensor(parsed.view, value));
    }
  });
}

PyObject* tensor_item_at(PyObject* self, Py_ssize_t index) {
  return guarded([&] {
    const TensorMeta& meta = meta_of(self);
    if (meta.layout.rank() == 0) {
      throw Error(ErrorKind::kIndex, "index: a tensor without axes cannot be indexed by number");
    }
    return wrapped(select_view(meta, 0, index));
  });
}

Py_ssize_t tensor_length(PyObject* self) {
  const TensorMeta& meta = meta_of(self);
  if (meta.layout.rank() > 0) return meta.layout.shape()[0];
  PyErr_SetString(PyExc_TypeError, "len() of a tensor without axes");
  return -1;
}

PyObject* tensor_iterate(PyObject* self) {
  if (meta_of(self).layout.rank() > 0) return PySeqIter_New(self);
  PyErr_SetString(PyExc_TypeError, "iteration over a tensor without axes");
  return nullptr;
}

int tensor_contains(PyObject* self, PyObject* value) {
  bool found = false;
  const int status = guarded_status([&] {
    const Scalar wanted = to_scalar(value, "in");
    const Owned number(number_of(wanted));
    const TensorMeta host = readable(meta_of(self));
    const auto* data = reinterpret_cast<const std::byte*>(host.data);
    const std::int64_t count = host.layout.element_count();
    for (std::int64_t i = 0; i < count && !found; ++i) {
      const Scalar element = load_element(host.dtype, data, i);
      // Close values are compared exactly, as Python compares integers with floats.
      if (element.real != wanted.real || element.imaginary != wanted.imaginary) continue;
      const Owned other(number_of(element));
      const int equal = PyObject_RichCompareBool(other.get(), number.get(), Py_EQ);
      if (equal < 0) throw PythonError{};
      found = equal != 0;
    }
  });
  return status < 0 ? -1 : static_cast<int>(found);
}

}  // namespace nbx::python
