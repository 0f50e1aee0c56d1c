#include "bindings/kernel_arguments.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "bindings/arguments.h"
#include "core/error.h"

namespace nbx::python {

PyObject* foreign_argument = nullptr;

namespace {

/// Triton's names of what pointers point to, ours in the order of their codes.
constexpr const char* kPointedTypes[] = {
    "u1",    "i8",    "i16",   "i32",   "i64",     "u8",       "u16",
    "u32",   "u64",   "fp16",  "bf16",  "fp32",    "fp64",     "fp8e4nv",
    "fp8e5", nullptr, nullptr, nullptr, "fp8e4b8", "fp8e5b16", "fp8e4b15"};
static_assert(std::size(kPointedTypes) == static_cast<std::size_t>(kDTypeCount) + 3);

constexpr std::uint64_t kNearBytes = 0x7fffffff;

[[noreturn]] void refuse(const KernelSignature& signature, std::size_t parameter, ErrorKind kind,
                         const std::string& text) {
  throw Error(kind, place_of(signature, parameter) + text);
}

std::string type_of(PyObject* object) { return Py_TYPE(object)->tp_name; }

// ---- tensors --------------------------------------------------------------------------------

[[noreturn, gnu::cold]] void refuse_device(const KernelCallState& call, std::size_t parameter,
                                           const Device& device) {
  const std::string other = PyUnicode_AsUTF8(call.signature.parameters[call.first].name);
  refuse(call.signature, parameter, ErrorKind::kValue,
         "is on " + device.name() + ", '" + other + "' on " + call.device->name() +
             "; a kernel runs on one device: move it with .to('" + call.device->name() + "')");
}

inline void note_device(KernelCallState& call, std::size_t parameter, Device& device) {
  if (call.device == nullptr) {
    call.device = &device;
    call.first = parameter;
  } else if (call.device != &device) [[unlikely]] {
    refuse_device(call, parameter, device);
  }
}

/// The tensor's elements lie in its storage: whatever made the tensor saw to it, and this costs
/// less than finding out what overwrote another tensor.
inline bool inside_storage(const TensorMeta& meta) noexcept {
  const Layout& layout = meta.layout;
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::int32_t axis = 0; axis < layout.rank(); ++axis) {
    const std::int64_t extent = layout.shape()[axis];
    if (extent == 0) return true;
    const std::int64_t span = (extent - 1) * layout.strides()[axis];
    (span < 0 ? low : high) += span;
  }
  const std::int64_t item = itemsize_of(meta.dtype);
  const DeviceAddress start = meta.storage->address();
  const DeviceAddress first = meta.data + static_cast<DeviceAddress>(low * item);
  const DeviceAddress last = meta.data + static_cast<DeviceAddress>((high + 1) * item);
  return first >= start && last <= start + meta.storage->bytes();
}

[[gnu::cold]] void refuse_memory(const KernelCallState& call, std::size_t parameter,
                                 const TensorMeta& meta) {
  try {
    meta.storage->require_awake();
  } catch (const Error& error) {
    refuse(call.signature, parameter, error.kind(), std::string("cannot be used: ") + error.what());
  }
  if (inside_storage(meta)) return;  // another thread woke it meanwhile
  refuse(call.signature, parameter, ErrorKind::kValue,
         "reaches beyond its memory of " + std::to_string(meta.storage->bytes()) +
             " bytes; make the view again");
}

void check_pointer_type(const KernelCallState& call, std::size_t parameter, const char* given,
                        const char* name) {
  const KernelParameter& declared = call.signature.parameters[parameter];
  if (given == nullptr) {
    refuse(call.signature, parameter, ErrorKind::kType,
           std::string("is of ") + name +
               ", which Triton has no type for; pass a view of another type, such as uint8");
  }
  if (declared.annotation == Annotation::kNone) return;
  const std::string& type = declared.type;
  const bool is_const = type.compare(0, 2, "*k") == 0;
  if (declared.annotation == Annotation::kPointer && type.substr(is_const ? 2 : 1) == given) return;
  if (declared.annotation == Annotation::kPointer && type.substr(is_const ? 2 : 1) == "i1" &&
      std::strcmp(given, "u1") == 0) {
    return;
  }
  refuse(call.signature, parameter, ErrorKind::kType,
         "is declared as " + type + ", got a tensor of " + name + "; convert it, or declare '*" +
             given + "'");
}

inline Argument read_tensor(KernelCallState& call, std::size_t parameter, const TensorMeta& meta) {
  const KernelParameter& declared = call.signature.parameters[parameter];
  note_device(call, parameter, meta.device());
  if (!meta.storage->is_usable() || !inside_storage(meta)) [[unlikely]]
    refuse_memory(call, parameter, meta);
  const auto code = static_cast<std::uint8_t>(meta.dtype);
  if (declared.annotation != Annotation::kNone || kPointedTypes[code] == nullptr) [[unlikely]] {
    check_pointer_type(call, parameter, kPointedTypes[code], facts_of(meta.dtype).name);
  }
  if (call.signature.declares_reads && !declared.reads && !declared.is_const &&
      !meta.storage->writable()) [[unlikely]] {
    refuse(call.signature, parameter, ErrorKind::kValue,
           "is read-only memory, and not among those that the kernel only reads; copy it first");
  }
  call.operands.push_back({&meta, static_cast<std::uint16_t>(parameter)});
  Argument argument{Tag::kPointer, code};
  argument.bits = meta.data;
  argument.divisible = declared.specialize && declared.align && (meta.data & 15) == 0;
  argument.near = declared.specialize && meta.device().kind() == DeviceKind::kHip &&
                  meta.storage->bytes() <= kNearBytes;
  return argument;
}

// ---- numbers --------------------------------------------------------------------------------

Argument read_annotated(const KernelCallState& call, std::size_t parameter, std::int64_t value,
                        bool was_bool) {
  const KernelParameter& declared = call.signature.parameters[parameter];
  Argument argument{Tag::kAnnotated};
  switch (declared.annotation) {
    case Annotation::kReal:
      argument.bits = std::bit_cast<std::uint64_t>(static_cast<double>(value));
      return argument;
    case Annotation::kBoolean:
      argument.bits = value != 0 ? 1 : 0;
      return argument;
    case Annotation::kPointer:
      refuse(call.signature, parameter, ErrorKind::kType,
             "is declared as " + declared.type + ", got the integer " + std::to_string(value) +
                 "; pass the tensor, whose memory is checked, not its address");
    default:
      break;
  }
  argument.bits = static_cast<std::uint64_t>(value);
  argument.boolean = was_bool;
  argument.divisible = !was_bool && declared.specialize && declared.align && (value & 15) == 0;
  argument.one = !was_bool && declared.specialize && value == 1;
  return argument;
}

Argument read_integer(const KernelCallState& call, std::size_t parameter, PyObject* integer) {
  const KernelParameter& declared = call.signature.parameters[parameter];
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(integer, &overflow);
  Argument argument{Tag::kInt64};
  if (overflow != 0) [[unlikely]] {
    const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(integer) : ~0ULL;
    if (overflow < 0 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse(call.signature, parameter, ErrorKind::kOverflow,
             "is an integer that fits neither in 64 bits nor in 64 unsigned ones");
    }
    if (declared.annotation == Annotation::kReal || declared.annotation == Annotation::kPointer) {
      refuse(call.signature, parameter, ErrorKind::kOverflow,
             "is declared as " + declared.type + ", got an integer of 64 unsigned bits");
    }
    argument.tag = declared.annotation == Annotation::kNone ? Tag::kUnsigned64 : Tag::kAnnotated;
    argument.bits = declared.annotation == Annotation::kBoolean ? 1 : large;
    argument.divisible = declared.annotation != Annotation::kBoolean && declared.specialize &&
                         declared.align && (large & 15) == 0;
    return argument;
  }
  if (declared.annotation != Annotation::kNone) [[unlikely]] {
    return read_annotated(call, parameter, value, false);
  }
  argument.bits = static_cast<std::uint64_t>(value);
  if (declared.specialize && value == 1) {
    argument.tag = Tag::kOne;
    return argument;
  }
  if (value >= INT32_MIN && value <= INT32_MAX) argument.tag = Tag::kInt32;
  argument.divisible = declared.specialize && declared.align && (value & 15) == 0;
  return argument;
}

Argument read_real(const KernelCallState& call, std::size_t parameter, double value) {
  const KernelParameter& declared = call.signature.parameters[parameter];
  if (declared.annotation != Annotation::kNone && declared.annotation != Annotation::kReal) {
    refuse(call.signature, parameter, ErrorKind::kType,
           "is declared as " + declared.type + ", got the real number " + std::to_string(value) +
               "; pass " +
               (declared.annotation == Annotation::kPointer ? "a tensor" : "an integer"));
  }
  Argument argument{declared.annotation == Annotation::kReal ? Tag::kAnnotated : Tag::kReal};
  argument.bits = std::bit_cast<std::uint64_t>(value);
  return argument;
}

Argument read_boolean(const KernelCallState& call, std::size_t parameter, bool value) {
  if (call.signature.parameters[parameter].annotation != Annotation::kNone) {
    return read_annotated(call, parameter, value ? 1 : 0, true);
  }
  Argument argument{Tag::kBoolean};
  argument.bits = value ? 1 : 0;
  return argument;
}

// ---- everything else ------------------------------------------------------------------------

Argument read_foreign_pointer(KernelCallState& call, std::size_t parameter, PyObject* answer) {
  const KernelParameter& declared = call.signature.parameters[parameter];
  unsigned long long address = 0;
  const char* kind = nullptr;
  const char* type = nullptr;
  PyObject* device = nullptr;
  if (PyArg_ParseTuple(answer, "sKsO", &kind, &address, &type, &device) == 0) throw PythonError{};
  std::size_t code = 0;
  while (code < std::size(kPointedTypes) &&
         (kPointedTypes[code] == nullptr || std::strcmp(kPointedTypes[code], type) != 0)) {
    ++code;
  }
  const bool known = code < std::size(kPointedTypes);
  if (!known || declared.annotation != Annotation::kNone) {
    check_pointer_type(call, parameter, known ? type : nullptr, type);
  }
  note_device(call, parameter, to_device(device));
  Argument argument{Tag::kPointer, static_cast<std::uint8_t>(code)};
  argument.bits = address;
  argument.divisible = declared.specialize && declared.align && (address & 15) == 0;
  return argument;
}

/// Constants and tensors of other libraries, by Python.
Argument read_foreign(KernelCallState& call, std::size_t parameter, PyObject* object) {
  Owned answer(take_lock([&] { return PyObject_CallOneArg(foreign_argument, object); }));
  if (answer.get() == Py_None) {
    refuse(call.signature, parameter, ErrorKind::kType,
           "got " + type_of(object) +
               "; allowed are tensors, int, float, bool, None, tuples of these, and objects with "
               "data_ptr() and dtype or with __cuda_array_interface__");
  }
  PyObject* kind = PyTuple_GET_ITEM(answer.get(), 0);
  if (PyUnicode_CompareWithASCIIString(kind, "constant") == 0) {
    PyObject* value = Py_NewRef(PyTuple_GET_ITEM(answer.get(), 1));
    call.owned.push_back(value);
    Argument argument{Tag::kConstant};
    argument.bits = reinterpret_cast<std::uintptr_t>(value);
    return argument;
  }
  return read_foreign_pointer(call, parameter, answer.get());
}

Argument read_argument(KernelCallState& call, std::size_t parameter, PyObject* object) {
  if (PyLong_CheckExact(object)) return read_integer(call, parameter, object);
  if (is_tensor(object)) return read_tensor(call, parameter, meta_of(object));
  if (PyFloat_CheckExact(object)) {
    return read_real(call, parameter, PyFloat_AS_DOUBLE(object));
  }
  if (PyBool_Check(object)) return read_boolean(call, parameter, object == Py_True);
  if (object == Py_None) return Argument{Tag::kNone};
  if (PyTuple_Check(object)) {
    Argument argument{Tag::kTuple};
    argument.bits = static_cast<std::uint64_t>(PyTuple_GET_SIZE(object));
    return argument;
  }
  if (PyLong_Check(object)) return read_integer(call, parameter, object);
  if (PyFloat_Check(object)) return read_real(call, parameter, PyFloat_AsDouble(object));
  return read_foreign(call, parameter, object);
}

void add_constant(KernelCallState& call, PyObject* value);

void add_argument(KernelCallState& call, std::size_t parameter, PyObject* object) {
  const Argument argument = read_argument(call, parameter, object);
  call.key.push_back(argument.key());
  if (argument.tag == Tag::kTuple) {
    call.key.push_back(argument.bits);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      add_argument(call, parameter, PyTuple_GET_ITEM(object, i));
    }
  } else if (argument.tag == Tag::kConstant) {
    add_constant(call, reinterpret_cast<PyObject*>(static_cast<std::uintptr_t>(argument.bits)));
  } else if (argument.passed()) {
    call.bits.push_back(argument.bits);
  }
}

// ---- constants ------------------------------------------------------------------------------

enum class ConstantTag : std::uint64_t {
  kInteger = 0x40,
  kLargeInteger,
  kBoolean,
  kReal,
  kText,
  kTuple,
  kObject,
};

void push(Key& key, ConstantTag tag, std::uint64_t value) {
  key.push_back(static_cast<std::uint64_t>(tag));
  key.push_back(value);
}

/// By value where the type is one of Python's own, else by identity; 1, True and 1.0 are three.
void add_constant(KernelCallState& call, PyObject* value) {
  if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) {
      push(call.key, ConstantTag::kInteger, static_cast<std::uint64_t>(number));
      return;
    }
    // Integers beyond 64 bits are rare, and their texts are short.
    PyObject* text = Owned(PyObject_Repr(value)).detach();
    PyUnicode_InternInPlace(&text);
    call.owned.push_back(text);
    call.kept.push_back(text);
    push(call.key, ConstantTag::kLargeInteger, reinterpret_cast<std::uintptr_t>(text));
  } else if (PyBool_Check(value)) {
    push(call.key, ConstantTag::kBoolean, value == Py_True ? 1 : 0);
  } else if (PyFloat_CheckExact(value)) {
    push(call.key, ConstantTag::kReal, std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(value)));
  } else if (PyUnicode_CheckExact(value)) {
    PyObject* text = value;
    if (PyUnicode_CHECK_INTERNED(value) == 0) {
      Py_INCREF(text);
      PyUnicode_InternInPlace(&text);
      call.owned.push_back(text);
    }
    call.kept.push_back(text);
    push(call.key, ConstantTag::kText, reinterpret_cast<std::uintptr_t>(text));
  } else if (PyTuple_CheckExact(value)) {
    push(call.key, ConstantTag::kTuple, static_cast<std::uint64_t>(PyTuple_GET_SIZE(value)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      add_constant(call, PyTuple_GET_ITEM(value, i));
    }
  } else if (std::strcmp(Py_TYPE(value)->tp_name, "constexpr") == 0) {
    PyObject* inner = Owned(PyObject_GetAttrString(value, "value")).detach();
    call.owned.push_back(inner);
    push(call.key, ConstantTag::kObject, 0);
    add_constant(call, inner);
  } else {
    call.kept.push_back(value);
    push(call.key, ConstantTag::kObject, reinterpret_cast<std::uintptr_t>(value));
  }
}

}  // namespace

KernelCallState::~KernelCallState() {
  for (PyObject* object : owned) Py_DECREF(object);
}

std::string place_of(const KernelSignature& signature, std::size_t parameter) {
  const char* name = PyUnicode_AsUTF8(signature.parameters[parameter].name);
  return "kernel '" + signature.name + "': parameter '" + (name == nullptr ? "?" : name) + "' ";
}

void read_kernel_call(KernelCallState& call) {
  call.key.push_back(0);  // the device, known at the end
  const std::size_t count = call.signature.parameters.size();
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* value = call.values[i];
    if (call.signature.parameters[i].is_constexpr) {
      add_constant(call, value);
    } else if (Py_TYPE(value) == tensor_class) [[likely]] {
      const Argument argument = read_tensor(call, i, meta_of(value));
      call.key.push_back(argument.key());
      call.bits.push_back(argument.bits);
    } else {
      add_argument(call, i, value);
    }
  }
  for (std::size_t i = 0; i < call.option_count; ++i) {
    call.key.push_back(reinterpret_cast<std::uintptr_t>(call.option_names[i]));
    add_constant(call, call.option_values[i]);
  }
  if (call.device == nullptr) call.device = &default_device();
  call.key[0] = reinterpret_cast<std::uintptr_t>(call.device);
}

// ---- for the compiler -----------------------------------------------------------------------

namespace {

struct Description {
  PyObject* constants;  // by name
  PyObject* nested;     // by path
  PyObject* hints;      // by path
  PyObject* specialized;
};

Owned path_object(const std::vector<Py_ssize_t>& path) {
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(path.size())));
  for (std::size_t i = 0; i < path.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     Owned(PyLong_FromSsize_t(path[i])).detach());
  }
  return tuple;
}

void set_item(PyObject* dict, PyObject* key, PyObject* value) {
  if (PyDict_SetItem(dict, key, value) < 0) throw PythonError{};
}

std::string type_text(const KernelParameter& declared, const Argument& argument) {
  switch (argument.tag) {
    case Tag::kPointer:
      if (declared.annotation == Annotation::kPointer) return declared.type;
      return std::string(declared.is_const ? "*k" : "*") + kPointedTypes[argument.dtype];
    case Tag::kInt32:
      return "i32";
    case Tag::kInt64:
      return "i64";
    case Tag::kUnsigned64:
      return "u64";
    case Tag::kBoolean:
      return "u1";
    case Tag::kReal:
      return "fp32";
    case Tag::kAnnotated:
      return declared.type;
    default:
      return "constexpr";
  }
}

/// The type of one argument, tuples of types for tuples; fills what else the compiler is told.
Owned describe_argument(KernelCallState& scratch, std::size_t parameter, PyObject* object,
                        std::vector<Py_ssize_t>& path, const Description& to) {
  const KernelParameter& declared = scratch.signature.parameters[parameter];
  const Argument argument = read_argument(scratch, parameter, object);
  if (argument.tag == Tag::kTuple) {
    const Py_ssize_t count = PyTuple_GET_SIZE(object);
    Owned types(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      path.push_back(i);
      PyTuple_SET_ITEM(
          types.get(), i,
          describe_argument(scratch, parameter, PyTuple_GET_ITEM(object, i), path, to).detach());
      path.pop_back();
    }
    return types;
  }
  if (!argument.passed()) {
    PyObject* value = argument.tag == Tag::kConstant
                          ? reinterpret_cast<PyObject*>(static_cast<std::uintptr_t>(argument.bits))
                          : object;
    if (path.size() == 1) {
      set_item(to.constants, declared.name, value);
      if (argument.tag == Tag::kOne && PyList_Append(to.specialized, declared.name) < 0) {
        throw PythonError{};
      }
    } else {
      set_item(to.nested, path_object(path).get(), value);
    }
  }
  const std::string hint = std::string(argument.divisible ? "D" : "") + (argument.near ? "S" : "");
  if (!hint.empty()) {
    set_item(to.hints, path_object(path).get(), Owned(PyUnicode_FromString(hint.c_str())).get());
  }
  return Owned(PyUnicode_FromString(type_text(declared, argument).c_str()));
}

}  // namespace

PyObject* describe_kernel_call(const KernelCallState& call) {
  KernelCallState scratch(call.signature);
  const Owned types(PyDict_New());
  const Owned constants(PyDict_New());
  const Owned nested(PyDict_New());
  const Owned hints(PyDict_New());
  const Owned specialized(PyList_New(0));
  const Owned options(PyDict_New());
  const Description to{constants.get(), nested.get(), hints.get(), specialized.get()};
  for (std::size_t i = 0; i < call.signature.parameters.size(); ++i) {
    const KernelParameter& declared = call.signature.parameters[i];
    if (declared.is_constexpr) {
      set_item(constants.get(), declared.name, call.values[i]);
      continue;
    }
    std::vector<Py_ssize_t> path{static_cast<Py_ssize_t>(i)};
    const Owned type = describe_argument(scratch, i, call.values[i], path, to);
    const int known = PyDict_Contains(constants.get(), declared.name);
    if (known < 0) throw PythonError{};
    if (known == 0) set_item(types.get(), declared.name, type.get());
  }
  for (std::size_t i = 0; i < call.option_count; ++i) {
    set_item(options.get(), call.option_names[i], call.option_values[i]);
  }
  return Owned(PyTuple_Pack(6, types.get(), constants.get(), nested.get(), hints.get(),
                            specialized.get(), options.get()))
      .detach();
}

// ---- binding --------------------------------------------------------------------------------

namespace {

void add_option(KernelCallState& call, PyObject* name, PyObject* value) {
  if (call.option_count == kMaximumOptions) {
    throw Error(ErrorKind::kType, "kernel '" + call.signature.name + "': more than " +
                                      std::to_string(kMaximumOptions) + " options were given");
  }
  if (PyUnicode_CHECK_INTERNED(name) == 0) {
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    call.owned.push_back(name);
  }
  // In the order of their addresses, so that the order at the call does not matter.
  std::size_t at = call.option_count;
  while (at > 0 && call.option_names[at - 1] > name) {
    call.option_names[at] = call.option_names[at - 1];
    call.option_values[at] = call.option_values[at - 1];
    --at;
  }
  call.option_names[at] = name;
  call.option_values[at] = value;
  ++call.option_count;
}

std::size_t find_parameter(const KernelSignature& signature, PyObject* name) {
  const std::size_t count = signature.parameters.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (signature.parameters[i].name == name) return i;
  }
  if (PyUnicode_CHECK_INTERNED(name) != 0) return count;
  for (std::size_t i = 0; i < count; ++i) {
    if (PyUnicode_Compare(signature.parameters[i].name, name) == 0) return i;
  }
  return count;
}

}  // namespace

void bind_kernel_call(KernelCallState& call, PyObject* const* arguments, std::size_t positional,
                      PyObject* keyword_names) {
  const std::vector<KernelParameter>& parameters = call.signature.parameters;
  const std::size_t count = parameters.size();
  if (positional > count) {
    throw Error(ErrorKind::kType, "kernel '" + call.signature.name + "': at most " +
                                      std::to_string(count) + " arguments, got " +
                                      std::to_string(positional));
  }
  for (std::size_t i = 0; i < count; ++i) call.values[i] = i < positional ? arguments[i] : nullptr;
  const Py_ssize_t named = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* name = PyTuple_GET_ITEM(keyword_names, k);
    PyObject* value = arguments[positional + static_cast<std::size_t>(k)];
    const std::size_t at = find_parameter(call.signature, name);
    if (at == count) {
      add_option(call, name, value);
    } else if (call.values[at] != nullptr) {
      refuse(call.signature, at, ErrorKind::kType, "is given twice");
    } else {
      call.values[at] = value;
    }
  }
  for (std::size_t i = positional; i < count; ++i) {
    if (call.values[i] != nullptr) continue;
    call.values[i] = parameters[i].default_value;
    if (call.values[i] == nullptr) refuse(call.signature, i, ErrorKind::kType, "is missing");
  }
}

}  // namespace nbx::python
