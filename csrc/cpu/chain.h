// Chains: kernels of one shape that run block by block, so that what one leaves is still in the
// cache when the next reads it. The last may reduce trailing axes.
#pragma once

#include <cstdint>
#include <vector>

#include "launch/plan.h"

namespace nbx::cpu {

/// Elements of one block; a reduced row that is longer than kLongestRow is cut into pieces.
inline constexpr std::int64_t kChainBlock = 8192;
inline constexpr std::int64_t kLongestRow = 4 * kChainBlock;

/// What a kernel of a chain reads or writes.
struct ChainOperand {
  enum class Source : std::uint8_t {
    kCall,     // operand `index` of the call: of the chain's shape, or what the reduction writes
    kScratch,  // block number `index`, which only the chain sees
    kAbsent,
  };
  Source source;
  std::uint16_t index;
};

struct ChainStep {
  HostKernel kernel;
  std::vector<ChainOperand> operands;  // the output first
  std::vector<ScalarSource> scalars;
};

/// How the elements of a chain are cut: axes from `axis` on lie whole in a block, of the axis
/// before it `length` elements, of those further out one.
struct ChainBlocks {
  std::int32_t axis;
  std::int64_t length;
  std::int64_t count;       // of all blocks
  std::int64_t per_output;  // blocks that one reduced output comes from, 1 without a reduction
};

class Chain {
 public:
  /// `reduced` trailing axes are reduced by the last step; 0: none. Throws Error(kValue) where a
  /// step names an operand that is not there.
  Chain(std::vector<std::int64_t> shape, std::vector<DType> scratch, std::vector<ChainStep> steps,
        std::int32_t reduced);

  [[nodiscard]] const ChainBlocks& blocks() const noexcept { return blocks_; }
  void run(const KernelCall& call) const;

 private:
  struct Block;

  void check() const;
  [[nodiscard]] TensorView view_of(const ChainOperand& operand, const KernelCall& call,
                                   const Block& block, std::byte* scratch) const noexcept;
  void reduce_into(TensorView& out, Scalar& axes, const KernelCall& call,
                   const ChainOperand& operand, const Block& block) const noexcept;
  void run_block(const KernelCall& call, std::int64_t number, std::byte* scratch) const;

  std::vector<std::int64_t> shape_;
  std::vector<DType> scratch_;
  std::vector<ChainStep> steps_;
  std::int32_t reduced_;
  ChainBlocks blocks_{};
  std::vector<std::int64_t> scratch_strides_;
  std::vector<std::size_t> offsets_;  // of the scratch blocks, in bytes
  std::size_t scratch_bytes_ = 0;
};

/// The kernel of a step whose context is a Chain. Where one output comes from several blocks, the
/// reduction writes one element of its operand for each, in order.
void run_chain(const KernelCall& call);

}  // namespace nbx::cpu
