// What the forms of attention share.
#pragma once

#include <cstdint>
#include <utility>

#include "launch/kernel.h"

namespace nbx::cpu {

struct AttentionShape {
  std::int64_t batch;
  std::int64_t key_heads;
  std::int64_t group;  // query heads of one key head
  std::int64_t queries;
  std::int64_t length;  // keys in use
  std::int64_t width;
  std::int64_t value_width;
  double scale;
  bool causal;
  std::int64_t window;  // negative: none

  /// Keys [first, second) that queries [query, query + count) may see, masks aside.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> visible_range(
      std::int64_t query, std::int64_t count) const noexcept {
    const std::int64_t position = length - queries + query;
    std::int64_t low = 0;
    std::int64_t high = length;
    if (causal && position + count < high) high = position + count;
    if (window >= 0 && position - window + 1 > low) low = position - window + 1;
    return {low, high < 0 ? 0 : high};
  }
};

/// Reads and checks the operands of attention:forward.
[[nodiscard]] AttentionShape attention_shape(const KernelCall& call);
/// The same result for float64 operands.
void attend_in_double(const AttentionShape& shape, const KernelCall& call);

}  // namespace nbx::cpu
