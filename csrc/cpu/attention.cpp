// attention:forward with an online softmax over blocks of keys, and attention:append.
//
// All queries that read the same keys (the heads of a group, a block of positions) form the rows of
// one small matrix, so prefill and decoding share the same products. With few rows the keys are cut
// into chunks of a fixed size, merged in order, so that decoding fills the threads and its result
// does not depend on them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "cpu/attention.h"
#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/vector_math.h"

namespace nbx::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kKeys = 128;       // keys of one block
constexpr std::int64_t kRowsOfTask = 96;  // about: rows of one task
constexpr std::int64_t kFewRows = 16;     // up to this many rows, keys are cut into chunks
constexpr std::int64_t kChunk = 256;      // keys of a chunk

enum Slot : int { kQuery, kKeyRows, kPanel, kScores, kSums, kValues, kPartial, kMaskRow };

/// What a task keeps of one row: the largest score, the sum of weights, then the weighted values.
struct RowState {
  float* top;
  float* total;
  float* sums;
  std::int64_t stride;  // of sums
};

template <int kWidth>
NBX_INLINE void update_row_body(float* scores, std::int64_t count, float& top, float& total,
                                float* sums, std::int64_t width) {
  const float highest = maximum_of<kWidth>(scores, count);
  const float next = highest > top ? highest : top;
  // A block that is masked throughout keeps the former maximum; 0 then shifts nothing visible.
  const float shift = next == kNone ? 0.0F : next;
  const float kept = top == kNone ? 0.0F : std::exp(top - shift);
  const float added = exp_and_sum<kWidth>(scores, scores, count, shift);
  total = total * kept + added;
  top = next;
  if (kept != 1.0F) {
    for (std::int64_t i = 0; i < width; ++i) sums[i] *= kept;
  }
}
NBX_VECTORISED(update_row,
               (float* scores, std::int64_t count, float& top, float& total, float* sums,
                std::int64_t width),
               (scores, count, top, total, sums, width))

class FloatAttention {
 public:
  FloatAttention(const AttentionShape& shape, const KernelCall& call)
      : s_(shape),
        out_(call.tensors[0]),
        q_(call.tensors[1]),
        k_(call.tensors[2]),
        v_(call.tensors[3]),
        mask_(call.tensors[4]) {
    positions_ =
        std::clamp<std::int64_t>(kRowsOfTask / s_.group, 1, std::max<std::int64_t>(s_.queries, 1));
    blocks_ = (s_.queries + positions_ - 1) / positions_;
    rows_ = positions_ * s_.group;
    const bool cut = s_.queries * s_.group <= kFewRows;
    chunk_ = cut ? kChunk : std::max<std::int64_t>(s_.length, 1);
    chunks_ = std::max<std::int64_t>(1, (s_.length + chunk_ - 1) / chunk_);
    const std::int64_t width = panel_width();
    stride_ = (s_.value_width + width - 1) / width * width;
  }

  void run() {
    const std::int64_t units = s_.batch * s_.key_heads * blocks_;
    const std::int64_t state = rows_ * (stride_ + 2);
    float* partial = chunks_ > 1 ? scratch<float>(kPartial, units * chunks_ * state) : nullptr;
    const std::int64_t work =
        rows_ * std::min(chunk_, s_.length) * (s_.width + s_.value_width) / 16;
    parallel_for(units * chunks_, rows_per_piece(work), [&](std::int64_t begin, std::int64_t end) {
      float* own = scratch<float>(kSums, state);
      for (std::int64_t task = begin; task < end; ++task) {
        float* memory = partial == nullptr ? own : partial + task * state;
        const RowState rows = state_at(memory);
        attend(task / chunks_, task % chunks_, rows);
        if (partial == nullptr) write(task, rows);
      }
    });
    if (partial == nullptr) return;
    for (std::int64_t unit = 0; unit < units; ++unit) {
      float* memory = partial + unit * chunks_ * state;
      const RowState merged = state_at(memory);
      for (std::int64_t c = 1; c < chunks_; ++c) merge(merged, state_at(memory + c * state));
      write(unit, merged);
    }
  }

 private:
  struct Unit {
    std::int64_t batch;
    std::int64_t key_head;
    std::int64_t first;  // query
    std::int64_t count;  // queries
  };

  [[nodiscard]] Unit unit_at(std::int64_t index) const {
    const std::int64_t first = index % blocks_ * positions_;
    const std::int64_t head = index / blocks_;
    return {head / s_.key_heads, head % s_.key_heads, first,
            std::min(positions_, s_.queries - first)};
  }
  [[nodiscard]] RowState state_at(float* memory) const {
    return {memory + rows_ * stride_, memory + rows_ * (stride_ + 1), memory, stride_};
  }
  static std::byte* at(const TensorView& view, std::int64_t batch, std::int64_t head,
                       std::int64_t row) {
    return view.data + (batch * view.strides[0] + head * view.strides[1] + row * view.strides[2]) *
                           itemsize_of(view.dtype);
  }

  // Row r of a unit is query r / group of head r % group of the group.
  void attend(std::int64_t unit_index, std::int64_t chunk, const RowState& state) const {
    const Unit unit = unit_at(unit_index);
    const std::int64_t rows = unit.count * s_.group;
    std::fill(state.top, state.top + rows, kNone);
    std::fill(state.total, state.total + rows, 0.0F);
    std::fill(state.sums, state.sums + rows * stride_, 0.0F);
    const auto [low, high] = s_.visible_range(unit.first, unit.count);
    const std::int64_t begin = std::max(low, chunk * chunk_);
    const std::int64_t end = std::min(high, (chunk + 1) * chunk_);
    if (begin >= end) return;
    float* queries = scratch<float>(kQuery, rows * s_.width);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* to = queries + r * s_.width;
      const std::int64_t head = unit.key_head * s_.group + r % s_.group;
      const float* from = load_row(at(q_, unit.batch, head, unit.first + r / s_.group), q_.dtype,
                                   q_.strides[3], s_.width, to);
      for (std::int64_t i = 0; i < s_.width; ++i) to[i] = from[i] * static_cast<float>(s_.scale);
    }
    float* scores = scratch<float>(kScores, rows * kKeys);
    for (std::int64_t key = begin; key < end; key += kKeys) {
      const std::int64_t count = std::min(kKeys, end - key);
      score(unit, queries, rows, key, count, scores);
      for (std::int64_t r = 0; r < rows; ++r) {
        hide(unit, r, key, count, scores + r * kKeys);
        update_row(scores + r * kKeys, count, state.top[r], state.total[r],
                   state.sums + r * stride_, stride_);
      }
      add_values(unit, scores, rows, key, count, state.sums);
    }
  }

  void score(const Unit& unit, const float* queries, std::int64_t rows, std::int64_t key,
             std::int64_t count, float* scores) const {
    const std::int64_t width = panel_width();
    float* panel = scratch<float>(kPanel, width * std::max<std::int64_t>(s_.width, 1));
    const bool in_place = k_.dtype == DType::float32 && k_.strides[3] == 1;
    float* buffer = scratch<float>(kKeyRows, in_place ? 0 : width * s_.width);
    for (std::int64_t j = 0; j < count; j += width) {
      const std::int64_t keys = std::min(width, count - j);
      const float* from =
          reinterpret_cast<const float*>(at(k_, unit.batch, unit.key_head, key + j));
      std::int64_t stride = k_.strides[2];
      if (!in_place) {
        stride = s_.width;
        for (std::int64_t i = 0; i < keys; ++i) {
          copy_row(k_, unit, key + j + i, s_.width, buffer + i * s_.width);
        }
        from = buffer;
      }
      transpose_panel(from, stride, keys, s_.width, panel, width);
      multiply_panel(queries, s_.width, rows, panel, width, s_.width, scores + j, kKeys, false);
    }
  }

  static void copy_row(const TensorView& view, const Unit& unit, std::int64_t row,
                       std::int64_t count, float* to) {
    const float* from =
        load_row(at(view, unit.batch, unit.key_head, row), view.dtype, view.strides[3], count, to);
    if (from != to) std::copy(from, from + count, to);
  }

  void hide(const Unit& unit, std::int64_t row, std::int64_t key, std::int64_t count,
            float* scores) const {
    const std::int64_t query = unit.first + row / s_.group;
    const auto [low, high] = s_.visible_range(query, 1);
    for (std::int64_t j = 0; j < std::min(count, low - key); ++j) scores[j] = kNone;
    for (std::int64_t j = std::max<std::int64_t>(0, high - key); j < count; ++j) scores[j] = kNone;
    if (mask_.data == nullptr) return;
    const std::int64_t head = unit.key_head * s_.group + row % s_.group;
    const std::byte* from =
        at(mask_, unit.batch, head, query) + key * mask_.strides[3] * itemsize_of(mask_.dtype);
    if (mask_.dtype == DType::bool_) {
      for (std::int64_t j = 0; j < count; ++j) {
        if (from[j * mask_.strides[3]] == std::byte{0}) scores[j] = kNone;
      }
      return;
    }
    float* buffer = scratch<float>(kMaskRow, kKeys);
    const float* added = load_row(from, mask_.dtype, mask_.strides[3], count, buffer);
    for (std::int64_t j = 0; j < count; ++j) scores[j] += added[j];
  }

  void add_values(const Unit& unit, const float* weights, std::int64_t rows, std::int64_t key,
                  std::int64_t count, float* sums) const {
    const std::int64_t width = panel_width();
    const bool in_place =
        v_.dtype == DType::float32 && v_.strides[3] == 1 && s_.value_width == stride_;
    const float* from = reinterpret_cast<const float*>(at(v_, unit.batch, unit.key_head, key));
    std::int64_t stride = v_.strides[2];
    if (!in_place) {
      float* buffer = scratch<float>(kValues, kKeys * stride_);
      for (std::int64_t i = 0; i < count; ++i) {
        copy_row(v_, unit, key + i, s_.value_width, buffer + i * stride_);
        std::fill(buffer + i * stride_ + s_.value_width, buffer + (i + 1) * stride_, 0.0F);
      }
      from = buffer;
      stride = stride_;
    }
    for (std::int64_t column = 0; column < s_.value_width; column += width) {
      multiply_panel(weights, kKeys, rows, from + column, stride, count, sums + column, stride_,
                     true);
    }
  }

  void merge(const RowState& into, const RowState& from) const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float top = std::max(into.top[r], from.top[r]);
      const float a = into.top[r] == kNone ? 0.0F : std::exp(into.top[r] - top);
      const float b = from.top[r] == kNone ? 0.0F : std::exp(from.top[r] - top);
      // A sum that is NaN stays so, whatever its factor.
      into.total[r] = into.total[r] * a + from.total[r] * b;
      for (std::int64_t i = 0; i < stride_; ++i) {
        into.sums[r * stride_ + i] =
            into.sums[r * stride_ + i] * a + from.sums[r * stride_ + i] * b;
      }
      into.top[r] = top;
    }
  }

  void write(std::int64_t unit_index, const RowState& state) const {
    const Unit unit = unit_at(unit_index);
    for (std::int64_t r = 0; r < unit.count * s_.group; ++r) {
      float* values = state.sums + r * stride_;
      const float factor = state.total[r] == 0.0F ? 0.0F : 1.0F / state.total[r];
      for (std::int64_t i = 0; i < s_.value_width; ++i) values[i] *= factor;
      const std::int64_t head = unit.key_head * s_.group + r % s_.group;
      store_row(at(out_, unit.batch, head, unit.first + r / s_.group), out_.dtype, out_.strides[3],
                s_.value_width, values);
    }
  }

  const AttentionShape& s_;
  const TensorView& out_;
  const TensorView& q_;
  const TensorView& k_;
  const TensorView& v_;
  const TensorView& mask_;
  std::int64_t positions_ = 1;  // queries of a unit
  std::int64_t blocks_ = 0;     // units of one key head
  std::int64_t rows_ = 0;
  std::int64_t chunk_ = 0;
  std::int64_t chunks_ = 1;
  std::int64_t stride_ = 0;  // of a row of sums
};

void forward(const KernelCall& call) {
  const AttentionShape shape = attention_shape(call);
  if (call.tensors[0].element_count() == 0) return;
  if (call.tensors[1].dtype == DType::float64) {
    attend_in_double(shape, call);
  } else {
    FloatAttention(shape, call).run();
  }
}

const HostKernelRegistration register_forward{"attention:forward", &forward};

}  // namespace
}  // namespace nbx::cpu
