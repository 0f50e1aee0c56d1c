// The algebra of views: new windows into the same storage. Nothing here touches elements.
//
// Axes may be negative and are checked: Error(kIndex) names the function, the axis and the rank.
// Packed types keep whole bytes: a view that would split one is refused.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "storage/tensor.h"

namespace nbx {

/// A short list of axes, extents or strides on the stack.
struct Extents {
  std::int64_t values[kMaximumRank];
  std::int32_t count = 0;

  Extents() noexcept {}  // NOLINT: the values stay undefined, filling them costs more than a view
  Extents(const Extents& other) noexcept : count(other.count) {
    for (std::int32_t i = 0; i < count; ++i) values[i] = other.values[i];
  }
  Extents& operator=(const Extents& other) noexcept {
    count = other.count;
    for (std::int32_t i = 0; i < count; ++i) values[i] = other.values[i];
    return *this;
  }

  /// Appends; throws Error(kValue) above kMaximumRank.
  void push(std::int64_t value);
};

[[nodiscard]] std::string shape_text(const std::int64_t* shape, std::int32_t rank);
/// Product of extents; throws Error(kOverflow) naming the shape past 2^63 - 1.
[[nodiscard]] std::int64_t checked_count(const std::int64_t* shape, std::int32_t rank);
[[nodiscard]] std::int32_t normalized_axis(const char* function, std::int64_t axis,
                                           std::int32_t rank);

/// The lowest and highest element offset from `data` that a layout reaches (inclusive; 0, 0 when
/// empty). Throws Error(kOverflow).
[[nodiscard]] std::pair<std::int64_t, std::int64_t> reach_of(const Layout& layout);
/// True if the two tensors may have a byte in common (exact for their address intervals).
[[nodiscard]] bool may_overlap(const TensorMeta& a, const TensorMeta& b);
/// True if two indices may name one element, as in an expanded view.
[[nodiscard]] bool repeats_elements(const Layout& layout) noexcept;

/// A window `offset` elements from the base's element 0. The caller keeps it inside the storage.
[[nodiscard]] TensorMeta window(const TensorMeta& base, Layout&& layout, std::int64_t offset);

[[nodiscard]] TensorMeta select_view(const TensorMeta& base, std::int64_t axis, std::int64_t index);
[[nodiscard]] TensorMeta narrow_view(const TensorMeta& base, std::int64_t axis, std::int64_t start,
                                     std::int64_t length);
[[nodiscard]] TensorMeta permute_view(const TensorMeta& base, const Extents& axes);
[[nodiscard]] TensorMeta transpose_view(const TensorMeta& base, std::int64_t a, std::int64_t b);
[[nodiscard]] TensorMeta move_view(const TensorMeta& base, const Extents& source,
                                   const Extents& destination);
[[nodiscard]] TensorMeta unsqueeze_view(const TensorMeta& base, std::int64_t axis);
/// Drops extent-1 axes: all of them when `axes` is null, else the named ones. `strict` refuses a
/// named axis of another extent (array API); otherwise it is kept.
[[nodiscard]] TensorMeta squeeze_view(const TensorMeta& base, const Extents* axes, bool strict);
/// Broadcasts; -1 keeps an extent.
[[nodiscard]] TensorMeta expand_view(const TensorMeta& base, const Extents& shape);
/// Replaces one -1 and checks the count. Throws Error(kValue) naming both shapes.
[[nodiscard]] Extents resolved_shape(const TensorMeta& base, const Extents& shape);
/// True and a view if `shape` (resolved) can be had without moving elements.
[[nodiscard]] bool try_reshape_view(const TensorMeta& base, const Extents& shape, TensorMeta* view);
[[nodiscard]] Extents flattened_shape(const TensorMeta& base, std::int64_t first,
                                      std::int64_t last);
[[nodiscard]] Extents unflattened_shape(const TensorMeta& base, std::int64_t axis,
                                        const Extents& parts);
/// `byte_origin` is the address of element 0. Checked against the storage's bytes.
[[nodiscard]] TensorMeta as_strided_view(const TensorMeta& base, const Extents& shape,
                                         const Extents& strides, DeviceAddress byte_origin);
[[nodiscard]] TensorMeta diagonal_view(const TensorMeta& base, std::int64_t offset, std::int64_t a,
                                       std::int64_t b);
[[nodiscard]] TensorMeta unfold_view(const TensorMeta& base, std::int64_t axis, std::int64_t size,
                                     std::int64_t step);
/// Reversed along the axes (all when `axes` is null), by negative strides.
[[nodiscard]] TensorMeta flip_view(const TensorMeta& base, const Extents* axes);
/// The same bytes as another dtype; the last axis grows or shrinks with the width.
[[nodiscard]] TensorMeta retyped_view(const TensorMeta& base, DType dtype);
/// Complex as real with a last axis of 2, and back.
[[nodiscard]] TensorMeta real_pairs_view(const TensorMeta& base);
[[nodiscard]] TensorMeta complex_view(const TensorMeta& base);
/// Part 0 (real) or 1 (imaginary) of a complex tensor.
[[nodiscard]] TensorMeta complex_part_view(const TensorMeta& base, int part);

}  // namespace nbx
