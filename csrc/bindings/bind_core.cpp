#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/python_error.h"
#include "core/bytes.h"
#include "core/environment.h"
#include "core/log.h"

namespace nbx {
namespace {

namespace py = pybind11;

// ---- sizes -----------------------------------------------------------------------------------

std::uint64_t bytes_from_python(const py::object& size, const py::object& total) {
  if (py::isinstance<py::str>(size)) {
    const std::string text = python::text_of(size, "size");
    if (total.is_none() && text.find('%') != std::string::npos) {
      throw Error(ErrorKind::kValue, "size: a percentage needs a total, got '" + text +
                                         "'; write a number of bytes or one with a unit");
    }
    return parse_bytes(text, total.is_none() ? 0 : total.cast<std::uint64_t>());
  }
  if (py::isinstance<py::bool_>(size) || PyIndex_Check(size.ptr()) == 0) {
    throw Error(ErrorKind::kType, std::string("size: got ") + Py_TYPE(size.ptr())->tp_name +
                                      "; give an integer, or a text such as \"2 GiB\"");
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(size.ptr()));
  if (!number) throw py::error_already_set();
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw Error(ErrorKind::kOverflow, "size: " + py::str(number).cast<std::string>() +
                                          " is not within 0 .. 2^63 - 1; give bytes within that");
  }
  if (value < 0) {
    throw Error(ErrorKind::kValue, "size: got " + std::to_string(value) + "; give 0 or more bytes");
  }
  return static_cast<std::uint64_t>(value);
}

// ---- log -------------------------------------------------------------------------------------

constexpr std::size_t kMostMessages = 1000;

/// Messages on their way to Python. The core logs from any thread and under its own locks, where
/// taking the Python lock could wait for ever, so the main thread fetches them later.
struct Mail {
  std::mutex mutex;
  std::deque<std::pair<LogLevel, std::string>> messages;
  std::size_t dropped = 0;
  PyObject* callback = nullptr;  // changed with the Python lock held
};

Mail& mail() {
  static auto* const instance = std::make_unique<Mail>().release();
  return *instance;
}

std::deque<std::pair<LogLevel, std::string>> take_messages() {
  Mail& box = mail();
  const std::lock_guard<std::mutex> guard(box.mutex);
  auto messages = std::exchange(box.messages, {});
  if (box.dropped != 0) {
    messages.emplace_back(LogLevel::kWarning, std::to_string(box.dropped) + " messages were lost");
    box.dropped = 0;
  }
  return messages;
}

void deliver() {
  PyObject* callback = mail().callback;
  if (callback == nullptr) return;
  const auto function = py::reinterpret_borrow<py::object>(callback);
  for (const auto& [level, text] : take_messages()) function(name_of(level), text);
}

int deliver_pending(void* /*unused*/) {
  try {
    deliver();
  } catch (py::error_already_set& error) {
    // Raised here it would appear in whatever code the main thread runs at this moment.
    error.discard_as_unraisable("nbxtensor log");
  }
  return 0;
}

void post(LogLevel level, const std::string& text) noexcept {
  Mail& box = mail();
  try {
    const std::lock_guard<std::mutex> guard(box.mutex);
    if (box.messages.size() >= kMostMessages) {
      ++box.dropped;
      return;
    }
    box.messages.emplace_back(level, text);
  } catch (const std::exception&) {
    return;  // no memory for a message
  }
  // A full queue is served by the call that is already in it.
  static_cast<void>(Py_AddPendingCall(&deliver_pending, nullptr));
}

void set_log_callback(const py::object& callback) {
  PyObject* next = callback.is_none() ? nullptr : callback.ptr();
  if (next == nullptr) {
    set_log_sink(nullptr);
    deliver();
  }
  Py_XINCREF(next);
  PyObject* former = std::exchange(mail().callback, next);
  Py_XDECREF(former);
  if (next != nullptr) set_log_sink(&post);
}

void bind_log(py::module_& module) {
  module.def("set_log_callback", &set_log_callback, py::arg("callback"),
             "Send messages of the core to callback(level, text), on the main thread; None sends "
             "them to standard error.");
  module.def(
      "log",
      [](const std::string& level, const std::string& text) { log(parse_log_level(level), text); },
      py::arg("level"), py::arg("text"), "Log one message through the core.");
  module.def(
      "deliver_log", [] { deliver(); }, "Hand over the messages that wait for the main thread.");
  module.def("log_level", [] { return name_of(log_level()); }, "The least level that is logged.");
  module.def(
      "set_log_level", [](const std::string& level) { set_log_level(parse_log_level(level)); },
      py::arg("level"), "Set the least level that is logged.");
}

}  // namespace

void bind_core(py::module_& module) {
  python::add_error_classes(module);
  module.def("parse_bytes", &bytes_from_python, py::arg("size"), py::arg("total") = py::none(),
             "Bytes named by an integer, \"2 GiB\", or a percentage of total.");
  module.def("format_bytes", &format_bytes, py::arg("bytes"), "Write bytes as \"1.5 GiB\".");
  bind_log(module);
}

}  // namespace nbx
