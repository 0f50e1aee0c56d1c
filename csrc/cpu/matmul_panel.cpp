// The inner loops of float products: a tile of rows by one panel of two vectors, held in registers.
#include "cpu/matmul.h"
#include "cpu/target.h"

namespace nbx::cpu {
namespace {

// Rows of a tile: as many as leave registers for the panel and one broadcast.
template <int kWidth>
inline constexpr int kTileRows = kWidth == 16  ? 12
                                 : kWidth == 8 ? 6
                                               : 4;

template <int kWidth, int kRows>
NBX_INLINE void multiply_tile(const float* a, std::int64_t a_stride, const float* b,
                              std::int64_t b_stride, std::int64_t k, float* c,
                              std::int64_t c_stride, bool accumulate) {
  using F = typename Vector<kWidth>::F;
  F sums[kRows][2];
  NBX_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (accumulate) {
      load(sums[i][0], c + i * c_stride);
      load(sums[i][1], c + i * c_stride + kWidth);
    } else {
      sums[i][0] = F{};
      sums[i][1] = F{};
    }
  }
  for (std::int64_t step = 0; step < k; ++step) {
    F b0;
    F b1;
    load(b0, b + step * b_stride);
    load(b1, b + step * b_stride + kWidth);
    NBX_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const float value = a[i * a_stride + step];
      sums[i][0] += b0 * value;
      sums[i][1] += b1 * value;
    }
  }
  NBX_UNROLL
  for (int i = 0; i < kRows; ++i) {
    store(c + i * c_stride, sums[i][0]);
    store(c + i * c_stride + kWidth, sums[i][1]);
  }
}

template <int kWidth>
NBX_INLINE void multiply_panel_vectorised_body(const float* a, std::int64_t a_stride,
                                               std::int64_t m, const float* b,
                                               std::int64_t b_stride, std::int64_t k, float* c,
                                               std::int64_t c_stride, bool accumulate) {
  constexpr int kRows = kTileRows<kWidth>;
  std::int64_t i = 0;
  for (; i + kRows <= m; i += kRows) {
    multiply_tile<kWidth, kRows>(a + i * a_stride, a_stride, b, b_stride, k, c + i * c_stride,
                                 c_stride, accumulate);
  }
  for (; kRows > 8 && i + 8 <= m; i += 8) {
    multiply_tile<kWidth, 8>(a + i * a_stride, a_stride, b, b_stride, k, c + i * c_stride, c_stride,
                             accumulate);
  }
  for (; kRows > 4 && i + 4 <= m; i += 4) {
    multiply_tile<kWidth, 4>(a + i * a_stride, a_stride, b, b_stride, k, c + i * c_stride, c_stride,
                             accumulate);
  }
  for (; i + 2 <= m; i += 2) {
    multiply_tile<kWidth, 2>(a + i * a_stride, a_stride, b, b_stride, k, c + i * c_stride, c_stride,
                             accumulate);
  }
  if (i < m) {
    multiply_tile<kWidth, 1>(a + i * a_stride, a_stride, b, b_stride, k, c + i * c_stride, c_stride,
                             accumulate);
  }
}
NBX_VECTORISED(multiply_panel_vectorised,
               (const float* a, std::int64_t a_stride, std::int64_t m, const float* b,
                std::int64_t b_stride, std::int64_t k, float* c, std::int64_t c_stride,
                bool accumulate),
               (a, a_stride, m, b, b_stride, k, c, c_stride, accumulate))

// Lanes of the lower (upper) halves of two vectors, taken in turn.
NBX_INLINE void interleave(const Vector<4>::F& a, const Vector<4>::F& b, Vector<4>::F& low,
                           Vector<4>::F& high) {
  low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
NBX_INLINE void interleave(const Vector<8>::F& a, const Vector<8>::F& b, Vector<8>::F& low,
                           Vector<8>::F& high) {
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
NBX_INLINE void interleave(const Vector<16>::F& a, const Vector<16>::F& b, Vector<16>::F& low,
                           Vector<16>::F& high) {
  low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  high =
      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// A square of kWidth rows and columns: as many rounds of interleaving as the width has bits.
template <int kWidth>
NBX_INLINE void transpose_square(const float* from, std::int64_t stride, float* to,
                                 std::int64_t to_stride) {
  using F = typename Vector<kWidth>::F;
  F rows[kWidth];
  F mixed[kWidth];
  NBX_UNROLL
  for (int i = 0; i < kWidth; ++i) load(rows[i], from + i * stride);
  NBX_UNROLL
  for (int rounds = kWidth; rounds > 1; rounds /= 2) {
    NBX_UNROLL
    for (int i = 0; i < kWidth / 2; ++i) {
      interleave(rows[i], rows[i + kWidth / 2], mixed[2 * i], mixed[2 * i + 1]);
    }
    NBX_UNROLL
    for (int i = 0; i < kWidth; ++i) rows[i] = mixed[i];
  }
  NBX_UNROLL
  for (int i = 0; i < kWidth; ++i) store(to + i * to_stride, rows[i]);
}

template <int kWidth>
NBX_INLINE void transpose_vectorised_body(const float* rows, std::int64_t row_stride,
                                          std::int64_t n, std::int64_t count, float* panel,
                                          std::int64_t width) {
  const std::int64_t whole_n = n / kWidth * kWidth;
  const std::int64_t whole_count = count / kWidth * kWidth;
  for (std::int64_t j = 0; j < whole_n; j += kWidth) {
    for (std::int64_t i = 0; i < whole_count; i += kWidth) {
      transpose_square<kWidth>(rows + j * row_stride + i, row_stride, panel + i * width + j, width);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    float* to = panel + i * width;
    for (std::int64_t j = i < whole_count ? whole_n : 0; j < n; ++j) {
      to[j] = rows[j * row_stride + i];
    }
    for (std::int64_t j = n; j < width; ++j) to[j] = 0.0F;
  }
}
NBX_VECTORISED(transpose_vectorised,
               (const float* rows, std::int64_t row_stride, std::int64_t n, std::int64_t count,
                float* panel, std::int64_t width),
               (rows, row_stride, n, count, panel, width))

}  // namespace

void transpose_panel(const float* rows, std::int64_t row_stride, std::int64_t n, std::int64_t count,
                     float* panel, std::int64_t width) {
  transpose_vectorised(rows, row_stride, n, count, panel, width);
}

std::int64_t panel_width() noexcept {
  switch (simd_level()) {
    case Simd::kAvx512:
      return 32;
    case Simd::kAvx2:
      return 16;
    default:
      return 8;
  }
}

void multiply_panel(const float* a, std::int64_t a_stride, std::int64_t m, const float* b,
                    std::int64_t b_stride, std::int64_t k, float* c, std::int64_t c_stride,
                    bool accumulate) {
  multiply_panel_vectorised(a, a_stride, m, b, b_stride, k, c, c_stride, accumulate);
}

}  // namespace nbx::cpu
