// Kernels that write tensors from numbers: fill:value, arange, linspace, eye, triangle.

#include <algorithm>
#include <complex>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cpu/cast.h"
#include "cpu/copy.h"
#include "cpu/elementwise_walk.h"
#include "cpu/stream.h"
#include "launch/kernel.h"

namespace nbx::cpu {
namespace {

constexpr std::int64_t kGrain = 1 << 16;

/// The number as one element of `dtype` (two nibbles of a packed type), at most 16 bytes.
void encode(const Scalar& value, DType dtype, std::byte* element) {
  const Carrier carrier = value.kind == ScalarKind::kComplex ? Carrier::kComplex128
                          : value.kind == ScalarKind::kReal  ? Carrier::kFloat64
                          : value.is_unsigned                ? Carrier::kUint64
                                                             : Carrier::kInt64;
  alignas(16) std::byte block[32];
  scalar_to(value, carrier, block);
  std::memcpy(block + itemsize_of(storage_of(carrier)), block,
              static_cast<std::size_t>(itemsize_of(storage_of(carrier))));
  storer_for(carrier, dtype)(block, element, 1, bits_of(dtype) < 8 ? 2 : 1);
}

void fill_run(std::byte* target, std::int64_t stride, std::int64_t count, const std::byte* element,
              int itemsize) {
  const auto write = [&](auto* typed) {
    auto value = *typed;
    std::memcpy(&value, element, sizeof(value));
    if (stride == 1) {
      std::fill_n(typed, count, value);
    } else {
      for (std::int64_t i = 0; i < count; ++i) typed[i * stride] = value;
    }
  };
  switch (itemsize) {
    case 1:
      return write(reinterpret_cast<std::uint8_t*>(target));
    case 2:
      return write(reinterpret_cast<std::uint16_t*>(target));
    case 4:
      return write(reinterpret_cast<std::uint32_t*>(target));
    case 8:
      return write(reinterpret_cast<std::uint64_t*>(target));
    default:
      return write(reinterpret_cast<std::complex<double>*>(target));
  }
}

/// Calls `body(cursor, begin, end)` over ranges of the tensor's elements in row-major order.
template <class Body>
void for_tensor(const TensorView& view, AxisOrder order, const Body& body) {
  Loop loop;
  plan_loop(&view, 1, order, loop);
  for_element_ranges(loop.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Cursor cursor(loop, 0, view, begin);
    body(cursor, begin, end);
  });
}

/// A run of neighbours written past the caches, from a block of equal elements.
void stream_fill(std::byte* target, std::int64_t count, const std::byte* element, int itemsize) {
  alignas(64) std::byte block[kBlock * 16];
  fill_run(block, 1, std::min(count, kBlock), element, itemsize);
  for (std::int64_t i = 0; i < count; i += kBlock) {
    stream_bytes(target + i * itemsize, block,
                 static_cast<std::size_t>(std::min(kBlock, count - i) * itemsize));
  }
}

void fill_view(const TensorView& view, const std::byte* element) {
  if (view.element_count() == 0) return;
  const bool streams = outgrows_cache(view);
  const int itemsize = itemsize_of(view.dtype);
  for_tensor(view, AxisOrder::kMemory, [&](Cursor& cursor, std::int64_t begin, std::int64_t end) {
    cursor.for_runs(end - begin,
                    [&](std::byte* address, std::int64_t stride, std::int64_t count, std::int64_t) {
                      streams&& stride == 1 ? stream_fill(address, count, element, itemsize)
                                            : fill_run(address, stride, count, element, itemsize);
                    });
    if (streams) stream_fence();
  });
}

void fill_value(const KernelCall& call) {
  require_operands(call, "fill:value", 1, 1);
  const TensorView& out = call.tensors[0];
  std::byte element[16];
  encode(call.scalars[0], out.dtype, element);
  if (bits_of(out.dtype) >= 8) return fill_view(out, element);
  if (!is_contiguous(out)) {
    throw Error(ErrorKind::kValue, std::string("fill:value: ") + facts_of(out.dtype).name +
                                       " is packed and must be contiguous; got a strided view");
  }
  const std::int64_t bytes = (out.element_count() * bits_of(out.dtype) + 7) / 8;
  std::memset(out.data, std::to_integer<int>(element[0]), static_cast<std::size_t>(bytes));
}

/// Writes `number(i)` for every element number i, computed in the carrier T.
template <class T, class Number>
void fill_sequence(const TensorView& out, const Number& number) {
  const Storer store = storer_for(kCarrierOf<T>, out.dtype);
  for_tensor(out, AxisOrder::kRowMajor, [&](Cursor& cursor, std::int64_t begin, std::int64_t end) {
    T block[kBlock];
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t length = std::min(kBlock, end - at);
      for (std::int64_t i = 0; i < length; ++i) block[i] = number(at + i);
      cursor.for_runs(length,
                      [&](std::byte* address, std::int64_t stride, std::int64_t count,
                          std::int64_t done) { store(block + done, address, stride, count); });
    }
  });
}

void require_whole_bytes(const TensorView& out, const char* kernel) {
  if (bits_of(out.dtype) >= 8) return;
  throw Error(ErrorKind::kType, std::string(kernel) + ": " + facts_of(out.dtype).name +
                                    " is packed; expected a type of whole bytes, convert after");
}

bool is_exact(const Scalar& scalar) {
  return scalar.kind == ScalarKind::kBoolean || scalar.kind == ScalarKind::kInteger;
}

void fill_arange(const KernelCall& call) {
  require_operands(call, "fill:arange", 1, 2);
  const TensorView& out = call.tensors[0];
  require_whole_bytes(out, "fill:arange");
  if (out.element_count() == 0) return;
  const Scalar& start = call.scalars[0];
  const Scalar& step = call.scalars[1];
  if (is_exact(start) && is_exact(step)) {
    // Unsigned, since the values may wrap; the bits are those of the signed sum.
    const auto first = static_cast<std::uint64_t>(start.integer);
    const auto stride = static_cast<std::uint64_t>(step.integer);
    const auto number = [=](std::int64_t i) {
      return first + static_cast<std::uint64_t>(i) * stride;
    };
    if (out.dtype == DType::uint64 || start.is_unsigned) {
      return fill_sequence<std::uint64_t>(out, number);
    }
    return fill_sequence<std::int64_t>(
        out, [=](std::int64_t i) { return static_cast<std::int64_t>(number(i)); });
  }
  fill_sequence<double>(out, [first = start.real, stride = step.real](std::int64_t i) {
    return first + static_cast<double>(i) * stride;
  });
}

template <class T>
void linspace(const TensorView& out, T start, T step, bool has_end, T end) {
  const std::int64_t last = has_end ? out.element_count() - 1 : -1;
  fill_sequence<T>(out, [=](std::int64_t i) {
    return i == last && i > 0 ? end : start + static_cast<double>(i) * step;
  });
}

void fill_linspace(const KernelCall& call) {
  require_operands(call, "fill:linspace", 1, 3);
  const TensorView& out = call.tensors[0];
  require_whole_bytes(out, "fill:linspace");
  if (out.element_count() == 0) return;
  const bool has_end = !call.scalars[2].none();
  if (is_complex(out.dtype)) {
    using C = std::complex<double>;
    return linspace<C>(out, scalar_as<C>(call.scalars[0]), scalar_as<C>(call.scalars[1]), has_end,
                       has_end ? scalar_as<C>(call.scalars[2]) : C{});
  }
  linspace<double>(out, call.scalars[0].real, call.scalars[1].real, has_end, call.scalars[2].real);
}

void fill_eye(const KernelCall& call) {
  require_operands(call, "fill:eye", 1, 1);
  const TensorView& out = call.tensors[0];
  require_whole_bytes(out, "fill:eye");
  if (out.rank != 2) {
    throw Error(ErrorKind::kValue,
                "fill:eye: out has rank " + std::to_string(out.rank) + "; expected 2");
  }
  std::byte element[16] = {};
  fill_view(out, element);
  Scalar one;
  one.kind = ScalarKind::kInteger;
  one.integer = 1;
  one.real = 1.0;
  encode(one, out.dtype, element);
  const std::int64_t k = call.scalars[0].integer;
  const std::int64_t first = std::max<std::int64_t>(0, -k);
  const std::int64_t last = std::min(out.shape[0], out.shape[1] - k);
  if (first >= last) return;
  std::byte* address =
      element_address(out.data, out.dtype, first * out.strides[0] + (first + k) * out.strides[1]);
  const std::int64_t stride = out.strides[0] + out.strides[1];
  fill_run(address, stride, last - first, element, itemsize_of(out.dtype));
}

/// Zeroes the part of each matrix that a triangle leaves out.
void fill_triangle(const KernelCall& call) {
  require_operands(call, "fill:triangle", 2, 2);
  const TensorView& out = call.tensors[0];
  require_whole_bytes(out, "fill:triangle");
  if (out.rank < 2) {
    throw Error(ErrorKind::kValue,
                "fill:triangle: out has rank " + std::to_string(out.rank) + "; expected 2 or more");
  }
  if (out.element_count() == 0) return;
  if (call.tensors[1].data != out.data) copy_strided(out, call.tensors[1]);
  const std::int64_t k = call.scalars[0].integer;
  const bool upper = call.scalars[1].integer != 0;
  const std::int64_t columns = out.shape[out.rank - 1];
  const std::int64_t stride = out.strides[out.rank - 1];
  const std::int64_t rows = out.shape[out.rank - 2];
  const std::byte zero[16] = {};
  TensorView heads = out;
  heads.rank -= 1;
  const std::int64_t head_count = heads.element_count();
  Loop loop;
  plan_loop(&heads, 1, AxisOrder::kRowMajor, loop);
  Cursor cursor(loop, 0, heads, 0);
  for (std::int64_t i = 0; i < head_count; ++i) {
    const std::int64_t row = i % rows;
    // Columns [begin, end) of this row are left out.
    const std::int64_t edge = std::clamp<std::int64_t>(row + k + (upper ? 0 : 1), 0, columns);
    const std::int64_t begin = upper ? 0 : edge;
    const std::int64_t end = upper ? edge : columns;
    fill_run(cursor.address() + begin * stride * itemsize_of(out.dtype), stride, end - begin, zero,
             itemsize_of(out.dtype));
    cursor.advance(1);
  }
}

const HostKernelRegistration value_registration{"fill:value", &fill_value};
const HostKernelRegistration arange_registration{"fill:arange", &fill_arange};
const HostKernelRegistration linspace_registration{"fill:linspace", &fill_linspace};
const HostKernelRegistration eye_registration{"fill:eye", &fill_eye};
const HostKernelRegistration triangle_registration{"fill:triangle", &fill_triangle};

}  // namespace
}  // namespace nbx::cpu
