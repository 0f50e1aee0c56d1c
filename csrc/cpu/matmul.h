// Products in float32 of any operand that can be read as rows of floats.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"

namespace nbx::cpu {

/// The right operand of a product, seen as `n` rows of `k` weights (its transpose).
class WeightRows {
 public:
  WeightRows() = default;
  WeightRows(const WeightRows&) = delete;
  WeightRows& operator=(const WeightRows&) = delete;
  virtual ~WeightRows() = default;

  /// Writes weights [k0, k0 + count) of rows [row, row + rows) to a panel: element (i, j) of it,
  /// k0 + i of row + j, at panel[i * width + j]; columns rows..width are filled with zeros.
  virtual void pack(std::int64_t row, std::int64_t rows, std::int64_t k0, std::int64_t count,
                    float* panel, std::int64_t width) const = 0;
  /// The same panel where it lies as floats in memory already, else null; `stride` is set to the
  /// distance of its rows. Never asked for less than a whole panel.
  [[nodiscard]] virtual const float* in_place(std::int64_t row, std::int64_t k0,
                                              std::int64_t& stride) const noexcept {
    (void)row, (void)k0, (void)stride;
    return nullptr;
  }
  /// Whether multiply_few is there.
  [[nodiscard]] virtual bool multiplies_few() const noexcept { return false; }
  /// out[t * out_stride + j] = sum over k of x[t * x_stride + k] * weight[row + j][k], for
  /// `rows` rows and `tokens` <= kFewTokens vectors.
  virtual void multiply_few(const float* x, std::int64_t x_stride, int tokens, std::int64_t row,
                            std::int64_t rows, float* out, std::int64_t out_stride) const {
    (void)x, (void)x_stride, (void)tokens, (void)row, (void)rows, (void)out, (void)out_stride;
  }
};

/// Up to this many rows of the left operand go through multiply_few.
inline constexpr int kFewTokens = 4;

/// Weights that are read once are asked for this far ahead; the hardware alone reaches about two
/// thirds of the rate. Addresses past the end are harmless.
inline constexpr std::int64_t kPrefetchBytes = 2048;

/// One matrix: rows and columns with their strides in elements.
struct Matrix {
  std::byte* data;
  DType dtype;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

/// out[m, n] = a[m, k] * weights^T + bias, accumulated in float32; null bias data: none. The order
/// of every sum is fixed, whatever the number of threads.
void multiply_rows(const Matrix& out, const Matrix& a, const WeightRows& weights,
                   const Matrix& bias, std::int64_t m, std::int64_t n, std::int64_t k);

/// Scratch slots (cpu/rows.h) that packing may use; products use those before.
inline constexpr int kPackSlot = 4;

/// Columns of one panel for the instruction set in use.
[[nodiscard]] std::int64_t panel_width() noexcept;
/// c[m, panel] (+)= a[m, k] * b[k, panel]; strides in floats between rows, b's width is the
/// panel's. Accumulates into c or overwrites it.
void multiply_panel(const float* a, std::int64_t a_stride, std::int64_t m, const float* b,
                    std::int64_t b_stride, std::int64_t k, float* c, std::int64_t c_stride,
                    bool accumulate);
/// panel[i * width + j] = rows[j * row_stride + i] for i < count, j < n; zeros for n <= j < width.
void transpose_panel(const float* rows, std::int64_t row_stride, std::int64_t n, std::int64_t count,
                     float* panel, std::int64_t width);

}  // namespace nbx::cpu
