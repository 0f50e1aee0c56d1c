#include "cpu/chain.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include "core/error.h"
#include "cpu/elementwise_walk.h"
#include "cpu/pool.h"

namespace nbx::cpu {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::align_val_t kScratchAlignment{kAlignment};
/// Blocks worth another thread.
constexpr std::int64_t kGrain = 2;
constexpr std::size_t kMaximumScalars = 8;

struct ScratchDelete {
  void operator()(std::byte* memory) const noexcept {
    ::operator delete[](memory, kScratchAlignment);
  }
};

std::int64_t product(const std::int64_t* first, const std::int64_t* last) noexcept {
  std::int64_t result = 1;
  for (; first != last; ++first) result *= *first;
  return result;
}

ChainBlocks cut(const std::vector<std::int64_t>& shape, std::int32_t reduced) noexcept {
  const auto rank = static_cast<std::int32_t>(shape.size());
  const std::int64_t* extents = shape.data();
  const std::int32_t kept = rank - reduced;
  const bool in_pieces = reduced > 0 && product(extents + kept, extents + rank) > kLongestRow;
  // Rows that are reduced whole stay whole, however long.
  std::int32_t axis = reduced > 0 && !in_pieces ? kept : rank;
  const std::int32_t least = in_pieces ? kept + 1 : 1;
  while (axis > least && product(extents + axis - 1, extents + rank) <= kChainBlock) --axis;
  ChainBlocks blocks{axis, 1, 1, 1};
  if (axis == 0) return blocks;
  const std::int64_t inner = std::max<std::int64_t>(1, product(extents + axis, extents + rank));
  const std::int64_t extent = extents[axis - 1];
  blocks.length =
      std::clamp<std::int64_t>(kChainBlock / inner, 1, std::max<std::int64_t>(1, extent));
  const std::int64_t along = (extent + blocks.length - 1) / blocks.length;
  blocks.count = product(extents, extents + axis - 1) * along;
  if (in_pieces) blocks.per_output = product(extents + kept, extents + axis - 1) * along;
  return blocks;
}

}  // namespace

/// Where a block lies: its place along the outer axes and its own shape.
struct Chain::Block {
  std::int64_t number;
  std::int64_t start[kMaximumAxes];  // along the axes before blocks_.axis
  std::int64_t shape[kMaximumAxes];  // from axis `first` on
  std::int32_t first;
  std::int32_t rank;
};

Chain::Chain(std::vector<std::int64_t> shape, std::vector<DType> scratch,
             std::vector<ChainStep> steps, std::int32_t reduced)
    : shape_(std::move(shape)),
      scratch_(std::move(scratch)),
      steps_(std::move(steps)),
      reduced_(reduced) {
  check();
  blocks_ = cut(shape_, reduced);
  const std::int64_t* extents = shape_.data();
  const std::int64_t* end = extents + shape_.size();
  const std::int32_t first = std::max(blocks_.axis - 1, 0);
  for (const std::int64_t* axis = extents + first; axis < end; ++axis) {
    scratch_strides_.push_back(product(axis + 1, end));
  }
  const std::int64_t elements = blocks_.length * product(extents + blocks_.axis, end);
  for (const DType dtype : scratch_) {
    offsets_.push_back(scratch_bytes_);
    scratch_bytes_ += (bytes_of(dtype, elements) + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void Chain::check() const {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::kValue, "Chain: " + what);
  };
  const auto rank = static_cast<std::int32_t>(shape_.size());
  if (rank > kMaximumAxes) {
    refuse("got " + std::to_string(rank) + " axes, expected at most " +
           std::to_string(kMaximumAxes));
  }
  if (reduced_ < 0 || reduced_ > rank) {
    refuse("cannot reduce " + std::to_string(reduced_) + " of " + std::to_string(rank) + " axes");
  }
  for (const ChainStep& step : steps_) {
    if (step.kernel == nullptr || step.operands.empty()) refuse("a step has no kernel or output");
    if (step.operands.size() > kMaximumOperands || step.scalars.size() > kMaximumScalars) {
      refuse("a step has " + std::to_string(step.operands.size()) + " operands and " +
             std::to_string(step.scalars.size()) + " scalars, expected at most " +
             std::to_string(kMaximumOperands) + " and " + std::to_string(kMaximumScalars));
    }
    for (const ChainOperand& operand : step.operands) {
      if (operand.source == ChainOperand::Source::kScratch && operand.index >= scratch_.size()) {
        refuse("a step names block " + std::to_string(operand.index) + " of " +
               std::to_string(scratch_.size()));
      }
    }
  }
}

TensorView Chain::view_of(const ChainOperand& operand, const KernelCall& call, const Block& block,
                          std::byte* scratch) const noexcept {
  switch (operand.source) {
    case ChainOperand::Source::kScratch:
      return {scratch + offsets_[operand.index], block.shape, scratch_strides_.data(), block.rank,
              scratch_[operand.index]};
    case ChainOperand::Source::kCall: {
      TensorView view = call.tensors[operand.index];
      std::int64_t offset = 0;
      for (std::int32_t axis = 0; axis < blocks_.axis && axis < view.rank; ++axis) {
        offset += block.start[axis] * view.strides[axis];
      }
      view.data += offset * itemsize_of(view.dtype);
      view.shape = block.shape;
      view.strides += block.first;
      view.rank = block.rank;
      return view;
    }
    case ChainOperand::Source::kAbsent:
      break;
  }
  return {nullptr, nullptr, nullptr, 0, DType::float32};
}

/// Narrows what the reduction writes, and says over how many axes it goes.
void Chain::reduce_into(TensorView& out, Scalar& axes, const KernelCall& call,
                        const ChainOperand& operand, const Block& block) const noexcept {
  if (blocks_.per_output == 1) {
    out.rank = block.rank - reduced_;
    axes.integer = reduced_;
    return;
  }
  const TensorView& pieces = call.tensors[operand.index];
  out.data = pieces.data + block.number * itemsize_of(pieces.dtype);
  out.rank = 0;
  axes.integer = block.rank;
}

void Chain::run_block(const KernelCall& call, std::int64_t number, std::byte* scratch) const {
  Block block;
  block.number = number;
  block.first = std::max(blocks_.axis - 1, 0);
  block.rank = static_cast<std::int32_t>(shape_.size()) - block.first;
  std::copy(shape_.begin() + block.first, shape_.end(), block.shape);
  if (blocks_.axis > 0) {
    const std::int64_t extent = shape_[static_cast<std::size_t>(block.first)];
    const std::int64_t along = (extent + blocks_.length - 1) / blocks_.length;
    block.start[block.first] = number % along * blocks_.length;
    block.shape[0] = std::min(blocks_.length, extent - block.start[block.first]);
    number /= along;
    for (std::int32_t axis = block.first - 1; axis >= 0; --axis) {
      const std::int64_t size = shape_[static_cast<std::size_t>(axis)];
      block.start[axis] = number % size;
      number /= size;
    }
  }
  TensorView views[kMaximumOperands];
  Scalar scalars[kMaximumScalars];
  for (const ChainStep& step : steps_) {
    for (std::size_t i = 0; i < step.operands.size(); ++i) {
      views[i] = view_of(step.operands[i], call, block, scratch);
    }
    for (std::size_t i = 0; i < step.scalars.size(); ++i) {
      const ScalarSource& source = step.scalars[i];
      scalars[i] = source.from_call ? call.scalars[source.index] : source.constant;
    }
    if (reduced_ > 0 && &step == &steps_.back()) {
      reduce_into(views[0], scalars[1], call, step.operands[0], block);
    }
    step.kernel({views, step.operands.size(), scalars, step.scalars.size(), nullptr});
  }
}

void Chain::run(const KernelCall& call) const {
  parallel_for(blocks_.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::unique_ptr<std::byte[], ScratchDelete> scratch(
        static_cast<std::byte*>(::operator new[](scratch_bytes_, kScratchAlignment)));
    for (std::int64_t block = begin; block < end; ++block) run_block(call, block, scratch.get());
  });
}

void run_chain(const KernelCall& call) { static_cast<const Chain*>(call.context)->run(call); }

}  // namespace nbx::cpu
