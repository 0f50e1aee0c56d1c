#include "storage/views.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace nbx {
namespace {

[[noreturn]] void refuse(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

std::string text(std::int64_t value) { return std::to_string(value); }

/// Marks the axes of a list, each at most once.
void mark_axes(const char* function, const Extents& axes, std::int32_t rank, bool* marked) {
  std::fill_n(marked, kMaximumRank, false);
  for (std::int32_t i = 0; i < axes.count; ++i) {
    const std::int32_t axis = normalized_axis(function, axes.values[i], rank);
    if (marked[axis]) {
      refuse(ErrorKind::kValue, std::string(function) + ": axis " + text(axis) +
                                    " is named twice in " + shape_text(axes.values, axes.count));
    }
    marked[axis] = true;
  }
}

/// Packed elements move only in whole bytes: contiguous, starting on a byte, ending on one or at
/// the end of the base.
void require_whole_bytes(const TensorMeta& base, const Layout& layout, std::int64_t offset) {
  const std::int64_t per_byte = 8 / bits_of(base.dtype);
  const std::int64_t count = layout.element_count();
  if (count == 0) return;
  const bool ends_whole = count % per_byte == 0 || offset + count == base.layout.element_count();
  if (!layout.contiguous() || offset % per_byte != 0 || !ends_whole) {
    refuse(ErrorKind::kValue, std::string(facts_of(base.dtype).name) + " is packed " +
                                  text(per_byte) + " to a byte: a view of shape " +
                                  shape_text(layout.shape(), layout.rank()) + " at element " +
                                  text(offset) +
                                  " would split a byte or leave gaps; convert to int8 first");
  }
}

}  // namespace

void Extents::push(std::int64_t value) {
  if (count == kMaximumRank) {
    refuse(ErrorKind::kValue, "a tensor has at most " + text(kMaximumRank) + " axes");
  }
  values[count++] = value;
}

std::string shape_text(const std::int64_t* shape, std::int32_t rank) {
  std::string out = "(";
  for (std::int32_t i = 0; i < rank; ++i) {
    if (i > 0) out += ", ";
    out += text(shape[i]);
  }
  return out + (rank == 1 ? ",)" : ")");
}

std::int64_t checked_count(const std::int64_t* shape, std::int32_t rank) {
  std::int64_t count = 1;
  bool overflow = false;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (shape[i] == 0) return 0;
    overflow = __builtin_mul_overflow(count, shape[i], &count) || overflow;
  }
  if (overflow) {
    refuse(ErrorKind::kOverflow,
           "shape " + shape_text(shape, rank) + " has more than 2^63 - 1 elements");
  }
  return count;
}

std::int32_t normalized_axis(const char* function, std::int64_t axis, std::int32_t rank) {
  if (axis >= -rank && axis < rank) return static_cast<std::int32_t>(axis < 0 ? axis + rank : axis);
  refuse(ErrorKind::kIndex,
         std::string(function) + ": axis " + text(axis) + " is out of bounds for a tensor of " +
             text(rank) + " axes" +
             (rank == 0 ? "" : " (allowed: " + text(-rank) + " to " + text(rank - 1) + ")"));
}

std::pair<std::int64_t, std::int64_t> reach_of(const Layout& layout) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::int32_t i = 0; i < layout.rank(); ++i) {
    if (layout.shape()[i] == 0) return {0, 0};
    std::int64_t span = 0;
    std::int64_t& bound = layout.strides()[i] < 0 ? low : high;
    if (__builtin_mul_overflow(layout.shape()[i] - 1, layout.strides()[i], &span) ||
        __builtin_add_overflow(bound, span, &bound)) {
      refuse(ErrorKind::kOverflow, "strides " + shape_text(layout.strides(), layout.rank()) +
                                       " reach past 2^63 - 1 elements");
    }
  }
  return {low, high};
}

bool may_overlap(const TensorMeta& a, const TensorMeta& b) {
  if (a.storage->device().name() != b.storage->device().name()) return false;
  if (a.layout.element_count() == 0 || b.layout.element_count() == 0) return false;
  const auto interval = [](const TensorMeta& meta) {
    const auto [low, high] = reach_of(meta.layout);
    const std::int64_t size = std::max(itemsize_of(meta.dtype), 1);
    const auto data = static_cast<std::int64_t>(meta.data);
    return std::pair{data + low * size, data + (high + 1) * size};
  };
  const auto [a_low, a_high] = interval(a);
  const auto [b_low, b_high] = interval(b);
  return a_low < b_high && b_low < a_high;
}

bool repeats_elements(const Layout& layout) noexcept {
  for (std::int32_t i = 0; i < layout.rank(); ++i) {
    if (layout.shape()[i] > 1 && layout.strides()[i] == 0) return true;
  }
  return false;
}

TensorMeta window(const TensorMeta& base, Layout&& layout, std::int64_t offset) {
  TensorMeta view;
  if (bits_of(base.dtype) >= 8) {
    view.data = base.data + static_cast<DeviceAddress>(offset * itemsize_of(base.dtype));
  } else {
    require_whole_bytes(base, layout, offset);
    view.data = base.data + static_cast<DeviceAddress>(offset * bits_of(base.dtype) / 8);
  }
  view.storage = base.storage;
  view.dtype = base.dtype;
  view.conjugate = base.conjugate;
  view.layout = std::move(layout);
  return view;
}

TensorMeta select_view(const TensorMeta& base, std::int64_t axis, std::int64_t index) {
  const std::int32_t rank = base.layout.rank();
  const std::int32_t dropped = normalized_axis("select", axis, rank);
  const std::int64_t extent = base.layout.shape()[dropped];
  const std::int64_t position = index < 0 ? index + extent : index;
  if (position < 0 || position >= extent) {
    refuse(ErrorKind::kIndex, "index " + text(index) + " is out of bounds for axis " +
                                  text(dropped) + " with size " + text(extent));
  }
  Layout layout;
  layout.resize(rank - 1);
  for (std::int32_t i = 0, j = 0; i < rank; ++i) {
    if (i == dropped) continue;
    layout.shape()[j] = base.layout.shape()[i];
    layout.strides()[j++] = base.layout.strides()[i];
  }
  return window(base, std::move(layout), position * base.layout.strides()[dropped]);
}

TensorMeta narrow_view(const TensorMeta& base, std::int64_t axis, std::int64_t start,
                       std::int64_t length) {
  const std::int32_t cut = normalized_axis("narrow", axis, base.layout.rank());
  const std::int64_t extent = base.layout.shape()[cut];
  const std::int64_t first = start < 0 ? start + extent : start;
  if (length < 0 || first < 0 || first > extent || length > extent - first) {
    refuse(ErrorKind::kIndex, "narrow: start " + text(start) + " and length " + text(length) +
                                  " do not fit axis " + text(cut) + " with size " + text(extent));
  }
  Layout layout = base.layout;
  layout.shape()[cut] = length;
  return window(base, std::move(layout), length == 0 ? 0 : first * base.layout.strides()[cut]);
}

TensorMeta permute_view(const TensorMeta& base, const Extents& axes) {
  const std::int32_t rank = base.layout.rank();
  if (axes.count != rank) {
    refuse(ErrorKind::kValue, "permute: expected all " + text(rank) + " axes once, got " +
                                  shape_text(axes.values, axes.count));
  }
  bool marked[kMaximumRank];
  mark_axes("permute", axes, rank, marked);
  Layout layout;
  layout.resize(rank);
  for (std::int32_t i = 0; i < rank; ++i) {
    const std::int64_t from = axes.values[i] < 0 ? axes.values[i] + rank : axes.values[i];
    layout.shape()[i] = base.layout.shape()[from];
    layout.strides()[i] = base.layout.strides()[from];
  }
  return window(base, std::move(layout), 0);
}

TensorMeta transpose_view(const TensorMeta& base, std::int64_t a, std::int64_t b) {
  const std::int32_t rank = base.layout.rank();
  // A tensor without axes has one order only; -1 and 0 name it.
  if (rank == 0 && a >= -1 && a <= 0 && b >= -1 && b <= 0) return base;
  const std::int32_t first = normalized_axis("transpose", a, rank);
  const std::int32_t second = normalized_axis("transpose", b, rank);
  Layout layout = base.layout;
  std::swap(layout.shape()[first], layout.shape()[second]);
  std::swap(layout.strides()[first], layout.strides()[second]);
  return window(base, std::move(layout), 0);
}

TensorMeta move_view(const TensorMeta& base, const Extents& source, const Extents& destination) {
  const std::int32_t rank = base.layout.rank();
  if (source.count != destination.count) {
    refuse(ErrorKind::kValue, "moveaxis: " + text(source.count) + " source axes but " +
                                  text(destination.count) + " destinations");
  }
  bool taken[kMaximumRank];
  bool placed[kMaximumRank];
  mark_axes("moveaxis", source, rank, taken);
  mark_axes("moveaxis", destination, rank, placed);
  Extents axes;
  axes.count = rank;
  for (std::int32_t i = 0; i < source.count; ++i) {
    axes.values[normalized_axis("moveaxis", destination.values[i], rank)] =
        normalized_axis("moveaxis", source.values[i], rank);
  }
  std::int32_t next = 0;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (placed[i]) continue;
    while (taken[next]) ++next;
    axes.values[i] = next++;
  }
  return permute_view(base, axes);
}

TensorMeta unsqueeze_view(const TensorMeta& base, std::int64_t axis) {
  const std::int32_t rank = base.layout.rank();
  const std::int32_t at = normalized_axis("unsqueeze", axis, rank + 1);
  Layout layout;
  layout.resize(rank + 1);
  for (std::int32_t i = 0; i < rank; ++i) {
    const std::int32_t to = i < at ? i : i + 1;
    layout.shape()[to] = base.layout.shape()[i];
    layout.strides()[to] = base.layout.strides()[i];
  }
  layout.shape()[at] = 1;
  layout.strides()[at] =
      at < rank ? base.layout.shape()[at] * base.layout.strides()[at] : std::int64_t{1};
  return window(base, std::move(layout), 0);
}

TensorMeta squeeze_view(const TensorMeta& base, const Extents* axes, bool strict) {
  const std::int32_t rank = base.layout.rank();
  bool dropped[kMaximumRank];
  if (axes == nullptr) {
    std::fill_n(dropped, kMaximumRank, true);
  } else if (rank > 0) {
    mark_axes("squeeze", *axes, rank, dropped);
  }
  Layout layout;
  Extents shape;
  Extents strides;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (dropped[i] && base.layout.shape()[i] == 1) continue;
    if (dropped[i] && strict && axes != nullptr) {
      refuse(ErrorKind::kValue, "squeeze: axis " + text(i) + " has size " +
                                    text(base.layout.shape()[i]) + ", only size 1 can be dropped");
    }
    shape.push(base.layout.shape()[i]);
    strides.push(base.layout.strides()[i]);
  }
  return window(base, Layout(shape.values, strides.values, shape.count), 0);
}

TensorMeta expand_view(const TensorMeta& base, const Extents& shape) {
  const std::int32_t rank = base.layout.rank();
  const std::int32_t added = shape.count - rank;
  const auto mismatch = [&](const std::string& why) {
    refuse(ErrorKind::kValue, "expand: shape " + shape_text(base.layout.shape(), rank) +
                                  " cannot become " + shape_text(shape.values, shape.count) + ": " +
                                  why);
  };
  if (added < 0) mismatch("it has fewer axes");
  Layout layout;
  layout.resize(shape.count);
  for (std::int32_t i = 0; i < shape.count; ++i) {
    const std::int64_t wanted = shape.values[i];
    if (i < added) {
      if (wanted < 0) mismatch("-1 needs an existing axis");
      layout.shape()[i] = wanted;
      layout.strides()[i] = 0;
      continue;
    }
    const std::int64_t extent = base.layout.shape()[i - added];
    if (wanted == -1 || wanted == extent) {
      layout.shape()[i] = extent;
      layout.strides()[i] = base.layout.strides()[i - added];
    } else {
      if (wanted < 0 || extent != 1)
        mismatch("axis " + text(i - added) + " has size " + text(extent));
      layout.shape()[i] = wanted;
      layout.strides()[i] = 0;
    }
  }
  static_cast<void>(layout.element_count());
  return window(base, std::move(layout), 0);
}

Extents resolved_shape(const TensorMeta& base, const Extents& shape) {
  const std::int64_t count = base.layout.element_count();
  const auto mismatch = [&](const std::string& why) {
    refuse(ErrorKind::kValue, "reshape: shape " +
                                  shape_text(base.layout.shape(), base.layout.rank()) + " with " +
                                  text(count) + " elements cannot become " +
                                  shape_text(shape.values, shape.count) + ": " + why);
  };
  Extents resolved = shape;
  std::int32_t inferred = -1;
  for (std::int32_t i = 0; i < shape.count; ++i) {
    if (shape.values[i] == -1) {
      if (inferred >= 0) mismatch("only one extent may be -1");
      inferred = i;
      resolved.values[i] = 1;
    } else if (shape.values[i] < 0) {
      mismatch("extents are 0 or more, or one -1");
    }
  }
  const std::int64_t product = checked_count(resolved.values, resolved.count);
  if (inferred >= 0) {
    if (product == 0) mismatch("-1 is ambiguous beside a 0");
    if (count % product != 0) mismatch("the other extents multiply to " + text(product));
    resolved.values[inferred] = count / product;
  } else if (product != count) {
    mismatch("it has " + text(product) + " elements");
  }
  return resolved;
}

bool try_reshape_view(const TensorMeta& base, const Extents& shape, TensorMeta* view) {
  const std::int32_t rank = base.layout.rank();
  const std::int64_t* old_shape = base.layout.shape();
  const std::int64_t* old_strides = base.layout.strides();
  Layout layout;
  layout.resize(shape.count);
  std::copy_n(shape.values, shape.count, layout.shape());
  if (rank == 0 || base.layout.contiguous()) {
    layout.set_contiguous_strides();
    *view = window(base, std::move(layout), 0);
    return true;
  }
  // Axes of the base are merged into runs of one stride; the new axes must cut along the runs.
  std::int32_t axis = shape.count - 1;
  std::int64_t run_stride = old_strides[rank - 1];
  std::int64_t run = 1;
  std::int64_t covered = 1;
  for (std::int32_t i = rank - 1; i >= 0; --i) {
    run *= old_shape[i];
    const bool run_ends =
        i == 0 || (old_shape[i - 1] != 1 && old_strides[i - 1] != run * run_stride);
    if (!run_ends) continue;
    while (axis >= 0 && (covered < run || shape.values[axis] == 1)) {
      layout.strides()[axis] = covered * run_stride;
      covered *= shape.values[axis--];
    }
    if (covered != run) return false;
    if (i > 0) run_stride = old_strides[i - 1];
    run = covered = 1;
  }
  if (axis >= 0) return false;
  *view = window(base, std::move(layout), 0);
  return true;
}

Extents flattened_shape(const TensorMeta& base, std::int64_t first, std::int64_t last) {
  const std::int32_t rank = base.layout.rank();
  Extents shape;
  if (rank == 0) {
    shape.push(1);
    return shape;
  }
  const std::int32_t begin = normalized_axis("flatten", first, rank);
  const std::int32_t end = normalized_axis("flatten", last, rank);
  if (begin > end) {
    refuse(ErrorKind::kValue, "flatten: start axis " + text(first) + " lies behind end axis " +
                                  text(last) + " in a tensor of " + text(rank) + " axes");
  }
  const std::int64_t* sizes = base.layout.shape();
  for (std::int32_t i = 0; i < begin; ++i) shape.push(sizes[i]);
  // Past 64 bits only beside an extent of 0: otherwise the base's own count was checked.
  shape.push(checked_count(sizes + begin, end - begin + 1));
  for (std::int32_t i = end + 1; i < rank; ++i) shape.push(sizes[i]);
  return shape;
}

Extents unflattened_shape(const TensorMeta& base, std::int64_t axis, const Extents& parts) {
  const std::int32_t rank = base.layout.rank();
  const std::int32_t cut = normalized_axis("unflatten", axis, rank);
  const std::int64_t extent = base.layout.shape()[cut];
  std::int64_t known = 1;
  std::int32_t inferred = -1;
  for (std::int32_t i = 0; i < parts.count; ++i) {
    if (parts.values[i] == -1 && inferred < 0) {
      inferred = i;
    } else {
      known = parts.values[i] < 0 ? -1 : known * parts.values[i];
    }
    if (known < 0) break;
  }
  const bool fits = known >= 0 && parts.count > 0 &&
                    (inferred < 0 ? known == extent : known > 0 && extent % known == 0);
  if (!fits) {
    refuse(ErrorKind::kValue, "unflatten: axis " + text(cut) + " with size " + text(extent) +
                                  " cannot be split into " + shape_text(parts.values, parts.count));
  }
  Extents shape;
  for (std::int32_t i = 0; i < rank; ++i) {
    if (i != cut) {
      shape.push(base.layout.shape()[i]);
      continue;
    }
    for (std::int32_t j = 0; j < parts.count; ++j) {
      shape.push(j == inferred ? extent / known : parts.values[j]);
    }
  }
  return shape;
}

}  // namespace nbx
