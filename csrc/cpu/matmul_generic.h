// Products of the types that float32 does not serve: float64, integers, bool, complex.
#pragma once

#include <cstdint>

#include "cpu/matmul.h"

namespace nbx::cpu {

/// Whether a product of these types needs multiply_generic.
[[nodiscard]] bool generic_product(DType out, DType a, DType b) noexcept;

/// out[m, n] = a[m, k] * b[k, n] + bias. Integers wrap; bool is "any of both"; complex and float64
/// accumulate in double where either operand is that wide, else in float.
void multiply_generic(const Matrix& out, const Matrix& a, const Matrix& b, const Matrix& bias,
                      std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace nbx::cpu
