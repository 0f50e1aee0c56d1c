// What the C API files share: guarded bodies, owned references, arguments read into core types.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

#include "bindings/hot.h"
#include "bindings/python_lock.h"
#include "launch/kernel.h"
#include "storage/views.h"

namespace nbx::python {

/// Streams of Python callers; what is none is named.
[[nodiscard]] Stream& to_stream(PyObject* object, const char* function);

/// Thrown when the Python exception is set already; `guarded` lets it pass.
struct PythonError {};

/// Runs a body that may throw; null with the Python exception set on failure.
template <class Body>
PyObject* guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const PythonError&) {
    return nullptr;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

/// The same for slots that answer 0 or -1.
template <class Body>
int guarded_status(const Body& body) noexcept {
  try {
    body();
    return 0;
  } catch (const PythonError&) {
    return -1;
  } catch (...) {
    set_python_error();
    return -1;
  }
}

/// One owned reference. Construction from null throws PythonError.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {
    if (object == nullptr) throw PythonError{};
  }
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned& operator=(Owned&&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  [[nodiscard]] PyObject* get() const noexcept { return object_; }
  [[nodiscard]] PyObject* detach() noexcept { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

using FastArguments = PyObject* const*;

/// Wraps a result, or throws PythonError.
[[nodiscard]] inline PyObject* wrapped(TensorMeta&& meta) {
  PyObject* object = wrap_tensor(std::move(meta));
  if (object == nullptr) throw PythonError{};
  return object;
}

/// Binds positional and keyword arguments to `names`; those not given are null. The first
/// `required` must be given, at most `positional` may be given by position.
void bind_arguments(const char* function, std::initializer_list<const char*> names,
                    std::size_t required, std::size_t positional, FastArguments arguments,
                    Py_ssize_t count, PyObject* keyword_names, PyObject** bound);

/// A text without NUL that UTF-8 can hold.
[[nodiscard]] std::string to_text(PyObject* object, const char* name);
[[nodiscard]] std::int64_t to_integer(PyObject* object, const char* name);
[[nodiscard]] bool to_boolean(PyObject* object, bool fallback);
/// Integers given one by one, or as one list or tuple.
[[nodiscard]] Extents to_extents(FastArguments arguments, Py_ssize_t count, const char* name);
/// One integer or a sequence of them.
[[nodiscard]] Extents to_extents(PyObject* object, const char* name);
[[nodiscard]] DType to_dtype(PyObject* object);
/// A device object or name; null and None are the default device.
[[nodiscard]] Device& to_device(PyObject* object);
/// True if the object names a device rather than a dtype.
[[nodiscard]] bool names_device(PyObject* object);
[[nodiscard]] TensorMeta& to_tensor(PyObject* object, const char* name);
/// A Python or NumPy number, or a tensor of one element.
[[nodiscard]] Scalar to_scalar(PyObject* object, const char* name);
/// True for what `to_scalar` takes, tensors aside.
[[nodiscard]] bool is_number(PyObject* object) noexcept;

[[nodiscard]] PyObject* tuple_of(const std::int64_t* values, std::int32_t count);

/// Functions of the Python layer that the core calls: set once, while the package is imported.
struct Hooks {
  PyObject* as_dtype = nullptr;         // anything that names a dtype -> dtype object
  PyObject* as_tensor = nullptr;        // (object, device, dtype that must hold it) -> tensor
  PyObject* index_tensor = nullptr;     // (object, device) -> integer or boolean tensor
  PyObject* array_interface = nullptr;  // tensor -> dict
};
extern Hooks hooks;

}  // namespace nbx::python
