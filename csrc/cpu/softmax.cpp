// norm:softmax and norm:log_softmax over the last axis. A row of -infinity alone gives NaN.
#include <cmath>
#include <limits>

#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/stream.h"
#include "cpu/vector_math.h"

namespace nbx::cpu {
namespace {

template <int kWidth>
NBX_INLINE void softmax_row_body(float* out, const float* in, std::int64_t count, bool logarithm) {
  const float top = maximum_of<kWidth>(in, count);
  if (logarithm) {
    using F = typename Vector<kWidth>::F;
    F sum = {};
    F v;
    std::int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) {
      load(v, in + i);
      v = v - top;
      exp_in_place<kWidth>(v);
      sum = sum + v;
    }
    if (i < count) {
      load_partial<kWidth>(v, in + i, count - i, top);
      v = v - top;
      exp_in_place<kWidth>(v);
      for (int lane = 0; lane < kWidth; ++lane) v[lane] = lane < count - i ? v[lane] : 0.0F;
      sum = sum + v;
    }
    const float shift = std::log(sum_lanes<kWidth>(sum));
    for (i = 0; i < count; ++i) out[i] = in[i] - top - shift;
    return;
  }
  const float factor = 1.0F / exp_and_sum<kWidth>(out, in, count, top);
  for (std::int64_t i = 0; i < count; ++i) out[i] *= factor;
}
NBX_VECTORISED(softmax_row, (float* out, const float* in, std::int64_t count, bool logarithm),
               (out, in, count, logarithm))

void softmax_row(double* out, const double* in, std::int64_t count, bool logarithm) {
  double top = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < count; ++i) top = in[i] > top ? in[i] : top;
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = std::exp(in[i] - top);
    sum += value;
    out[i] = logarithm ? in[i] - top : value;
  }
  const double shift = logarithm ? std::log(sum) : 0.0;
  for (std::int64_t i = 0; i < count; ++i) out[i] = logarithm ? out[i] - shift : out[i] / sum;
}

template <class T>
void softmax_rows(const TensorView& out, const TensorView& in, bool logarithm) {
  const int last = in.rank - 1;
  const std::int64_t width = in.shape[last];
  if (width == 0) return;
  const bool streams = outgrows_cache(out) && out.data != in.data;
  parallel_for(row_count(in), rows_per_piece(width * 4), [&](std::int64_t begin, std::int64_t end) {
    T* buffers = scratch<T>(0, 2 * width);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* values = load_row(row_address(in, row), in.dtype, in.strides[last], width, buffers);
      std::byte* address = row_address(out, row);
      T* target = row_target(address, out.dtype, out.strides[last], buffers + width, streams);
      softmax_row(target, values, width, logarithm);
      store_row(address, out.dtype, out.strides[last], width, target, streams);
    }
    if (streams) stream_fence();
  });
}

void run(const char* name, const KernelCall& call, bool logarithm) {
  const TensorView& out = call.tensors[0];
  const TensorView& in = call.tensors[1];
  require_floating(name, "out", out);
  require_floating(name, "in", in);
  if (in.dtype == DType::float64) {
    softmax_rows<double>(out, in, logarithm);
  } else {
    softmax_rows<float>(out, in, logarithm);
  }
}

void softmax(const KernelCall& call) { run("norm:softmax", call, false); }
void log_softmax(const KernelCall& call) { run("norm:log_softmax", call, true); }

const HostKernelRegistration register_softmax{"norm:softmax", &softmax};
const HostKernelRegistration register_log_softmax{"norm:log_softmax", &log_softmax};

}  // namespace
}  // namespace nbx::cpu
