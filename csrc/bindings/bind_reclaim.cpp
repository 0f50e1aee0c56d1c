// What Python does about full memory: reclaimers, memory of libraries, epochs, page-locked memory.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "heap/blocking.h"
#include "storage/storage.h"

namespace nbx {
namespace {

namespace py = pybind11;

using python::memory_named;

// ---- reclaimers ----------------------------------------------------------------------------

/// A Python function that frees memory; called from any thread that does not hold the Python lock.
class PythonReclaimer {
 public:
  explicit PythonReclaimer(py::object function) : function_(function.release().ptr()) {}
  PythonReclaimer(const PythonReclaimer&) = delete;
  PythonReclaimer& operator=(const PythonReclaimer&) = delete;
  ~PythonReclaimer() {
    if (Py_IsInitialized() == 0) return;
    const python::Locked locked;
    Py_DECREF(function_);
  }

  std::uint64_t operator()(std::uint64_t bytes) const {
    if (Py_IsInitialized() == 0) return 0;
    const python::Locked locked;
    const auto size = py::reinterpret_steal<py::object>(PyLong_FromUnsignedLongLong(bytes));
    const auto freed = py::reinterpret_steal<py::object>(
        python::take_lock([&] { return PyObject_CallOneArg(function_, size.ptr()); }));
    if (!freed) {
      if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
        // The request is refused or served first; the main thread is interrupted after it.
        PyErr_Clear();
        PyErr_SetInterrupt();
        return 0;
      }
      PyErr_WriteUnraisable(function_);
      return 0;
    }
    const unsigned long long value = PyLong_AsUnsignedLongLong(freed.ptr());
    if (PyErr_Occurred() == nullptr) return value;
    PyErr_WriteUnraisable(function_);
    return 0;
  }

 private:
  PyObject* function_;
};

/// The heaps know each by a number of their own; a new epoch's heap gives it another.
struct Registration {
  std::uint64_t key;
  Device* device;
  Heap* heap;
  std::uint64_t number;
  double cost;
  std::optional<std::string> tag;
  std::shared_ptr<PythonReclaimer> call;
};
struct Registrations {
  std::mutex mutex;
  std::uint64_t next = 1;
  std::vector<Registration> known;
};

Registrations& registrations() {
  static auto* const instance = std::make_unique<Registrations>().release();
  return *instance;
}

void enlist(DeviceMemory& memory, Registration* row) {
  const AccountHold account = row->tag ? account_at(memory.tensors, *row->tag) : AccountHold();
  row->heap = &memory.heap;
  row->number = memory.heap.add_reclaimer(
      row->cost, [call = row->call](std::uint64_t bytes) { return (*call)(bytes); }, account.get());
}

std::uint64_t add_reclaimer(const py::object& device, double cost, const py::object& function,
                            const std::optional<std::string>& tag) {
  DeviceMemory& memory = memory_named(device);
  if (!(cost >= 0.0)) {
    throw Error(ErrorKind::kValue,
                "reclaimer: cost is " + std::to_string(cost) + "; give a number at least 0");
  }
  Registration row{
      0, &memory.device, &memory.heap, 0, cost, tag, std::make_shared<PythonReclaimer>(function)};
  enlist(memory, &row);
  Registrations& all = registrations();
  const std::lock_guard<std::mutex> guard(all.mutex);
  row.key = all.next++;
  all.known.push_back(row);
  return row.key;
}

void remove_reclaimer(std::uint64_t key) {
  Registration removed{};
  {
    Registrations& all = registrations();
    const std::lock_guard<std::mutex> guard(all.mutex);
    const auto found = std::find_if(all.known.begin(), all.known.end(),
                                    [&](const Registration& row) { return row.key == key; });
    if (found == all.known.end()) return;
    removed = std::move(*found);
    all.known.erase(found);
  }
  removed.heap->remove_reclaimer(removed.number);
}

std::uint32_t new_epoch(const py::object& device) {
  Device& opened = memory_named(device).device;
  DeviceMemory* memory = nullptr;
  {
    const BlockingScope scope;
    memory = &begin_epoch(opened);
  }
  Registrations& all = registrations();
  const std::lock_guard<std::mutex> guard(all.mutex);
  for (Registration& row : all.known) {
    if (row.device != &opened) continue;
    row.heap->remove_reclaimer(row.number);
    enlist(*memory, &row);
  }
  return memory->epoch;
}

// ---- memory of libraries -------------------------------------------------------------------

/// What one library holds on a device. Resizing may ask the program for memory, and so may be under
/// way more than once: each counts the bytes that it adds or takes, so that none is lost.
class External {
 public:
  External(const py::object& device, std::string name, std::uint64_t bytes)
      : device_(&memory_named(device).device), name_(std::move(name)) {
    resize(bytes);
  }
  External(const External&) = delete;
  External& operator=(const External&) = delete;

  [[nodiscard]] std::uint64_t bytes() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return memory_ == &memory_of(*device_) ? bytes_ : 0;
  }
  void resize(std::uint64_t to) {
    DeviceMemory& memory = memory_of(*device_);
    const std::uint64_t from = begin(memory, to);
    if (to > from) {
      memory.heap.recount(*account_, 0, to - from);
      add(memory, to - from);
    } else if (to < from) {
      memory.heap.recount(*account_, from, to);
    }
  }

 private:
  /// Returns the bytes that it counts; those above `to` are no longer its own, to be taken off.
  std::uint64_t begin(DeviceMemory& memory, std::uint64_t to) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (memory_ != &memory) {  // what it counted ended with its epoch
      account_ = account_at(memory.external, name_);
      memory_ = &memory;
      bytes_ = 0;
    }
    const std::uint64_t from = bytes_;
    bytes_ = std::min(bytes_, to);
    return from;
  }
  /// The bytes were counted as an object; all of it is one.
  void add(const DeviceMemory& memory, std::uint64_t more) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (memory_ != &memory) return;
    if (bytes_ != 0) account_->release(0, 0);
    bytes_ += more;
  }

  mutable std::mutex mutex_;
  Device* device_;
  std::string name_;
  DeviceMemory* memory_ = nullptr;
  AccountHold account_;
  std::uint64_t bytes_ = 0;
};

// ---- page-locked memory --------------------------------------------------------------------

py::object make_pinned(const py::object& shape, const py::object& dtype, const py::object& device) {
  try {
    DeviceMemory& memory = memory_named(device);
    const Extents extents = python::to_extents(shape.ptr(), "shape");
    TensorMeta meta = pinned_tensor(memory, python::to_dtype(dtype.ptr()), extents.values,
                                    static_cast<std::int32_t>(extents.count));
    return py::reinterpret_steal<py::object>(python::wrapped(std::move(meta)));
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
}

bool is_pinned_tensor(const py::object& tensor) {
  try {
    return python::to_tensor(tensor.ptr(), "is_pinned").storage->pinned();
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
}

}  // namespace

void bind_reclaim(py::module_& module) {
  module.def("memory_add_reclaimer", &add_reclaimer, py::arg("device"), py::arg("cost"),
             py::arg("function"), py::arg("tag"),
             "Ask function(bytes) -> bytes freed before a request is refused; returns a key.");
  module.def("memory_remove_reclaimer", &remove_reclaimer, py::arg("key"),
             "Ask a function no more.");
  module.def("memory_new_epoch", &new_epoch, py::arg("device"),
             "Make every address void that the device issued; returns the epoch's number.");
  module.def(
      "memory_epoch", [](const py::object& device) { return memory_named(device).epoch; },
      py::arg("device"), "Number of the device's epoch, from 1 on.");
  py::class_<External>(module, "External", "Bytes that a library holds on a device.")
      .def(py::init<const py::object&, std::string, std::uint64_t>(), py::arg("device"),
           py::arg("name"), py::arg("bytes"))
      .def_property_readonly("bytes", &External::bytes)
      .def("resize", &External::resize, py::arg("bytes"), "Count so many bytes from now on.");
  module.def("memory_pinned", &make_pinned, py::arg("shape"), py::arg("dtype"), py::arg("device"),
             "A host tensor in memory that is page-locked for the device.");
  module.def("memory_is_pinned", &is_pinned_tensor, py::arg("tensor"),
             "Whether a tensor lies in page-locked memory of this library's.");
}

}  // namespace nbx
