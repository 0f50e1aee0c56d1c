#include "bindings/tensor_copy.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "core/environment.h"
#include "core/error.h"
#include "device/sim/sim.h"
#include "launch/plan.h"
#include "storage/transfer.h"
#include "stream/fault.h"

namespace nbx::python {
namespace {

/// Work above this size lets other Python threads run; below, switching costs more.
constexpr std::uint64_t kUnlockBytes = std::uint64_t{1} << 18;

std::uint64_t size_of(const TensorMeta& meta) {
  return bytes_of(meta.dtype, meta.layout.element_count());
}

/// A small float of `exponent` and `mantissa` bits, exactly.
double decode_small(std::uint32_t bits, int exponent, int mantissa, bool has_infinity) noexcept {
  const std::uint32_t mask = (1u << exponent) - 1;
  const std::uint32_t power = (bits >> mantissa) & mask;
  const std::uint32_t fraction = bits & ((1u << mantissa) - 1);
  const int bias = static_cast<int>(mask >> 1);
  double value = 0.0;
  if (power == mask && has_infinity) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (power == mask && fraction == (1u << mantissa) - 1) {
    value = NAN;  // e4m3fn has no infinity and one NaN
  } else if (power == 0) {
    value = std::ldexp(static_cast<double>(fraction), 1 - bias - mantissa);
  } else {
    value = std::ldexp(static_cast<double>(fraction + (1u << mantissa)),
                       static_cast<int>(power) - bias - mantissa);
  }
  return ((bits >> (exponent + mantissa)) & 1u) != 0 ? -value : value;
}

template <class T>
T load(const std::byte* data, std::int64_t index) noexcept {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

Scalar integer_scalar(std::int64_t value) noexcept {
  Scalar scalar;
  scalar.kind = ScalarKind::kInteger;
  scalar.integer = value;
  scalar.real = static_cast<double>(value);
  return scalar;
}

Scalar real_scalar(double value) noexcept {
  Scalar scalar;
  scalar.kind = ScalarKind::kReal;
  scalar.real = value;
  return scalar;
}

Scalar complex_scalar(double real, double imaginary) noexcept {
  Scalar scalar;
  scalar.kind = ScalarKind::kComplex;
  scalar.real = real;
  scalar.imaginary = imaginary;
  return scalar;
}

std::string number_text(const Scalar& value) {
  if (value.kind == ScalarKind::kReal) return std::to_string(value.real);
  return value.is_unsigned ? std::to_string(static_cast<std::uint64_t>(value.integer))
                           : std::to_string(value.integer);
}

/// The number as an integer of the dtype, or an error with the range.
Scalar checked_integer(const char* function, DType dtype, const Scalar& value) {
  const int bits = bits_of(dtype);
  const bool is_signed = facts_of(dtype).kind == 'i';
  const auto refuse = [&] {
    const std::string low = is_signed ? std::to_string(-(std::int64_t{1} << (bits - 2)) * 2) : "0";
    const std::string high = is_signed
                                 ? std::to_string(((std::int64_t{1} << (bits - 2)) - 1) * 2 + 1)
                                 : std::to_string(~std::uint64_t{0} >> (64 - bits));
    throw Error(ErrorKind::kOverflow, std::string(function) + ": " + number_text(value) +
                                          " is out of range for " + facts_of(dtype).name + " (" +
                                          low + " to " + high + ")");
  };
  Scalar result = value;
  if (value.kind == ScalarKind::kReal) {
    if (!std::isfinite(value.real)) {
      throw Error(std::isnan(value.real) ? ErrorKind::kValue : ErrorKind::kOverflow,
                  std::string(function) + ": " + number_text(value) + " cannot be converted to " +
                      facts_of(dtype).name);
    }
    const double whole = std::trunc(value.real);
    if (whole < -9223372036854775808.0 || whole >= 18446744073709551616.0) refuse();
    result = whole >= 9223372036854775808.0
                 ? integer_scalar(static_cast<std::int64_t>(static_cast<std::uint64_t>(whole)))
                 : integer_scalar(static_cast<std::int64_t>(whole));
    result.is_unsigned = whole >= 9223372036854775808.0;
  }
  result.kind = ScalarKind::kInteger;
  const bool is_huge = result.is_unsigned && result.integer < 0;
  if (is_signed) {
    const std::int64_t limit = bits == 64 ? INT64_MAX : (std::int64_t{1} << (bits - 1)) - 1;
    if (is_huge || result.integer > limit || result.integer < -limit - 1) refuse();
  } else {
    const std::uint64_t limit = ~std::uint64_t{0} >> (64 - bits);
    if ((!result.is_unsigned && result.integer < 0) ||
        static_cast<std::uint64_t>(result.integer) > limit) {
      refuse();
    }
    result.is_unsigned = true;
  }
  result.real = is_huge ? static_cast<double>(static_cast<std::uint64_t>(result.integer))
                        : static_cast<double>(result.integer);
  return result;
}

std::atomic<PyObject*> kernel_hook{nullptr};

bool runs_compiled_kernels(const Device& device) {
  if (sim::simulates(device.properties())) {
    return device.kind() == DeviceKind::kSim && environment_text("NBX_SIM_KERNELS") == "triton";
  }
  return device.kind() == DeviceKind::kCuda || device.kind() == DeviceKind::kHip;
}

/// The step as an op of its own, which plans it and keeps the plan.
void run_by_hook(PyObject* hook, const char* name, TensorMeta* const* tensors, std::size_t count,
                 const Scalar* scalars, std::size_t scalar_count) {
  const Owned given(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    TensorMeta copy = *tensors[i];
    PyObject* item = wrap_tensor(std::move(copy));
    if (item == nullptr) throw PythonError{};
    PyTuple_SET_ITEM(given.get(), static_cast<Py_ssize_t>(i), item);
  }
  const Owned numbers(PyTuple_New(static_cast<Py_ssize_t>(scalar_count)));
  for (std::size_t i = 0; i < scalar_count; ++i) {
    PyTuple_SET_ITEM(numbers.get(), static_cast<Py_ssize_t>(i), number_of(scalars[i]));
  }
  const Owned text(PyUnicode_FromString(name));
  const Owned done(
      PyObject_CallFunctionObjArgs(hook, text.get(), given.get(), numbers.get(), nullptr));
}

/// copy:strided within one device.
void copy_strided(const TensorMeta& destination, const TensorMeta& source) {
  TensorMeta to = destination;
  TensorMeta from = source;
  TensorMeta* const tensors[] = {&to, &from};
  static const NamedKernel kernel = required_kernel("copy:strided");
  run_on_device(kernel, tensors, 2, nullptr, 0, size_of(to) + size_of(from));
}

TensorMeta cast_here(const TensorMeta& meta, DType dtype) {
  TensorMeta result =
      empty_tensor(meta.storage->memory(), dtype, meta.layout.shape(), meta.layout.rank());
  copy_strided(result, meta);
  return result;
}

/// The contiguous elements on another device.
TensorMeta moved(const TensorMeta& meta, Device& device, bool waited = true) {
  const TensorMeta source = contiguous(meta);
  TensorMeta result =
      empty_tensor(memory_of(device), meta.dtype, meta.layout.shape(), meta.layout.rank());
  const Unlocked unlocked(!source.storage->is_idle() || size_of(meta) > kUnlockBytes);
  copy_across(result, source, waited);
  return result;
}

bool same_window(const TensorMeta& a, const TensorMeta& b) noexcept {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  const auto bytes = static_cast<std::size_t>(a.layout.rank()) * sizeof(std::int64_t);
  return std::memcmp(a.layout.strides(), b.layout.strides(), bytes) == 0;
}

/// The source broadcast to the destination's shape; leading extents of 1 may be surplus.
TensorMeta broadcast_source(const char* function, const TensorMeta& destination,
                            const TensorMeta& source) {
  const std::int32_t rank = destination.layout.rank();
  TensorMeta view = source;
  while (view.layout.rank() > rank && view.layout.shape()[0] == 1) view = select_view(view, 0, 0);
  Extents shape;
  for (std::int32_t i = 0; i < rank; ++i) shape.push(destination.layout.shape()[i]);
  const std::int32_t added = rank - view.layout.rank();
  bool fits = added >= 0;
  for (std::int32_t i = 0; fits && i < view.layout.rank(); ++i) {
    const std::int64_t extent = view.layout.shape()[i];
    fits = extent == 1 || extent == shape.values[i + added];
  }
  if (!fits) {
    throw Error(ErrorKind::kValue, std::string(function) + ": could not broadcast shape " +
                                       shape_text(source.layout.shape(), source.layout.rank()) +
                                       " into shape " + shape_text(shape.values, rank));
  }
  return expand_view(view, shape);
}

}  // namespace

void require_writable(const char* function, const TensorMeta& meta) {
  if (!meta.storage->writable()) {
    throw Error(ErrorKind::kValue, std::string(function) +
                                       ": the destination is read-only memory; write to a clone()");
  }
  if (repeats_elements(meta.layout)) {
    throw Error(ErrorKind::kValue,
                std::string(function) + ": elements of an expanded tensor share memory (shape " +
                    shape_text(meta.layout.shape(), meta.layout.rank()) + ", strides " +
                    shape_text(meta.layout.strides(), meta.layout.rank()) +
                    "); write to a clone()");
  }
}

NamedKernel required_kernel(const char* name) {
  const HostKernel kernel = find_host_kernel(name);
  if (kernel == nullptr) {
    throw Error(ErrorKind::kUnsupported,
                std::string("kernel ") + name + " is not part of this build");
  }
  return {name, kernel};
}

void set_kernel_hook(PyObject* hook) noexcept {
  PyObject* former = kernel_hook.exchange(hook, std::memory_order_acq_rel);
  Py_XDECREF(former);
}

void run_on_device(const NamedKernel& kernel, TensorMeta* const* tensors, std::size_t count,
                   const Scalar* scalars, std::size_t scalar_count, std::uint64_t bytes) {
  Device& device = tensors[0]->device();
  PyObject* hook = kernel_hook.load(std::memory_order_acquire);
  if (hook != nullptr && runs_compiled_kernels(device)) {
    run_by_hook(hook, kernel.name, tensors, count, scalars, scalar_count);
    return;
  }
  Stream& stream = current_stream(device);
  const Unlocked unlocked(bytes > kUnlockBytes);
  run_kernel(kernel.kernel, nullptr, stream, tensors, count, 1, scalars, scalar_count);
}

TensorMeta contiguous(const TensorMeta& meta) {
  return meta.layout.contiguous() ? meta : cast_here(meta, meta.dtype);
}

TensorMeta cloned(const TensorMeta& meta) { return cast_here(meta, meta.dtype); }

TensorMeta converted(const TensorMeta& meta, DType dtype, Device& device, bool copy, bool waited) {
  const bool stays = &device == &meta.device();
  if (stays) {
    return dtype != meta.dtype || copy ? cast_here(meta, dtype) : meta;
  }
  // The narrower dtype travels.
  if (bits_of(dtype) < bits_of(meta.dtype)) return moved(cast_here(meta, dtype), device);
  const TensorMeta there = moved(meta, device, waited);
  return dtype == meta.dtype ? there : cast_here(there, dtype);
}

TensorMeta readable(const TensorMeta& meta) {
  if (!meta.device().host_readable()) {
    TensorMeta host = moved(meta, open_device(DeviceKind::kCpu, 0));
    raise_fault(meta.device());
    return host;
  }
  TensorMeta host = contiguous(meta);
  if (!host.storage->is_idle()) {
    const Unlocked unlocked;
    host.storage->wait();
  }
  return host;
}

void assign(const char* function, TensorMeta& destination, const TensorMeta& source, bool waited) {
  require_writable(function, destination);
  TensorMeta view = broadcast_source(function, destination, source);
  if (destination.layout.element_count() == 0 || same_window(destination, view)) return;
  if (&source.device() != &destination.device()) {
    if (source.dtype == destination.dtype && view.layout.contiguous() &&
        destination.layout.contiguous()) {
      const Unlocked unlocked(!view.storage->is_idle() || size_of(view) > kUnlockBytes);
      copy_across(destination, view, waited);
      return;
    }
    const TensorMeta there = converted(source, source.dtype, destination.device(), false, waited);
    view = broadcast_source(function, destination, there);
  } else if (may_overlap(destination, source)) {
    view = broadcast_source(function, destination, cloned(source));
  }
  copy_strided(destination, view);
}

void fill(const char* function, TensorMeta& destination, Scalar value) {
  require_writable(function, destination);
  const DType dtype = destination.dtype;
  if (value.kind == ScalarKind::kComplex && !is_complex(dtype)) {
    throw Error(ErrorKind::kType, std::string(function) + ": a complex number cannot become " +
                                      facts_of(dtype).name + "; take .real or .imag");
  }
  if (is_integer(dtype)) value = checked_integer(function, dtype, value);
  if (destination.layout.element_count() == 0) return;
  TensorMeta* const tensors[] = {&destination};
  static const NamedKernel kernel = required_kernel("fill:value");
  run_on_device(kernel, tensors, 1, &value, 1, size_of(destination));
}

Scalar element_of(const TensorMeta& meta, const char* function) {
  const std::int64_t count = meta.layout.element_count();
  if (count != 1) {
    throw Error(ErrorKind::kValue, std::string(function) +
                                       ": expected a tensor of one element, shape " +
                                       shape_text(meta.layout.shape(), meta.layout.rank()) +
                                       " has " + std::to_string(count));
  }
  if (meta.device().host_readable() && meta.storage->is_idle()) {
    return load_element(meta.dtype, reinterpret_cast<const std::byte*>(meta.data), 0);
  }
  const TensorMeta host = readable(meta);
  return load_element(host.dtype, reinterpret_cast<const std::byte*>(host.data), 0);
}

Scalar load_element(DType dtype, const std::byte* data, std::int64_t index) noexcept {
  switch (dtype) {
    case DType::bool_: {
      Scalar scalar = integer_scalar(load<std::uint8_t>(data, index) != 0 ? 1 : 0);
      scalar.kind = ScalarKind::kBoolean;
      return scalar;
    }
    case DType::int8:
      return integer_scalar(load<std::int8_t>(data, index));
    case DType::int16:
      return integer_scalar(load<std::int16_t>(data, index));
    case DType::int32:
      return integer_scalar(load<std::int32_t>(data, index));
    case DType::int64:
      return integer_scalar(load<std::int64_t>(data, index));
    case DType::uint8:
      return integer_scalar(load<std::uint8_t>(data, index));
    case DType::uint16:
      return integer_scalar(load<std::uint16_t>(data, index));
    case DType::uint32:
      return integer_scalar(load<std::uint32_t>(data, index));
    case DType::uint64: {
      const auto value = load<std::uint64_t>(data, index);
      Scalar scalar = integer_scalar(static_cast<std::int64_t>(value));
      scalar.is_unsigned = true;
      scalar.real = static_cast<double>(value);
      return scalar;
    }
    case DType::float16:
      return real_scalar(decode_small(load<std::uint16_t>(data, index), 5, 10, true));
    case DType::bfloat16:
      return real_scalar(decode_small(load<std::uint16_t>(data, index), 8, 7, true));
    case DType::float32:
      return real_scalar(static_cast<double>(load<float>(data, index)));
    case DType::float64:
      return real_scalar(load<double>(data, index));
    case DType::float8_e4m3fn:
      return real_scalar(decode_small(load<std::uint8_t>(data, index), 4, 3, false));
    case DType::float8_e5m2:
      return real_scalar(decode_small(load<std::uint8_t>(data, index), 5, 2, true));
    case DType::complex64:
      return complex_scalar(static_cast<double>(load<float>(data, 2 * index)),
                            static_cast<double>(load<float>(data, 2 * index + 1)));
    case DType::complex128:
      return complex_scalar(load<double>(data, 2 * index), load<double>(data, 2 * index + 1));
    case DType::int4: {
      const int pair = load<std::uint8_t>(data, index / 2);
      const int nibble = index % 2 == 0 ? pair & 15 : pair >> 4;
      return integer_scalar(nibble < 8 ? nibble : nibble - 16);
    }
  }
  return Scalar{};
}

PyObject* number_of(const Scalar& scalar) {
  PyObject* number = nullptr;
  switch (scalar.kind) {
    case ScalarKind::kBoolean:
      number = PyBool_FromLong(scalar.integer != 0 ? 1 : 0);
      break;
    case ScalarKind::kInteger:
      number = scalar.is_unsigned
                   ? PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(scalar.integer))
                   : PyLong_FromLongLong(scalar.integer);
      break;
    case ScalarKind::kReal:
      number = PyFloat_FromDouble(scalar.real);
      break;
    case ScalarKind::kComplex:
      number = PyComplex_FromDoubles(scalar.real, scalar.imaginary);
      break;
    case ScalarKind::kNone:
      number = Py_NewRef(Py_None);
      break;
  }
  if (number == nullptr) throw PythonError{};
  return number;
}

}  // namespace nbx::python
