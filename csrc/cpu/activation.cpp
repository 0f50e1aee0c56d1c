// activation:silu_mul and activation:gelu_mul: act(gate) * up.
#include <algorithm>
#include <cmath>

#include "cpu/elementwise_math.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/stream.h"
#include "cpu/vector_math.h"

namespace nbx::cpu {
namespace {

enum class Gate : std::uint8_t { kSilu, kGelu, kGeluTanh };

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

template <int kWidth>
NBX_INLINE void gate_row_body(float* out, const float* gate, const float* up, std::int64_t count,
                              Gate kind) {
  if (kind == Gate::kGelu) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] =
          0.5F * gate[i] * math::one_plus_error(gate[i] * static_cast<float>(kSqrtHalf)) * up[i];
    }
    return;
  }
  using F = typename Vector<kWidth>::F;
  for (std::int64_t i = 0; i < count; i += kWidth) {
    F g;
    F u;
    const bool whole = i + kWidth <= count;
    if (whole) {
      load(g, gate + i);
      load(u, up + i);
    } else {
      load_partial<kWidth>(g, gate + i, count - i, 0.0F);
      load_partial<kWidth>(u, up + i, count - i, 0.0F);
    }
    // x * sigmoid(y): y is x for silu, and 0.5 * (1 + tanh(z)) = sigmoid(2 z) for gelu.
    F e = kind == Gate::kSilu ? F{} - g
                              : g * (g * g * static_cast<float>(kGeluCubic) + 1.0F) *
                                    static_cast<float>(-2.0 * kSqrtTwoOverPi);
    exp_in_place<kWidth>(e);
    const F result = g / (e + 1.0F) * u;
    if (whole) {
      store(out + i, result);
    } else {
      store_partial<kWidth>(out + i, count - i, result);
    }
  }
}
NBX_VECTORISED(gate_row,
               (float* out, const float* gate, const float* up, std::int64_t count, Gate kind),
               (out, gate, up, count, kind))

void gate_row(double* out, const double* gate, const double* up, std::int64_t count, Gate kind) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double g = gate[i];
    double factor = 1.0 / (1.0 + std::exp(-g));
    if (kind == Gate::kGelu) factor = 0.5 * std::erfc(-g * kSqrtHalf);
    if (kind == Gate::kGeluTanh) {
      factor = 1.0 / (1.0 + std::exp(-2.0 * kSqrtTwoOverPi * (g + kGeluCubic * g * g * g)));
    }
    out[i] = g * factor * up[i];
  }
}

template <class T>
void gate_rows(const TensorView& out, const TensorView& gate, const TensorView& up, Gate kind) {
  const int inner = out.rank == 0 ? 0 : 1;
  const std::int64_t width = inner == 0 ? 1 : out.shape[out.rank - 1];
  const auto stride = [&](const TensorView& view) {
    return inner == 0 ? std::int64_t{1} : view.strides[view.rank - 1];
  };
  constexpr std::int64_t kSegment = 1024;
  const std::int64_t blocks = (width + kSegment - 1) / kSegment;
  const bool streams = outgrows_cache(out) && out.data != gate.data && out.data != up.data;
  parallel_for(
      row_count(out, inner) * blocks, rows_per_piece(std::min(width, kSegment) * 2),
      [&](std::int64_t begin, std::int64_t end) {
        T buffers[3][kSegment];
        for (std::int64_t index = begin; index < end; ++index) {
          const std::int64_t row = index / blocks;
          const std::int64_t first = index % blocks * kSegment;
          const std::int64_t count = std::min(kSegment, width - first);
          const auto address = [&](const TensorView& view) {
            return row_address(view, row, inner) + first * stride(view) * itemsize_of(view.dtype);
          };
          const T* g = load_row(address(gate), gate.dtype, stride(gate), count, buffers[0]);
          const T* u = load_row(address(up), up.dtype, stride(up), count, buffers[1]);
          T* target = row_target(address(out), out.dtype, stride(out), buffers[2], streams);
          gate_row(target, g, u, count, kind);
          store_row(address(out), out.dtype, stride(out), count, target, streams);
        }
        if (streams) stream_fence();
      });
}

void run(const char* name, const KernelCall& call, Gate kind) {
  const TensorView* t = call.tensors;
  require_floating(name, "out", t[0]);
  require_floating(name, "gate", t[1]);
  require_floating(name, "up", t[2]);
  if (t[1].dtype == DType::float64 || t[2].dtype == DType::float64) {
    gate_rows<double>(t[0], t[1], t[2], kind);
  } else {
    gate_rows<float>(t[0], t[1], t[2], kind);
  }
}

void silu_mul(const KernelCall& call) { run("activation:silu_mul", call, Gate::kSilu); }
void gelu_mul(const KernelCall& call) {
  const bool approximate = call.scalar_count > 0 && call.scalars[0].integer != 0;
  run("activation:gelu_mul", call, approximate ? Gate::kGeluTanh : Gate::kGelu);
}

const HostKernelRegistration register_silu_mul{"activation:silu_mul", &silu_mul};
const HostKernelRegistration register_gelu_mul{"activation:gelu_mul", &gelu_mul};

}  // namespace
}  // namespace nbx::cpu
