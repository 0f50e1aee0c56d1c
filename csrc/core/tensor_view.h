// What a kernel sees of a tensor: an address and its layout, owning nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/dtype.h"

namespace nbx {

/// Strides count elements and may be zero or negative; `data` addresses element (0, ..., 0).
/// Packed sub-byte types are contiguous and start on a byte.
struct TensorView {
  std::byte* data;
  const std::int64_t* shape;
  const std::int64_t* strides;
  std::int32_t rank;
  DType dtype;

  [[nodiscard]] std::int64_t element_count() const noexcept {
    // Unsigned: beside an extent of 0 the others may multiply to anything.
    std::uint64_t count = 1;
    for (std::int32_t i = 0; i < rank; ++i) count *= static_cast<std::uint64_t>(shape[i]);
    return static_cast<std::int64_t>(count);
  }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data);
  }
};

/// True if the elements lie in row-major order without gaps; extent-1 axes are free, empty is true.
[[nodiscard]] inline bool is_contiguous(const std::int64_t* shape, const std::int64_t* strides,
                                        std::int32_t rank) noexcept {
  std::uint64_t expected = 1;
  bool dense = true;
  for (std::int32_t i = rank - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1) {
      dense = dense && std::cmp_equal(strides[i], expected);
      expected *= static_cast<std::uint64_t>(shape[i]);
    }
  }
  return dense;
}

[[nodiscard]] inline bool is_contiguous(const TensorView& view) noexcept {
  return is_contiguous(view.shape, view.strides, view.rank);
}

}  // namespace nbx
