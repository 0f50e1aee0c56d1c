// `_core.Kernel`: a kernel in Triton's language, with a table from specialisation keys to compiled
// records. A hit computes the key, packs the words and calls the driver; no Python runs.
#include "bindings/kernel_type.h"

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <mutex>

#include "bindings/arguments.h"
#include "bindings/kernel_arguments.h"
#include "storage/late.h"

namespace py = pybind11;

namespace nbx::python {
namespace {

// Beyond this an integer for what was a pointer before is taken for an address.
constexpr std::uint64_t kSmallInteger = 65535;

struct Variant {
  std::uint64_t hash = 0;
  std::vector<std::uint64_t> key;
  std::shared_ptr<DeviceKernel> kernel;
  std::vector<PyObject*> kept;  // what the key knows by identity
};

/// Read without a lock: a table is never changed but by filling empty places, and those that larger
/// ones replaced live as long as the kernel.
struct Table {
  explicit Table(std::size_t capacity) : mask(capacity - 1), slots(capacity) {}
  std::size_t mask;
  std::vector<std::atomic<Variant*>> slots;
};

struct KernelState {
  KernelSignature signature;
  PyObject* compile = nullptr;  // (device, types, constants, nested, hints, specialized, options)
  std::atomic<Variant*> last{nullptr};
  std::atomic<Table*> table{nullptr};
  std::mutex mutex;  // of what follows
  std::vector<std::unique_ptr<Variant>> variants;
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<bool> pointers;  // parameters that were pointers in some variant
  std::atomic<std::uint64_t> misses{0};
};

struct KernelObject {
  PyObject_HEAD vectorcallfunc call;
  KernelState* state;
  PyObject* dictionary;
  PyObject* weak_references;
};

/// `kernel[grid]`
struct BoundKernelObject {
  PyObject_HEAD vectorcallfunc call;
  KernelObject* kernel;
  PyObject* grid;
};

PyTypeObject* kernel_type = nullptr;
PyTypeObject* bound_kernel_type = nullptr;

std::uint64_t hash_of(const Key& key) noexcept {
  std::uint64_t hash = 0x9E3779B97F4A7C15u ^ key.size();
  const std::uint64_t* words = key.data();
  for (std::size_t i = 0; i < key.size(); ++i) {
    hash = (hash ^ words[i]) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

bool matches(const Variant& variant, const Key& key) noexcept {
  return std::equal(variant.key.begin(), variant.key.end(), key.begin(), key.end());
}

Variant* find(const KernelState& state, std::uint64_t hash, const Key& key) noexcept {
  const Table* table = state.table.load(std::memory_order_acquire);
  if (table == nullptr) return nullptr;
  for (std::size_t i = hash & table->mask;; i = (i + 1) & table->mask) {
    Variant* variant = table->slots[i].load(std::memory_order_acquire);
    if (variant == nullptr || (variant->hash == hash && matches(*variant, key))) return variant;
  }
}

void place(Table& table, Variant* variant) noexcept {
  std::size_t i = variant->hash & table.mask;
  while (table.slots[i].load(std::memory_order_relaxed) != nullptr) i = (i + 1) & table.mask;
  table.slots[i].store(variant, std::memory_order_release);
}

/// Publishes a variant, unless another thread was faster with the same key.
Variant* publish(KernelState& state, std::unique_ptr<Variant> variant, const Key& key) {
  const std::lock_guard<std::mutex> guard(state.mutex);
  if (Variant* known = find(state, variant->hash, key)) return known;
  for (PyObject* object : variant->kept) Py_INCREF(object);
  Variant* added = variant.get();
  state.variants.push_back(std::move(variant));
  Table* table = state.table.load(std::memory_order_relaxed);
  if (table != nullptr && 2 * state.variants.size() <= table->slots.size()) {
    place(*table, added);
    return added;
  }
  auto larger = std::make_unique<Table>(table == nullptr ? 8 : 2 * table->slots.size());
  for (const auto& known : state.variants) place(*larger, known.get());
  state.table.store(larger.get(), std::memory_order_release);
  state.tables.push_back(std::move(larger));
  return added;
}

/// A raw address is not checked against anything: where the kernel took a tensor before, a large
/// integer is refused.
void refuse_addresses(KernelState& state, const KernelCallState& call) {
  const std::lock_guard<std::mutex> guard(state.mutex);
  state.pointers.resize(state.signature.parameters.size());
  for (std::size_t i = 0; i < state.pointers.size(); ++i) {
    PyObject* value = call.values[i];
    if (!state.pointers[i] || PyLong_CheckExact(value) == 0) continue;
    const unsigned long long number = PyLong_AsUnsignedLongLongMask(value);
    PyErr_Clear();
    if (number <= kSmallInteger) continue;
    throw Error(ErrorKind::kType, place_of(state.signature, i) +
                                      "took a tensor before, got an integer; pass the tensor, "
                                      "whose memory is checked, not its address");
  }
  for (const KernelOperand& operand : call.operands) {
    if (is_tensor(call.values[operand.parameter])) state.pointers[operand.parameter] = true;
  }
}

/// Asks the compiler; throws PythonError.
Variant* compile(KernelState& state, const KernelCallState& call, std::uint64_t hash) {
  state.misses.fetch_add(1, std::memory_order_relaxed);
  refuse_addresses(state, call);
  const Owned description(describe_kernel_call(call));
  PyObject* device = device_object(*call.device);
  if (device == nullptr) throw PythonError{};
  PyObject* arguments[] = {device,
                           PyTuple_GET_ITEM(description.get(), 0),
                           PyTuple_GET_ITEM(description.get(), 1),
                           PyTuple_GET_ITEM(description.get(), 2),
                           PyTuple_GET_ITEM(description.get(), 3),
                           PyTuple_GET_ITEM(description.get(), 4),
                           PyTuple_GET_ITEM(description.get(), 5)};
  const Owned compiled(
      take_lock([&] { return PyObject_Vectorcall(state.compile, arguments, 7, nullptr); }));
  if (compiled.get() == Py_None) return nullptr;
  auto variant = std::make_unique<Variant>();
  variant->kernel = py::cast<std::shared_ptr<DeviceKernel>>(py::handle(compiled.get()));
  if (variant->kernel->word_count() != call.bits.size() ||
      &variant->kernel->device() != call.device) {
    throw Error(ErrorKind::kValue,
                "kernel '" + state.signature.name + "': the compiled kernel takes " +
                    std::to_string(variant->kernel->word_count()) + " words on " +
                    variant->kernel->device().name() + ", the call has " +
                    std::to_string(call.bits.size()) + " on " + call.device->name());
  }
  variant->hash = hash;
  variant->key.assign(call.key.data(), call.key.data() + call.key.size());
  variant->kept.assign(call.kept.data(), call.kept.data() + call.kept.size());
  return publish(state, std::move(variant), call.key);
}

Variant* find_or_compile(KernelState& state, const KernelCallState& call) {
  Variant* variant = state.last.load(std::memory_order_acquire);
  if (variant != nullptr && matches(*variant, call.key)) [[likely]]
    return variant;
  const std::uint64_t hash = hash_of(call.key);
  variant = find(state, hash, call.key);
  if (variant == nullptr) variant = compile(state, call, hash);
  if (variant != nullptr) state.last.store(variant, std::memory_order_release);
  return variant;
}

/// A grid that is a function gets all arguments by name.
Grid grid_of(const KernelCallState& call, PyObject* grid) {
  const char* name = call.signature.name.c_str();
  if (PyTuple_Check(grid) || PyLong_Check(grid) || PyCallable_Check(grid) == 0) {
    return read_grid(grid, name);
  }
  const Owned arguments(PyDict_New());
  for (std::size_t i = 0; i < call.signature.parameters.size(); ++i) {
    if (PyDict_SetItem(arguments.get(), call.signature.parameters[i].name, call.values[i]) < 0) {
      throw PythonError{};
    }
  }
  const Owned answer(take_lock([&] { return PyObject_CallOneArg(grid, arguments.get()); }));
  return read_grid(answer.get(), name);
}

/// In check mode: whether the stream may have the tensors, and once the work is submitted that it
/// has them. Tensors with gaps are left out, as others may use what lies between.
void check_operands(const KernelCallState& call, Stream& stream, bool submitted) {
  for (const KernelOperand& operand : call.operands) {
    const TensorMeta& tensor = *operand.tensor;
    if (tensor.storage->memory().checker == nullptr || !tensor.layout.contiguous()) continue;
    const std::uint64_t bytes = bytes_of(tensor.dtype, tensor.layout.element_count());
    const KernelParameter& parameter = call.signature.parameters[operand.parameter];
    const bool writes = !parameter.reads && !parameter.is_const;
    if (submitted) {
      tensor.storage->note_launch(tensor.data, bytes, stream, writes);
    } else {
      tensor.storage->check_launch(tensor.data, bytes, stream, writes);
    }
  }
}

const std::uint64_t* convert(const KernelCallState& call, const DeviceKernel& kernel,
                             std::uint64_t* words) noexcept {
  std::size_t at = 0;
  for (const Slot slot : kernel.slots()) {
    if (slot == Slot::kSkip) continue;
    const std::uint64_t bits = call.bits.data()[at];
    words[at++] = is_real(slot) ? pack_real(slot, std::bit_cast<double>(bits)) : bits;
  }
  return words;
}

void launch(const KernelCallState& call, const DeviceKernel& kernel, const Grid& grid) {
  std::array<std::uint64_t, DeviceKernel::kMaximumWords> converted;
  const std::uint64_t* words = call.bits.data();
  if (kernel.converts()) words = convert(call, kernel, converted.data());
  Stream& stream = current_stream(*call.device);
  const bool checks = call.operands.size() != 0 &&
                      call.operands.data()[0].tensor->storage->memory().checker != nullptr;
  {
    const Unlocked unlocked(may_wait(stream));
    if (checks) [[unlikely]]
      check_operands(call, stream, false);
    kernel.launch(stream, grid, words);
    const BlockUse use = stream.use();
    for (const KernelOperand& operand : call.operands) {
      operand.tensor->storage->touch(stream, use);
    }
    if (checks) [[unlikely]]
      check_operands(call, stream, true);
  }
  run_late_owners();
}

PyObject* call_kernel(KernelObject* self, PyObject* grid, PyObject* const* arguments,
                      std::size_t positional, PyObject* keyword_names) {
  return guarded([&]() -> PyObject* {
    KernelState& state = *self->state;
    KernelCallState call(state.signature);
    bind_kernel_call(call, arguments, positional, keyword_names);
    read_kernel_call(call);
    const Variant* variant = find_or_compile(state, call);
    if (variant == nullptr) Py_RETURN_NONE;
    launch(call, *variant->kernel, grid_of(call, grid));
    Py_RETURN_NONE;
  });
}

PyObject* kernel_call(PyObject* self, PyObject* const* arguments, std::size_t flagged,
                      PyObject* keyword_names) {
  const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(flagged));
  auto* kernel = reinterpret_cast<KernelObject*>(self);
  if (count == 0) {
    PyErr_Format(PyExc_TypeError,
                 "kernel '%s': called without a grid; call kernel(grid, ...) or kernel[grid](...)",
                 kernel->state->signature.name.c_str());
    return nullptr;
  }
  return call_kernel(kernel, arguments[0], arguments + 1, count - 1, keyword_names);
}

PyObject* bound_kernel_call(PyObject* self, PyObject* const* arguments, std::size_t flagged,
                            PyObject* keyword_names) {
  const auto* bound = reinterpret_cast<BoundKernelObject*>(self);
  return call_kernel(bound->kernel, bound->grid, arguments,
                     static_cast<std::size_t>(PyVectorcall_NARGS(flagged)), keyword_names);
}

PyObject* kernel_subscript(PyObject* self, PyObject* grid) {
  auto* bound = PyObject_New(BoundKernelObject, bound_kernel_type);
  if (bound == nullptr) return nullptr;
  bound->call = &bound_kernel_call;
  bound->kernel = reinterpret_cast<KernelObject*>(Py_NewRef(self));
  bound->grid = Py_NewRef(grid);
  return reinterpret_cast<PyObject*>(bound);
}

void bound_kernel_dealloc(PyObject* object) {
  auto* bound = reinterpret_cast<BoundKernelObject*>(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_DECREF(bound->kernel);
  Py_DECREF(bound->grid);
  PyObject_Free(object);
  Py_DECREF(type);
}

// ---- the type -------------------------------------------------------------------------------

Annotation annotation_of(const std::string& type) {
  if (type.empty()) return Annotation::kNone;
  if (type[0] == '*') return Annotation::kPointer;
  if (type == "u1") return Annotation::kBoolean;
  return type[0] == 'f' || type[0] == 'b' ? Annotation::kReal : Annotation::kInteger;
}

/// (name, is_constexpr, is_const, type, specialize, align, reads, default or ...)
KernelParameter parameter_of(PyObject* object) {
  PyObject *name, *default_value;
  const char* type;
  int is_constexpr, is_const, specialize, align, reads;
  if (PyArg_ParseTuple(object, "UppspppO", &name, &is_constexpr, &is_const, &type, &specialize,
                       &align, &reads, &default_value) == 0) {
    throw PythonError{};
  }
  Py_INCREF(name);
  PyUnicode_InternInPlace(&name);
  return KernelParameter{name,
                         default_value == Py_Ellipsis ? nullptr : Py_NewRef(default_value),
                         is_constexpr != 0,
                         is_const != 0,
                         specialize != 0,
                         align != 0,
                         reads != 0,
                         annotation_of(type),
                         type};
}

PyObject* kernel_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  return guarded([&]() -> PyObject* {
    static const char* names[] = {"name", "parameters", "compile", nullptr};
    const char* name;
    PyObject *parameters, *compiler;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "sOO", const_cast<char**>(names), &name,
                                    &parameters, &compiler) == 0) {
      throw PythonError{};
    }
    auto state = std::make_unique<KernelState>();
    state->signature.name = name;
    const Owned items(PySequence_Tuple(parameters));
    const Py_ssize_t count = PyTuple_GET_SIZE(items.get());
    if (count > static_cast<Py_ssize_t>(kMaximumKernelParameters)) {
      throw Error(ErrorKind::kValue, std::string("kernel '") + name + "' has " +
                                         std::to_string(count) + " parameters; at most " +
                                         std::to_string(kMaximumKernelParameters) + " are taken");
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
      state->signature.parameters.push_back(parameter_of(PyTuple_GET_ITEM(items.get(), i)));
      state->signature.declares_reads |= state->signature.parameters.back().reads;
    }
    auto* self = reinterpret_cast<KernelObject*>(type->tp_alloc(type, 0));
    if (self == nullptr) throw PythonError{};
    state->compile = Py_NewRef(compiler);
    self->call = &kernel_call;
    self->state = state.release();
    return reinterpret_cast<PyObject*>(self);
  });
}

int kernel_traverse(PyObject* object, visitproc visit, void* arg) {  // named by Py_VISIT
  const auto* self = reinterpret_cast<KernelObject*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->dictionary);
  if (self->state != nullptr) Py_VISIT(self->state->compile);
  return 0;
}

int kernel_clear(PyObject* object) {
  auto* self = reinterpret_cast<KernelObject*>(object);
  Py_CLEAR(self->dictionary);
  if (self->state != nullptr) Py_CLEAR(self->state->compile);
  return 0;
}

void kernel_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<KernelObject*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  static_cast<void>(kernel_clear(object));
  {
    const std::unique_ptr<KernelState> state(self->state);
    if (state != nullptr) {
      for (const auto& variant : state->variants) {
        for (PyObject* kept : variant->kept) Py_DECREF(kept);
      }
      for (const KernelParameter& parameter : state->signature.parameters) {
        Py_DECREF(parameter.name);
        Py_XDECREF(parameter.default_value);
      }
    }
  }
  type->tp_free(object);
  Py_DECREF(type);
}

KernelState& state_of(PyObject* self) { return *reinterpret_cast<KernelObject*>(self)->state; }

PyObject* kernel_repr(PyObject* self) {
  return PyUnicode_FromFormat("<kernel %s>", state_of(self).signature.name.c_str());
}

PyObject* kernel_name(PyObject* self, void* /*closure*/) {
  return PyUnicode_FromString(state_of(self).signature.name.c_str());
}

PyObject* kernel_misses(PyObject* self, void* /*closure*/) {
  return PyLong_FromUnsignedLongLong(state_of(self).misses.load(std::memory_order_relaxed));
}

PyObject* kernel_variants(PyObject* self, void* /*closure*/) {
  return guarded([&] {
    KernelState& state = state_of(self);
    std::vector<std::shared_ptr<DeviceKernel>> kernels;
    {
      const std::lock_guard<std::mutex> guard(state.mutex);
      for (const auto& variant : state.variants) kernels.push_back(variant->kernel);
    }
    Owned list(PyList_New(0));
    for (const auto& kernel : kernels) {
      const py::object object = py::cast(kernel);
      if (PyList_Append(list.get(), object.ptr()) < 0) throw PythonError{};
    }
    return list.detach();
  });
}

PyGetSetDef kernel_attributes[] = {
    {"name", &kernel_name, nullptr, "The kernel's name.", nullptr},
    {"misses", &kernel_misses, nullptr, "Calls that asked for a compiled kernel, so far.", nullptr},
    {"variants", &kernel_variants, nullptr, "The compiled kernels, oldest first.", nullptr},
    {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelObject, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(KernelObject, dictionary), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(KernelObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMemberDef bound_kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BoundKernelObject, call), READONLY, nullptr},
    {"kernel", T_OBJECT, offsetof(BoundKernelObject, kernel), READONLY, nullptr},
    {"grid", T_OBJECT, offsetof(BoundKernelObject, grid), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kernel_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&kernel_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&kernel_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(&kernel_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(&kernel_clear)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(&kernel_repr)},
    {Py_tp_getset, kernel_attributes},
    {Py_tp_members, kernel_members},
    {Py_mp_subscript, reinterpret_cast<void*>(&kernel_subscript)},
    {Py_tp_doc, const_cast<char*>("Kernel(name, parameters, compile)\n--\n\n"
                                  "A kernel in Triton's language: kernel(grid, ...) or "
                                  "kernel[grid](...) launches it.")},
    {0, nullptr},
};

PyType_Slot bound_kernel_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&bound_kernel_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_members, bound_kernel_members},
    {Py_tp_doc, const_cast<char*>("A kernel with its grid: what kernel[grid] is.")},
    {0, nullptr},
};

PyType_Spec kernel_specification = {
    "nbxtensor._core.Kernel",
    static_cast<int>(sizeof(KernelObject)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    kernel_slots,
};

PyType_Spec bound_kernel_specification = {
    "nbxtensor._core.BoundKernel",
    static_cast<int>(sizeof(BoundKernelObject)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    bound_kernel_slots,
};

}  // namespace

bool may_wait(Stream& stream) {
  constexpr Ticket kFew = 64;
  if (stream.device().kind() == DeviceKind::kSim || stream.is_captured()) return true;
  if (stream.known_pending() < kFew) [[likely]]
    return false;
  const Ticket submitted = stream.submitted();
  // The driver is asked once in a while only: that costs more than it saves.
  return submitted % kFew != 0 || !stream.is_complete(submitted - kFew / 2);
}

void bind_kernel_type(PyObject* module) {
  auto handle = py::reinterpret_borrow<py::module_>(module);
  for (const auto& [name, type, specification] :
       {std::tuple{"Kernel", &kernel_type, &kernel_specification},
        std::tuple{"BoundKernel", &bound_kernel_type, &bound_kernel_specification}}) {
    PyObject* made = PyType_FromSpec(specification);
    if (made == nullptr) throw py::error_already_set();
    *type = reinterpret_cast<PyTypeObject*>(made);
    handle.attr(name) = py::reinterpret_steal<py::object>(made);
  }
  handle.def(
      "register_foreign_arguments",
      [](py::object function) {
        Py_XDECREF(std::exchange(foreign_argument, function.release().ptr()));
      },
      py::arg("function"),
      "Set the function that answers for kernel arguments of other libraries' types.");
}

}  // namespace nbx::python
