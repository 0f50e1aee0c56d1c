// The operands of attention, its float64 form, and attention:append.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "cpu/attention.h"
#include "cpu/cast.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace nbx::cpu {
namespace {

std::byte* at(const TensorView& view, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return view.data + (batch * view.strides[0] + head * view.strides[1] + row * view.strides[2]) *
                         itemsize_of(view.dtype);
}

double mask_term(const TensorView& mask, std::int64_t batch, std::int64_t head, std::int64_t query,
                 std::int64_t key) {
  const std::byte* from =
      at(mask, batch, head, query) + key * mask.strides[3] * itemsize_of(mask.dtype);
  if (mask.dtype == DType::bool_) {
    return *from != std::byte{0} ? 0.0 : -std::numeric_limits<double>::infinity();
  }
  double value = 0.0;
  return *load_row(from, mask.dtype, 2, 1, &value);
}

void double_row(const AttentionShape& s, const KernelCall& call, std::int64_t row) {
  const TensorView& k = call.tensors[2];
  const TensorView& v = call.tensors[3];
  const TensorView& mask = call.tensors[4];
  const std::int64_t heads = s.key_heads * s.group;
  const std::int64_t query = row % s.queries;
  const std::int64_t head = row / s.queries % heads;
  const std::int64_t batch = row / s.queries / heads;
  double* scores = scratch<double>(0, s.length);
  double* sums = scratch<double>(1, s.value_width);
  double* q_buffer = scratch<double>(2, s.width);
  double* buffer = scratch<double>(3, std::max(s.width, s.value_width));
  const double* q = load_row(at(call.tensors[1], batch, head, query), call.tensors[1].dtype,
                             call.tensors[1].strides[3], s.width, q_buffer);
  const auto [low, high] = s.visible_range(query, 1);
  double top = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = low; j < high; ++j) {
    const double* key =
        load_row(at(k, batch, head / s.group, j), k.dtype, k.strides[3], s.width, buffer);
    double sum = 0.0;
    for (std::int64_t i = 0; i < s.width; ++i) sum += q[i] * key[i];
    sum *= s.scale;
    if (mask.data != nullptr) sum += mask_term(mask, batch, head, query, j);
    scores[j] = sum;
    top = sum > top ? sum : top;
  }
  const double shift = top == -std::numeric_limits<double>::infinity() ? 0.0 : top;
  double total = 0.0;
  std::fill(sums, sums + s.value_width, 0.0);
  for (std::int64_t j = low; j < high; ++j) {
    const double weight = std::exp(scores[j] - shift);
    total += weight;
    const double* value =
        load_row(at(v, batch, head / s.group, j), v.dtype, v.strides[3], s.value_width, buffer);
    for (std::int64_t i = 0; i < s.value_width; ++i) sums[i] += weight * value[i];
  }
  for (std::int64_t i = 0; i < s.value_width; ++i) sums[i] = total == 0.0 ? 0.0 : sums[i] / total;
  const TensorView& out = call.tensors[0];
  store_row(at(out, batch, head, query), out.dtype, out.strides[3], s.value_width, sums);
}

void append(const KernelCall& call) {
  const TensorView& cache = call.tensors[0];
  const TensorView& added = call.tensors[1];
  const std::int64_t position = call.scalars[0].integer;
  const std::int64_t count = added.shape[2];
  const std::int64_t width = added.shape[3];
  if (position < 0 || position + count > cache.shape[2]) {
    throw Error(ErrorKind::kIndex, "attention:append: positions " + std::to_string(position) +
                                       " to " + std::to_string(position + count - 1) +
                                       " do not fit a cache of " + std::to_string(cache.shape[2]) +
                                       " positions; make the cache longer or start over")
        .with("position", position)
        .with("count", count)
        .with("capacity", cache.shape[2]);
  }
  if (added.element_count() == 0) return;
  const Carrier carrier = natural_carrier(added.dtype);
  const Loader load = loader_for(added.dtype, carrier);
  const Storer save = storer_for(carrier, cache.dtype);
  parallel_for(row_count(added), rows_per_piece(width), [&](std::int64_t begin, std::int64_t end) {
    std::byte* buffer = scratch_bytes(0, static_cast<std::size_t>(width) * 16);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t head = row / count % added.shape[1];
      std::byte* to = at(cache, row / count / added.shape[1], head, position + row % count);
      const std::byte* from = row_address(added, row);
      if (cache.dtype == added.dtype && cache.strides[3] == 1 && added.strides[3] == 1) {
        std::copy(from, from + width * itemsize_of(cache.dtype), to);
        continue;
      }
      load(from, added.strides[3], width, buffer);
      save(buffer, to, cache.strides[3], width);
    }
  });
}

const HostKernelRegistration register_append{"attention:append", &append};

}  // namespace

AttentionShape attention_shape(const KernelCall& call) {
  static constexpr const char* kNames[] = {"out", "q", "k", "v"};
  for (int i = 0; i < 4; ++i) require_floating("attention:forward", kNames[i], call.tensors[i]);
  const TensorView& q = call.tensors[1];
  const TensorView& k = call.tensors[2];
  const TensorView& v = call.tensors[3];
  const TensorView& mask = call.tensors[4];
  if (mask.data != nullptr && mask.dtype != DType::bool_) {
    require_floating("attention:forward", "mask", mask);
  }
  const std::int64_t heads = q.shape[1];
  const std::int64_t key_heads = k.shape[1];
  if (key_heads == 0 || heads % key_heads != 0) {
    throw Error(ErrorKind::kValue, "attention:forward: q has " + std::to_string(heads) +
                                       " heads, expected a multiple of the " +
                                       std::to_string(key_heads) + " heads of k");
  }
  const Scalar& length = call.scalars[3];
  const std::int64_t used = length.none() ? k.shape[2] : length.integer;
  if (used < 0 || used > k.shape[2]) {
    throw Error(ErrorKind::kIndex, "attention:forward: kv_length must be from 0 to " +
                                       std::to_string(k.shape[2]) + ", the keys given, got " +
                                       std::to_string(used))
        .with("kv_length", used)
        .with("capacity", k.shape[2]);
  }
  const Scalar& window = call.scalars[2];
  return {q.shape[0],
          key_heads,
          heads / key_heads,
          q.shape[2],
          used,
          q.shape[3],
          v.shape[3],
          call.scalars[0].real,
          call.scalars[1].integer != 0,
          window.none() ? -1 : window.integer};
}

void attend_in_double(const AttentionShape& shape, const KernelCall& call) {
  const std::int64_t rows = shape.batch * shape.key_heads * shape.group * shape.queries;
  const std::int64_t work = shape.length * (shape.width + shape.value_width);
  parallel_for(rows, rows_per_piece(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) double_row(shape, call, row);
  });
}

}  // namespace nbx::cpu
