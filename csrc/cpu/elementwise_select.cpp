// Ops of three operands, and those with optional ones: where, clamp, lerp, addcmul, nan_to_num.

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/elementwise.h"

namespace nbx::cpu {
namespace {

struct Where {
  static constexpr const char* kName = "elementwise:where";
  static constexpr int kArity = 3;
  static constexpr int kExtras = 0;
  static constexpr Cost kCost = Cost::kCheap;
  static constexpr bool kFirstIsBool = true;
  using Accepts = AllTypes;
  template <class T>
  static NBX_INLINE T apply(Bool condition, T a, T b) {
    return condition != 0 ? a : b;
  }
};
const HostKernelRegistration registerWhere{Where::kName, &ElementwiseEntry<Where>::run};

/// NaN in the value or in a bound wins; crossed bounds give the upper one.
template <class T>
NBX_INLINE T at_least(T x, T bound) {
  return x < bound || bound != bound ? bound : x;
}
template <class T>
NBX_INLINE T at_most(T x, T bound) {
  return x > bound || bound != bound ? bound : x;
}

template <class T>
NBX_TARGET_CLONES void clamp_block(const BlockArguments& arguments) {
  auto* out = static_cast<T*>(arguments.out);
  const auto* x = static_cast<const T*>(arguments.inputs[0]);
  const auto* low = static_cast<const T*>(arguments.inputs[1]);
  const auto* high = static_cast<const T*>(arguments.inputs[2]);
  const std::int64_t count = arguments.count;
  if (low != nullptr && high != nullptr) {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) out[i] = at_most(at_least(x[i], low[i]), high[i]);
  } else if (low != nullptr) {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) out[i] = at_least(x[i], low[i]);
  } else if (high != nullptr) {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) out[i] = at_most(x[i], high[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = x[i];
  }
}

template <class T>
constexpr BlockOp clamp_op() {
  BlockOp op;
  if constexpr (RealAndBoolTypes::kHas<T>) {
    op.function = &clamp_block<T>;
    op.out = kCarrierOf<T>;
    for (Carrier& carrier : op.inputs) carrier = kCarrierOf<T>;
  }
  return op;
}

void clamp(const KernelCall& call) {
  static constexpr ElementwiseKernel kKernel{"elementwise:clamp",
                                             3,
                                             0,
                                             true,
                                             1 << 15,
                                             {
#define NBX_CLAMP(name, type, dtype) clamp_op<type>(),
                                                 NBX_CARRIERS(NBX_CLAMP)
#undef NBX_CLAMP
                                             }};
  run_elementwise(kKernel, call);
}
const HostKernelRegistration registerClamp{"elementwise:clamp", &clamp};

/// From the nearer end, so that a weight of 1 gives b itself.
template <class T>
NBX_INLINE T interpolate(T a, T b, T weight) {
  if constexpr (kIsField<T>) {
    return a + weight * (b - a);
  } else {
    return weight < T(0.5) ? a + weight * (b - a) : b - (b - a) * (T{1} - weight);
  }
}

/// a + value * b * c; integers wrap.
template <class T>
NBX_INLINE T add_product(T a, T b, T c, const Extras& extras) {
  if constexpr (kIsInteger<T>) {
    const auto value = static_cast<std::uint64_t>(static_cast<std::int64_t>(extras.value[0]));
    return static_cast<T>(static_cast<std::uint64_t>(a) +
                          value * static_cast<std::uint64_t>(b) * static_cast<std::uint64_t>(c));
  } else if constexpr (kIsField<T>) {
    return a + static_cast<typename T::value_type>(extras.value[0]) * b * c;
  } else {
    return a + static_cast<T>(extras.value[0]) * b * c;
  }
}

NBX_OP("lerp", Lerp, 3, 0, FieldTypes, Cost::kCheap, T, (T a, T b, T weight),
       interpolate(a, b, weight))
NBX_OP("addcmul", AddCMul, 3, 1, NumberTypes, Cost::kCheap, T,
       (T a, T b, T c, const Extras& extras), add_product(a, b, c, extras))

constexpr double greatest_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 65504.0;
    case DType::bfloat16:
      return 0x1.fep127;
    case DType::float8_e4m3fn:
      return 448.0;
    case DType::float8_e5m2:
      return 57344.0;
    case DType::float64:
    case DType::complex128:
      return std::numeric_limits<double>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

template <class T>
NBX_INLINE T replace(T x, T nan, T high, T low) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const T upper = x == kInfinity ? high : x;
  const T lower = x == -kInfinity ? low : upper;
  return x != x ? nan : lower;
}

/// Extras: what NaN, infinity and minus infinity become; the last two are the type's limits unless
/// given.
template <class T>
NBX_TARGET_CLONES void nan_to_num_block(const BlockArguments& arguments) {
  auto* out = static_cast<T*>(arguments.out);
  const auto* x = static_cast<const T*>(arguments.inputs[0]);
  const Extras& extras = *arguments.extras;
  const double greatest = greatest_of(arguments.out_dtype);
  const T nan = static_cast<T>(extras.given[0] ? extras.value[0] : 0.0);
  const T high = static_cast<T>(extras.given[1] ? extras.value[1] : greatest);
  const T low = static_cast<T>(extras.given[2] ? extras.value[2] : -greatest);
  NBX_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < arguments.count; ++i) out[i] = replace(x[i], nan, high, low);
}

/// Complex blocks are blocks of twice as many parts.
template <class T, class Part>
void nan_to_num_parts(const BlockArguments& arguments) {
  BlockArguments parts = arguments;
  parts.count *= 2;
  nan_to_num_block<Part>(parts);
}
template <class T>
void keep_block(const BlockArguments& arguments) {
  const auto* x = static_cast<const T*>(arguments.inputs[0]);
  std::copy(x, x + arguments.count, static_cast<T*>(arguments.out));
}

constexpr BlockOp nan_to_num_op(BlockFunction function, Carrier carrier) {
  BlockOp op;
  op.function = function;
  op.out = carrier;
  op.inputs[0] = carrier;
  return op;
}

void nan_to_num(const KernelCall& call) {
  static constexpr ElementwiseKernel kKernel{
      "elementwise:nan_to_num",
      1,
      3,
      false,
      1 << 15,
      {nan_to_num_op(&keep_block<Bool>, Carrier::kBool),
       nan_to_num_op(&keep_block<std::int64_t>, Carrier::kInt64),
       nan_to_num_op(&keep_block<std::uint64_t>, Carrier::kUint64),
       nan_to_num_op(&nan_to_num_block<float>, Carrier::kFloat32),
       nan_to_num_op(&nan_to_num_block<double>, Carrier::kFloat64),
       nan_to_num_op(&nan_to_num_parts<Complex64, float>, Carrier::kComplex64),
       nan_to_num_op(&nan_to_num_parts<Complex128, double>, Carrier::kComplex128)}};
  run_elementwise(kKernel, call);
}
const HostKernelRegistration registerNanToNum{"elementwise:nan_to_num", &nan_to_num};

}  // namespace
}  // namespace nbx::cpu
