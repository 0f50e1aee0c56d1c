// matmul:quantized, embedding:quantized, quant:dequantize, quant:quantize.
#include "cpu/quantized.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "cpu/embedding.h"
#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace nbx::cpu {
namespace {

constexpr float kGreatest = 65504.0F;  // of float16, which scales and offsets are
constexpr std::size_t kFormatCount = sizeof(kFormatFacts) / sizeof(FormatFacts);

Format format_of(const KernelCall& call, const char* kernel) {
  const std::int64_t code = call.scalars[0].integer;
  if (code < 0 || code >= static_cast<std::int64_t>(kFormatCount)) {
    throw Error(ErrorKind::kValue, std::string(kernel) + ": format_code must be from 0 to " +
                                       std::to_string(kFormatCount - 1) + ", got " +
                                       std::to_string(code));
  }
  return static_cast<Format>(code);
}

// Rows of blocks with the number of weights they must hold.
struct BlockRows {
  const std::byte* data;
  std::int64_t row_bytes;  // from row to row
  std::int64_t rows;
  std::int64_t blocks;  // of a row
  Format format;

  [[nodiscard]] const std::byte* row(std::int64_t index) const { return data + index * row_bytes; }
};

BlockRows block_rows(const TensorView& view, Format format, std::int64_t weights,
                     const char* kernel) {
  const FormatFacts& facts = facts_of(format);
  if (view.dtype != DType::uint8) {
    throw Error(ErrorKind::kType, std::string(kernel) + ": blocks have dtype " +
                                      nbx::facts_of(view.dtype).name + ", expected uint8");
  }
  if (view.shape[1] % facts.bytes != 0 || view.shape[1] / facts.bytes * facts.block != weights) {
    throw Error(ErrorKind::kValue, std::string(kernel) + ": a row of " +
                                       std::to_string(view.shape[1]) + " bytes of " + facts.name +
                                       " cannot hold " + std::to_string(weights) + " weights (" +
                                       std::to_string(facts.block) + " weights take " +
                                       std::to_string(facts.bytes) + " bytes)");
  }
  if (view.strides[1] != 1 && view.shape[1] > 1) {
    throw Error(ErrorKind::kValue, std::string(kernel) + ": blocks have a stride of " +
                                       std::to_string(view.strides[1]) +
                                       " within a row, expected contiguous rows");
  }
  return {view.data, view.strides[0], view.shape[0], view.shape[1] / facts.bytes, format};
}

class QuantizedWeights final : public WeightRows {
 public:
  explicit QuantizedWeights(const BlockRows& blocks) : b_(blocks), facts_(facts_of(b_.format)) {}

  void pack(std::int64_t row, std::int64_t rows, std::int64_t k0, std::int64_t count, float* panel,
            std::int64_t width) const override {
    float* buffer = scratch<float>(kPackSlot, rows * count);
    for (std::int64_t j = 0; j < rows; ++j) {
      decode_blocks(b_.format, b_.row(row + j) + k0 / facts_.block * facts_.bytes,
                    count / facts_.block, buffer + j * count);
    }
    transpose_panel(buffer, count, rows, count, panel, width);
  }

  [[nodiscard]] bool multiplies_few() const noexcept override { return true; }

  void multiply_few(const float* x, std::int64_t x_stride, int tokens, std::int64_t row,
                    std::int64_t rows, float* out, std::int64_t out_stride) const override {
    multiply_blocks(b_.format, {x, x_stride, b_.row(row), b_.row_bytes, rows, b_.blocks, out,
                                out_stride, tokens});
  }

 private:
  BlockRows b_;
  const FormatFacts& facts_;
};

Matrix matrix_of(const TensorView& view) {
  if (view.data == nullptr) return {nullptr, view.dtype, 0, 0};
  return {view.data, view.dtype, view.strides[0], view.strides[1]};
}

void matmul(const KernelCall& call) {
  constexpr const char* kName = "matmul:quantized";
  const TensorView& out = call.tensors[0];
  const TensorView& a = call.tensors[1];
  require_floating(kName, "out", out);
  require_floating(kName, "a", a);
  if (call.tensors[3].data != nullptr) require_floating(kName, "bias", call.tensors[3]);
  const BlockRows blocks = block_rows(call.tensors[2], format_of(call, kName), a.shape[1], kName);
  multiply_rows(matrix_of(out), matrix_of(a), QuantizedWeights(blocks), matrix_of(call.tensors[3]),
                out.shape[0], out.shape[1], a.shape[1]);
}

// Decodes `count` rows into `out`; row i comes from block row source(i).
template <class Source>
void decode_rows(const TensorView& out, const BlockRows& blocks, std::int64_t count,
                 const Source& source) {
  const std::int64_t width = blocks.blocks * facts_of(blocks.format).block;
  if (width == 0) return;
  const std::int64_t stride = out.strides[out.rank - 1];
  parallel_for(count, rows_per_piece(width), [&](std::int64_t begin, std::int64_t end) {
    float* buffer = scratch<float>(0, width);
    for (std::int64_t i = begin; i < end; ++i) {
      std::byte* address = row_address(out, i);
      float* target = row_target(address, out.dtype, stride, buffer);
      decode_blocks(blocks.format, blocks.row(source(i)), blocks.blocks, target);
      store_row(address, out.dtype, stride, width, target);
    }
  });
}

void embedding(const KernelCall& call) {
  constexpr const char* kName = "embedding:quantized";
  const TensorView& out = call.tensors[0];
  const TensorView& ids = call.tensors[1];
  require_floating(kName, "out", out);
  require_index(kName, "ids", ids);
  const BlockRows blocks =
      block_rows(call.tensors[2], format_of(call, kName), out.shape[out.rank - 1], kName);
  const std::int64_t count = ids.element_count();
  for (std::int64_t i = 0; i < count; ++i) (void)checked_id(kName, ids, i, blocks.rows);
  decode_rows(out, blocks, count, [&](std::int64_t i) { return integer_at(ids, i); });
}

void dequantize(const KernelCall& call) {
  constexpr const char* kName = "quant:dequantize";
  const TensorView& out = call.tensors[0];
  require_floating(kName, "out", out);
  const BlockRows blocks = block_rows(call.tensors[1], format_of(call, kName), out.shape[1], kName);
  decode_rows(out, blocks, out.shape[0], [](std::int64_t i) { return i; });
}

void quantize(const KernelCall& call) {
  constexpr const char* kName = "quant:quantize";
  const TensorView& in = call.tensors[1];
  require_floating(kName, "in", in);
  const BlockRows blocks = block_rows(call.tensors[0], format_of(call, kName), in.shape[1], kName);
  const std::int64_t width = in.shape[1];
  if (width == 0) return;
  parallel_for(in.shape[0], rows_per_piece(width * 4), [&](std::int64_t begin, std::int64_t end) {
    float* buffer = scratch<float>(0, width);
    for (std::int64_t i = begin; i < end; ++i) {
      const float* row = load_row(row_address(in, i), in.dtype, in.strides[1], width, buffer);
      for (std::int64_t j = 0; j < width; ++j) {
        if (!(std::fabs(row[j]) <= kGreatest)) {
          throw Error(ErrorKind::kValue, std::string(kName) + ": in[" + std::to_string(i) + ", " +
                                             std::to_string(j) + "] is " + std::to_string(row[j]) +
                                             ", expected at most 65504 in magnitude: scales "
                                             "are float16");
        }
      }
      std::byte* to = call.tensors[0].data + i * blocks.row_bytes;
      encode_blocks(blocks.format, row, blocks.blocks, to);
    }
  });
}

const HostKernelRegistration register_matmul{"matmul:quantized", &matmul};
const HostKernelRegistration register_embedding{"embedding:quantized", &embedding};
const HostKernelRegistration register_dequantize{"quant:dequantize", &dequantize};
const HostKernelRegistration register_quantize{"quant:quantize", &quantize};

}  // namespace
}  // namespace nbx::cpu
