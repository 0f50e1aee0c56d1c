// Views that reinterpret memory: windows by stride, diagonals, other dtypes.
#include <algorithm>

#include "core/error.h"
#include "storage/views.h"

namespace nbx {
namespace {

[[noreturn]] void refuse(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

std::string text(std::int64_t value) { return std::to_string(value); }

/// The dtype of one part of a complex number, and the complex dtype of two parts.
DType part_of(const char* function, DType dtype) {
  if (dtype == DType::complex64) return DType::float32;
  if (dtype == DType::complex128) return DType::float64;
  refuse(ErrorKind::kType,
         std::string(function) + ": expected complex64 or complex128, got " + facts_of(dtype).name);
}

TensorMeta with_dtype(const TensorMeta& base, DType dtype, Layout&& layout, DeviceAddress data) {
  TensorMeta view;
  view.storage = base.storage;
  view.data = data;
  view.dtype = dtype;
  view.layout = std::move(layout);
  return view;
}

}  // namespace

TensorMeta as_strided_view(const TensorMeta& base, const Extents& shape, const Extents& strides,
                           DeviceAddress byte_origin) {
  if (shape.count != strides.count) {
    refuse(ErrorKind::kValue, "as_strided: shape " + shape_text(shape.values, shape.count) +
                                  " and strides " + shape_text(strides.values, strides.count) +
                                  " differ in length");
  }
  for (std::int32_t i = 0; i < shape.count; ++i) {
    if (shape.values[i] < 0) {
      refuse(ErrorKind::kValue,
             "as_strided: extents are 0 or more, got " + shape_text(shape.values, shape.count));
    }
  }
  if (bits_of(base.dtype) < 8) {
    refuse(ErrorKind::kType, std::string("as_strided: ") + facts_of(base.dtype).name +
                                 " is packed and has no strided windows");
  }
  Layout layout(shape.values, strides.values, shape.count);
  const bool empty = layout.element_count() == 0;
  const auto [low, high] = reach_of(layout);
  const std::int64_t size = itemsize_of(base.dtype);
  const auto start = static_cast<std::int64_t>(byte_origin - base.storage->address());
  const auto bytes = static_cast<std::int64_t>(base.storage->bytes());
  std::int64_t first = 0;
  std::int64_t last = 0;
  const bool overflow = __builtin_mul_overflow(low, size, &first) ||
                        __builtin_add_overflow(first, start, &first) ||
                        __builtin_mul_overflow(high, size, &last) ||
                        __builtin_add_overflow(last, start + size, &last);
  if (start < 0 || start > bytes || (!empty && (overflow || first < 0 || last > bytes))) {
    refuse(ErrorKind::kValue, "as_strided: shape " + shape_text(shape.values, shape.count) +
                                  ", strides " + shape_text(strides.values, strides.count) +
                                  " and byte offset " + text(start) + " reach " +
                                  (overflow ? std::string("past 2^63 - 1 bytes")
                                            : "bytes " + text(first) + " to " + text(last)) +
                                  " of a storage of " + text(bytes) + " bytes");
  }
  return with_dtype(base, base.dtype, std::move(layout), byte_origin);
}

TensorMeta diagonal_view(const TensorMeta& base, std::int64_t offset, std::int64_t a,
                         std::int64_t b) {
  const std::int32_t rank = base.layout.rank();
  const std::int32_t rows = normalized_axis("diagonal", a, rank);
  const std::int32_t columns = normalized_axis("diagonal", b, rank);
  if (rows == columns) {
    refuse(ErrorKind::kValue, "diagonal: the two axes must differ, both are " + text(rows));
  }
  const std::int64_t* shape = base.layout.shape();
  const std::int64_t* strides = base.layout.strides();
  const std::int64_t length =
      std::max<std::int64_t>(0, offset >= 0 ? std::min(shape[rows], shape[columns] - offset)
                                            : std::min(shape[rows] + offset, shape[columns]));
  Layout layout;
  layout.resize(rank - 1);
  std::int32_t to = 0;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (i == rows || i == columns) continue;
    layout.shape()[to] = shape[i];
    layout.strides()[to++] = strides[i];
  }
  layout.shape()[to] = length;
  layout.strides()[to] = strides[rows] + strides[columns];
  const std::int64_t start = offset >= 0 ? offset * strides[columns] : -offset * strides[rows];
  return window(base, std::move(layout), length == 0 ? 0 : start);
}

TensorMeta unfold_view(const TensorMeta& base, std::int64_t axis, std::int64_t size,
                       std::int64_t step) {
  const std::int32_t rank = base.layout.rank();
  const std::int32_t cut = normalized_axis("unfold", axis, rank);
  const std::int64_t extent = base.layout.shape()[cut];
  if (size < 0 || size > extent || step < 1) {
    refuse(ErrorKind::kValue, "unfold: size " + text(size) + " must lie in 0.." + text(extent) +
                                  " (the size of axis " + text(cut) + ") and step " + text(step) +
                                  " must be positive");
  }
  Layout layout;
  layout.resize(rank + 1);
  for (std::int32_t i = 0; i < rank; ++i) {
    layout.shape()[i] = base.layout.shape()[i];
    layout.strides()[i] = base.layout.strides()[i];
  }
  layout.shape()[cut] = (extent - size) / step + 1;
  layout.strides()[cut] = base.layout.strides()[cut] * step;
  layout.shape()[rank] = size;
  layout.strides()[rank] = base.layout.strides()[cut];
  return window(base, std::move(layout), 0);
}

TensorMeta flip_view(const TensorMeta& base, const Extents* axes) {
  const std::int32_t rank = base.layout.rank();
  bool flipped[kMaximumRank];
  std::fill_n(flipped, kMaximumRank, axes == nullptr);
  for (std::int32_t i = 0; axes != nullptr && i < axes->count; ++i) {
    const std::int32_t axis = normalized_axis("flip", axes->values[i], rank);
    if (flipped[axis]) refuse(ErrorKind::kValue, "flip: axis " + text(axis) + " is named twice");
    flipped[axis] = true;
  }
  Layout layout = base.layout;
  const bool empty = layout.element_count() == 0;
  std::int64_t offset = 0;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (!flipped[i] || layout.shape()[i] < 2) continue;
    if (!empty) offset += (layout.shape()[i] - 1) * layout.strides()[i];
    layout.strides()[i] = -layout.strides()[i];
  }
  return window(base, std::move(layout), offset);
}

TensorMeta retyped_view(const TensorMeta& base, DType dtype) {
  const int from = bits_of(base.dtype);
  const int to = bits_of(dtype);
  Layout layout = base.layout;
  if (from == to) return with_dtype(base, dtype, std::move(layout), base.data);
  const std::int32_t last = layout.rank() - 1;
  const auto refuse_because = [&](const std::string& why) {
    refuse(ErrorKind::kValue, std::string("view: ") + facts_of(base.dtype).name + " of shape " +
                                  shape_text(base.layout.shape(), base.layout.rank()) +
                                  " cannot be seen as " + facts_of(dtype).name + ": " + why);
  };
  if (last < 0) refuse_because("without axes only dtypes of the same width are possible");
  if ((from < 8 || to < 8) && !layout.contiguous()) refuse_because("packed types are contiguous");
  if (layout.shape()[last] != 1 && layout.strides()[last] != 1 && layout.element_count() != 0) {
    refuse_because("the last axis has stride " + text(layout.strides()[last]) + ", not 1");
  }
  if (to < from) {
    const std::int64_t ratio = from / to;
    layout.shape()[last] *= ratio;
    for (std::int32_t i = 0; i < last; ++i) layout.strides()[i] *= ratio;
  } else {
    const std::int64_t ratio = to / from;
    if (layout.shape()[last] % ratio != 0) {
      refuse_because("the last axis must be a multiple of " + text(ratio));
    }
    layout.shape()[last] /= ratio;
    for (std::int32_t i = 0; i < last; ++i) {
      if (layout.strides()[i] % ratio != 0 && layout.shape()[i] > 1) {
        refuse_because("axis " + text(i) + " has stride " + text(layout.strides()[i]) +
                       ", not a multiple of " + text(ratio));
      }
      layout.strides()[i] /= ratio;
    }
  }
  layout.strides()[last] = 1;
  const auto width = static_cast<DeviceAddress>(std::max(itemsize_of(dtype), 1));
  const auto part = is_complex(dtype) ? width / 2 : width;
  if (layout.element_count() != 0 && base.data % part != 0) {
    refuse_because("its first byte is not aligned to " + text(static_cast<std::int64_t>(part)));
  }
  return with_dtype(base, dtype, std::move(layout), base.data);
}

TensorMeta real_pairs_view(const TensorMeta& base) {
  const DType part = part_of("view_as_real", base.dtype);
  const std::int32_t rank = base.layout.rank();
  Layout layout;
  layout.resize(rank + 1);
  for (std::int32_t i = 0; i < rank; ++i) {
    layout.shape()[i] = base.layout.shape()[i];
    layout.strides()[i] = base.layout.strides()[i] * 2;
  }
  layout.shape()[rank] = 2;
  layout.strides()[rank] = 1;
  return with_dtype(base, part, std::move(layout), base.data);
}

TensorMeta complex_view(const TensorMeta& base) {
  const std::int32_t rank = base.layout.rank();
  const bool is_single = base.dtype == DType::float32;
  if (!is_single && base.dtype != DType::float64) {
    refuse(ErrorKind::kType, std::string("view_as_complex: expected float32 or float64, got ") +
                                 facts_of(base.dtype).name);
  }
  if (rank == 0 || base.layout.shape()[rank - 1] != 2 || base.layout.strides()[rank - 1] != 1) {
    refuse(ErrorKind::kValue,
           "view_as_complex: the last axis must have size 2 and stride 1, shape " +
               shape_text(base.layout.shape(), rank) + " has strides " +
               shape_text(base.layout.strides(), rank));
  }
  Layout layout;
  layout.resize(rank - 1);
  for (std::int32_t i = 0; i < rank - 1; ++i) {
    const std::int64_t stride = base.layout.strides()[i];
    if (stride % 2 != 0 && base.layout.shape()[i] > 1) {
      refuse(ErrorKind::kValue, "view_as_complex: axis " + text(i) + " has the odd stride " +
                                    text(stride) + "; call contiguous() first");
    }
    layout.shape()[i] = base.layout.shape()[i];
    layout.strides()[i] = stride / 2;
  }
  return with_dtype(base, is_single ? DType::complex64 : DType::complex128, std::move(layout),
                    base.data);
}

TensorMeta complex_part_view(const TensorMeta& base, int part) {
  const DType real = part_of(part == 0 ? "real" : "imag", base.dtype);
  Layout layout = base.layout;
  for (std::int32_t i = 0; i < layout.rank(); ++i) layout.strides()[i] *= 2;
  return with_dtype(base, real, std::move(layout),
                    base.data + static_cast<DeviceAddress>(part * itemsize_of(real)));
}

}  // namespace nbx
