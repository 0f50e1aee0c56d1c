// Activations of neural networks.

#include <cmath>

#include "cpu/elementwise.h"
#include "cpu/elementwise_math.h"
#include "cpu/elementwise_wide.h"

namespace nbx::cpu {
namespace {

template <class T>
NBX_INLINE T extra(const Extras& extras, int index) {
  return static_cast<T>(extras.value[index]);
}

template <class T>
NBX_INLINE T exact_gelu(T x) {
  return T(0.5) * x * math::one_plus_error(x * T(0.707106781186547524401));
}
template <class T>
NBX_INLINE T tanh_gelu(T x) {
  const T cubic = x + T(0.044715) * x * x * x;
  return T(0.5) * x * (T{1} + math::hyperbolic_tangent(T(0.797884560802865355880) * cubic));
}

/// Extra 0: 0 for the exact form, 1 for the one with tanh. A loop for each, as one with both would
/// compute both.
template <class T>
NBX_TARGET_CLONES void gelu_block(const BlockArguments& arguments) {
  auto* out = static_cast<T*>(arguments.out);
  const auto* x = static_cast<const T*>(arguments.inputs[0]);
  const std::int64_t count = arguments.count;
  if (arguments.extras->value[0] != 0.0) {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) out[i] = tanh_gelu(x[i]);
  } else {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) out[i] = exact_gelu(x[i]);
  }
}

template <class T>
constexpr BlockOp gelu_op() {
  BlockOp op;
  if constexpr (FloatTypes::kHas<T>) {
    op.function = &gelu_block<T>;
    op.out = kCarrierOf<T>;
    for (Carrier& carrier : op.inputs) carrier = kCarrierOf<T>;
  }
  return op;
}

void gelu(const KernelCall& call) {
  static constexpr ElementwiseKernel kKernel{"elementwise:gelu",
                                             1,
                                             1,
                                             false,
                                             grain_of(Cost::kMath),
                                             {
#define NBX_GELU(name, type, dtype) gelu_op<type>(),
                                                 NBX_CARRIERS(NBX_GELU)
#undef NBX_GELU
                                             }};
  run_elementwise(kKernel, call);
}
const HostKernelRegistration registerGelu{"elementwise:gelu", &gelu};

/// log(1 + exp(x)) without overflow.
template <class T>
NBX_INLINE T log_one_plus_exp(T x) {
  if constexpr (std::is_same_v<T, float>) return math::log1p_exp(x);
  return (x > T{0} ? x : T{0}) + std::log1p(math::exponential(-std::fabs(x)));
}

/// Extras: beta, threshold.
template <class T>
NBX_INLINE T softplus(T x, const Extras& extras) {
  const T scaled = x * extra<T>(extras, 0);
  const T result = log_one_plus_exp(scaled) / extra<T>(extras, 0);
  return scaled > extra<T>(extras, 1) || x != x ? x : result;
}

template <class T>
NBX_INLINE T mish(T x) {
  if constexpr (std::is_same_v<T, float>) return math::mish(x);
  return x * math::hyperbolic_tangent(log_one_plus_exp(x));
}

template <class T>
NBX_INLINE T log_sigmoid(T x) {
  return x != x ? x : -log_one_plus_exp(-x);
}

template <class T>
NBX_INLINE T elu(T x, const Extras& extras) {
  T below;
  if constexpr (std::is_same_v<T, float>) {
    below = math::expm1(x);
  } else {
    below = std::expm1(x);
  }
  return x > T{0} ? x : extra<T>(extras, 0) * below;
}

/// relu6(x + 3) / 6; NaN stays.
template <class T>
NBX_INLINE T hard_sigmoid(T x) {
  const T shifted = x + T{3};
  const T low = shifted < T{0} ? T{0} : shifted;
  return (low > T{6} ? T{6} : low) / T{6};
}

NBX_UNARY("relu", Relu, Narrowed<RealTypes>, Cost::kCheap, x < T{0} ? T{0} : x)
NBX_UNARY("sigmoid", Sigmoid, FloatTypes, Cost::kMath, math::sigmoid(x))
NBX_UNARY("silu", Silu, FloatTypes, Cost::kMath, x* math::sigmoid(x))
NBX_UNARY("hardsigmoid", HardSigmoid, FloatTypes, Cost::kCheap, hard_sigmoid(x))
NBX_UNARY("hardswish", HardSwish, FloatTypes, Cost::kCheap, x* hard_sigmoid(x))
NBX_UNARY("mish", Mish, FloatTypes, Cost::kMath, mish(x))
NBX_UNARY("log_sigmoid", LogSigmoid, FloatTypes, Cost::kMath, log_sigmoid(x))
NBX_UNARY_WITH("softplus", Softplus, 2, FloatTypes, Cost::kMath, softplus(x, extras))
NBX_UNARY_WITH("elu", Elu, 1, FloatTypes, Cost::kMath, elu(x, extras))
NBX_UNARY_WITH("leaky_relu", LeakyRelu, 1, FloatTypes, Cost::kCheap,
               x < T{0} ? x * extra<T>(extras, 0) : x)

}  // namespace
}  // namespace nbx::cpu
