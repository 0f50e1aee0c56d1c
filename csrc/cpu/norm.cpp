// norm:rms, norm:rms_add, norm:layer over the last axis.
#include <cmath>

#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/stream.h"
#include "cpu/vector_math.h"

namespace nbx::cpu {
namespace {

struct RowJob {
  float* out;
  const float* in;
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  std::int64_t count;
  double eps;
};

template <int kWidth>
NBX_INLINE void scale_row(const RowJob& job, float mean, float factor) {
  using F = typename Vector<kWidth>::F;
  std::int64_t i = 0;
  F v;
  F w;
  for (; i + kWidth <= job.count; i += kWidth) {
    load(v, job.in + i);
    v = (v - mean) * factor;
    if (job.weight != nullptr) {
      load(w, job.weight + i);
      v = v * w;
    }
    if (job.bias != nullptr) {
      load(w, job.bias + i);
      v = v + w;
    }
    store(job.out + i, v);
  }
  for (; i < job.count; ++i) {
    float value = (job.in[i] - mean) * factor;
    if (job.weight != nullptr) value *= job.weight[i];
    if (job.bias != nullptr) value += job.bias[i];
    job.out[i] = value;
  }
}

template <int kWidth>
NBX_INLINE void rms_row_body(const RowJob& job) {
  const float squares = sum_of<kWidth, true>(job.in, job.count, 0.0F);
  const double mean = static_cast<double>(squares) / static_cast<double>(job.count);
  scale_row<kWidth>(job, 0.0F, static_cast<float>(1.0 / std::sqrt(mean + job.eps)));
}
NBX_VECTORISED(rms_row, (const RowJob& job), (job))

template <int kWidth>
NBX_INLINE void layer_row_body(const RowJob& job) {
  const auto count = static_cast<double>(job.count);
  const auto mean = static_cast<float>(sum_of<kWidth, false>(job.in, job.count, 0.0F) / count);
  const double variance = sum_of<kWidth, true>(job.in, job.count, mean) / count;
  scale_row<kWidth>(job, mean, static_cast<float>(1.0 / std::sqrt(variance + job.eps)));
}
NBX_VECTORISED(layer_row, (const RowJob& job), (job))

void double_row(double* out, const double* in, const double* weight, const double* bias,
                std::int64_t count, double eps, bool center) {
  double mean = 0.0;
  if (center) {
    for (std::int64_t i = 0; i < count; ++i) mean += in[i];
    mean /= static_cast<double>(count);
  }
  double squares = 0.0;
  for (std::int64_t i = 0; i < count; ++i) squares += (in[i] - mean) * (in[i] - mean);
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(count) + eps);
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = (in[i] - mean) * factor * (weight == nullptr ? 1.0 : weight[i]) +
             (bias == nullptr ? 0.0 : bias[i]);
  }
}

template <class T>
const T* load_parameter(const TensorView& view, std::int64_t count, T* buffer) {
  if (view.data == nullptr) return nullptr;
  return load_row(view.data, view.dtype, view.strides[view.rank - 1], count, buffer);
}

struct Operands {
  const TensorView& out;
  const TensorView& in;
  const TensorView& weight;
  const TensorView* bias;      // layer norm only
  const TensorView* residual;  // rms_add only, with `sum`
  const TensorView* sum;
  double eps;
  bool center;
  bool streams = false;
};

// in + residual, rounded to the type in which the sum is stored, so that the fused form equals the
// two separate ops.
template <class T>
const T* add_residual(const Operands& o, std::int64_t row, const T* in, std::int64_t width,
                      T* residual_buffer, T* sum_buffer) {
  const T* residual = load_row(row_address(*o.residual, row), o.residual->dtype,
                               o.residual->strides[o.residual->rank - 1], width, residual_buffer);
  for (std::int64_t i = 0; i < width; ++i) sum_buffer[i] = in[i] + residual[i];
  std::byte* target = row_address(*o.sum, row);
  const std::int64_t stride = o.sum->strides[o.sum->rank - 1];
  // A narrower sum is read back at once.
  const bool streams = o.streams && o.sum->dtype == kDTypeOf<T> && o.sum->data != o.in.data;
  store_row(target, o.sum->dtype, stride, width, sum_buffer, streams);
  if (o.sum->dtype == kDTypeOf<T>) return sum_buffer;
  return load_row(target, o.sum->dtype, stride, width, sum_buffer);
}

template <class T>
void normalise(const Operands& o) {
  const int last = o.in.rank - 1;
  const std::int64_t width = o.in.shape[last];
  if (width == 0) return;
  parallel_for(row_count(o.in), rows_per_piece(width), [&](std::int64_t begin, std::int64_t end) {
    T* buffers = scratch<T>(0, 6 * width);
    const T* weight = load_parameter(o.weight, width, buffers);
    const T* bias = o.bias == nullptr ? nullptr : load_parameter(*o.bias, width, buffers + width);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* in = load_row(row_address(o.in, row), o.in.dtype, o.in.strides[last], width,
                             buffers + 2 * width);
      if (o.residual != nullptr) {
        in = add_residual(o, row, in, width, buffers + 3 * width, buffers + 4 * width);
      }
      std::byte* address = row_address(o.out, row);
      const std::int64_t stride = o.out.strides[last];
      T* out = row_target(address, o.out.dtype, stride, buffers + 5 * width, o.streams);
      if constexpr (sizeof(T) == 8) {
        double_row(out, in, weight, bias, width, o.eps, o.center);
      } else {
        const RowJob job{out, in, weight, bias, width, o.eps};
        o.center ? layer_row(job) : rms_row(job);
      }
      store_row(address, o.out.dtype, stride, width, out, o.streams);
    }
    if (o.streams) stream_fence();
  });
}

void run(const char* name, Operands operands) {
  require_floating(name, "out", operands.out);
  require_floating(name, "in", operands.in);
  if (operands.weight.data != nullptr) require_floating(name, "weight", operands.weight);
  if (operands.bias != nullptr && operands.bias->data != nullptr) {
    require_floating(name, "bias", *operands.bias);
  }
  if (operands.residual != nullptr) {
    require_floating(name, "residual", *operands.residual);
    require_floating(name, "sum", *operands.sum);
  }
  const std::byte* out = operands.out.data;
  operands.streams = outgrows_cache(operands.out) && out != operands.in.data &&
                     (operands.residual == nullptr || out != operands.residual->data);
  operands.in.dtype == DType::float64 ? normalise<double>(operands) : normalise<float>(operands);
}

void rms(const KernelCall& call) {
  const TensorView* t = call.tensors;
  run("norm:rms", {t[0], t[1], t[2], nullptr, nullptr, nullptr, call.scalars[0].real, false});
}

void rms_add(const KernelCall& call) {
  const TensorView* t = call.tensors;
  run("norm:rms_add", {t[0], t[2], t[4], nullptr, &t[3], &t[1], call.scalars[0].real, false});
}

void layer(const KernelCall& call) {
  const TensorView* t = call.tensors;
  run("norm:layer", {t[0], t[1], t[2], &t[3], nullptr, nullptr, call.scalars[0].real, true});
}

const HostKernelRegistration register_rms{"norm:rms", &rms};
const HostKernelRegistration register_rms_add{"norm:rms_add", &rms_add};
const HostKernelRegistration register_layer{"norm:layer", &layer};

}  // namespace
}  // namespace nbx::cpu
