// position:rope: rotates pairs of the last axis by angles that grow with the position.
#include <cmath>
#include <vector>

#include "core/error.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace nbx::cpu {
namespace {

/// Cosine and sine of every (position, pair), kept while the next calls ask for the same ones, as
/// the layers of one model do.
template <class T>
struct Angles {
  double base = 0.0;
  double scale = 0.0;
  std::int64_t pairs = -1;
  std::vector<std::int64_t> positions;
  std::vector<T> table;  // per position: `pairs` cosines, then `pairs` sines

  void prepare(double new_base, double new_scale, std::int64_t new_pairs, const TensorView& where) {
    const std::int64_t count = where.element_count();
    bool same = base == new_base && scale == new_scale && pairs == new_pairs &&
                positions.size() == static_cast<std::size_t>(count);
    for (std::int64_t i = 0; same && i < count; ++i) {
      same = positions[static_cast<std::size_t>(i)] == integer_at(where, i);
    }
    if (same) return;
    pairs = -1;
    positions.resize(static_cast<std::size_t>(count));
    table.resize(static_cast<std::size_t>(count * new_pairs * 2));
    for (std::int64_t i = 0; i < count; ++i) {
      positions[static_cast<std::size_t>(i)] = integer_at(where, i);
    }
    parallel_for(count, rows_per_piece(new_pairs * 32), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const double position =
            static_cast<double>(positions[static_cast<std::size_t>(i)]) * new_scale;
        T* row = table.data() + i * new_pairs * 2;
        for (std::int64_t pair = 0; pair < new_pairs; ++pair) {
          const double exponent = -static_cast<double>(pair) / static_cast<double>(new_pairs);
          const double angle = position * std::pow(new_base, exponent);
          row[pair] = static_cast<T>(std::cos(angle));
          row[new_pairs + pair] = static_cast<T>(std::sin(angle));
        }
      }
    });
    base = new_base;
    scale = new_scale;
    pairs = new_pairs;
  }
};

// Tables beyond this many numbers are dropped after the call.
constexpr std::size_t kKeptNumbers = 1 << 18;

template <class T>
void rotate(const TensorView& out, const TensorView& in, const T* table, std::int64_t pairs,
            bool interleaved) {
  const std::int64_t heads = in.shape[2];
  const std::int64_t width = in.shape[3];
  const std::int64_t step = interleaved ? 2 : 1;
  const std::int64_t partner = interleaved ? 1 : pairs;
  parallel_for(row_count(in), rows_per_piece(width * 2), [&](std::int64_t begin, std::int64_t end) {
    T* buffers = scratch<T>(0, 2 * width);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* x = load_row(row_address(in, row), in.dtype, in.strides[3], width, buffers);
      std::byte* address = row_address(out, row);
      T* y = row_target(address, out.dtype, out.strides[3], buffers + width);
      const T* cosines = table + row / heads * pairs * 2;
      const T* sines = cosines + pairs;
      for (std::int64_t pair = 0; pair < pairs; ++pair) {
        const T a = x[pair * step];
        const T b = x[pair * step + partner];
        y[pair * step] = a * cosines[pair] - b * sines[pair];
        y[pair * step + partner] = b * cosines[pair] + a * sines[pair];
      }
      if (x != y) {
        for (std::int64_t i = 2 * pairs; i < width; ++i) y[i] = x[i];
      }
      store_row(address, out.dtype, out.strides[3], width, y);
    }
  });
}

template <class T>
void run(const KernelCall& call) {
  thread_local Angles<T> angles;
  const TensorView& in = call.tensors[1];
  const std::int64_t pairs = call.scalars[2].integer / 2;
  angles.prepare(call.scalars[0].real, call.scalars[3].real, pairs, call.tensors[2]);
  rotate<T>(call.tensors[0], in, angles.table.data(), pairs, call.scalars[1].integer != 0);
  if (angles.table.size() > kKeptNumbers) angles = {};
}

void rope(const KernelCall& call) {
  const TensorView& in = call.tensors[1];
  require_floating("position:rope", "out", call.tensors[0]);
  require_floating("position:rope", "in", in);
  require_index("position:rope", "positions", call.tensors[2]);
  const std::int64_t rotary = call.scalars[2].integer;
  if (rotary < 0 || rotary % 2 != 0 || rotary > in.shape[3]) {
    throw Error(ErrorKind::kValue,
                "position:rope: rotary_dim must be even and at most the last extent " +
                    std::to_string(in.shape[3]) + ", got " + std::to_string(rotary));
  }
  in.dtype == DType::float64 ? run<double>(call) : run<float>(call);
}

const HostKernelRegistration register_rope{"position:rope", &rope};

}  // namespace
}  // namespace nbx::cpu
