// `_core.Op`: an operation with its plan cache, callable and usable as a method.
#include "bindings/op.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "bindings/bindings.h"
#include "bindings/kernel_type.h"
#include "bindings/python_lock.h"
#include "bindings/tensor_copy.h"
#include "stream/fault.h"

namespace py = pybind11;

namespace nbx::python {
namespace {

constexpr std::size_t kMaximumPlans = 4096;

struct Entry {
  std::uint64_t hash = 0;
  std::vector<std::uint64_t> key;
  std::shared_ptr<PlanRecord> record;
  std::vector<PyObject*> kept;  // static arguments that the key knows by identity
};

/// With the Python lock, lookups are serial already.
class CacheLock {
 public:
#ifdef Py_GIL_DISABLED
  explicit CacheLock(std::mutex& mutex) : lock_(mutex) {}

 private:
  std::lock_guard<std::mutex> lock_;
#else
  explicit CacheLock(std::mutex& /*mutex*/) {}
#endif
};

/// Open addressing, at most half full; emptied when it holds kMaximumPlans, so a program whose
/// shapes never repeat stays bounded.
class PlanCache {
 public:
  /// The plan that was found last, if it is of this key: many calls of an op are alike.
  [[nodiscard]] std::shared_ptr<PlanRecord> find_again(const Key& key) {
    const CacheLock lock(mutex_);
    if (last_ >= slots_.size() || !matches(slots_[last_], key)) return nullptr;
    return slots_[last_].record;
  }

  [[nodiscard]] std::shared_ptr<PlanRecord> find(std::uint64_t hash, const Key& key) {
    const CacheLock lock(mutex_);
    if (slots_.empty()) return nullptr;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      const Entry& entry = slots_[i];
      if (entry.record == nullptr) return nullptr;
      if (entry.hash == hash && matches(entry, key)) {
        last_ = i;
        return entry.record;
      }
    }
  }

  void insert(Entry entry) {
    std::vector<Entry> dropped;
    {
      const CacheLock lock(mutex_);
      if (count_ >= kMaximumPlans) {
        dropped.swap(slots_);
        count_ = 0;
      }
      if (2 * (count_ + 1) > slots_.size()) rehash(slots_.empty() ? 8 : 2 * slots_.size());
      place(std::move(entry));
      ++count_;
    }
    release_kept(dropped);
  }

  [[nodiscard]] std::size_t size() {
    const CacheLock lock(mutex_);
    return count_;
  }

  void clear() {
    std::vector<Entry> dropped;
    {
      const CacheLock lock(mutex_);
      dropped.swap(slots_);
      count_ = 0;
    }
    release_kept(dropped);
  }

 private:
  static bool matches(const Entry& entry, const Key& key) noexcept {
    return std::equal(entry.key.begin(), entry.key.end(), key.begin(), key.end());
  }
  // Outside the lock: the last reference to a plan may run Python code.
  static void release_kept(std::vector<Entry>& entries) {
    for (Entry& entry : entries) {
      for (PyObject* object : entry.kept) Py_DECREF(object);
    }
    entries.clear();
  }
  void place(Entry entry) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = entry.hash & mask;
    while (slots_[i].record != nullptr) i = (i + 1) & mask;
    slots_[i] = std::move(entry);
  }
  void rehash(std::size_t capacity) {
    std::vector<Entry> old(capacity);
    old.swap(slots_);
    for (Entry& entry : old) {
      if (entry.record != nullptr) place(std::move(entry));
    }
  }

  std::mutex mutex_;
  std::vector<Entry> slots_;
  std::size_t count_ = 0;
  std::size_t last_ =
      0;  // the place of the entry that was found last; entries may have moved since
};

struct OpState {
  Signature signature;
  PyObject* plan = nullptr;         // planner
  PyObject* result_type = nullptr;  // of several results: called with them, else a tuple
  PlanCache cache;
  std::atomic<std::uint64_t> misses{0};
};

struct OpObject {
  PyObject_HEAD vectorcallfunc call;
  OpState* state;
  PyObject* dictionary;
  PyObject* weak_references;
};

PyTypeObject* op_type = nullptr;
std::atomic<PyObject*> dispatch_hook{nullptr};
std::atomic<std::uint64_t> policy_generation{1};

std::uint64_t hash_of(const Key& key) noexcept {
  std::uint64_t hash = 0x9E3779B97F4A7C15u ^ key.size();
  const std::uint64_t* words = key.data();
  for (std::size_t i = 0; i < key.size(); ++i) {
    hash = (hash ^ words[i]) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

void keep_objects(PyObject* value, std::vector<PyObject*>& kept) {
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      keep_objects(PySequence_Fast_GET_ITEM(value, i), kept);
    }
  } else {
    kept.push_back(Py_NewRef(value));
  }
}

/// Asks the planner and caches its answer; null with an exception set.
std::shared_ptr<PlanRecord> plan_call(OpState& state, const BoundCall& call, std::uint64_t hash) {
  state.misses.fetch_add(1, std::memory_order_relaxed);
  const std::size_t count = state.signature.parameters.size();
  PyObject* plan = python::take_lock(
      [&] { return PyObject_Vectorcall(state.plan, call.values, count, nullptr); });
  if (plan == nullptr) return nullptr;
  std::shared_ptr<PlanRecord> record = plan_record(plan);
  Py_DECREF(plan);
  if (record == nullptr) return nullptr;
  record->plan.name = state.signature.name;
  require_runnable(record->plan, call.memory->device);
  record->only_launches = only_launches(record->plan);
  Entry entry;
  entry.hash = hash;
  entry.key.assign(call.key.data(), call.key.data() + call.key.size());
  entry.record = record;
  for (std::size_t i = 0; i < count; ++i) {
    if (state.signature.parameters[i].kind == ParameterKind::kStatic) {
      keep_objects(call.values[i], entry.kept);
    }
  }
  state.cache.insert(std::move(entry));
  return record;
}

void check_guards(const OpState& state, const PlanRecord& record, BoundCall& call) {
  for (const ScalarGuard& guard : record.guards) {
    const Scalar& scalar = call.scalars[guard.index];
    if (scalar.none()) continue;
    const auto magnitude = static_cast<std::uint64_t>(scalar.integer);
    const bool is_negative = !scalar.is_unsigned && scalar.integer < 0;
    const bool fits =
        is_negative ? scalar.integer >= guard.low
                    : magnitude <= guard.high &&
                          (guard.low <= 0 || magnitude >= static_cast<std::uint64_t>(guard.low));
    if (scalar.kind == ScalarKind::kInteger && fits) continue;
    if (scalar.kind != ScalarKind::kInteger) {
      throw Error(ErrorKind::kType,
                  state.signature.name + ": " + guard.name + " must be an integer");
    }
    const std::string given =
        is_negative ? std::to_string(scalar.integer) : std::to_string(magnitude);
    const std::string range =
        "[" + std::to_string(guard.low) + ", " + std::to_string(guard.high) + "]";
    if (!guard.reason.empty()) {
      throw Error(guard.error, state.signature.name + ": " + guard.name + " is " + given + ", " +
                                   guard.reason + "; expected " + range +
                                   ", or convert the tensor first");
    }
    throw Error(guard.error, state.signature.name + ": " + guard.name + " must be in " + range +
                                 ", got " + given);
  }
  for (const std::uint16_t index : record.written) {
    if (call.tensors[index]->storage->writable()) continue;
    throw Error(ErrorKind::kValue,
                state.signature.name + ": the tensor to write is read-only memory; copy it first");
  }
}

constexpr std::size_t kInlineOutputs = 3;

PyObject* wrap_result(const ResultReference& reference, const BoundCall& call,
                      TensorMeta* outputs) {
  if (reference.source == OperandSource::kArgument) {
    return Py_NewRef(const_cast<BoundCall&>(call).objects[reference.index]);
  }
  return wrap_tensor(std::move(outputs[reference.index]));
}

PyObject* wrap_results(const OpState& state, const PlanRecord& record, const BoundCall& call,
                       TensorMeta* outputs) {
  const auto& results = record.plan.results;
  if (results.size() == 1) return wrap_result(results[0], call, outputs);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  if (tuple == nullptr) return nullptr;
  for (std::size_t i = 0; i < results.size(); ++i) {
    PyObject* item = wrap_result(results[i], call, outputs);
    if (item == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), item);
  }
  if (state.result_type == nullptr || state.result_type == Py_None) return tuple;
  PyObject* wrapped = PyObject_Call(state.result_type, tuple, nullptr);
  Py_DECREF(tuple);
  return wrapped;
}

// Whether no other Python thread runs while one has the lock.
#ifdef Py_GIL_DISABLED
constexpr bool kOneThread = false;
#else
constexpr bool kOneThread = true;
#endif

PyObject* execute(const OpState& state, const PlanRecord& record, BoundCall& call) {
  TensorMeta inline_outputs[kInlineOutputs];
  std::vector<TensorMeta> more;
  TensorMeta* outputs = inline_outputs;
  if (record.plan.outputs.size() > kInlineOutputs) {
    more.resize(record.plan.outputs.size());
    outputs = more.data();
  }
  Device& device = call.memory->device;
  check_guards(state, record, call);
  {
    // Queued devices may wait for work that itself needs the Python lock.
    Stream& stream = current_stream(device);
    const bool unlocks = record.release_lock || (!device.properties().integrated_work &&
                                                 (!record.only_launches || may_wait(stream)));
    const Unlocked unlocked(unlocks);
    run_plan(record.plan, *call.memory, stream, call.tensors.data(), call.tensors.size(),
             call.scalars.data(), call.scalars.size(), outputs, !unlocks && kOneThread);
  }
  return wrap_results(state, record, call, outputs);
}

/// What answers for a foreign operand: the hook for operand types of other floors, then
/// NotImplemented from an operator, then a TypeError.
PyObject* answer_foreign(PyObject* self, OpState& state, PyObject* const* arguments,
                         std::size_t positional, PyObject* keyword_names, const BoundCall& call,
                         std::size_t foreign) {
  PyObject* hook = dispatch_hook.load(std::memory_order_acquire);
  if (hook != nullptr) {
    const py::tuple given(positional);
    for (std::size_t i = 0; i < positional; ++i) {
      PyTuple_SET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(arguments[i]));
    }
    const py::dict keywords;
    const Py_ssize_t named = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
    for (Py_ssize_t k = 0; k < named; ++k) {
      if (PyDict_SetItem(keywords.ptr(), PyTuple_GET_ITEM(keyword_names, k),
                         arguments[positional + static_cast<std::size_t>(k)]) < 0) {
        return nullptr;
      }
    }
    PyObject* answer =
        PyObject_CallFunctionObjArgs(hook, self, given.ptr(), keywords.ptr(), nullptr);
    if (answer != Py_NotImplemented) return answer;
    Py_DECREF(answer);
  }
  if (state.signature.is_operator) return Py_NewRef(Py_NotImplemented);
  const Parameter& parameter = state.signature.parameters[foreign];
  const bool number = parameter.kind == ParameterKind::kOperand ||
                      parameter.kind == ParameterKind::kOptionalOperand;
  const char* expected = parameter.kind == ParameterKind::kScalar ? "a number"
                         : number                                 ? "a tensor or a number"
                                                                  : "a tensor";
  PyErr_Format(PyExc_TypeError, "%s: argument '%U' must be %s, got %s%s",
               state.signature.name.c_str(), parameter.name, expected,
               Py_TYPE(call.values[foreign])->tp_name,
               parameter.kind == ParameterKind::kScalar ? "" : "; convert it with asarray");
  return nullptr;
}

PyObject* op_call(PyObject* self, PyObject* const* arguments, std::size_t flagged_count,
                  PyObject* keyword_names) {
  OpState& state = *reinterpret_cast<OpObject*>(self)->state;
  const auto positional = static_cast<std::size_t>(PyVectorcall_NARGS(flagged_count));
  try {
    BoundCall call;
    std::size_t foreign = 0;
    const BindResult bound =
        bind_call(state.signature, arguments, positional, keyword_names,
                  policy_generation.load(std::memory_order_relaxed), call, &foreign);
    if (bound == BindResult::kFailed) return nullptr;
    if (bound == BindResult::kForeign) {
      return answer_foreign(self, state, arguments, positional, keyword_names, call, foreign);
    }
    std::shared_ptr<PlanRecord> record = state.cache.find_again(call.key);
    if (record == nullptr) {
      const std::uint64_t hash = hash_of(call.key);
      record = state.cache.find(hash, call.key);
      if (record == nullptr) record = plan_call(state, call, hash);
    }
    return record == nullptr ? nullptr : execute(state, *record, call);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

PyObject* op_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"name",        "parameters",   "plan",        "positional",
                                "is_operator", "is_reflected", "result_type", nullptr};
  PyObject *name, *parameters, *plan;
  PyObject* result_type = Py_None;
  int positional = -1;
  int is_operator = 0;
  int is_reflected = 0;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "UOO|ippO", const_cast<char**>(names), &name,
                                  &parameters, &plan, &positional, &is_operator, &is_reflected,
                                  &result_type) == 0) {
    return nullptr;
  }
  try {
    auto state = std::make_unique<OpState>();
    state->signature =
        read_signature(name, parameters, positional, is_operator != 0, is_reflected != 0);
    auto* self = reinterpret_cast<OpObject*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    state->plan = Py_NewRef(plan);
    state->result_type = Py_NewRef(result_type);
    self->call = &op_call;
    self->state = state.release();
    return reinterpret_cast<PyObject*>(self);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

void op_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<OpObject*>(object);
  PyTypeObject* type = Py_TYPE(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  const std::unique_ptr<OpState> state(self->state);
  if (state != nullptr) {
    state->cache.clear();
    Py_XDECREF(state->plan);
    Py_XDECREF(state->result_type);
    for (const Parameter& parameter : state->signature.parameters) {
      Py_DECREF(parameter.name);
      Py_XDECREF(parameter.default_value);
      for (PyObject* alias : parameter.aliases) Py_DECREF(alias);
    }
  }
  Py_XDECREF(self->dictionary);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* op_get(PyObject* self, PyObject* instance, PyObject* /*owner*/) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

PyObject* op_repr(PyObject* self) {
  const OpState& state = *reinterpret_cast<OpObject*>(self)->state;
  return PyUnicode_FromFormat("<op %s>", state.signature.name.c_str());
}

PyObject* op_name(PyObject* self, void* /*closure*/) {
  return PyUnicode_FromString(reinterpret_cast<OpObject*>(self)->state->signature.name.c_str());
}

PyObject* op_cached(PyObject* self, void* /*closure*/) {
  return PyLong_FromSize_t(reinterpret_cast<OpObject*>(self)->state->cache.size());
}

PyObject* op_misses(PyObject* self, void* /*closure*/) {
  return PyLong_FromUnsignedLongLong(
      reinterpret_cast<OpObject*>(self)->state->misses.load(std::memory_order_relaxed));
}

/// Asked of the row when somebody wants it: making hundreds of signatures would slow the import.
PyObject* op_signature(PyObject* self, void* /*closure*/) {
  PyObject* row = PyObject_GetAttrString(self, "row");
  if (row == nullptr) return nullptr;
  const Signature& signature = reinterpret_cast<OpObject*>(self)->state->signature;
  const bool takes_out = signature.written < signature.parameters.size() &&
                         signature.parameters[signature.written].default_value == Py_None;
  PyObject* form = PyObject_CallMethod(row, "call_form", "O", takes_out ? Py_True : Py_False);
  Py_DECREF(row);
  return form;
}

PyObject* op_clear(PyObject* self, PyObject* /*unused*/) {
  reinterpret_cast<OpObject*>(self)->state->cache.clear();
  Py_RETURN_NONE;
}

PyObject* op_reduce(PyObject* self, PyObject* /*unused*/) {
  // Pickled by name, like a function: nbxtensor.<name>.
  return op_name(self, nullptr);
}

PyGetSetDef op_attributes[] = {
    {"name", &op_name, nullptr, "The op's name.", nullptr},
    {"__name__", &op_name, nullptr, nullptr, nullptr},
    {"__qualname__", &op_name, nullptr, nullptr, nullptr},
    {"cached_plans", &op_cached, nullptr, "Number of plans in the cache.", nullptr},
    {"misses", &op_misses, nullptr, "Calls that had to be planned, so far.", nullptr},
    {"__signature__", &op_signature, nullptr, nullptr, nullptr},
    {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef op_methods[] = {
    {"clear_plans", &op_clear, METH_NOARGS, "Forget every cached plan."},
    {"__reduce__", &op_reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpObject, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(OpObject, dictionary), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(OpObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot op_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&op_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&op_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(&op_get)},
    {Py_tp_repr, reinterpret_cast<void*>(&op_repr)},
    {Py_tp_getset, op_attributes},
    {Py_tp_methods, op_methods},
    {Py_tp_members, op_members},
    {Py_tp_doc, const_cast<char*>("Op(name, parameters, plan, positional=-1, is_operator=False, "
                                  "is_reflected=False, result_type=None)\n--\n\n"
                                  "An operation with a cache of plans, callable and a method.")},
    {0, nullptr},
};

PyType_Spec op_specification = {
    "nbxtensor._core.Op",
    static_cast<int>(sizeof(OpObject)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    op_slots,
};

}  // namespace
}  // namespace nbx::python

namespace nbx {

void bind_op(pybind11::module_& module) {
  python::bind_plan(module.ptr());
  auto* type = PyType_FromSpec(&python::op_specification);
  if (type == nullptr) throw py::error_already_set();
  python::op_type = reinterpret_cast<PyTypeObject*>(type);
  module.attr("Op") = py::reinterpret_steal<py::object>(type);
  module.def(
      "set_op_dispatch",
      [](py::object hook) {
        PyObject* former = python::dispatch_hook.exchange(
            hook.is_none() ? nullptr : hook.release().ptr(), std::memory_order_acq_rel);
        Py_XDECREF(former);
      },
      py::arg("hook"),
      "Set the function (op, arguments, keywords) that answers for operand types of other floors, "
      "or NotImplemented.");
  module.def(
      "set_kernel_hook",
      [](py::object hook) {
        python::set_kernel_hook(hook.is_none() ? nullptr : hook.release().ptr());
      },
      py::arg("hook"),
      "Set the function (name, tensors, scalars) that runs the steps of the tensor's own copies, "
      "fills and gathers on devices of compiled kernels.");
  module.def(
      "fault_site",
      [](const py::object& device, const std::string& op, const std::string& what) {
        const FaultSite site = fault_site(device.cast<Device&>(), op, what);
        return std::pair(site.word, site.number);
      },
      py::arg("device"), py::arg("op"), py::arg("what"),
      "The address and the number by which kernels report an index out of bounds for `what`.");
  module.def(
      "forget_plans", [] { python::policy_generation.fetch_add(1, std::memory_order_relaxed); },
      "Plan every op anew: the policy or the tuning data has changed.");
}

}  // namespace nbx
