// What the embeddings of plain and of quantised tables share.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"

namespace nbx::cpu {

/// The id at flat position `index`; throws Error(kIndex) unless it is in [0, rows).
std::int64_t checked_id(const char* kernel, const TensorView& ids, std::int64_t index,
                        std::int64_t rows);

}  // namespace nbx::cpu
