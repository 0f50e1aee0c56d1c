// Arenas, slabs, layouts and static plans.
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "arena/layout.h"
#include "arena/plan.h"
#include "arena/slab.h"
#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/python_lock.h"
#include "core/environment.h"
#include "storage/tensor.h"

namespace nbx {
namespace {

namespace py = pybind11;

/// Runs a body that may have set a Python exception.
template <class Body>
auto passing(const Body& body) {
  try {
    return body();
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
}

// ---- carvers -------------------------------------------------------------------------------

/// What a tensor in a carver keeps alive.
struct Owner {
  std::shared_ptr<Carver> carver;
  Carving carving;
  const void* key = nullptr;  // null until the carver knows the tensor
};

void finish(void* owner) noexcept {
  const std::unique_ptr<Owner> held(static_cast<Owner*>(owner));
  if (held->key != nullptr) held->carver->tensor_returned(held->key, held->carving);
}

/// Memory is carved while its epoch lasts. Returns the device's memory.
DeviceMemory& require_epoch(const Carver& carver) {
  DeviceMemory& memory = memory_of(carver.device());
  if (&memory.heap == &carver.heap()) return memory;
  throw Error(ErrorKind::kValue, carver.name() + ": its memory is of an epoch of " +
                                     carver.device().name() +
                                     " that ended when a new one began; make another");
}

/// Carves a tensor; none if the carver has no room for it.
std::optional<TensorMeta> carve_tensor(const std::shared_ptr<Carver>& carver,
                                       const py::object& shape, const py::object& dtype,
                                       std::uint64_t origin) {
  const Extents extents = python::to_extents(shape.ptr(), "shape");
  TensorMeta meta;
  meta.dtype = python::to_dtype(dtype.ptr());
  meta.layout.resize(extents.count);
  for (std::int32_t i = 0; i < extents.count; ++i) {
    if (extents.values[i] < 0) {
      throw Error(ErrorKind::kValue, carver->name() + ": shape has the negative extent " +
                                         std::to_string(extents.values[i]) + " at axis " +
                                         std::to_string(i) + "; give 0 or more");
    }
    meta.layout.shape()[i] = extents.values[i];
  }
  const std::uint64_t bytes = bytes_of(meta.dtype, meta.layout.element_count());
  meta.layout.set_contiguous_strides();
  DeviceMemory& memory = require_epoch(*carver);
  auto owner = std::make_unique<Owner>();
  owner->carver = carver;
  if (Arena* arena = dynamic_cast<Arena*>(carver.get()); arena != nullptr) {
    owner->carving = arena->allocate(bytes, current_stream(carver->device()));
  } else if (!carver->carve(bytes, current_stream(carver->device()), &owner->carving, origin)) {
    return std::nullopt;
  }
  const Carving carving = owner->carving;
  meta.storage = Storage::borrow(memory, carving.address, bytes, 0, true, owner.get(), &finish);
  Owner* known = owner.release();
  carver->tensor_made(meta.storage.get(), carving);
  known->key = meta.storage.get();
  meta.data = carving.address;
  return meta;
}

py::object empty_in(const std::shared_ptr<Carver>& carver, const py::object& shape,
                    const py::object& dtype, std::uint64_t origin) {
  return passing([&]() -> py::object {
    std::optional<TensorMeta> meta = carve_tensor(carver, shape, dtype, origin);
    if (!meta) return py::none();
    return py::reinterpret_steal<py::object>(python::wrapped(std::move(*meta)));
  });
}

py::object carve_in(Carver& carver, std::uint64_t bytes, std::uint64_t origin) {
  static_cast<void>(require_epoch(carver));
  Carving carving;
  if (!carver.carve(bytes, current_stream(carver.device()), &carving, origin)) return py::none();
  return py::int_(carving.address);
}

void require_current(const Carver& carver, const py::object& tensor) {
  passing([&] {
    const TensorMeta& meta = python::to_tensor(tensor.ptr(), "check");
    carver.require_tensor(meta.storage.get(), meta.data);
    return 0;
  });
}

/// Makes a carver in the memory of a device, under the thread's tag.
template <class Made, class... Arguments>
std::shared_ptr<Made> make(const std::string& name, const py::object& device,
                           const Arguments&... arguments) {
  return passing([&] {
    DeviceMemory& memory = memory_of(python::to_device(device.ptr()));
    return std::make_shared<Made>(name, memory.heap, tagged_account(memory.tensors),
                                  current_stream(memory.device), arguments...);
  });
}

void bind_carver(py::module_& module) {
  py::class_<Carver, std::shared_ptr<Carver>>(module, "Carver",
                                              "One heap block that others are carved from.")
      .def_property_readonly("name", &Carver::name)
      .def_property_readonly(
          "device",
          [](const Carver& carver) {
            return py::reinterpret_borrow<py::object>(python::device_object(carver.device()));
          })
      .def_property_readonly("capacity", &Carver::capacity)
      .def_property_readonly("base", &Carver::base)
      .def_property_readonly("used", &Carver::used)
      .def_property_readonly("peak", &Carver::peak)
      .def_property_readonly("generation", &Carver::generation)
      .def_property_readonly("tensors", &Carver::tensors)
      .def_property_readonly("closed", &Carver::closed)
      .def_property_readonly("stale_frees", &Carver::stale_gives)
      .def("alloc", &carve_in, py::arg("nbytes"), py::arg("origin") = 0,
           "Address of new memory; None if there is no room.")
      .def("empty", &empty_in, py::arg("shape"), py::arg("dtype"), py::arg("origin") = 0,
           "A tensor of undefined contents; None if there is no room.")
      .def("free", &Carver::give, py::arg("address"), "Take back what alloc gave.")
      .def("check", &require_current, py::arg("tensor"),
           "Raise ValueError unless the tensor's memory is still its own.")
      .def("close", &Carver::close, "Give the block back, with the last tensor in it.");
}

void bind_arenas(py::module_& module) {
  py::class_<Arena, Carver, std::shared_ptr<Arena>>(module, "Arena", "Bump pointer with reset.")
      .def(py::init([](const std::string& name, std::uint64_t capacity, const py::object& device,
                       std::optional<bool> guarded) {
             const bool checked = guarded ? *guarded : environment_flag("NBX_MEMORY_CHECK");
             return make<Arena>(name, device, capacity, checked);
           }),
           py::arg("name"), py::arg("capacity"), py::arg("device"), py::arg("guarded"))
      .def(
          "alloc",
          [](Arena& arena, std::uint64_t bytes) {
            static_cast<void>(require_epoch(arena));
            return arena.allocate(bytes, current_stream(arena.device())).address;
          },
          py::arg("nbytes"), "Address of new memory.")
      .def(
          "resolve",
          [](const Arena& arena, DeviceAddress address) {
            const Resolved found = arena.resolve(address);
            return py::make_tuple(found.start, found.bytes, found.offset, found.generation);
          },
          py::arg("address"), "(start, nbytes, offset, generation) of the carving that holds it.")
      .def(
          "verify",
          [](Arena& arena) {
            static_cast<void>(require_epoch(arena));
            arena.verify();
          },
          "Look at the guards.")
      .def(
          "reset",
          [](Arena& arena) {
            static_cast<void>(require_epoch(arena));
            arena.reset();
          },
          "Recycle everything.");
}

void bind_slabs(py::module_& module) {
  py::class_<ReplaySlab, Carver, std::shared_ptr<ReplaySlab>>(module, "ReplaySlab",
                                                              "Best fit in one block.")
      .def(py::init([](const std::string& name, std::uint64_t capacity, const py::object& device) {
             return make<ReplaySlab>(name, device, capacity);
           }),
           py::arg("name"), py::arg("capacity"), py::arg("device"))
      .def_property_readonly("shortfall", &ReplaySlab::shortfall)
      .def_property_readonly("holes", &ReplaySlab::holes)
      .def_property_readonly("largest_hole", &ReplaySlab::largest_hole)
      .def("retire", &ReplaySlab::retire, "Give the block back with the last carving in it.");
  py::class_<StepSlab, Carver, std::shared_ptr<StepSlab>>(module, "StepSlab",
                                                          "Bump pointer a step.")
      .def(py::init([](const std::string& name, std::uint64_t capacity, const py::object& device) {
             return make<StepSlab>(name, device, capacity);
           }),
           py::arg("name"), py::arg("capacity"), py::arg("device"))
      .def_static("capacity_for", &StepSlab::capacity_for, py::arg("total"))
      .def_property_readonly("shortfall", &StepSlab::shortfall)
      .def_property_readonly("carve_sizes", &StepSlab::carve_sizes)
      .def_property_readonly("former_sizes", &StepSlab::former_sizes)
      .def_property_readonly("first_difference", &StepSlab::first_difference)
      .def(
          "reset",
          [](StepSlab& slab) {
            static_cast<void>(require_epoch(slab));
            return slab.reset();
          },
          "Start the next step; whether this one equalled the former.");
  using Keys = std::vector<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>>;
  py::class_<PlannedSlab, Carver, std::shared_ptr<PlannedSlab>>(module, "PlannedSlab",
                                                                "A plan at run time.")
      .def(py::init([](const std::string& name, const Keys& keys,
                       const std::vector<std::uint64_t>& offsets, const py::object& device) {
             std::vector<PlannedKey> planned;
             for (const auto& [origin, ordinal, bytes] : keys) {
               planned.push_back(PlannedKey{origin, ordinal, bytes});
             }
             return make<PlannedSlab>(name, device, planned, offsets);
           }),
           py::arg("name"), py::arg("keys"), py::arg("offsets"), py::arg("device"))
      .def_property_readonly("hits", &PlannedSlab::hits)
      .def_property_readonly("misses", &PlannedSlab::misses)
      .def_property_readonly("conflicts", &PlannedSlab::conflicts)
      .def("begin_step", &PlannedSlab::begin_step, "Count ordinals from 0 again.");
}

// ---- layouts -------------------------------------------------------------------------------

void bind_layout(py::module_& module) {
  py::class_<BlockLayout>(module, "BlockLayout", "Where named tensors lie in one block.")
      .def(py::init<>())
      .def("add", &BlockLayout::add, py::arg("name"), py::arg("nbytes"), py::arg("alignment"))
      .def(
          "find",
          [](const BlockLayout& layout, const std::string& name) {
            const LayoutEntry& entry = layout.find(name);
            return py::make_tuple(entry.offset, entry.bytes);
          },
          py::arg("name"), "(offset, nbytes) of an entry.")
      .def_property_readonly(
          "entries",
          [](const BlockLayout& layout) {
            std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> rows;
            for (const LayoutEntry& entry : layout.entries()) {
              rows.emplace_back(entry.name, entry.offset, entry.bytes);
            }
            return rows;
          })
      .def_property_readonly("total", &BlockLayout::total)
      .def_property_readonly("alignment", &BlockLayout::alignment);
}

// ---- plans ---------------------------------------------------------------------------------

using Gaps = std::vector<std::pair<std::int64_t, std::int64_t>>;
using IntervalRow = std::tuple<std::int64_t, std::int64_t, std::uint64_t, std::uint64_t, Gaps>;

std::vector<PlanInterval> intervals_of(const std::vector<IntervalRow>& rows) {
  std::vector<PlanInterval> intervals;
  intervals.reserve(rows.size());
  for (const auto& [lower, upper, size, alignment, gaps] : rows) {
    PlanInterval interval{lower, upper, size, alignment, {}};
    for (const auto& [begin, end] : gaps) interval.gaps.push_back(PlanSpan{begin, end});
    intervals.push_back(std::move(interval));
  }
  return intervals;
}

/// Runs `work` beside this thread, which looks at signals and at `cancelled` meanwhile.
void run_watched(const std::function<void()>& work, std::atomic<bool>& cancel,
                 const py::object& cancelled) {
  std::exception_ptr failure;
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  std::thread worker([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard<std::mutex> guard(mutex);
    over = true;
    ended.notify_one();
  });
  std::exception_ptr interrupted;
  const auto wait = [&](std::chrono::milliseconds time) {
    const python::Unlocked unlocked;
    std::unique_lock<std::mutex> guard(mutex);
    return ended.wait_for(guard, time, [&] { return over; });
  };
  while (!wait(std::chrono::milliseconds(50))) {
    try {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (!cancelled.is_none() && cancelled().cast<bool>()) cancel = true;
    } catch (...) {
      interrupted = std::current_exception();
      cancel = true;
      break;
    }
  }
  {
    const python::Unlocked unlocked;
    worker.join();
  }
  if (interrupted) std::rethrow_exception(interrupted);
  if (failure) std::rethrow_exception(failure);
}

py::dict plan_of(const std::vector<IntervalRow>& rows, std::uint64_t capacity,
                 std::uint64_t alignment, double seconds, const py::object& cancelled) {
  const std::vector<PlanInterval> intervals = intervals_of(rows);
  std::atomic<bool> cancel{false};
  const PlanOptions options{capacity, alignment, seconds, &cancel};
  StaticPlan plan;
  run_watched([&] { plan = make_plan(intervals, options); }, cancel, cancelled);
  py::dict result;
  result["offsets"] = plan.offsets;
  result["peak"] = plan.peak;
  result["lower_bound"] = plan.lower_bound;
  result["optimal"] = plan.optimal;
  result["cancelled"] = plan.cancelled;
  result["seconds"] = plan.seconds;
  result["nodes"] = plan.nodes;
  result["method"] = plan.method;
  return result;
}

}  // namespace

void bind_arena(py::module_& module) {
  bind_carver(module);
  bind_arenas(module);
  bind_slabs(module);
  bind_layout(module);
  module.def("make_plan", &plan_of, py::arg("intervals"), py::arg("capacity"), py::arg("alignment"),
             py::arg("seconds"), py::arg("cancelled"),
             "Plan (lower, upper, size, alignment, gaps) rows; capacity 0: as small as possible.");
  module.def(
      "plan_fault",
      [](const std::vector<IntervalRow>& rows, const std::vector<std::uint64_t>& offsets,
         std::uint64_t capacity, std::uint64_t alignment) {
        return plan_fault(intervals_of(rows), offsets, capacity, alignment);
      },
      py::arg("intervals"), py::arg("offsets"), py::arg("capacity"), py::arg("alignment"),
      "What is wrong with a plan; '' if nothing is.");
}

}  // namespace nbx
