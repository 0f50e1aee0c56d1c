// Block formats of quantised weights: their codes, and conversions of whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/format_table.h"

namespace nbx::cpu {

/// Numbered as in the table; a `format_code` scalar holds this number.
enum class Format : std::uint8_t {
#define NBX_ENUMERATE(name, ...) name,
  NBX_QUANT_FORMATS(NBX_ENUMERATE)
#undef NBX_ENUMERATE
};

struct FormatFacts {
  const char* name;
  std::int64_t block;  // weights
  std::int64_t bytes;
};
inline constexpr FormatFacts kFormatFacts[] = {
#define NBX_FACTS(name, block, bytes, ...) {#name, block, bytes},
    NBX_QUANT_FORMATS(NBX_FACTS)
#undef NBX_FACTS
};
[[nodiscard]] constexpr const FormatFacts& facts_of(Format format) noexcept {
  return kFormatFacts[static_cast<int>(format)];
}

/// Weights of `count` consecutive blocks.
void decode_blocks(Format format, const std::byte* blocks, std::int64_t count, float* weights);
/// Blocks nearest to the weights, rounded as the format's own tools round.
void encode_blocks(Format format, const float* weights, std::int64_t count, std::byte* blocks);

/// Inner products of rows of blocks with a few vectors.
struct BlockProduct {
  const float* x;  // `tokens` vectors, `x_stride` apart
  std::int64_t x_stride;
  const std::byte* rows;
  std::int64_t row_bytes;
  std::int64_t row_count;
  std::int64_t blocks;  // of a row
  float* out;           // out[token * out_stride + row]
  std::int64_t out_stride;
  int tokens;  // 1 to kFewTokens
};
void multiply_blocks(Format format, const BlockProduct& job);

}  // namespace nbx::cpu
