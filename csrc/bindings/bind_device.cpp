#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_sim.h"
#include "bindings/bindings.h"
#include "bindings/hot.h"
#include "bindings/python_lock.h"
#include "core/error.h"
#include "device/device.h"
#include "storage/late.h"
#include "stream/event.h"
#include "stream/stream.h"

namespace nbx {
namespace {

namespace py = pybind11;
using DeviceHolder = std::unique_ptr<Device, py::nodelete>;

constexpr std::size_t kQuickOrdinals = 16;

// One Python object a device, kept for ever. Written with the creation below serialised by
// pybind11's own instance map; a lost race writes the same object again.
std::array<std::array<std::atomic<PyObject*>, kQuickOrdinals>, kDeviceKindCount> quick_objects{};

/// The same device, once its Python object is made to stay: returned by reference it is that
/// object.
Device& kept(Device& device) {
  if (python::device_object(device) == nullptr) throw py::error_already_set();
  return device;
}
constexpr auto kByReference = py::return_value_policy::reference;

Device& device_from(const py::object& what) {
  if (what.is_none()) return default_device();
  if (py::isinstance<Device>(what)) return what.cast<Device&>();
  if (py::isinstance<py::str>(what)) {
    const DeviceName name = parse_device(what.cast<std::string>());
    const python::Unlocked unlocked;  // the first use of a card makes its context
    return open_device(name.kind, name.ordinal);
  }
  throw Error(ErrorKind::kType,
              std::string("device: expected a name such as \"cpu\" or \"cuda:0\", or a Device, "
                          "got ") +
                  Py_TYPE(what.ptr())->tp_name);
}

py::dict properties_of(const Device& device) {
  const DeviceProperties& from = device.properties();
  py::dict to;
  to["name"] = from.name;
  to["architecture"] = from.architecture;
  to["total_bytes"] = from.total_bytes;
  to["page_granularity"] = from.page_granularity;
  to["base_alignment"] = from.base_alignment;
  to["host_readable"] = from.host_readable;
  to["unified"] = from.unified;
  to["integrated_work"] = from.integrated_work;
  const DeviceCounts& counts = from.counts;
  to["lanes"] = counts.lanes;
  to["threads_per_block"] = counts.threads_per_block;
  to["shared_bytes_per_block"] = counts.shared_bytes_per_block;
  to["registers_per_block"] = counts.registers_per_block;
  to["multiprocessors"] = counts.multiprocessors;
  to["threads_per_multiprocessor"] = counts.threads_per_multiprocessor;
  to["shared_bytes_per_multiprocessor"] = counts.shared_bytes_per_multiprocessor;
  to["registers_per_multiprocessor"] = counts.registers_per_multiprocessor;
  to["l2_bytes"] = counts.l2_bytes;
  to["clock_kilohertz"] = counts.clock_kilohertz;
  to["memory_clock_kilohertz"] = counts.memory_clock_kilohertz;
  to["memory_bus_bits"] = counts.memory_bus_bits;
  return to;
}

std::pair<std::uint64_t, std::uint64_t> memory_info(const Device& device) {
  const python::Unlocked unlocked;
  const MemoryInfo info = device.memory_info();
  return {info.free_bytes, info.total_bytes};
}

/// Looks for libraries and asks them for devices.
py::list kinds_reported() {
  constexpr std::array kStates = {"library absent", "no device", "ready"};
  const std::vector<KindReport> kinds = [] {
    const python::Unlocked unlocked;
    return report_kinds();
  }();
  py::list reports;
  for (const KindReport& report : kinds) {
    py::dict row;
    row["kind"] = report.name;
    row["state"] = kStates[static_cast<std::size_t>(report.availability)];
    row["count"] = report.device_count;
    row["reason"] = report.reason;
    reports.append(row);
  }
  return reports;
}

void synchronize(Device& device) {
  const python::Unlocked unlocked;
  synchronize_device(device);
  default_stream(device).synchronize();
  run_late_owners();
}

bool equals(const Device& device, const py::object& other) {
  if (py::isinstance<py::str>(other)) return other.cast<std::string>() == device.name();
  return py::isinstance<Device>(other) && &other.cast<Device&>() == &device;
}

// ---- context managers --------------------------------------------------------------------------

/// What `with device:` and `with stream:` go back to, newest last; per thread.
thread_local std::vector<Device*> former_devices;
thread_local std::vector<std::pair<Stream*, std::shared_ptr<Stream>>> former_streams;

void enter_device(Device& device) { former_devices.push_back(set_thread_default(&device)); }

void leave_device(Device& /*device*/, const py::args& /*exception*/) {
  if (former_devices.empty()) {
    throw Error(ErrorKind::kValue, "device: left without having been entered on this thread");
  }
  set_thread_default(former_devices.back());
  former_devices.pop_back();
}

void enter_stream(const std::shared_ptr<Stream>& stream) {
  // The entered stream is kept alive while it is current.
  former_streams.emplace_back(&set_current_stream(*stream), stream);
}

void leave_stream(const std::shared_ptr<Stream>& stream, const py::args& /*exception*/) {
  if (former_streams.empty() || former_streams.back().second != stream) {
    throw Error(ErrorKind::kValue, "stream: left without having been entered last on this thread");
  }
  set_current_stream(*former_streams.back().first);
  former_streams.pop_back();
}

/// The stream's shared object: the one that `with` keeps, or a view of the device's default.
std::shared_ptr<Stream> shared_current(Device& device) {
  Stream& stream = current_stream(device);
  for (const auto& [former, entered] : former_streams) {
    if (entered.get() == &stream) return entered;
  }
  return {&stream, [](Stream*) {}};
}

Stream& stream_or_current(const std::shared_ptr<Stream>& stream, Device& device) {
  return stream != nullptr ? *stream : current_stream(device);
}

void bind_devices(py::module_& module) {
  py::class_<Device, DeviceHolder>(module, "Device", "One device; there is one object for each.")
      .def_property_readonly("name", &Device::name)
      .def_property_readonly("kind", [](const Device& d) { return d.primitives().kind_name; })
      .def_property_readonly("type", [](const Device& d) { return d.primitives().kind_name; })
      .def_property_readonly("index", &Device::ordinal)
      .def_property_readonly("architecture",
                             [](const Device& d) { return d.properties().architecture; })
      .def_property_readonly("host_readable", &Device::host_readable)
      .def_property_readonly("properties", &properties_of)
      .def("memory_info", &memory_info, "(free, total) bytes as the driver reports them.")
      .def(
          "supports",
          [](const Device& d, const std::string& name) {
            return supports(d.primitives(), primitive_named(name.c_str()));
          },
          py::arg("primitive"), "True if the device has the named primitive.")
      .def("synchronize", &synchronize, "Wait for all work of the device.")
      .def(
          "__enter__",
          [](Device& d) -> Device& {
            enter_device(d);
            return kept(d);
          },
          kByReference)
      .def("__exit__", &leave_device)
      .def("__eq__", &equals, py::arg("other").none(true))
      .def("__hash__", [](const Device& d) { return py::hash(py::str(d.name())); })
      .def("__str__", &Device::name)
      .def("__repr__", [](const Device& d) { return "nbxtensor.device('" + d.name() + "')"; })
      .def(
          "__copy__", [](Device& d) -> Device& { return kept(d); }, kByReference)
      .def(
          "__deepcopy__", [](Device& d, const py::dict& /*memo*/) -> Device& { return kept(d); },
          kByReference)
      .def("__reduce__", [module](const Device& d) -> py::tuple {
        return py::make_tuple(module.attr("device"), py::make_tuple(d.name()));
      });
  module.def(
      "device", [](const py::object& device) -> Device& { return kept(device_from(device)); },
      kByReference, py::arg("device") = py::none(),
      "The device of this name, or the default one; opened on first use.");
  module.def("report_kinds", &kinds_reported,
             "Every device kind with its state: library absent, no device, or ready.");
}

using StreamClass = py::class_<Stream, std::shared_ptr<Stream>>;
using EventClass = py::class_<Event>;

void bind_streams(StreamClass& stream_class) {
  stream_class
      .def(py::init([](const py::object& device, std::int32_t priority) {
             Device& on = device_from(device);
             const python::Unlocked unlocked;
             return create_stream(on, priority);
           }),
           py::arg("device") = py::none(), py::arg("priority") = 0)
      .def_static(
          "external",
          [](StreamHandle handle, const py::object& device) {
            return std::make_shared<Stream>(device_from(device), handle, false);
          },
          py::arg("handle"), py::arg("device") = py::none(),
          "A stream that another library made, by its driver's handle; never destroyed from here.")
      .def_property_readonly(
          "device", [](const Stream& s) -> Device& { return kept(s.device()); }, kByReference)
      .def_property_readonly("handle", &Stream::handle)
      .def_property_readonly("submitted", &Stream::submitted)
      .def(
          "synchronize",
          [](Stream& s) {
            const python::Unlocked unlocked;
            s.synchronize();
            run_late_owners();
          },
          "Wait for all work of the stream.")
      .def(
          "is_complete", [](Stream& s) { return s.is_complete(s.submitted()); },
          py::call_guard<python::Unlocked>(), "True if all work of the stream is done.")
      .def("wait_stream", &Stream::wait_stream, py::arg("other"),
           py::call_guard<python::Unlocked>(),
           "Let later work here run after all work submitted to the other stream so far.")
      .def(
          "wait_event", [](Stream& s, Event& event) { event.block(s); }, py::arg("event"),
          py::call_guard<python::Unlocked>(), "Let later work here run after the event.")
      .def(
          "record_event",
          [](Stream& s, bool timing) {
            const python::Unlocked unlocked;
            auto event = std::make_unique<Event>(s.device(), timing);
            event->record(s);
            return event;
          },
          py::arg("timing") = false, "A new event that marks the work submitted so far.");
}

void bind_stream_protocols(StreamClass& stream_class) {
  stream_class
      .def("__enter__",
           [](const std::shared_ptr<Stream>& s) {
             enter_stream(s);
             return s;
           })
      .def("__exit__", &leave_stream)
      .def(
          "__eq__",
          [](const Stream& s, const py::object& other) {
            if (!py::isinstance<Stream>(other)) return false;
            const auto& o = other.cast<const Stream&>();
            return &o.device() == &s.device() && o.handle() == s.handle();
          },
          py::arg("other").none(true))
      .def("__hash__",
           [](const Stream& s) { return py::hash(py::make_tuple(s.device().name(), s.handle())); })
      .def("__repr__", [](const Stream& s) {
        return "nbxtensor.Stream('" + s.device().name() +
               "', handle=" + std::to_string(s.handle()) + ")";
      });
}

void bind_current_streams(py::module_& module) {
  module.def(
      "current_stream",
      [](const py::object& device) { return shared_current(device_from(device)); },
      py::arg("device") = py::none(), "The calling thread's stream on the device.");
  module.def(
      "default_stream",
      [](const py::object& device) {
        return std::shared_ptr<Stream>(&default_stream(device_from(device)), [](Stream*) {});
      },
      py::arg("device") = py::none(), "The device's default stream.");
}

void bind_events(EventClass& event_class) {
  event_class
      .def(py::init([](const py::object& device, bool timing) {
             Device& on = device_from(device);
             const python::Unlocked unlocked;
             return std::make_unique<Event>(on, timing);
           }),
           py::arg("device") = py::none(), py::arg("timing") = false)
      .def_property_readonly(
          "device", [](const Event& e) -> Device& { return kept(e.device()); }, kByReference)
      .def(
          "record",
          [](Event& e, const std::shared_ptr<Stream>& stream) {
            e.record(stream_or_current(stream, e.device()));
          },
          py::arg("stream") = py::none(), "Mark the work submitted to the stream so far.")
      .def(
          "wait",
          [](Event& e, const std::shared_ptr<Stream>& stream) {
            e.block(stream_or_current(stream, e.device()));
          },
          py::arg("stream") = py::none(), py::call_guard<python::Unlocked>(),
          "Let later work of the stream run after the mark.")
      .def("is_complete", &Event::is_complete, py::call_guard<python::Unlocked>(),
           "True if the marked work is done.")
      .def("synchronize", &Event::synchronize, py::call_guard<python::Unlocked>(),
           "Wait for the marked work.")
      .def("elapsed", &Event::seconds_to, py::arg("end"), "Seconds from this event to another.");
}

}  // namespace

namespace python {

PyObject* device_object(Device& device) noexcept {
  const auto kind = static_cast<std::size_t>(device.kind());
  const auto ordinal = static_cast<std::size_t>(device.ordinal());
  if (ordinal < kQuickOrdinals) {
    PyObject* known = quick_objects[kind][ordinal].load(std::memory_order_acquire);
    if (known != nullptr) return known;
  }
  try {
    // pybind11 returns the object that wraps this address already, if there is one; the reference
    // given up here keeps it for ever.
    PyObject* made = py::cast(&device, py::return_value_policy::reference).release().ptr();
    if (ordinal < kQuickOrdinals) {
      PyObject* expected = nullptr;
      if (!quick_objects[kind][ordinal].compare_exchange_strong(expected, made)) return expected;
    }
    return made;
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

}  // namespace python

void bind_device(py::module_& module) {
  bind_devices(module);
  // Both exist before their methods, whose signatures name each other.
  StreamClass stream_class(module, "Stream", "An ordered queue of work.");
  EventClass event_class(module, "Event", "A mark in the order of a stream.");
  bind_streams(stream_class);
  bind_stream_protocols(stream_class);
  bind_current_streams(module);
  bind_events(event_class);
  bind_sim(module);
}

}  // namespace nbx
