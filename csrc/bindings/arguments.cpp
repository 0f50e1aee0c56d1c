#include "bindings/arguments.h"

#include <atomic>
#include <cstring>

#include "bindings/tensor_copy.h"
#include "core/error.h"
#include "device/device.h"

namespace nbx::python {

Hooks hooks;

void bind_arguments(const char* function, std::initializer_list<const char*> names,
                    std::size_t required, std::size_t positional, FastArguments arguments,
                    Py_ssize_t count, PyObject* keyword_names, PyObject** bound) {
  const auto given = static_cast<std::size_t>(count);
  if (given > positional) {
    PyErr_Format(PyExc_TypeError, "%s: at most %zu positional arguments, got %zu", function,
                 positional, given);
    throw PythonError{};
  }
  for (std::size_t i = 0; i < names.size(); ++i) bound[i] = i < given ? arguments[i] : nullptr;
  const Py_ssize_t keywords = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    PyObject* keyword = PyTuple_GET_ITEM(keyword_names, k);
    std::size_t at = 0;
    while (at < names.size() && PyUnicode_CompareWithASCIIString(keyword, names.begin()[at]) != 0) {
      ++at;
    }
    if (at == names.size() || bound[at] != nullptr) {
      PyErr_Format(
          PyExc_TypeError,
          at == names.size() ? "%s: unknown argument %R" : "%s: argument %R is given twice",
          function, keyword);
      throw PythonError{};
    }
    bound[at] = arguments[count + k];
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s: argument '%s' is missing", function, names.begin()[i]);
      throw PythonError{};
    }
  }
}

namespace {

std::int64_t exact_integer(PyObject* integer, const char* name) {
  const long long value = PyLong_AsLongLong(integer);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_OverflowError, "%s: the integer %R does not fit in 64 bits", name, integer);
    throw PythonError{};
  }
  return value;
}

}  // namespace

std::string to_text(PyObject* object, const char* name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw PythonError{};
    PyErr_Clear();
  } else if (std::memchr(text, 0, static_cast<std::size_t>(size)) == nullptr) {
    return {text, static_cast<std::size_t>(size)};
  }
  PyErr_Format(PyExc_ValueError, "%s: got %A; give a text without NUL and without half characters",
               name, object);
  throw PythonError{};
}

std::int64_t to_integer(PyObject* object, const char* name) {
  if (PyLong_CheckExact(object)) return exact_integer(object, name);
  if (PyIndex_Check(object) == 0 || PyFloat_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s: expected an integer, got %.200s", name,
                 Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  const Owned index(PyNumber_Index(object));
  return exact_integer(index.get(), name);
}

bool to_boolean(PyObject* object, bool fallback) {
  if (object == nullptr || object == Py_None) return fallback;
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) throw PythonError{};
  return truth != 0;
}

Extents to_extents(FastArguments arguments, Py_ssize_t count, const char* name) {
  if (count == 1) return to_extents(arguments[0], name);
  Extents extents;
  for (Py_ssize_t i = 0; i < count; ++i) extents.push(to_integer(arguments[i], name));
  return extents;
}

Extents to_extents(PyObject* object, const char* name) {
  Extents extents;
  if (PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      extents.push(to_integer(PyTuple_GET_ITEM(object, i), name));
    }
  } else if (PyIndex_Check(object) != 0) {
    extents.push(to_integer(object, name));
  } else if (PySequence_Check(object) != 0 && !PyUnicode_Check(object)) {
    const Owned items(PySequence_Tuple(object));
    return to_extents(items.get(), name);
  } else {
    PyErr_Format(PyExc_TypeError, "%s: expected integers, got %.200s", name,
                 Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  return extents;
}

DType to_dtype(PyObject* object) {
  DType dtype{};
  if (!dtype_from_object(object, &dtype)) throw PythonError{};
  return dtype;
}

namespace {

/// Device objects live for ever, so an address seen once names its device for good.
struct KnownDevice {
  std::atomic<PyObject*> object{nullptr};
  std::atomic<Device*> device{nullptr};
};
KnownDevice known_devices[16];

void remember(PyObject* object, Device& device) noexcept {
  if (device_object(device) != object) return;
  for (KnownDevice& known : known_devices) {
    PyObject* expected = nullptr;
    if (known.object.load() == object) return;
    if (known.device.load() == nullptr && known.object.compare_exchange_strong(expected, object)) {
      known.device.store(&device);
      return;
    }
  }
}

}  // namespace

Device& to_device(PyObject* object) {
  if (object == nullptr || object == Py_None) return default_device();
  for (KnownDevice& known : known_devices) {
    PyObject* seen = known.object.load(std::memory_order_acquire);
    if (seen == nullptr) break;
    if (seen == object) {
      if (Device* device = known.device.load(std::memory_order_acquire)) return *device;
    }
  }
  if (is_tensor(object)) return meta_of(object).device();
  const Owned text(PyObject_Str(object));
  const DeviceName parsed = parse_device(to_text(text.get(), "device"));
  Device& device = [&parsed]() -> Device& {
    const Unlocked unlocked;  // the first use of a card makes its context
    return open_device(parsed.kind, parsed.ordinal);
  }();
  remember(object, device);
  return device;
}

bool names_device(PyObject* object) {
  if (!PyUnicode_Check(object)) {
    DType dtype{};
    if (PyType_Check(object) || dtype_from_object(object, &dtype)) return false;
    PyErr_Clear();
    return true;
  }
  const char* text = PyUnicode_AsUTF8(object);
  if (text == nullptr) throw PythonError{};
  const std::size_t length = std::strcspn(text, ":");
  for (const KindReport& kind : report_kinds()) {
    if (std::strlen(kind.name) == length && std::strncmp(kind.name, text, length) == 0) return true;
  }
  return text[length] == ':';
}

TensorMeta& to_tensor(PyObject* object, const char* name) {
  if (is_tensor(object)) return meta_of(object);
  PyErr_Format(PyExc_TypeError, "%s: expected a Tensor, got %.200s", name,
               Py_TYPE(object)->tp_name);
  throw PythonError{};
}

bool is_number(PyObject* object) noexcept {
  if (PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object)) return true;
  // NumPy's scalars: numbers with item(), without the length that arrays have.
  return !is_tensor(object) && !PyUnicode_Check(object) && !PyBytes_Check(object) &&
         PyNumber_Check(object) != 0 && PyObject_HasAttrString(object, "item") != 0 &&
         PyObject_HasAttrString(object, "__setitem__") == 0;
}

Scalar to_scalar(PyObject* object, const char* name) {
  if (is_tensor(object)) return element_of(meta_of(object), name);
  Scalar scalar;
  if (PyBool_Check(object)) {
    scalar.kind = ScalarKind::kBoolean;
    scalar.integer = object == Py_True ? 1 : 0;
    scalar.real = static_cast<double>(scalar.integer);
  } else if (PyFloat_Check(object)) {
    scalar.kind = ScalarKind::kReal;
    scalar.real = PyFloat_AS_DOUBLE(object);
  } else if (PyLong_Check(object)) {
    int overflow = 0;
    scalar.kind = ScalarKind::kInteger;
    scalar.integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    scalar.real = static_cast<double>(scalar.integer);
    if (overflow > 0) {
      const unsigned long long value = PyLong_AsUnsignedLongLong(object);
      if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        PyErr_Format(PyExc_OverflowError, "%s: the integer %R does not fit in 64 bits", name,
                     object);
        throw PythonError{};
      }
      scalar.integer = static_cast<std::int64_t>(value);
      scalar.real = static_cast<double>(value);
      scalar.is_unsigned = true;
    } else if (overflow < 0) {
      PyErr_Format(PyExc_OverflowError, "%s: the integer %R does not fit in 64 bits", name, object);
      throw PythonError{};
    }
  } else if (PyComplex_Check(object)) {
    const Py_complex value = PyComplex_AsCComplex(object);
    scalar.kind = ScalarKind::kComplex;
    scalar.real = value.real;
    scalar.imaginary = value.imag;
  } else if (is_number(object)) {
    const Owned item(PyObject_CallMethod(object, "item", nullptr));
    if (is_number(item.get()) && Py_TYPE(item.get()) != Py_TYPE(object)) {
      return to_scalar(item.get(), name);
    }
    // The types of ml_dtypes answer item() with themselves.
    const Owned real(PyNumber_Float(object));
    return to_scalar(real.get(), name);
  } else {
    PyErr_Format(PyExc_TypeError, "%s: expected a number, got %.200s", name,
                 Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  return scalar;
}

PyObject* tuple_of(const std::int64_t* values, std::int32_t count) {
  PyObject* tuple = PyTuple_New(count);
  if (tuple == nullptr) throw PythonError{};
  for (std::int32_t i = 0; i < count; ++i) {
    PyObject* item = PyLong_FromLongLong(values[i]);
    if (item == nullptr) {
      Py_DECREF(tuple);
      throw PythonError{};
    }
    PyTuple_SET_ITEM(tuple, i, item);
  }
  return tuple;
}

}  // namespace nbx::python
