// Results larger than the caches keep are written past them: a plain store first reads the line
// that it is about to overwrite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor_view.h"

namespace nbx::cpu {

/// Whether a result of this many bytes, written once by all threads together, leaves the caches
/// before anyone reads it.
[[nodiscard]] bool outgrows_cache(std::int64_t bytes) noexcept;
/// The same of a whole view.
[[nodiscard]] inline bool outgrows_cache(const TensorView& view) noexcept {
  return outgrows_cache(view.element_count() * bits_of(view.dtype) / 8);
}

/// memcpy that writes past the caches. The ranges may not overlap; `stream_fence` ends the writes
/// of a thread before another one may read them.
void stream_bytes(void* to, const void* from, std::size_t bytes) noexcept;
void stream_fence() noexcept;

}  // namespace nbx::cpu
