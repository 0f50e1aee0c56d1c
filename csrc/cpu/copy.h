// Copies between any layouts and element types.
#pragma once

#include "core/tensor_view.h"

namespace nbx::cpu {

/// Writes `source`, converted, into `target` of the same shape. Memory that both share must hold
/// the same element in both. Throws Error(kValue) if a packed operand is not contiguous.
void copy_strided(const TensorView& target, const TensorView& source);

}  // namespace nbx::cpu
