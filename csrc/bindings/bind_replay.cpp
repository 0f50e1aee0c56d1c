// Replay of allocation traces, from the columns of a trace to plain dictionaries.
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "arena/replay.h"
#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "core/error.h"

namespace nbx {
namespace {

namespace py = pybind11;

/// One column of the trace: a contiguous buffer of `T`, as long as the others.
template <class T>
const T* column(const char* name, const py::buffer_info& info, std::size_t count) {
  const bool plain = info.ndim == 1 && (info.shape[0] < 2 || info.strides[0] == sizeof(T));
  if (!plain || !info.item_type_is_equivalent_to<T>()) {
    throw Error(ErrorKind::kType, std::string("replay: ") + name + " is a buffer of " +
                                      std::to_string(info.ndim) + " dimensions and format '" +
                                      info.format + "'; give one contiguous dimension of format '" +
                                      py::format_descriptor<T>::format() + "'");
  }
  if (static_cast<std::size_t>(info.shape[0]) != count) {
    throw Error(ErrorKind::kValue, std::string("replay: ") + name + " has " +
                                       std::to_string(info.shape[0]) + " entries and ops " +
                                       std::to_string(count) + "; give one for each event");
  }
  return static_cast<const T*>(info.ptr);
}

py::dict shown(const ReplayPass& pass) {
  py::dict result;
  result["allocations"] = pass.allocations;
  result["peak_live"] = pass.peak_live;
  result["peak_granted"] = pass.peak_granted;
  result["peak_mapped"] = pass.peak_mapped;
  result["ratio"] = pass.ratio;
  result["remaps"] = pass.remaps;
  result["driver_calls"] = pass.driver_calls;
  result["stolen_bytes"] = pass.stolen_bytes;
  result["created_bytes"] = pass.created_bytes;
  result["waits"] = pass.waits;
  py::dict nanoseconds;
  nanoseconds["p50"] = pass.alloc_ns_p50;
  nanoseconds["p99"] = pass.alloc_ns_p99;
  result["alloc_ns"] = nanoseconds;
  result["virtual_seconds"] = pass.virtual_seconds;
  result["refused"] = pass.refused;
  return result;
}

py::dict shown(const ReplayReport& report) {
  py::dict result;
  result["device"] = report.device;
  result["memory"] = report.memory;
  result["budget"] = report.budget == kUnlimited ? py::object(py::none()) : py::int_(report.budget);
  result["streams"] = report.streams;
  py::list passes;
  for (const ReplayPass& pass : report.passes) passes.append(shown(pass));
  result["passes"] = passes;
  result["first_refusal"] = py::none();
  if (report.first_refusal) {
    py::dict refusal;
    refusal["event"] = report.first_refusal->event;
    refusal["pass"] = report.first_refusal->pass;
    refusal["requested"] = report.first_refusal->requested;
    refusal["why"] = report.first_refusal->why;
    result["first_refusal"] = refusal;
  }
  return result;
}

Device& device_named(const py::object& device) {
  try {
    return python::to_device(device.ptr());
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
}

py::dict run(const py::buffer& ops, const py::buffer& ids, const py::buffer& bytes,
             const std::optional<py::buffer>& streams, const std::optional<py::buffer>& seconds,
             const py::object& device, std::optional<std::uint64_t> memory,
             std::optional<std::uint64_t> budget, double slack, std::uint32_t split,
             std::optional<std::uint64_t> seed, std::uint32_t repeat, double work_seconds,
             bool virtual_memory) {
  const py::buffer_info kinds = ops.request();
  const py::buffer_info names = ids.request();
  const py::buffer_info sizes = bytes.request();
  const py::buffer_info queues = streams ? streams->request() : py::buffer_info();
  const py::buffer_info times = seconds ? seconds->request() : py::buffer_info();
  ReplayTrace trace;
  trace.count = static_cast<std::size_t>(kinds.ndim == 1 ? kinds.shape[0] : 0);
  trace.ops = column<std::int8_t>("ops", kinds, trace.count);
  trace.ids = column<std::int64_t>("ids", names, trace.count);
  trace.bytes = column<std::int64_t>("bytes", sizes, trace.count);
  if (streams) trace.streams = column<std::int64_t>("streams", queues, trace.count);
  if (seconds) trace.seconds = column<double>("seconds", times, trace.count);
  ReplayOptions options;
  options.budget = budget.value_or(kUnlimited);
  options.slack = slack;
  options.streams = split;
  options.seed = seed;
  options.repeat = repeat;
  options.work_seconds = work_seconds;
  options.virtual_memory = virtual_memory;
  Device* opened = nullptr;
  std::int32_t simulated = 0;
  if (py::isinstance<py::int_>(device)) {
    if (device < py::int_(0) || device > py::int_(INT32_MAX)) {
      throw Error(ErrorKind::kValue,
                  "replay: there is no device sim:" + py::str(device).cast<std::string>() +
                      "; give the number of a simulated device, from 0 on");
    }
    simulated = device.cast<std::int32_t>();
  } else {
    opened = &device_named(device);
  }
  if (opened != nullptr && memory) {
    throw Error(ErrorKind::kValue, "replay: memory is given for " + opened->name() +
                                       ", whose memory is what it is; leave it out, or give the "
                                       "number of a simulated device");
  }
  ReplayReport report;
  {
    const py::gil_scoped_release release;
    report = opened != nullptr ? replay(*opened, trace, options)
                               : replay_simulated(simulated, memory, trace, options);
  }
  return shown(report);
}

}  // namespace

void bind_replay(py::module_& module) {
  module.def("replay", &run, py::arg("ops"), py::arg("ids"), py::arg("bytes"),
             py::arg("streams") = py::none(), py::arg("seconds") = py::none(), py::kw_only(),
             py::arg("device") = 0, py::arg("memory") = py::none(), py::arg("budget") = py::none(),
             py::arg("slack") = 0.0, py::arg("split") = 0, py::arg("seed") = py::none(),
             py::arg("repeat") = 1, py::arg("work_seconds") = 0.0, py::arg("virtual_memory") = true,
             "Run the events of a trace on a heap of their own, and return its figures. `device`: "
             "an opened device, or the number of a simulated one, which is given `memory` bytes "
             "(none: twice the peak) without backing for the time.");
}

}  // namespace nbx
