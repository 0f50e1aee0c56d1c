// matmul:dense: batches of products of any dtype and layout.
#include "cpu/matmul.h"

#include <algorithm>

#include "cpu/matmul_generic.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/target.h"
#include "cpu/widen.h"

namespace nbx::cpu {
namespace {

template <int kWidth, int kTokens, class W>
NBX_INLINE void dot_rows(const float* x, std::int64_t x_stride, const std::byte* weights,
                         std::int64_t row_stride, std::int64_t rows, std::int64_t k, float* out,
                         std::int64_t out_stride) {
  using F = typename Vector<kWidth>::F;
  const auto* base = reinterpret_cast<const W*>(weights);
  for (std::int64_t j = 0; j < rows; ++j) {
    const W* row = base + j * row_stride;
    F sums[kTokens][2] = {};
    std::int64_t i = 0;
    for (; i + 2 * kWidth <= k; i += 2 * kWidth) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(row + i) + kPrefetchBytes);
      NBX_UNROLL
      for (int u = 0; u < 2; ++u) {
        F w;
        widen<kWidth>(w, row + i + u * kWidth);
        NBX_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          F v;
          load(v, x + t * x_stride + i + u * kWidth);
          sums[t][u] += v * w;
        }
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      const F total = sums[t][0] + sums[t][1];
      float sum = sum_lanes<kWidth>(total);
      for (std::int64_t rest = i; rest < k; ++rest) {
        sum += x[t * x_stride + rest] * widen_one(row[rest]);
      }
      out[t * out_stride + j] = sum;
    }
  }
}

struct FewJob {
  const float* x;
  std::int64_t x_stride;
  const std::byte* weights;
  std::int64_t row_stride;
  std::int64_t rows;
  std::int64_t k;
  float* out;
  std::int64_t out_stride;
  int tokens;
};

template <int kWidth, class W>
NBX_INLINE void dot_few(const FewJob& j) {
  switch (j.tokens) {
    case 1:
      return dot_rows<kWidth, 1, W>(j.x, j.x_stride, j.weights, j.row_stride, j.rows, j.k, j.out,
                                    j.out_stride);
    case 2:
      return dot_rows<kWidth, 2, W>(j.x, j.x_stride, j.weights, j.row_stride, j.rows, j.k, j.out,
                                    j.out_stride);
    case 3:
      return dot_rows<kWidth, 3, W>(j.x, j.x_stride, j.weights, j.row_stride, j.rows, j.k, j.out,
                                    j.out_stride);
    default:
      return dot_rows<kWidth, 4, W>(j.x, j.x_stride, j.weights, j.row_stride, j.rows, j.k, j.out,
                                    j.out_stride);
  }
}

template <int kWidth>
NBX_INLINE void dot_float_body(const FewJob& job) {
  dot_few<kWidth, float>(job);
}
template <int kWidth>
NBX_INLINE void dot_bfloat_body(const FewJob& job) {
  dot_few<kWidth, BFloat16>(job);
}
template <int kWidth>
NBX_INLINE void dot_half_body(const FewJob& job) {
  dot_few<kWidth, Float16>(job);
}
NBX_VECTORISED(dot_half, (const FewJob& job), (job))
NBX_VECTORISED(dot_float, (const FewJob& job), (job))
NBX_VECTORISED(dot_bfloat, (const FewJob& job), (job))

/// The columns of a dense matrix [k, n].
class DenseRows final : public WeightRows {
 public:
  DenseRows(const Matrix& b, std::int64_t k) : b_(b), k_(k) {}

  void pack(std::int64_t row, std::int64_t rows, std::int64_t k0, std::int64_t count, float* panel,
            std::int64_t width) const override {
    if (b_.column_stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) {
        float* to = panel + i * width;
        const float* values = load_row(address(k0 + i, row), b_.dtype, 1, rows, to);
        if (values != to) std::copy(values, values + rows, to);
        std::fill(to + rows, to + width, 0.0F);
      }
      return;
    }
    if (b_.dtype == DType::float32 && b_.row_stride == 1) {
      transpose_panel(reinterpret_cast<const float*>(address(k0, row)), b_.column_stride, rows,
                      count, panel, width);
      return;
    }
    float* buffer = scratch<float>(kPackSlot, rows * count);
    for (std::int64_t j = 0; j < rows; ++j) {
      float* to = buffer + j * count;
      const float* values = load_row(address(k0, row + j), b_.dtype, b_.row_stride, count, to);
      if (values != to) std::copy(values, values + count, to);
    }
    transpose_panel(buffer, count, rows, count, panel, width);
  }

  [[nodiscard]] const float* in_place(std::int64_t row, std::int64_t k0,
                                      std::int64_t& stride) const noexcept override {
    if (b_.dtype != DType::float32 || b_.column_stride != 1) return nullptr;
    stride = b_.row_stride;
    return reinterpret_cast<const float*>(address(k0, row));
  }

  [[nodiscard]] bool multiplies_few() const noexcept override {
    return (b_.dtype == DType::float32 || b_.dtype == DType::bfloat16 ||
            b_.dtype == DType::float16) &&
           b_.row_stride == 1;
  }

  void multiply_few(const float* x, std::int64_t x_stride, int tokens, std::int64_t row,
                    std::int64_t rows, float* out, std::int64_t out_stride) const override {
    const FewJob job{x,   x_stride,   address(0, row), b_.column_stride, rows, k_,
                     out, out_stride, tokens};
    if (b_.dtype == DType::float32) return dot_float(job);
    b_.dtype == DType::float16 ? dot_half(job) : dot_bfloat(job);
  }

 private:
  [[nodiscard]] std::byte* address(std::int64_t k, std::int64_t n) const noexcept {
    return b_.data + (k * b_.row_stride + n * b_.column_stride) * itemsize_of(b_.dtype);
  }

  Matrix b_;
  std::int64_t k_;
};

Matrix matrix_of(const TensorView& view, std::int64_t batch) {
  if (view.data == nullptr) return {nullptr, view.dtype, 0, 0};
  return {row_address(view, batch, 2), view.dtype, view.strides[view.rank - 2],
          view.strides[view.rank - 1]};
}

void dense(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& a = call.tensors[1];
  const TensorView& b = call.tensors[2];
  const TensorView& bias = call.tensors[3];
  const std::int64_t m = out.shape[out.rank - 2];
  const std::int64_t n = out.shape[out.rank - 1];
  const std::int64_t k = a.shape[a.rank - 1];
  const std::int64_t batches = row_count(out, 2);
  const auto multiply = [&](std::int64_t batch) {
    const Matrix to = matrix_of(out, batch);
    const Matrix left = matrix_of(a, batch);
    const Matrix right = matrix_of(b, batch);
    const Matrix added = matrix_of(bias, batch);
    if (generic_product(out.dtype, a.dtype, b.dtype)) {
      multiply_generic(to, left, right, added, m, n, k);
    } else {
      multiply_rows(to, left, DenseRows(right, k), added, m, n, k);
    }
  };
  if (batches >= thread_count()) {
    const std::int64_t grain = rows_per_piece(std::max<std::int64_t>(1, m * n * k / 16));
    parallel_for(batches, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t batch = begin; batch < end; ++batch) multiply(batch);
    });
    return;
  }
  for (std::int64_t batch = 0; batch < batches; ++batch) multiply(batch);
}

const HostKernelRegistration register_dense{"matmul:dense", &dense};

}  // namespace
}  // namespace nbx::cpu
