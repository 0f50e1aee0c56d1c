// Walks over operands of one shape: axes ordered by memory, merged, cut into blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor_view.h"
#include "cpu/cast.h"
#include "cpu/pool.h"

namespace nbx::cpu {

inline constexpr int kMaximumOperands = 5;
inline constexpr std::int32_t kMaximumAxes = 64;

/// The axes of an elementwise loop. An absent operand (null data) has stride 0 everywhere.
struct Loop {
  std::int32_t rank;  // at least 1
  std::int32_t operand_count;
  std::int64_t count;
  std::int64_t shape[kMaximumAxes];
  std::int64_t strides[kMaximumOperands][kMaximumAxes];

  [[nodiscard]] std::int64_t inner() const noexcept { return shape[rank - 1]; }
  [[nodiscard]] std::int64_t inner_stride(int operand) const noexcept {
    return strides[operand][rank - 1];
  }
};

enum class AxisOrder : std::uint8_t {
  kMemory,    // the first operand is walked with falling strides
  kRowMajor,  // the axes stay in their order
};

/// Orders the axes and merges those that lie together in every operand. Shapes must be equal and
/// no operand packed.
void plan_loop(const TensorView* operands, int operand_count, AxisOrder order, Loop& loop) noexcept;

/// One operand's place in a loop.
class Cursor {
 public:
  Cursor(const Loop& loop, int operand, const TensorView& view, std::int64_t start) noexcept;

  /// Elements left in the current run along the innermost axis.
  [[nodiscard]] std::int64_t run() const noexcept { return inner_ - position_; }
  [[nodiscard]] std::byte* address() const noexcept {
    return element_address(data_, dtype_, offset_ + position_ * stride_);
  }
  [[nodiscard]] std::int64_t stride() const noexcept { return stride_; }

  /// Moves on by at most `run()` elements.
  void advance(std::int64_t count) noexcept {
    position_ += count;
    if (position_ == inner_) next_run();
  }
  /// Calls `body(address, stride, count, done)` for each run of the next `count` elements.
  template <class Body>
  void for_runs(std::int64_t count, const Body& body) {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t length = count - done < run() ? count - done : run();
      body(address(), stride_, length, done);
      advance(length);
      done += length;
    }
  }

 private:
  void next_run() noexcept;

  const Loop* loop_;
  const std::int64_t* strides_;
  std::byte* data_;
  DType dtype_;
  std::int64_t stride_;
  std::int64_t inner_;
  std::int64_t position_;
  std::int64_t offset_;  // of the current run, in elements
  std::int64_t index_[kMaximumAxes];
};

/// How many elements the next block takes: whole runs where they are long, else up to `block`.
[[nodiscard]] inline std::int64_t block_length(const Loop& loop, const Cursor& first,
                                               std::int64_t left,
                                               std::int64_t block = kBlock) noexcept {
  std::int64_t length = left < block ? left : block;
  if (loop.inner() >= kBlock / 4 && first.run() < length) length = first.run();
  return length;
}

/// Calls `body(begin, end)` on the pool with element ranges that start at multiples of kBlock.
/// `grain` is the least number of elements worth another thread.
template <class Body>
void for_element_ranges(std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= grain) return body(std::int64_t{0}, count);
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  parallel_for(blocks, (grain + kBlock - 1) / kBlock, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t end = last * kBlock;
    body(first * kBlock, end < count ? end : count);
  });
}

}  // namespace nbx::cpu
