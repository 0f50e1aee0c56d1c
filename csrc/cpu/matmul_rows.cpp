// Products in float32: panels of the weights are packed once each and used for many rows.
#include <algorithm>

#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/target.h"

namespace nbx::cpu {
namespace {

enum Slot : int { kPanelSlot = 1, kTileSlot = 2, kLeftSlot = 3 };

constexpr std::int64_t kDepth = 256;           // weights of one row in a packed panel
constexpr std::int64_t kLeftFloats = 1 << 19;  // converted left operand held at a time: 2 MiB
constexpr std::int64_t kMaximumChunk = 1024;   // rows per task
constexpr std::int64_t kFewRows = 24;          // packing a panel pays for more rows than these

std::byte* element(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  return matrix.data +
         (row * matrix.row_stride + column * matrix.column_stride) * itemsize_of(matrix.dtype);
}

void write_row(const Matrix& out, const Matrix& bias, std::int64_t row, std::int64_t column,
               std::int64_t count, float* values) {
  if (bias.data != nullptr) {
    float buffer[32];
    for (std::int64_t done = 0; done < count; done += 32) {
      const std::int64_t part = std::min<std::int64_t>(32, count - done);
      const float* added =
          load_row(element(bias, row, column + done), bias.dtype, bias.column_stride, part, buffer);
      for (std::int64_t i = 0; i < part; ++i) values[done + i] += added[i];
    }
  }
  store_row(element(out, row, column), out.dtype, out.column_stride, count, values);
}

// Strides that are multiples of a page would put all rows of a tile into one cache set.
bool readable_in_place(const Matrix& a, std::int64_t rows) {
  return a.dtype == DType::float32 && a.column_stride == 1 &&
         (a.row_stride % 1024 != 0 || rows == 1);
}

// Rows of the left operand as contiguous floats: in place or converted, in parallel.
struct Left {
  const float* data;
  std::int64_t stride;
};
Left read_left(const Matrix& a, std::int64_t row, std::int64_t rows, std::int64_t k) {
  if (readable_in_place(a, rows)) {
    return {reinterpret_cast<const float*>(element(a, row, 0)), a.row_stride};
  }
  const std::int64_t stride = (k + 15) / 16 * 16 + 16;
  float* buffer = scratch<float>(kLeftSlot, rows * stride);
  parallel_for(rows, rows_per_piece(k), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* values =
          load_row(element(a, row + i, 0), a.dtype, a.column_stride, k, buffer + i * stride);
      if (values != buffer + i * stride) std::copy(values, values + k, buffer + i * stride);
    }
  });
  return {buffer, stride};
}

void multiply_few_rows(const Matrix& out, const Left& left, const WeightRows& weights,
                       const Matrix& bias, std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kRows = 64;
  const std::int64_t grain = std::max<std::int64_t>(1, kPieceElements * 2 / std::max(k, kRows));
  parallel_for(n, (grain + 15) / 16 * 16, [&](std::int64_t begin, std::int64_t end) {
    float results[kFewTokens * kRows];
    for (std::int64_t row = begin; row < end; row += kRows) {
      const std::int64_t count = std::min(kRows, end - row);
      weights.multiply_few(left.data, left.stride, static_cast<int>(m), row, count, results, kRows);
      for (std::int64_t t = 0; t < m; ++t) {
        write_row(out, bias, t, row, count, results + t * kRows);
      }
    }
  });
}

void multiply_block(const Matrix& out, const Left& left, const WeightRows& weights,
                    const Matrix& bias, std::int64_t first, std::int64_t m, std::int64_t n,
                    std::int64_t k) {
  const std::int64_t width = panel_width();
  const std::int64_t panels = (n + width - 1) / width;
  // Few panels are also cut by rows, so that every thread has some.
  const std::int64_t wanted = std::max<std::int64_t>(1, 4 * thread_count() / panels);
  const std::int64_t chunk =
      std::clamp<std::int64_t>(((m + wanted - 1) / wanted + 11) / 12 * 12, 48, kMaximumChunk);
  const std::int64_t chunks = (m + chunk - 1) / chunk;
  const std::int64_t depths = std::max<std::int64_t>(1, (k + kDepth - 1) / kDepth);
  const std::int64_t depth = ((k + depths - 1) / depths + 31) / 32 * 32;
  parallel_for(chunks * panels, 1, [&](std::int64_t begin, std::int64_t end) {
    float* panel = scratch<float>(kPanelSlot, std::max<std::int64_t>(depth, 1) * width);
    float* tile = scratch<float>(kTileSlot, std::min(chunk, m) * width);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t column = task % panels * width;
      const std::int64_t columns = std::min(width, n - column);
      const std::int64_t row = task / panels * chunk;
      const std::int64_t rows = std::min(chunk, m - row);
      std::int64_t k0 = 0;
      do {
        const std::int64_t count = std::min(depth, k - k0);
        std::int64_t stride = width;
        const float* used = panel;
        const float* found =
            rows <= kFewRows && columns == width ? weights.in_place(column, k0, stride) : nullptr;
        if (found != nullptr) {
          used = found;
        } else {
          weights.pack(column, columns, k0, count, panel, width);
        }
        multiply_panel(left.data + row * left.stride + k0, left.stride, rows, used, stride, count,
                       tile, width, k0 > 0);
        k0 += depth;
      } while (k0 < k);
      for (std::int64_t i = 0; i < rows; ++i) {
        write_row(out, bias, first + row + i, column, columns, tile + i * width);
      }
    }
  });
}

}  // namespace

void multiply_rows(const Matrix& out, const Matrix& a, const WeightRows& weights,
                   const Matrix& bias, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == 0 || n == 0) return;
  if (m <= kFewTokens && weights.multiplies_few()) {
    multiply_few_rows(out, read_left(a, 0, m, k), weights, bias, m, n, k);
    return;
  }
  const std::int64_t block =
      readable_in_place(a, m)
          ? m
          : std::max<std::int64_t>(48, kLeftFloats / std::max<std::int64_t>(k, 1));
  for (std::int64_t row = 0; row < m; row += block) {
    const std::int64_t rows = std::min(block, m - row);
    multiply_block(out, read_left(a, row, rows, k), weights, bias, row, rows, n, k);
  }
}

}  // namespace nbx::cpu
