// Binding of a call's arguments to an op's parameters, and the key of its layouts and dtypes.
#include <pybind11/pybind11.h>

#include <algorithm>

#include "bindings/op.h"
#include "bindings/tensor_copy.h"

namespace py = pybind11;

namespace nbx::python {

bool scalar_from_number(PyObject* number, Scalar* scalar) noexcept {
  if (PyBool_Check(number)) {
    scalar->kind = ScalarKind::kBoolean;
    scalar->integer = number == Py_True ? 1 : 0;
    scalar->real = static_cast<double>(scalar->integer);
    return true;
  }
  if (PyFloat_Check(number)) {
    scalar->kind = ScalarKind::kReal;
    scalar->real = PyFloat_AS_DOUBLE(number);
    return true;
  }
  if (PyLong_Check(number)) {
    scalar->kind = ScalarKind::kInteger;
    int overflow = 0;
    scalar->integer = PyLong_AsLongLongAndOverflow(number, &overflow);
    scalar->real = static_cast<double>(scalar->integer);
    if (overflow > 0) {
      const unsigned long long value = PyLong_AsUnsignedLongLong(number);
      if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        PyErr_Format(PyExc_OverflowError, "the integer %R does not fit in 64 bits; pass a float",
                     number);
        return false;
      }
      scalar->integer = static_cast<std::int64_t>(value);
      scalar->real = static_cast<double>(value);
      scalar->is_unsigned = true;
    } else if (overflow < 0) {
      PyErr_Format(PyExc_OverflowError, "the integer %R does not fit in 64 bits; pass a float",
                   number);
      return false;
    }
    return true;
  }
  if (PyComplex_Check(number)) {
    const Py_complex value = PyComplex_AsCComplex(number);
    scalar->kind = ScalarKind::kComplex;
    scalar->real = value.real;
    scalar->imaginary = value.imag;
    return true;
  }
  PyErr_Format(PyExc_TypeError, "expected a number, got %s", Py_TYPE(number)->tp_name);
  return false;
}

namespace {

void push_text(Key& key, const char* text, std::size_t bytes) {
  key.push_back(bytes);
  while (bytes > 0) {
    std::uint64_t word = 0;
    const std::size_t part = std::min(bytes, sizeof(word));
    std::memcpy(&word, text, part);
    key.push_back(word);
    text += part;
    bytes -= part;
  }
}

enum Tag : std::uint64_t {
  kTagNone = 1,
  kTagTensor,
  kTagList,
  kTagNumber,
  kTagBoolean,
  kTagInteger,
  kTagReal,
  kTagText,
  kTagObject,
};

bool is_number(PyObject* object) noexcept {
  return PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object);
}

/// A Python number for NumPy's scalars and anything with __index__; null without an exception if it
/// is no number.
PyObject* as_number(PyObject* object) noexcept {
  if (is_tensor(object)) return nullptr;
  PyTypeObject* type = Py_TYPE(object);
  const bool sized =
      (type->tp_as_sequence != nullptr && type->tp_as_sequence->sq_length != nullptr) ||
      (type->tp_as_mapping != nullptr && type->tp_as_mapping->mp_length != nullptr);
  const bool numeric = type->tp_as_number != nullptr && (type->tp_as_number->nb_float != nullptr ||
                                                         type->tp_as_number->nb_index != nullptr);
  if (!numeric) return nullptr;
  if (!sized || std::strncmp(type->tp_name, "numpy.", 6) == 0) {
    if (std::strcmp(type->tp_name, "numpy.ndarray") == 0) return nullptr;
    PyObject* item = PyObject_CallMethod(object, "item", nullptr);
    if (item != nullptr && is_number(item)) return item;
    Py_XDECREF(item);
    PyErr_Clear();
  }
  if (PyIndex_Check(object)) {
    PyObject* integer = PyNumber_Index(object);
    if (integer == nullptr) PyErr_Clear();
    return integer;
  }
  return nullptr;
}

bool is_named(PyObject* given, const Parameter& parameter) noexcept {
  return given == parameter.name || std::find(parameter.aliases.begin(), parameter.aliases.end(),
                                              given) != parameter.aliases.end();
}

bool reads_like(PyObject* given, const Parameter& parameter) noexcept {
  if (PyUnicode_Compare(given, parameter.name) == 0) return true;
  return std::any_of(parameter.aliases.begin(), parameter.aliases.end(),
                     [given](PyObject* alias) { return PyUnicode_Compare(given, alias) == 0; });
}

/// The parameter of this name, or how many there are. Names that were made at run time are not
/// interned.
std::size_t parameter_named(const Signature& signature, PyObject* given) noexcept {
  const auto& parameters = signature.parameters;
  for (const auto& same : {&is_named, &reads_like}) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const auto& one) { return same(given, one); });
    if (found != parameters.end()) return static_cast<std::size_t>(found - parameters.begin());
  }
  return parameters.size();
}

std::string call_form(const Signature& signature) {
  std::string text = signature.name + "(";
  for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
    if (i == signature.positional) text += i == 0 ? "*, " : ", *, ";
    if (i != 0 && i != signature.positional) text += ", ";
    text += PyUnicode_AsUTF8(signature.parameters[i].name);
  }
  return text + ")";
}

bool place_keywords(const Signature& signature, PyObject* const* arguments, PyObject* names,
                    BoundCall& call) {
  const Py_ssize_t count = PyTuple_GET_SIZE(names);
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* given = PyTuple_GET_ITEM(names, k);
    const std::size_t index = parameter_named(signature, given);
    if (index == signature.parameters.size()) {
      PyErr_Format(PyExc_TypeError, "%s: unexpected keyword argument %R; the call is %s",
                   signature.name.c_str(), given, call_form(signature).c_str());
      return false;
    }
    if (call.values[index] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s: argument '%U' was given twice", signature.name.c_str(),
                   signature.parameters[index].name);
      return false;
    }
    call.values[index] = arguments[k];
  }
  return true;
}

bool place_arguments(const Signature& signature, PyObject* const* arguments, std::size_t positional,
                     PyObject* keyword_names, BoundCall& call) {
  const std::size_t count = signature.parameters.size();
  if (positional > signature.positional) {
    PyErr_Format(
        PyExc_TypeError, "%s: takes at most %zu positional arguments, got %zu; the call is %s",
        signature.name.c_str(), signature.positional, positional, call_form(signature).c_str());
    return false;
  }
  for (std::size_t i = 0; i < positional; ++i) call.values[i] = arguments[i];
  for (std::size_t i = positional; i < count; ++i) call.values[i] = nullptr;
  if (keyword_names != nullptr &&
      !place_keywords(signature, arguments + positional, keyword_names, call)) {
    return false;
  }
  if (signature.is_reflected && count >= 2) std::swap(call.values[0], call.values[1]);
  for (std::size_t i = 0; i < count; ++i) {
    if (call.values[i] != nullptr) continue;
    call.values[i] = signature.parameters[i].default_value;
    if (call.values[i] == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s: argument '%U' is missing; the call is %s",
                   signature.name.c_str(), signature.parameters[i].name,
                   call_form(signature).c_str());
      return false;
    }
  }
  return true;
}

bool add_tensor(const Signature& signature, const Parameter& parameter, PyObject* object,
                BoundCall& call) {
  TensorMeta& meta = meta_of(object);
  DeviceMemory& memory = meta.storage->memory();
  if (call.memory == nullptr) {
    call.memory = &memory;
  } else if (call.memory != &memory) {
    PyErr_Format(PyExc_ValueError,
                 "%s: argument '%U' is on %s, expected %s as the arguments before it; "
                 "move it with .to(device)",
                 signature.name.c_str(), parameter.name, memory.device.name().c_str(),
                 call.memory->device.name().c_str());
    return false;
  }
  call.tensors.push_back(&meta);
  call.objects.push_back(object);
  return true;
}

/// True with the tensor, number or None placed; `foreign` when it is neither.
BindResult add_operand(const Signature& signature, std::size_t index, BoundCall& call) {
  const Parameter& parameter = signature.parameters[index];
  PyObject*& value = call.values[index];
  const ParameterKind kind = parameter.kind;
  if (is_tensor(value)) {
    if (kind == ParameterKind::kScalar) {
      PyErr_Format(PyExc_TypeError,
                   "%s: argument '%U' must be a number, got a tensor; pass its item()",
                   signature.name.c_str(), parameter.name);
      return BindResult::kFailed;
    }
    return add_tensor(signature, parameter, value, call) ? BindResult::kBound : BindResult::kFailed;
  }
  if (value == Py_None) {
    if (kind == ParameterKind::kScalar) call.scalars.push_back(Scalar{});
    const bool optional = kind == ParameterKind::kWritten && parameter.default_value == Py_None;
    const bool allowed = optional || kind == ParameterKind::kScalar ||
                         kind == ParameterKind::kOptionalTensor ||
                         kind == ParameterKind::kOptionalOperand;
    return allowed ? BindResult::kBound : BindResult::kForeign;
  }
  if (kind == ParameterKind::kTensor || kind == ParameterKind::kOptionalTensor ||
      kind == ParameterKind::kWritten) {
    return BindResult::kForeign;
  }
  if (!is_number(value)) {
    PyObject* number = as_number(value);
    if (number == nullptr) return BindResult::kForeign;
    call.owned.push_back(number);
    value = number;
  }
  Scalar scalar;
  if (!scalar_from_number(value, &scalar)) {
    PyErr_Clear();
    PyErr_Format(PyExc_OverflowError, "%s: argument '%U' is %R, which does not fit in 64 bits",
                 signature.name.c_str(), parameter.name, value);
    return BindResult::kFailed;
  }
  call.scalars.push_back(scalar);
  return BindResult::kBound;
}

bool add_list(const Signature& signature, std::size_t index, BoundCall& call) {
  const Parameter& parameter = signature.parameters[index];
  PyObject* value = call.values[index];
  if (!PyList_Check(value) && !PyTuple_Check(value)) {
    PyErr_Format(PyExc_TypeError, "%s: argument '%U' must be a list or tuple of tensors, got %s",
                 signature.name.c_str(), parameter.name, Py_TYPE(value)->tp_name);
    return false;
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(value, i);
    if (!is_tensor(item)) {
      PyErr_Format(PyExc_TypeError, "%s: item %zd of '%U' must be a tensor, got %s",
                   signature.name.c_str(), i, parameter.name, Py_TYPE(item)->tp_name);
      return false;
    }
    if (!add_tensor(signature, parameter, item, call)) return false;
  }
  return true;
}

void push_tensor(const TensorMeta& meta, Key& key) {
  // Compiled kernels load more at once from aligned memory; the host's do not care.
  const bool compiled = !meta.storage->memory().device.properties().integrated_work;
  const std::uint64_t aligned = compiled && (meta.data & 15) == 0 ? 1 : 0;
  const auto rank = static_cast<std::uint64_t>(meta.layout.rank());
  key.push_back(kTagTensor | static_cast<std::uint64_t>(meta.dtype) << 8 | rank << 16 |
                aligned << 32 | static_cast<std::uint64_t>(meta.conjugate) << 33);
  key.append(meta.layout.shape(), 2 * static_cast<std::size_t>(rank));
}

bool push_static(const Signature& signature, const Parameter& parameter, PyObject* value,
                 Key& key) {
  if (value == Py_None) {
    key.push_back(kTagNone);
  } else if (PyBool_Check(value)) {
    key.push_back(kTagBoolean | (value == Py_True ? 256u : 0u));
  } else if (PyLong_Check(value)) {
    const long long integer = PyLong_AsLongLong(value);
    if (integer == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Format(PyExc_OverflowError, "%s: argument '%U' must fit in 64 bits, got %R",
                   signature.name.c_str(), parameter.name, value);
      return false;
    }
    key.push_back(kTagInteger);
    key.push_back(static_cast<std::uint64_t>(integer));
  } else if (PyFloat_Check(value)) {
    const double real = PyFloat_AS_DOUBLE(value);
    key.push_back(kTagReal);
    key.append(&real, 1);
  } else if (PyUnicode_Check(value)) {
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value, &bytes);
    if (text == nullptr) return false;
    key.push_back(kTagText);
    push_text(key, text, static_cast<std::size_t>(bytes));
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    key.push_back(kTagList);
    key.push_back(static_cast<std::uint64_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!push_static(signature, parameter, PySequence_Fast_GET_ITEM(value, i), key)) return false;
    }
  } else if (PyObject* number = as_number(value); number != nullptr) {
    const bool pushed = push_static(signature, parameter, number, key);
    Py_DECREF(number);
    return pushed;
  } else {
    // By identity: the cached plan keeps the object alive.
    key.push_back(kTagObject);
    key.push_back(reinterpret_cast<std::uintptr_t>(value));
  }
  return true;
}

struct AddressRange {
  std::int64_t first, last;  // bytes, `last` included
};

AddressRange range_of(const TensorMeta& meta) noexcept {
  const std::int64_t itemsize = std::max(1, itemsize_of(meta.dtype));
  AddressRange range{static_cast<std::int64_t>(meta.data), static_cast<std::int64_t>(meta.data)};
  for (std::int32_t i = 0; i < meta.layout.rank(); ++i) {
    const std::int64_t extent = meta.layout.shape()[i];
    if (extent == 0) return {0, -1};
    const std::int64_t reach = (extent - 1) * meta.layout.strides()[i] * itemsize;
    (reach < 0 ? range.first : range.last) += reach;
  }
  range.last += itemsize - 1;
  return range;
}

bool same_window(const TensorMeta& a, const TensorMeta& b) noexcept {
  const std::int32_t rank = a.layout.rank();
  return a.data == b.data && a.dtype == b.dtype && rank == b.layout.rank() &&
         std::equal(a.layout.shape(), a.layout.shape() + 2 * rank, b.layout.shape());
}

/// True if `source` shares bytes with the written tensor in another layout.
bool overlaps(const TensorMeta& source, const TensorMeta& written) noexcept {
  if (source.storage->address() != written.storage->address()) return false;
  const AddressRange target = range_of(written);
  const AddressRange range = range_of(source);
  return range.last >= target.first && target.last >= range.first && !same_window(source, written);
}

/// A contiguous copy of a tensor as a Python object; null with an exception set.
PyObject* clone(const TensorMeta& source) { return wrap_tensor(cloned(source)); }

/// Inputs that overlap the tensor that the op writes are read before they change: they are replaced
/// by copies.
bool clone_overlapping(const Signature& signature, BoundCall& call) {
  if (!is_tensor(call.values[signature.written])) return true;  // an optional one, not given
  const TensorMeta& written = meta_of(call.values[signature.written]);
  std::size_t index = 0;
  for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
    PyObject*& value = call.values[i];
    if (signature.parameters[i].kind == ParameterKind::kStatic || !is_tensor(value)) continue;
    const std::size_t tensor = index++;
    if (i == signature.written || !overlaps(meta_of(value), written)) continue;
    PyObject* copy = clone(meta_of(value));
    if (copy == nullptr) return false;
    call.owned.push_back(copy);
    value = copy;
    call.objects[tensor] = copy;
    call.tensors[tensor] = &meta_of(copy);
  }
  return true;
}

BindResult collect(const Signature& signature, BoundCall& call, std::size_t* foreign) {
  for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
    const ParameterKind kind = signature.parameters[i].kind;
    if (kind == ParameterKind::kStatic) continue;
    if (kind == ParameterKind::kTensorList) {
      if (!add_list(signature, i, call)) return BindResult::kFailed;
      continue;
    }
    const BindResult result = add_operand(signature, i, call);
    if (result == BindResult::kBound) continue;
    *foreign = i;
    return result;
  }
  if (call.memory == nullptr) {
    PyErr_Format(PyExc_TypeError,
                 "%s: expected at least one tensor, got none; make one with asarray",
                 signature.name.c_str());
    return BindResult::kFailed;
  }
  return BindResult::kBound;
}

bool encode(const Signature& signature, BoundCall& call) {
  std::size_t tensor = 0;
  std::size_t scalar = 0;
  for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
    const Parameter& parameter = signature.parameters[i];
    PyObject* value = call.values[i];
    if (parameter.kind == ParameterKind::kStatic) {
      if (!push_static(signature, parameter, value, call.key)) return false;
    } else if (parameter.kind == ParameterKind::kTensorList) {
      const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(value));
      call.key.push_back(kTagList);
      call.key.push_back(count);
      for (std::size_t k = 0; k < count; ++k) push_tensor(*call.tensors[tensor++], call.key);
    } else if (is_tensor(value)) {
      push_tensor(*call.tensors[tensor++], call.key);
    } else if (value == Py_None && parameter.kind != ParameterKind::kScalar) {
      call.key.push_back(kTagNone);
    } else {
      const Scalar& number = call.scalars[scalar++];
      call.key.push_back(kTagNumber | static_cast<std::uint64_t>(number.kind) << 8 |
                         static_cast<std::uint64_t>(number.is_unsigned) << 16);
    }
  }
  return true;
}

}  // namespace

BindResult bind_call(const Signature& signature, PyObject* const* arguments, std::size_t positional,
                     PyObject* keyword_names, std::uint64_t generation, BoundCall& call,
                     std::size_t* foreign) {
  if (!place_arguments(signature, arguments, positional, keyword_names, call)) {
    return BindResult::kFailed;
  }
  const BindResult result = collect(signature, call, foreign);
  if (result != BindResult::kBound) return result;
  if (signature.written < signature.parameters.size() && !clone_overlapping(signature, call)) {
    return BindResult::kFailed;
  }
  call.key.push_back(generation);
  call.key.push_back(reinterpret_cast<std::uintptr_t>(call.memory));
  return encode(signature, call) ? BindResult::kBound : BindResult::kFailed;
}

Signature read_signature(PyObject* name, PyObject* parameters, int positional, bool is_operator,
                         bool is_reflected) {
  Signature signature;
  signature.name = py::handle(name).cast<std::string>();
  const auto intern = [](const py::handle& text) {
    PyObject* interned = text.inc_ref().ptr();
    PyUnicode_InternInPlace(&interned);
    return interned;
  };
  for (const py::handle item : py::reinterpret_borrow<py::iterable>(parameters)) {
    const auto fields = item.cast<py::tuple>();
    Parameter parameter{intern(py::object(fields[0])),
                        nullptr,
                        static_cast<ParameterKind>(fields[1].cast<int>()),
                        {}};
    const py::object standard = fields[2];
    if (standard.ptr() != Py_Ellipsis) {
      parameter.default_value = standard.inc_ref().ptr();
    }
    for (const py::handle alias : py::object(fields[3])) parameter.aliases.push_back(intern(alias));
    if (parameter.kind == ParameterKind::kWritten) signature.written = signature.parameters.size();
    signature.parameters.push_back(std::move(parameter));
  }
  if (signature.parameters.size() > kMaximumParameters) {
    throw py::value_error("Op " + signature.name + ": at most " +
                          std::to_string(kMaximumParameters) + " parameters, got " +
                          std::to_string(signature.parameters.size()));
  }
  signature.positional =
      positional < 0 ? signature.parameters.size() : static_cast<std::size_t>(positional);
  signature.is_operator = is_operator;
  signature.is_reflected = is_reflected;
  return signature;
}

}  // namespace nbx::python
