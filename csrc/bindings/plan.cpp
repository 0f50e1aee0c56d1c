// `_core.Plan`: made by a row's planner, read once, then run from the cache of its op.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/kernel_type.h"
#include "bindings/op.h"
#include "bindings/python_lock.h"
#include "bindings/translated.h"
#include "cpu/chain.h"

namespace py = pybind11;

namespace nbx::python {
namespace {

// A plan that moves fewer bytes than this keeps the Python lock: giving it up and taking it back
// costs as much as the work.
constexpr std::uint64_t kReleaseBytes = 64 << 10;

const char* numpy_format(DType dtype) {
  switch (dtype) {
    case DType::bool_:
      return "?";
    case DType::int8:
      return "i1";
    case DType::int16:
      return "i2";
    case DType::int32:
      return "i4";
    case DType::int64:
      return "i8";
    case DType::uint8:
      return "u1";
    case DType::uint16:
      return "u2";
    case DType::uint32:
      return "u4";
    case DType::uint64:
      return "u8";
    case DType::float16:
      return "f2";
    case DType::float32:
      return "f4";
    case DType::float64:
      return "f8";
    case DType::complex64:
      return "c8";
    case DType::complex128:
      return "c16";
    default:
      throw Error(ErrorKind::kType, std::string("a NumPy step cannot see ") + facts_of(dtype).name +
                                        "; plan a float32 temporary for it");
  }
}

py::object array_of(const TensorView& view) {
  if (view.data == nullptr) return py::none();
  const auto itemsize = static_cast<py::ssize_t>(itemsize_of(view.dtype));
  std::vector<py::ssize_t> shape(view.shape, view.shape + view.rank);
  std::vector<py::ssize_t> strides;
  for (std::int32_t i = 0; i < view.rank; ++i) strides.push_back(view.strides[i] * itemsize);
  const py::dtype dtype(numpy_format(view.dtype));
  // The array must not outlive the step; a base object keeps NumPy from copying.
  return py::array(dtype, shape, strides, view.data, py::none());
}

py::object number_of(const Scalar& scalar) {
  switch (scalar.kind) {
    case ScalarKind::kNone:
      break;
    case ScalarKind::kBoolean:
      return py::bool_(scalar.integer != 0);
    case ScalarKind::kInteger:
      if (scalar.is_unsigned) return py::int_(static_cast<std::uint64_t>(scalar.integer));
      return py::int_(scalar.integer);
    case ScalarKind::kReal:
      return py::float_(scalar.real);
    case ScalarKind::kComplex:
      return py::reinterpret_steal<py::object>(
          PyComplex_FromDoubles(scalar.real, scalar.imaginary));
  }
  return py::none();
}

void call_python(const KernelCall& call) {
  const Locked lock;
  py::tuple arguments(call.tensor_count + call.scalar_count);
  for (std::size_t i = 0; i < call.tensor_count; ++i) arguments[i] = array_of(call.tensors[i]);
  for (std::size_t i = 0; i < call.scalar_count; ++i) {
    arguments[call.tensor_count + i] = number_of(call.scalars[i]);
  }
  const py::handle function(static_cast<PyObject*>(call.context));
  function(*arguments);
}

std::shared_ptr<void> share(const py::object& object) {
  return {object.inc_ref().ptr(), [](void* held) {
            // After finalisation there is no interpreter to give the reference back to.
            if (Py_IsInitialized() == 0) return;
            const Locked lock;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

DType dtype_of(const py::handle& object) {
  DType dtype{};
  if (!dtype_from_object(object.ptr(), &dtype)) throw py::error_already_set();
  return dtype;
}

Layout layout_of(const py::handle& shape, const py::handle& strides) {
  const auto extents = shape.cast<std::vector<std::int64_t>>();
  if (strides.is_none()) {
    Layout layout;
    layout.resize(static_cast<std::int32_t>(extents.size()));
    for (std::size_t i = 0; i < extents.size(); ++i) layout.shape()[i] = extents[i];
    layout.set_contiguous_strides();
    return layout;
  }
  const auto steps = strides.cast<std::vector<std::int64_t>>();
  if (steps.size() != extents.size()) {
    throw Error(ErrorKind::kValue, "Plan: an operand has " + std::to_string(extents.size()) +
                                       " extents but " + std::to_string(steps.size()) + " strides");
  }
  return Layout(extents.data(), steps.data(), static_cast<std::int32_t>(extents.size()));
}

TensorSpecification specification_of(const py::handle& object) {
  const auto fields = object.cast<py::tuple>();
  TensorSpecification specification{dtype_of(fields[0]), layout_of(fields[1], py::none()), 0};
  specification.bytes = bytes_of(specification.dtype, specification.layout.element_count());
  return specification;
}

Operand operand_of(const py::handle& object) {
  if (object.is_none()) return Operand{OperandSource::kAbsent, 0, DType::float32, 0, Layout()};
  const auto fields = object.cast<py::tuple>();
  return Operand{static_cast<OperandSource>(fields[0].cast<int>()), fields[1].cast<std::uint16_t>(),
                 dtype_of(fields[2]), fields[3].cast<std::int64_t>(),
                 layout_of(fields[4], fields[5])};
}

ScalarSource scalar_of(const py::handle& object) {
  ScalarSource source{false, 0, Scalar{}};
  if (object.is_none()) return source;
  if (py::isinstance<py::tuple>(object)) {
    source.from_call = true;
    source.index = object.cast<py::tuple>()[0].cast<std::uint16_t>();
    return source;
  }
  if (PyNumber_Check(object.ptr()) != 0) {
    if (!scalar_from_number(object.ptr(), &source.constant)) throw py::error_already_set();
    return source;
  }
  source.constant.kind = ScalarKind::kInteger;
  source.constant.integer = static_cast<std::int64_t>(dtype_of(object));
  source.constant.real = static_cast<double>(source.constant.integer);
  return source;
}

/// ("address", operand), ("word", integer), ("float", real) or ("scalar", index of the call's).
ArgumentSource argument_of(const py::handle& object, Slot slot, std::size_t operands) {
  const auto fields = object.cast<py::tuple>();
  const auto kind = fields[0].cast<std::string>();
  if (kind == "address") {
    const auto index = fields[1].cast<std::uint16_t>();
    if (index >= operands || slot != Slot::kRaw8) {
      throw Error(ErrorKind::kValue,
                  "Plan: an address must be of one of the step's operands, and "
                  "of a parameter that is a pointer");
    }
    return {ArgumentSource::Kind::kAddress, slot, index, 0};
  }
  if (kind == "scalar") {
    return {ArgumentSource::Kind::kScalar, slot, fields[1].cast<std::uint16_t>(), 0};
  }
  if (kind != "word" && kind != "float") {
    throw Error(ErrorKind::kValue,
                "Plan: unknown argument '" + kind + "'; known are address, word, float and scalar");
  }
  const py::object number = fields[1];
  return {ArgumentSource::Kind::kWord, slot, 0,
          translated([&] { return packed_number(slot, number.ptr(), "Plan"); })};
}

/// (DeviceKernel, grid, arguments, operands, written)
Step device_step_of(const py::tuple& fields) {
  Step step;
  step.device_kernel = fields[0].cast<std::shared_ptr<DeviceKernel>>();
  const DeviceKernel& kernel = *step.device_kernel;
  const py::object grid = fields[1];
  step.grid = translated([&] { return read_grid(grid.ptr(), "Plan"); });
  for (const py::handle operand : fields[3]) step.operands.push_back(operand_of(operand));
  const auto arguments = fields[2].cast<py::sequence>();
  if (arguments.size() != kernel.word_count()) {
    throw Error(ErrorKind::kValue, "Plan: kernel '" + kernel.recipe().name + "' takes " +
                                       std::to_string(kernel.word_count()) + " arguments, got " +
                                       std::to_string(arguments.size()));
  }
  std::size_t at = 0;
  for (const Slot slot : kernel.slots()) {
    if (slot == Slot::kSkip) continue;
    step.arguments.push_back(argument_of(arguments[at], slot, step.operands.size()));
    ++at;
  }
  step.written = fields[4].cast<std::uint16_t>();
  return step;
}

HostKernel kernel_named(const std::string& name) {
  const HostKernel kernel = find_host_kernel(name);
  if (kernel == nullptr) {
    throw Error(ErrorKind::kUnsupported, "there is no host kernel named '" + name + "'");
  }
  return kernel;
}

/// Shape, dtypes of the chain's own blocks, and steps (kernel, operands, scalars), where an operand
/// is None, ("call", index) or ("scratch", index).
std::shared_ptr<cpu::Chain> make_chain(const std::vector<std::int64_t>& shape,
                                       const py::iterable& scratch, const py::iterable& steps,
                                       std::int32_t reduced) {
  using Source = cpu::ChainOperand::Source;
  std::vector<DType> dtypes;
  for (const py::handle dtype : scratch) dtypes.push_back(dtype_of(dtype));
  std::vector<cpu::ChainStep> chain;
  for (const py::handle item : steps) {
    const auto fields = item.cast<py::tuple>();
    cpu::ChainStep step{kernel_named(fields[0].cast<std::string>()), {}, {}};
    for (const py::handle operand : fields[1]) {
      if (operand.is_none()) {
        step.operands.push_back({Source::kAbsent, 0});
        continue;
      }
      const auto [source, index] = operand.cast<std::pair<std::string, std::uint16_t>>();
      step.operands.push_back({source == "call" ? Source::kCall : Source::kScratch, index});
    }
    for (const py::handle scalar : fields[2]) step.scalars.push_back(scalar_of(scalar));
    chain.push_back(std::move(step));
  }
  return std::make_shared<cpu::Chain>(shape, std::move(dtypes), std::move(chain), reduced);
}

Step step_of(const py::handle& object) {
  const auto fields = object.cast<py::tuple>();
  if (py::isinstance<DeviceKernel>(fields[0])) return device_step_of(fields);
  Step step;
  if (py::isinstance<py::str>(fields[0])) {
    step.kernel = kernel_named(fields[0].cast<std::string>());
  } else if (py::isinstance<cpu::Chain>(fields[0])) {
    step.kernel = &cpu::run_chain;
    step.context = fields[0].cast<std::shared_ptr<cpu::Chain>>();
  } else {
    step.kernel = &call_python;
    step.context = share(fields[0]);
  }
  for (const py::handle operand : fields[1]) step.operands.push_back(operand_of(operand));
  for (const py::handle scalar : fields[2]) step.scalars.push_back(scalar_of(scalar));
  step.written = fields[3].cast<std::uint16_t>();
  return step;
}

void finish(PlanRecord& record) {
  std::uint64_t bytes = 0;
  for (const auto& specification : record.plan.outputs) bytes += specification.bytes;
  for (const auto& specification : record.plan.temporaries) bytes += specification.bytes;
  for (const Step& step : record.plan.steps) {
    for (std::size_t i = 0; i < step.operands.size(); ++i) {
      const Operand& operand = step.operands[i];
      if (operand.source != OperandSource::kArgument) continue;
      bytes += bytes_of(operand.dtype, operand.layout.element_count());
      if (i < step.written) record.written.push_back(operand.index);
    }
  }
  record.release_lock = bytes >= kReleaseBytes;
}

std::shared_ptr<PlanRecord> make_plan(const py::iterable& outputs, const py::iterable& temporaries,
                                      const py::iterable& steps, const py::iterable& results,
                                      const py::iterable& guards) {
  auto record = std::make_shared<PlanRecord>();
  for (const py::handle item : outputs) record->plan.outputs.push_back(specification_of(item));
  for (const py::handle item : temporaries) {
    record->plan.temporaries.push_back(specification_of(item));
  }
  for (const py::handle item : steps) record->plan.steps.push_back(step_of(item));
  for (const py::handle item : results) {
    const auto fields = item.cast<py::tuple>();
    record->plan.results.push_back(
        {static_cast<OperandSource>(fields[0].cast<int>()), fields[1].cast<std::uint16_t>()});
  }
  for (const py::handle item : guards) {
    const auto fields = item.cast<py::tuple>();
    const auto error = fields[4].cast<std::string>();
    record->guards.push_back({fields[0].cast<std::uint16_t>(), fields[1].cast<std::int64_t>(),
                              fields[2].cast<std::uint64_t>(), fields[3].cast<std::string>(),
                              error == "value"      ? ErrorKind::kValue
                              : error == "overflow" ? ErrorKind::kOverflow
                                                    : ErrorKind::kIndex,
                              fields[5].cast<std::string>()});
  }
  finish(*record);
  return record;
}

}  // namespace

std::shared_ptr<PlanRecord> plan_record(PyObject* plan) noexcept {
  try {
    return py::cast<std::shared_ptr<PlanRecord>>(py::handle(plan));
  } catch (const std::exception&) {
    PyErr_Format(PyExc_TypeError, "a planner must return a Plan, got %s", Py_TYPE(plan)->tp_name);
    return nullptr;
  }
}

void bind_plan(PyObject* module) {
  auto handle = py::reinterpret_borrow<py::module_>(module);
  py::class_<cpu::Chain, std::shared_ptr<cpu::Chain>>(
      handle, "Chain", "Host kernels of one shape that run block by block, as a step of a plan.")
      .def(py::init(&make_chain), py::arg("shape"), py::arg("scratch"), py::arg("steps"),
           py::arg("reduced") = 0)
      .def_property_readonly(
          "pieces", [](const cpu::Chain& chain) { return chain.blocks().per_output; },
          "Blocks that one reduced output comes from.");
  py::class_<PlanRecord, std::shared_ptr<PlanRecord>>(
      handle, "Plan", "What one call of an op does, decided once for a key.")
      .def(py::init(&make_plan), py::arg("outputs"), py::arg("temporaries"), py::arg("steps"),
           py::arg("results"), py::arg("guards") = py::tuple())
      .def_property_readonly("step_count",
                             [](const PlanRecord& record) { return record.plan.steps.size(); });
  handle.def("host_kernel_names", &host_kernel_names,
             "Names of the kernels that run on the host, in order.");
}

}  // namespace nbx::python
