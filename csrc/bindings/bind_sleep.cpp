// Sleep and wake of tags, and reserved blocks.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "heap/blocking.h"
#include "heap/reserved.h"
#include "storage/tensor.h"

namespace nbx {
namespace {

namespace py = pybind11;

using python::memory_named;

py::tuple tuple_of(const SleepReport& report) {
  return py::make_tuple(report.blocks, report.bytes, report.moved, report.contents);
}

/// Where reserved blocks get memory: not in a forked child, and not in an epoch that ended.
DeviceMemory& require_usable(DeviceMemory& memory, const char* action) {
  if (memory.orphaned()) {
    throw Error(ErrorKind::kDevice, std::string(action) + ": " + memory.device.name() +
                                        " was opened before this process was forked, and belongs "
                                        "to the parent; start the child afresh (spawn)");
  }
  if (memory.ended()) {
    throw Error(ErrorKind::kValue, std::string(action) + ": the block is of epoch " +
                                       std::to_string(memory.epoch) + " of " +
                                       memory.device.name() +
                                       ", which ended when a new one began; reserve another");
  }
  return memory;
}

/// A reserved block and the memory that it belongs to.
struct PyReserved {
  PyReserved(const py::object& device, std::uint64_t bytes, bool steady)
      : memory(&require_usable(memory_named(device), "reserve")),
        block(std::make_shared<ReservedBlock>(memory->heap, bytes, tagged_account(memory->tensors),
                                              steady ? Lifetime::kSteady : Lifetime::kTransient)) {}
  ~PyReserved() {
    const BlockingScope scope;
    block.reset();
  }
  PyReserved(const PyReserved&) = delete;
  PyReserved& operator=(const PyReserved&) = delete;

  DeviceMemory* memory;
  std::shared_ptr<ReservedBlock> block;
};

py::object tensor_of(PyReserved& self, const std::vector<std::int64_t>& shape,
                     const py::object& dtype, std::uint64_t offset) {
  try {
    TensorMeta meta;
    meta.dtype = python::to_dtype(dtype.ptr());
    for (const std::int64_t extent : shape) {
      if (extent >= 0) continue;
      throw Error(ErrorKind::kValue, "tensor: the shape has a negative extent, " +
                                         std::to_string(extent) + "; give 0 or more");
    }
    meta.layout.resize(static_cast<std::int32_t>(shape.size()));
    std::copy(shape.begin(), shape.end(), meta.layout.shape());
    meta.layout.set_contiguous_strides();
    if (offset % 64 != 0) {
      throw Error(ErrorKind::kValue,
                  "tensor: offset is " + std::to_string(offset) + "; give a multiple of 64 bytes");
    }
    const std::uint64_t bytes = bytes_of(meta.dtype, meta.layout.element_count());
    meta.storage = Storage::view(*self.memory, self.block, offset, bytes);
    meta.data = meta.storage->address();
    return py::reinterpret_steal<py::object>(python::wrapped(std::move(meta)));
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
}

}  // namespace

void bind_sleep(py::module_& module) {
  module.def(
      "memory_sleep",
      [](const py::object& device, const std::string& tag, bool keep) {
        DeviceMemory& memory = memory_named(device);
        return tuple_of(memory.heap.sleep(*account_at(memory.tensors, tag), keep));
      },
      py::arg("device"), py::arg("tag"), py::arg("keep"),
      "Put a tag to sleep; (blocks, bytes, bytes of pages, bytes of contents).");
  module.def(
      "memory_wake",
      [](const py::object& device, const std::string& tag) {
        DeviceMemory& memory = memory_named(device);
        return tuple_of(memory.heap.wake(*account_at(memory.tensors, tag)));
      },
      py::arg("device"), py::arg("tag"),
      "Wake a tag; (blocks, bytes, bytes of pages, bytes of contents).");
  module.def(
      "memory_sleeping",
      [](const py::object& device, const std::string& tag) {
        DeviceMemory& memory = memory_named(device);
        return tuple_of(memory.heap.sleeping(*account_at(memory.tensors, tag)));
      },
      py::arg("device"), py::arg("tag"), "What sleeps of a tag; (blocks, bytes, 0, contents).");
  py::class_<PyReserved>(module, "Reserved", "Addresses under which memory grows and shrinks.")
      .def(py::init<const py::object&, std::uint64_t, bool>(), py::arg("device"), py::arg("bytes"),
           py::arg("steady"))
      .def(
          "commit",
          [](PyReserved& self, std::uint64_t bytes) {
            static_cast<void>(require_usable(*self.memory, "commit"));
            return self.block->commit(bytes);
          },
          py::arg("bytes"), "Memory under at least the first bytes; returns how many have it.")
      .def(
          "decommit",
          [](PyReserved& self, std::uint64_t keep) { return self.block->decommit(keep); },
          py::arg("keep"), "Memory under no more than the first bytes; returns how many have it.")
      .def("tensor", &tensor_of, py::arg("shape"), py::arg("dtype"), py::arg("offset"),
           "A contiguous tensor of committed bytes.")
      .def_property_readonly("address",
                             [](const PyReserved& self) { return self.block->address(); })
      .def_property_readonly("capacity",
                             [](const PyReserved& self) { return self.block->capacity(); })
      .def_property_readonly("committed",
                             [](const PyReserved& self) { return self.block->committed(); })
      .def_property_readonly("asleep",
                             [](const PyReserved& self) { return self.block->is_asleep(); })
      .def_property_readonly("granule",
                             [](const PyReserved& self) { return self.block->granule(); })
      .def_property_readonly("views", [](const PyReserved& self) { return self.block->views(); })
      .def_property_readonly("device",
                             [](const PyReserved& self) { return self.memory->device.name(); })
      .def_property_readonly("account",
                             [](const PyReserved& self) { return self.block->account().path(); });
}

}  // namespace nbx
