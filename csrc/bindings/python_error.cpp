#include "bindings/python_error.h"

#include <array>
#include <cstdlib>
#include <new>
#include <string>

#include "bindings/hot.h"

namespace nbx::python {
namespace {

namespace py = pybind11;

struct ErrorClass {
  ErrorKind kind;
  const char* name;
  PyObject** base;       // the built-in class that callers may catch instead
  PyObject** more_base;  // a second one, or null
  const char* doc;
};

// One row a kind, in the order of ErrorKind.
const std::array kClasses = {
    ErrorClass{ErrorKind::kValue, "InvalidValueError", &PyExc_ValueError, nullptr,
               "An argument has a value that is not allowed."},
    ErrorClass{ErrorKind::kType, "InvalidTypeError", &PyExc_TypeError, nullptr,
               "An argument has a type that is not allowed."},
    ErrorClass{ErrorKind::kIndex, "InvalidIndexError", &PyExc_IndexError, nullptr,
               "An index lies outside its axis."},
    ErrorClass{ErrorKind::kOverflow, "RangeError", &PyExc_OverflowError, nullptr,
               "A number does not fit its type."},
    ErrorClass{ErrorKind::kBuffer, "InvalidBufferError", &PyExc_BufferError, nullptr,
               "Memory cannot be shared in the way that was asked for."},
    ErrorClass{ErrorKind::kIo, "FileError", &PyExc_OSError, nullptr,
               "A file could not be read or written."},
    ErrorClass{ErrorKind::kDevice, "DeviceError", &PyExc_RuntimeError, nullptr,
               "A device is missing, or its driver refused a call."},
    ErrorClass{ErrorKind::kUnsupported, "UnsupportedError", &PyExc_NotImplementedError, nullptr,
               "The device, dtype or form is not supported."},
    ErrorClass{ErrorKind::kOutOfMemory, "OutOfMemoryError", &PyExc_MemoryError, &PyExc_RuntimeError,
               "The memory or its budget does not suffice; the figures are attributes."},
};

/// Attributes of every OutOfMemoryError; None is "unknown", never 0. Bytes unless the name says
/// otherwise.
constexpr std::array kMemoryFigures = {
    "requested",   "granted",      "device",          "device_idx",  "tag",       "live",
    "parked",      "pending",      "pool_cached",     "pool_blocks", "blocks",    "largest_hole",
    "driver_free", "driver_total", "external",        "shortfall",   "would_fit", "budget",
    "held",        "tags",         "pending_streams", "fits_if"};

// Strong references for the life of the process.
PyObject* base_class = nullptr;
std::array<PyObject*, kClasses.size()> classes{};

PyObject* to_python(const FigureTable& table) {
  PyObject* dict = PyDict_New();
  for (const auto& [name, number] : table) {
    const auto value = py::reinterpret_steal<py::object>(PyLong_FromLongLong(number));
    if (dict == nullptr || !value || PyDict_SetItemString(dict, name.c_str(), value.ptr()) != 0) {
      Py_XDECREF(dict);
      return nullptr;
    }
  }
  return dict;
}

PyObject* to_python(const Figure& figure) {
  if (const auto* integer = std::get_if<std::int64_t>(&figure)) {
    return PyLong_FromLongLong(*integer);
  }
  if (const auto* real = std::get_if<double>(&figure)) return PyFloat_FromDouble(*real);
  if (const auto* table = std::get_if<FigureTable>(&figure)) return to_python(*table);
  const std::string& text = std::get<std::string>(figure);
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

py::object new_class(const char* name, const char* doc, const py::tuple& bases,
                     const py::dict& attributes) {
  const std::string qualified = std::string("nbxtensor._core.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), attributes.ptr());
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

/// `device_idx` of "sim:1" is 1; of a device without a number 0.
bool set_ordinal(const py::object& instance) {
  const auto device =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(instance.ptr(), "device"));
  if (!device) return false;
  if (PyUnicode_Check(device.ptr()) == 0) return true;
  const auto name = device.cast<std::string>();
  const std::size_t colon = name.rfind(':');
  const long ordinal =
      colon == std::string::npos ? 0 : std::strtol(name.c_str() + colon + 1, nullptr, 10);
  const auto value = py::reinterpret_steal<py::object>(PyLong_FromLong(ordinal));
  return value && PyObject_SetAttrString(instance.ptr(), "device_idx", value.ptr()) == 0;
}

/// The instance with its figures; null with another exception set when that fails.
py::object new_instance(const Error& error) {
  const std::string message = error.what();
  auto text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (!text) return {};
  PyObject* type = classes[static_cast<std::size_t>(error.kind())];
  auto instance =
      py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(type, text.ptr(), nullptr));
  if (!instance) return {};
  for (const auto& [name, figure] : error.figures()) {
    const auto value = py::reinterpret_steal<py::object>(to_python(figure));
    if (!value || PyObject_SetAttrString(instance.ptr(), name.c_str(), value.ptr()) != 0) return {};
  }
  if (error.kind() == ErrorKind::kOutOfMemory && !set_ordinal(instance)) return {};
  return instance;
}

}  // namespace

void set_error(const Error& error) noexcept {
  const py::object instance = new_instance(error);
  if (instance) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
  }
}

void set_python_error() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_error(error);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an exception of unknown type reached the binding");
  }
}

void add_error_classes(py::module_& module) {
  py::object base = new_class("Error", "Base of every error that nbxtensor raises.",
                              py::make_tuple(py::handle(PyExc_Exception)), py::dict());
  module.attr("Error") = base;
  base_class = base.release().ptr();
  for (std::size_t i = 0; i < kClasses.size(); ++i) {
    const ErrorClass& row = kClasses[i];
    py::list bases;
    bases.append(py::handle(base_class));
    bases.append(py::handle(*row.base));
    if (row.more_base != nullptr) bases.append(py::handle(*row.more_base));
    py::dict attributes;
    if (row.kind == ErrorKind::kOutOfMemory) {
      for (const char* name : kMemoryFigures) attributes[name] = py::none();
    }
    py::object made = new_class(row.name, row.doc, py::tuple(bases), attributes);
    module.attr(row.name) = made;
    classes[static_cast<std::size_t>(row.kind)] = made.release().ptr();
  }
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      set_error(error);
    }
  });
}

}  // namespace nbx::python
