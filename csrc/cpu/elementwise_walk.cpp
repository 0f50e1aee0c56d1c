#include "cpu/elementwise_walk.h"

namespace nbx::cpu {
namespace {

std::int64_t magnitude(std::int64_t value) noexcept { return value < 0 ? -value : value; }

void swap_axes(Loop& loop, std::int32_t first, std::int32_t second) noexcept {
  const auto swap = [](std::int64_t& a, std::int64_t& b) {
    const std::int64_t kept = a;
    a = b;
    b = kept;
  };
  swap(loop.shape[first], loop.shape[second]);
  for (int k = 0; k < loop.operand_count; ++k) {
    swap(loop.strides[k][first], loop.strides[k][second]);
  }
}

void sort_axes(Loop& loop) noexcept {
  const std::int64_t* strides = loop.strides[0];
  for (std::int32_t i = 1; i < loop.rank; ++i) {
    for (std::int32_t j = i; j > 0 && magnitude(strides[j - 1]) < magnitude(strides[j]); --j) {
      swap_axes(loop, j - 1, j);
    }
  }
}

bool mergeable(const Loop& loop, std::int32_t outer, std::int32_t inner) noexcept {
  for (int k = 0; k < loop.operand_count; ++k) {
    if (loop.strides[k][outer] != loop.strides[k][inner] * loop.shape[inner]) return false;
  }
  return true;
}

void merge_axes(Loop& loop) noexcept {
  std::int32_t kept = 0;
  for (std::int32_t i = 1; i < loop.rank; ++i) {
    const bool merged = mergeable(loop, kept, i);
    if (!merged) ++kept;
    loop.shape[kept] = merged ? loop.shape[kept] * loop.shape[i] : loop.shape[i];
    for (int k = 0; k < loop.operand_count; ++k) loop.strides[k][kept] = loop.strides[k][i];
  }
  loop.rank = kept + 1;
}

}  // namespace

void plan_loop(const TensorView* operands, int operand_count, AxisOrder order,
               Loop& loop) noexcept {
  const TensorView& first = operands[0];
  loop.operand_count = operand_count;
  loop.count = 1;
  loop.rank = 0;
  for (std::int32_t i = 0; i < first.rank; ++i) {
    loop.count *= first.shape[i];
    if (first.shape[i] == 1) continue;
    loop.shape[loop.rank] = first.shape[i];
    for (int k = 0; k < operand_count; ++k) {
      loop.strides[k][loop.rank] = operands[k].data == nullptr ? 0 : operands[k].strides[i];
    }
    ++loop.rank;
  }
  if (loop.rank == 0) {
    loop.rank = 1;
    loop.shape[0] = 1;
    for (int k = 0; k < operand_count; ++k) {
      loop.strides[k][0] = operands[k].data == nullptr ? 0 : 1;
    }
    return;
  }
  if (loop.rank == 1) return;
  if (order == AxisOrder::kMemory) sort_axes(loop);
  merge_axes(loop);
}

Cursor::Cursor(const Loop& loop, int operand, const TensorView& view, std::int64_t start) noexcept
    : loop_(&loop),
      strides_(loop.strides[operand]),
      data_(view.data),
      dtype_(view.dtype),
      stride_(loop.inner_stride(operand)),
      inner_(loop.inner()),
      position_(start % loop.inner()),
      offset_(0) {
  std::int64_t left = start / inner_;
  for (std::int32_t i = loop.rank - 2; i >= 0; --i) {
    index_[i] = left % loop.shape[i];
    left /= loop.shape[i];
    offset_ += index_[i] * strides_[i];
  }
}

void Cursor::next_run() noexcept {
  position_ = 0;
  for (std::int32_t i = loop_->rank - 2; i >= 0; --i) {
    offset_ += strides_[i];
    if (++index_[i] < loop_->shape[i]) return;
    offset_ -= strides_[i] * loop_->shape[i];
    index_[i] = 0;
  }
}

}  // namespace nbx::cpu
