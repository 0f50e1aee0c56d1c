#include "bindings/bind_sim.h"

#include <string>

#include "core/error.h"
#include "device/device.h"
#include "device/sim/sim.h"

namespace nbx {
namespace {

namespace py = pybind11;

void add_fault(std::int32_t device, const std::string& primitive, std::uint64_t first_call,
               std::uint64_t call_count, Status status, double delay, std::uint32_t misalignment) {
  sim::Fault fault{primitive_named(primitive.c_str())};
  fault.first_call = first_call;
  fault.call_count = call_count;
  fault.status = status;
  fault.delay_seconds = delay;
  fault.misalignment = misalignment;
  sim::add_fault(device, fault);
}

py::dict books(std::int32_t device) {
  const sim::Books from = sim::books(device);
  py::dict to;
  to["total_bytes"] = from.total_bytes;
  to["pressure_bytes"] = from.pressure_bytes;
  to["used_bytes"] = from.used_bytes;
  to["peak_bytes"] = from.peak_bytes;
  to["reserved_bytes"] = from.reserved_bytes;
  to["pinned_bytes"] = from.pinned_bytes;
  to["allocations"] = from.allocations;
  to["pages"] = from.pages;
  to["mappings"] = from.mappings;
  to["streams"] = from.streams;
  to["queued_work"] = from.queued_work;
  return to;
}

/// Work that the package does not see, as another library would submit it.
void foreign_fill(std::int32_t device, DeviceAddress address, std::uint8_t value,
                  std::uint64_t bytes, StreamHandle stream) {
  const Device& opened = open_device(DeviceKind::kSim, device);
  opened.check(opened.primitives().fill(device, address, value, 1, bytes, stream), "fill");
}

sim::Backing backing_named(const std::string& name) {
  if (name == "real") return sim::Backing::kReal;
  if (name == "none") return sim::Backing::kNone;
  throw Error(ErrorKind::kValue,
              "set_backing: expected \"real\" or \"none\", got \"" + name + "\"");
}

/// Holds the controls by name; a submodule would split the stub into several files.
struct Controls {};

}  // namespace

void bind_sim(py::module_& module) {
  py::class_<Controls> controls(module, "sim", "Controls of the simulated devices.");
  controls.def_static("add_fault", &add_fault, py::arg("device"), py::arg("primitive"),
                      py::arg("first_call") = 1, py::arg("call_count") = 1, py::arg("status") = 0,
                      py::arg("delay") = 0.0, py::arg("misalignment") = 0,
                      "Let calls of a primitive, counted from now, fail, be late or misalign.");
  controls.def_static("clear_faults", &sim::clear_faults, py::arg("device"), "Forget all faults.");
  controls.def_static(
      "call_count",
      [](std::int32_t device, const std::string& primitive) {
        return sim::call_count(device, primitive_named(primitive.c_str()));
      },
      py::arg("device"), py::arg("primitive"), "Calls of a primitive so far.");
  controls.def_static("set_pressure", &sim::set_pressure, py::arg("device"), py::arg("bytes"),
                      "Set the bytes that another process holds.");
  controls.def_static("set_memory", &sim::set_memory, py::arg("device"), py::arg("bytes"),
                      "Set the size of the device's memory.");
  controls.def_static(
      "set_backing",
      [](std::int32_t device, const std::string& backing) {
        sim::set_backing(device, backing_named(backing));
      },
      py::arg("device"), py::arg("backing"),
      "Put host pages under the device's addresses (\"real\"), or nothing (\"none\").");
  controls.def_static("foreign_fill", &foreign_fill, py::arg("device"), py::arg("address"),
                      py::arg("value"), py::arg("bytes"), py::arg("stream"),
                      "Submit a fill that no tensor knows of, as another library would.");
  controls.def_static("seconds", &sim::seconds, "The virtual clock.");
  controls.def_static("advance", &sim::advance, py::arg("seconds"), "Let virtual time pass.");
  controls.def_static("books", &books, py::arg("device"), "What the device holds.");
}

}  // namespace nbx
