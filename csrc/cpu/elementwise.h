// The frame of elementwise kernels: operands come in blocks of the op's carrier type, an op is a
// function of one element, and one table per op says which types it takes.
#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/cast.h"
#include "cpu/elementwise_walk.h"
#include "cpu/target.h"
#include "launch/kernel.h"

#if defined(__clang__)
#define NBX_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define NBX_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

namespace nbx::cpu {

inline constexpr int kMaximumExtras = 3;

/// The op's fixed numbers, after op_dtype.
struct Extras {
  double value[kMaximumExtras];
  bool given[kMaximumExtras];
};

/// What an op does to a block. An input pointer is null for an optional operand left out.
struct BlockArguments {
  void* out;
  const void* inputs[kMaximumOperands - 1];
  std::int64_t count;
  const Extras* extras;
  DType out_dtype;
};
using BlockFunction = void (*)(const BlockArguments& arguments);

struct BlockOp {
  BlockFunction function = nullptr;  // null if the op does not take this type
  Carrier out = Carrier::kBool;
  Carrier inputs[kMaximumOperands - 1] = {};
};
using BlockOps = std::array<BlockOp, kCarrierCount>;  // by the carrier of op_dtype

/// Integers of fewer than 64 bits that an op may compute in, since the low bits of its results
/// depend on nothing else. Bytes have a type of their own beside that of bools.
#define NBX_NARROW_TYPES(X) \
  X(int8, std::int8_t)      \
  X(int16, std::int16_t)    \
  X(int32, std::int32_t)    \
  X(uint8, char8_t)         \
  X(uint16, std::uint16_t)  \
  X(uint32, std::uint32_t)
inline constexpr int kNarrowCount = 6;
/// Blocks of one narrow type, the result included unless it is a bool.
using NarrowOps = std::array<BlockFunction, kNarrowCount>;

struct ElementwiseKernel {
  const char* name;
  int inputs;
  int extras;
  bool optional_inputs;  // an absent operand may come without a number
  std::int64_t grain;    // elements worth another thread
  BlockOps ops;
  NarrowOps narrow = {};
};

/// Runs (out, in...) with scalars [op_dtype, extras..., a number for each absent input].
/// Throws Error(kType) where the op does not take op_dtype, Error(kValue) for bad operands.
void run_elementwise(const ElementwiseKernel& kernel, const KernelCall& call);

/// The same with the functions already chosen. `narrow` replaces the op's function where all
/// operands are of one narrow type.
void run_blocks(const ElementwiseKernel& kernel, const BlockOp& op, const KernelCall& call,
                BlockFunction narrow = nullptr);

// --- types that an op takes ---------------------------------------------------------------------

template <class... Ts>
struct Types {
  template <class T>
  static constexpr bool kHas = (std::is_same_v<T, Ts> || ...);
};
using Bool = std::uint8_t;  // a carrier of 0 and 1
using Complex64 = std::complex<float>;
using Complex128 = std::complex<double>;
using RealTypes = Types<std::int64_t, std::uint64_t, float, double>;
using RealAndBoolTypes = Types<Bool, std::int64_t, std::uint64_t, float, double>;
using NumberTypes = Types<std::int64_t, std::uint64_t, float, double, Complex64, Complex128>;
using AllTypes = Types<Bool, std::int64_t, std::uint64_t, float, double, Complex64, Complex128>;
using FloatTypes = Types<float, double>;
using FieldTypes = Types<float, double, Complex64, Complex128>;
using IntegerTypes = Types<Bool, std::int64_t, std::uint64_t>;

/// The set, and with int64 the narrow types too.
template <class Set>
struct Narrowed : Set {
  static constexpr bool kNarrowed = true;
};

template <class T>
inline constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, Bool>;
/// Where integers wrap: unsigned, and not promoted to int.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
template <class T>
inline constexpr bool kIsField = std::is_same_v<T, Complex64> || std::is_same_v<T, Complex128>;

// --- blocks -------------------------------------------------------------------------------------

enum class Cost : std::uint8_t {
  kCheap,    // a few instructions, compiled for every instruction set
  kMath,     // polynomials that vectorise, compiled for every instruction set
  kLibrary,  // calls of the C library
};

/// Elements worth another thread.
[[nodiscard]] constexpr std::int64_t grain_of(Cost cost) noexcept {
  return cost == Cost::kCheap ? 1 << 15 : cost == Cost::kMath ? 1 << 14 : 1 << 12;
}

/// An op is a struct with `Accepts` (the types), `kArity`, `kExtras`, `kCost` and
/// `apply<T>(x..., [extras])`; a bool result is a bool block. `kFirstIsBool` makes the first input
/// a bool block.
template <class Op, class T, class... Inputs>
NBX_INLINE auto apply_op(const Extras& extras, Inputs... inputs) {
  if constexpr (Op::kExtras > 0) {
    return Op::template apply<T>(inputs..., extras);
  } else {
    return Op::template apply<T>(inputs...);
  }
}

template <class R>
using BlockElement = std::conditional_t<std::is_same_v<R, bool>, Bool, R>;

/// An op whose vectorised form holds for most operands only has `is_far<T>` and, for the others,
/// `apply_far<T>`.
template <class Op, class T, class... Inputs>
concept HasFar = requires(Inputs... inputs) { Op::template is_far<T>(inputs...); };

/// Whether the block had far operands; then it is done.
template <class Op, class T, class R, class... Inputs>
NBX_INLINE bool far_block(R* out, std::int64_t count, const Inputs*... inputs) {
  bool any = false;
  for (std::int64_t i = 0; i < count; ++i) any |= Op::template is_far<T>(inputs[i]...);
  if (!any) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = Op::template is_far<T>(inputs[i]...) ? Op::template apply_far<T>(inputs[i]...)
                                                  : Op::template apply<T>(inputs[i]...);
  }
  return true;
}

template <class Op, class T, class First, class R>
NBX_INLINE void loop_over(const BlockArguments& arguments) {
  auto* out = static_cast<BlockElement<R>*>(arguments.out);
  const auto* a = static_cast<const First*>(arguments.inputs[0]);
  [[maybe_unused]] const auto* b = static_cast<const T*>(arguments.inputs[1]);
  [[maybe_unused]] const auto* c = static_cast<const T*>(arguments.inputs[2]);
  const Extras extras = *arguments.extras;
  const std::int64_t count = arguments.count;
  if constexpr (HasFar<Op, T, T>) {
    if (far_block<Op, T>(out, count, a)) return;
  } else if constexpr (HasFar<Op, T, T, T>) {
    if (far_block<Op, T>(out, count, a, b)) return;
  }
  if constexpr (Op::kArity == 1) {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<BlockElement<R>>(apply_op<Op, T>(extras, a[i]));
    }
  } else if constexpr (Op::kArity == 2) {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<BlockElement<R>>(apply_op<Op, T>(extras, a[i], b[i]));
    }
  } else {
    NBX_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<BlockElement<R>>(apply_op<Op, T>(extras, a[i], b[i], c[i]));
    }
  }
}

template <class Op, class T, class First, class R>
NBX_TARGET_CLONES void vector_block(const BlockArguments& arguments) {
  loop_over<Op, T, First, R>(arguments);
}
template <class Op, class T, class First, class R>
void plain_block(const BlockArguments& arguments) {
  loop_over<Op, T, First, R>(arguments);
}

template <class Op>
concept FirstIsBool = Op::kFirstIsBool;

template <class Op, class T>
constexpr BlockOp block_op() {
  if constexpr (!Op::Accepts::template kHas<T>) {
    return {};
  } else {
    using First = std::conditional_t<FirstIsBool<Op>, Bool, T>;
    using R = decltype([] {
      const Extras extras{};
      if constexpr (Op::kArity == 1) return apply_op<Op, T>(extras, First{});
      if constexpr (Op::kArity == 2) return apply_op<Op, T>(extras, First{}, T{});
      if constexpr (Op::kArity == 3) return apply_op<Op, T>(extras, First{}, T{}, T{});
    }());
    constexpr bool kClone = Op::kCost != Cost::kLibrary && !kIsField<T>;
    BlockOp op;
    op.function = kClone ? &vector_block<Op, T, First, R> : &plain_block<Op, T, First, R>;
    op.out = kCarrierOf<BlockElement<R>>;
    for (Carrier& carrier : op.inputs) carrier = kCarrierOf<T>;
    op.inputs[0] = kCarrierOf<First>;
    return op;
  }
}

template <class Op>
constexpr BlockOps block_ops() {
  return {
#define NBX_BLOCK(name, type, dtype) block_op<Op, type>(),
      NBX_CARRIERS(NBX_BLOCK)
#undef NBX_BLOCK
  };
}

template <class Op, class T>
constexpr BlockFunction narrow_function() {
  const Extras extras{};
  if constexpr (Op::kArity == 1) {
    return &vector_block<Op, T, T, decltype(apply_op<Op, T>(extras, T{}))>;
  } else {
    return &vector_block<Op, T, T, decltype(apply_op<Op, T>(extras, T{}, T{}))>;
  }
}
template <class Op>
constexpr NarrowOps narrow_ops() {
  if constexpr (requires { Op::Accepts::kNarrowed; }) {
    return {
#define NBX_FUNCTION(name, type) narrow_function<Op, type>(),
        NBX_NARROW_TYPES(NBX_FUNCTION)
#undef NBX_FUNCTION
    };
  } else {
    return {};
  }
}

template <class Op>
struct ElementwiseEntry {
  static constexpr ElementwiseKernel kKernel{Op::kName,       Op::kArity,          Op::kExtras,
                                             false,           grain_of(Op::kCost), block_ops<Op>(),
                                             narrow_ops<Op>()};
  static void run(const KernelCall& call) { run_elementwise(kKernel, call); }
};

/// Defines and registers one op; the last argument is its result from `x` (or `a`, `b`, `c`).
#define NBX_OP(text, Name, arity, extra_count, Set, cost, Result, parameters, ...) \
  struct Name {                                                                    \
    static constexpr const char* kName = "elementwise:" text;                      \
    static constexpr int kArity = arity;                                           \
    static constexpr int kExtras = extra_count;                                    \
    static constexpr Cost kCost = cost;                                            \
    using Accepts = Set;                                                           \
    template <class T>                                                             \
    static NBX_INLINE Result apply parameters {                                    \
      return static_cast<Result>(__VA_ARGS__);                                     \
    }                                                                              \
  };                                                                               \
  const HostKernelRegistration register##Name{Name::kName, &ElementwiseEntry<Name>::run};

/// The same of an op with a vectorised form for near operands: floats where `far` is false.
#define NBX_FAR_OP(text, Name, arity, Set, parameters, far, result, near) \
  struct Name {                                                           \
    static constexpr const char* kName = "elementwise:" text;             \
    static constexpr int kArity = arity;                                  \
    static constexpr int kExtras = 0;                                     \
    static constexpr Cost kCost = Cost::kMath;                            \
    using Accepts = Set;                                                  \
    template <class T>                                                    \
      requires std::is_same_v<T, float>                                   \
    static NBX_INLINE bool is_far parameters {                            \
      return far;                                                         \
    }                                                                     \
    template <class T>                                                    \
    static NBX_INLINE T apply_far parameters {                            \
      return result;                                                      \
    }                                                                     \
    template <class T>                                                    \
    static NBX_INLINE T apply parameters {                                \
      if constexpr (std::is_same_v<T, float>) {                           \
        return near;                                                      \
      } else {                                                            \
        return result;                                                    \
      }                                                                   \
    }                                                                     \
  };                                                                      \
  const HostKernelRegistration register##Name{Name::kName, &ElementwiseEntry<Name>::run};

#define NBX_UNARY(text, Name, Set, cost, ...) \
  NBX_OP(text, Name, 1, 0, Set, cost, T, (T x), __VA_ARGS__)
#define NBX_UNARY_PREDICATE(text, Name, Set, cost, ...) \
  NBX_OP(text, Name, 1, 0, Set, cost, bool, (T x), __VA_ARGS__)
#define NBX_UNARY_WITH(text, Name, extra_count, Set, cost, ...) \
  NBX_OP(text, Name, 1, extra_count, Set, cost, T, (T x, const Extras& extras), __VA_ARGS__)
#define NBX_BINARY(text, Name, Set, cost, ...) \
  NBX_OP(text, Name, 2, 0, Set, cost, T, (T a, T b), __VA_ARGS__)

}  // namespace nbx::cpu
