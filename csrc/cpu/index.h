// What the host side of indexing needs besides the registered kernels.
//
// index:take (out[B..., R...], in[A1, ..., Am, R...], m int64 index tensors of shape B...)
// index:put  (out[A1, ..., Am, R...], values[B..., R...], m int64 index tensors of shape B...)
//   scalars [m, axis_1, ..., axis_m]: the axes' numbers in the caller's tensor, for messages.
//   Every index is checked before an element is written; of repeated indices the last one wins.
// index:nonzero (out int64[rank, count], in): coordinates in row-major order.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"

namespace nbx::cpu {

[[nodiscard]] std::int64_t count_nonzero(const TensorView& view);

}  // namespace nbx::cpu
