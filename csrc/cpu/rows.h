// Rows of floating tensors: read into and written from the type that a kernel computes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/tensor_view.h"
#include "launch/kernel.h"

namespace nbx::cpu {

/// `count` elements that lie `stride` elements apart, as T (float or double): in place where the
/// data are contiguous T already, else converted into `buffer`.
template <class T>
[[nodiscard]] const T* load_row(const std::byte* data, DType dtype, std::int64_t stride,
                                std::int64_t count, T* buffer);
/// Writes them back, rounded to nearest even; with `streams` past the caches, where they lie side
/// by side, which a `stream_fence` has to follow.
template <class T>
void store_row(std::byte* data, DType dtype, std::int64_t stride, std::int64_t count,
               const T* values, bool streams = false);
/// The address where results may be written directly as T, or `buffer`.
template <class T>
[[nodiscard]] T* row_target(std::byte* data, DType dtype, std::int64_t stride, T* buffer,
                            bool streams = false) noexcept;

template <class T>
inline constexpr DType kDTypeOf = sizeof(T) == 8 ? DType::float64 : DType::float32;

/// Memory of this thread, aligned to 64 bytes, kept for the next call; `slot` keeps the uses within
/// one kernel apart. Contents are undefined.
[[nodiscard]] std::byte* scratch_bytes(int slot, std::size_t bytes);
template <class T>
[[nodiscard]] T* scratch(int slot, std::int64_t count) {
  return reinterpret_cast<T*>(scratch_bytes(slot, static_cast<std::size_t>(count) * sizeof(T)));
}

/// Address of row number `row` when the last `inner` axes are left out.
[[nodiscard]] std::byte* row_address(const TensorView& view, std::int64_t row,
                                     int inner = 1) noexcept;
/// Elements outside the last `inner` axes.
[[nodiscard]] std::int64_t row_count(const TensorView& view, int inner = 1) noexcept;

/// Element `index` of an int32 or int64 vector laid out in any way.
[[nodiscard]] std::int64_t integer_at(const TensorView& view, std::int64_t index) noexcept;

/// Throws Error(kType) unless the dtype is a floating one.
void require_floating(const char* kernel, const char* operand, const TensorView& view);
/// Throws Error(kType) unless int32 or int64.
void require_index(const char* kernel, const char* operand, const TensorView& view);

/// Elements per piece such that a piece is worth another thread.
inline constexpr std::int64_t kPieceElements = 16384;
[[nodiscard]] inline std::int64_t rows_per_piece(std::int64_t width) noexcept {
  return width <= 0 ? kPieceElements : (kPieceElements + width - 1) / width;
}

}  // namespace nbx::cpu
