#include "cpu/matmul_generic.h"

#include <algorithm>
#include <complex>

#include "cpu/cast.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/target.h"

namespace nbx::cpu {
namespace {

constexpr std::int64_t kColumns = 16;
constexpr std::int64_t kDepth = 128;

template <class T>
NBX_INLINE void multiply_add(T& sum, T x, T y) {
  sum += x * y;
}
// The library's product checks for infinities; a matrix product need not.
template <class R>
NBX_INLINE void multiply_add(std::complex<R>& sum, std::complex<R> x, std::complex<R> y) {
  sum = {sum.real() + (x.real() * y.real() - x.imag() * y.imag()),
         sum.imag() + (x.real() * y.imag() + x.imag() * y.real())};
}

template <class T>
NBX_TARGET_CLONES void accumulate(T* sums, const T* a, const T* panel, std::int64_t k) {
  T held[kColumns];
  for (std::int64_t j = 0; j < kColumns; ++j) held[j] = sums[j];
  for (std::int64_t i = 0; i < k; ++i) {
    const T value = a[i];
    for (std::int64_t j = 0; j < kColumns; ++j) {
      multiply_add(held[j], value, panel[i * kColumns + j]);
    }
  }
  for (std::int64_t j = 0; j < kColumns; ++j) sums[j] = held[j];
}

std::byte* element(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  return matrix.data +
         (row * matrix.row_stride + column * matrix.column_stride) * itemsize_of(matrix.dtype);
}

template <class T>
void multiply_as(const Matrix& out, const Matrix& a, const Matrix& b, const Matrix& bias,
                 std::int64_t m, std::int64_t n, std::int64_t k) {
  const Loader load_a = loader_for(a.dtype, kCarrierOf<T>);
  const Loader load_b = loader_for(b.dtype, kCarrierOf<T>);
  const Loader load_bias = loader_for(bias.dtype, kCarrierOf<T>);
  const Storer store_out = storer_for(kCarrierOf<T>, out.dtype);
  const std::int64_t panels = (n + kColumns - 1) / kColumns;
  constexpr std::int64_t kRows = 64;
  const std::int64_t chunks = (m + kRows - 1) / kRows;
  const std::int64_t work = std::max<std::int64_t>(1, std::min(m, kRows) * kColumns * k / 4);
  parallel_for(chunks * panels, rows_per_piece(work), [&](std::int64_t begin, std::int64_t end) {
    T* panel = scratch<T>(1, kDepth * kColumns);
    T* sums = scratch<T>(2, kRows * kColumns);
    T* left = scratch<T>(3, kDepth);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t column = task % panels * kColumns;
      const std::int64_t columns = std::min(kColumns, n - column);
      const std::int64_t row = task / panels * kRows;
      const std::int64_t rows = std::min(kRows, m - row);
      std::fill(sums, sums + rows * kColumns, T{});
      for (std::int64_t k0 = 0; k0 < k; k0 += kDepth) {
        const std::int64_t count = std::min(kDepth, k - k0);
        for (std::int64_t i = 0; i < count; ++i) {
          std::fill(panel + i * kColumns + columns, panel + (i + 1) * kColumns, T{});
          load_b(element(b, k0 + i, column), b.column_stride, columns, panel + i * kColumns);
        }
        for (std::int64_t i = 0; i < rows; ++i) {
          load_a(element(a, row + i, k0), a.column_stride, count, left);
          accumulate(sums + i * kColumns, left, panel, count);
        }
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        T* values = sums + i * kColumns;
        if (bias.data != nullptr) {
          load_bias(element(bias, row + i, column), bias.column_stride, columns, left);
          for (std::int64_t j = 0; j < columns; ++j) values[j] += left[j];
        }
        store_out(values, element(out, row + i, column), out.column_stride, columns);
      }
    }
  });
}

}  // namespace

bool generic_product(DType out, DType a, DType b) noexcept {
  const auto narrow = [](DType dtype) { return is_floating(dtype) && dtype != DType::float64; };
  return !(narrow(out) && narrow(a) && narrow(b));
}

void multiply_generic(const Matrix& out, const Matrix& a, const Matrix& b, const Matrix& bias,
                      std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto any = [&](auto test) { return test(a.dtype) || test(b.dtype) || test(out.dtype); };
  const auto is = [&](DType dtype) { return any([=](DType other) { return other == dtype; }); };
  if (any(is_complex)) {
    if (is(DType::complex128) || is(DType::float64)) {
      return multiply_as<std::complex<double>>(out, a, b, bias, m, n, k);
    }
    return multiply_as<std::complex<float>>(out, a, b, bias, m, n, k);
  }
  if (any(is_floating)) return multiply_as<double>(out, a, b, bias, m, n, k);
  multiply_as<std::uint64_t>(out, a, b, bias, m, n, k);
}

}  // namespace nbx::cpu
