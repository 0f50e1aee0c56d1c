// Accounts, budgets, tags and the reports of the heaps. Storages themselves are C API types.
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/python_lock.h"
#include "core/bytes.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "storage/storage.h"

namespace nbx {
namespace {

namespace py = pybind11;
using OptionalBytes = std::optional<std::uint64_t>;

void* leave_python() noexcept {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return nullptr;
  return PyEval_SaveThread();
}
void enter_python(void* state) noexcept {
  if (state != nullptr) python::retake_lock(static_cast<PyThreadState*>(state));
}

using python::memory_named;

/// The account of a tag, or the root, which holds the whole device.
AccountHold account_of(DeviceMemory& memory, const std::optional<std::string>& tag) {
  return tag ? account_at(memory.tensors, *tag) : AccountHold(memory.root);
}

py::tuple shown(const PeakFigures& peak) { return py::make_tuple(peak.granted, peak.error); }

OptionalBytes shown(std::uint64_t limit) {
  return limit == kUnlimited ? OptionalBytes() : OptionalBytes(limit);
}

/// Bytes of an int or of a text such as "2 GiB" or "80%", which is of `total`; None: no limit.
std::uint64_t limit_of(const py::object& value, const Device& device) {
  if (value.is_none()) return kUnlimited;
  if (py::isinstance<py::str>(value)) {
    return parse_bytes(python::text_of(value, "budget"), device.memory_info().total_bytes);
  }
  if (py::isinstance<py::bool_>(value) || PyIndex_Check(value.ptr()) == 0 ||
      py::hasattr(value, "__len__")) {
    throw Error(ErrorKind::kType, "budget: got " + py::repr(value).cast<std::string>() +
                                      "; give bytes as an int, a text such as '2 GiB' or '80%', or "
                                      "None for no limit");
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  if (number < py::int_(0) || number > py::int_(INT64_MAX)) {
    throw Error(ErrorKind::kValue, "budget: got " + py::repr(value).cast<std::string>() +
                                       "; give 0 up to 2**63 - 1 bytes");
  }
  return number.cast<std::uint64_t>();
}

py::dict statistics_of(const py::object& device) {
  DeviceMemory& memory = memory_named(device);
  static_cast<void>(memory.heap.trim(kUnlimited));  // gives nothing back, but looks at the tickets
  const HeapStatistics heap = memory.heap.statistics();
  const AccountStatistics root = memory.root.statistics();
  const MemoryInfo info = memory.device.memory_info();
  const std::vector<AccountStatistics> accounts = memory.report();
  const auto occupied = std::find_if(accounts.begin(), accounts.end(), [&](const auto& row) {
    return row.id == memory.tensors.id();
  });
  HeapStatistics pool{};
  if (const PinnedPool* pinned = memory.known_pinned_pool()) pool = pinned->heap().statistics();
  const std::uint64_t used = info.total_bytes - std::min(info.free_bytes, info.total_bytes);
  py::dict result;
  result["device"] = memory.device.name();
  result["live"] = heap.live;
  result["parked"] = heap.parked;
  result["pending"] = heap.pending;
  result["mapped"] = heap.mapped;
  result["occupied"] = occupied->mapped;
  result["peak_live"] = heap.peak_live;
  result["peak_mapped"] = heap.peak_mapped;
  result["allocated"] = root.granted;
  result["peak_allocated"] = root.peak_granted;
  result["requested"] = root.requested;
  result["in_place"] = memory.mapped.statistics().granted;
  result["pinned"] = memory.pinned.statistics().granted;
  result["pinned_parked"] = pool.parked + pool.pending;
  result["registered"] = memory.external.statistics().granted;
  result["external"] = used > heap.mapped ? used - heap.mapped : 0;
  result["budget"] = shown(root.limit);
  result["device_free"] = info.free_bytes;
  result["device_total"] = info.total_bytes;
  result["objects"] = root.objects;
  result["live_blocks"] = heap.live_blocks;
  result["free_blocks"] = heap.free_blocks;
  result["largest_hole"] = heap.largest_hole;
  result["driver_calls"] = heap.driver_calls + pool.driver_calls;
  result["banked"] = heap.banked;
  result["created_bytes"] = heap.created_bytes;
  result["stolen_bytes"] = heap.stolen_bytes;
  result["remaps"] = heap.remaps;
  result["inserted_waits"] = heap.inserted_waits;
  result["asleep"] = heap.asleep;
  result["asleep_held"] = heap.asleep_held;
  result["asleep_blocks"] = heap.asleep_blocks;
  result["asleep_contents"] = heap.asleep_contents;
  result["kept"] = heap.kept;
  result["peak_error"] = root.peak_error;
  result["soft_crossings"] = root.soft_crossings;
  return result;
}

py::list report_of(const py::object& device) {
  py::list rows;
  for (const AccountStatistics& row : memory_named(device).report()) {
    rows.append(py::make_tuple(row.path, row.granted, row.peak_granted, row.requested, row.mapped,
                               row.objects, shown(row.limit)));
  }
  return rows;
}

py::dict options_of(const py::object& device) {
  Heap& heap = memory_named(device).heap;
  HeapOptions options;
  {
    const BlockingScope scope;  // a reclaimer may hold the heap's lock and wait for Python's
    options = heap.options();
  }
  py::dict result;
  result["slack"] = options.slack;
  result["reuse_ordered"] = options.reuse_ordered;
  result["reuse_waits"] = options.reuse_waits;
  return result;
}

void set_options(const py::object& device, double slack, bool reuse_ordered, bool reuse_waits) {
  Heap& heap = memory_named(device).heap;
  HeapOptions options;
  options.slack = slack;
  options.reuse_ordered = reuse_ordered;
  options.reuse_waits = reuse_waits;
  const BlockingScope scope;
  heap.set_options(options);
}

/// The limit of an account, hard or soft.
OptionalBytes limit_at(const py::object& device, const std::optional<std::string>& tag, bool soft) {
  const AccountHold account = account_of(memory_named(device), tag);
  return shown(soft ? account->soft_limit() : account->limit());
}

OptionalBytes set_limit_at(const py::object& device, const std::optional<std::string>& tag,
                           const py::object& value, bool soft) {
  DeviceMemory& memory = memory_named(device);
  const AccountHold account = account_of(memory, tag);
  const std::uint64_t limit = limit_of(value, memory.device);
  return shown(soft ? account->set_soft_limit(limit) : account->set_limit(limit));
}

using Tag = std::optional<std::string>;

/// The most that an account holds from its making on, until `end`. It keeps the account, also when
/// another epoch of the device begins.
class PyPeak {
 public:
  PyPeak(const py::object& device, const Tag& tag)
      : account_(account_of(memory_named(device), tag)), scope_(account_->begin_peak()) {}
  PyPeak(const PyPeak&) = delete;
  PyPeak& operator=(const PyPeak&) = delete;
  ~PyPeak() {
    try {
      end();
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("peak: ") + error.what());
    }
  }

  [[nodiscard]] py::tuple figures() const {
    return shown(scope_ ? account_->peak(*scope_) : last_);
  }
  void end() {
    if (!scope_) return;
    last_ = account_->end_peak(*scope_);
    scope_.reset();
  }

 private:
  AccountHold account_;
  std::optional<std::uint64_t> scope_;
  PeakFigures last_;
};

void bind_peaks(py::module_& module) {
  py::class_<PyPeak>(module, "Peak", "The most that a tag, or a device, holds from now on.")
      .def(py::init<const py::object&, const Tag&>(), py::arg("device"), py::arg("tag"))
      .def_property_readonly("figures", &PyPeak::figures, "(bytes, error).")
      .def("end", &PyPeak::end, "Keep the figures as they are now.");
}

void bind_settings(py::module_& module) {
  module.def("memory_set_tag", &set_tag, py::arg("path"),
             "Set the calling thread's tag path ('' for none); returns the former one.");
  module.def(
      "memory_set_steady",
      [](bool steady) {
        const Lifetime lifetime = steady ? Lifetime::kSteady : Lifetime::kTransient;
        return set_thread_lifetime(lifetime) == Lifetime::kSteady;
      },
      py::arg("steady"),
      "Say that what this thread allocates stays; returns what was said before.");
  module.def("memory_set_limit", &set_limit_at, py::arg("device"), py::arg("tag"), py::arg("value"),
             py::arg("soft") = false,
             "Set a limit of a tag, or of the whole device; returns the former one.");
  module.def("memory_limit", &limit_at, py::arg("device"), py::arg("tag"), py::arg("soft") = false,
             "A limit of a tag, or of the whole device; None if none.");
  module.def("memory_options", &options_of, py::arg("device"), "Options of a device's heap.");
  module.def("memory_set_options", &set_options, py::arg("device"), py::arg("slack"),
             py::arg("reuse_ordered"), py::arg("reuse_waits"), "Set the options of a heap.");
}

}  // namespace

namespace python {

std::string text_of(const py::object& object, const char* name) {
  try {
    return to_text(object.ptr(), name);
  } catch (const PythonError&) {
    throw py::error_already_set();
  }
}

DeviceMemory& memory_named(const py::object& device) {
  try {
    return memory_of(to_device(device.ptr()));
  } catch (const PythonError&) {
    throw py::error_already_set();
  }
}

}  // namespace python

void bind_memory(py::module_& module) {
  set_blocking_hooks(BlockingHooks{leave_python, enter_python});
  bind_settings(module);
  bind_peaks(module);
  module.def("memory_statistics", &statistics_of, py::arg("device"), "Figures of a device.");
  module.def(
      "memory_report", &report_of, py::arg("device"),
      "(path, bytes, peak, requested, mapped, objects, limit) of every account, of one moment.");
  module.def(
      "memory_allocated",
      [](const py::object& device, bool peak) {
        const AccountStatistics root = memory_named(device).root.statistics();
        return peak ? root.peak_granted : root.granted;
      },
      py::arg("device"), py::arg("peak"), "Bytes that are counted on a device, or their peak.");
  module.def(
      "memory_reset_peak",
      [](const py::object& device) {
        DeviceMemory& memory = memory_named(device);
        memory.root.reset_peak();
        memory.heap.reset_peak();
      },
      py::arg("device"), "Lower every peak of a device to what is held.");
  module.def(
      "memory_trim",
      [](const py::object& device, std::uint64_t keep) {
        DeviceMemory& memory = memory_named(device);
        const BlockingScope scope;
        return memory.trim(keep) + trim_ended(memory.device);
      },
      py::arg("device"), py::arg("keep"), "Give unused memory back; returns the bytes.");
}

}  // namespace nbx
