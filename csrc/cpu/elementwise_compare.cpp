// Comparisons and logical ops: the result is a bool block. Integers of 64 bits compare exactly,
// also a signed one with an unsigned one.

#include <utility>

#include "cpu/elementwise.h"

namespace nbx::cpu {
namespace {

#define NBX_COMPARISON(text, Name, Set, expression, exact)    \
  struct Name##Mixed {                                        \
    template <class A, class B>                               \
    static NBX_INLINE bool apply(A a, B b) {                  \
      return exact(a, b);                                     \
    }                                                         \
  };                                                          \
  struct Name {                                               \
    static constexpr const char* kName = "elementwise:" text; \
    static constexpr int kArity = 2;                          \
    static constexpr int kExtras = 0;                         \
    static constexpr Cost kCost = Cost::kCheap;               \
    using Accepts = Set;                                      \
    template <class T>                                        \
    static NBX_INLINE bool apply(T a, T b) {                  \
      return expression;                                      \
    }                                                         \
  };                                                          \
  const HostKernelRegistration register##Name{Name::kName, &compare<Name, Name##Mixed>};

template <class Mixed, class A, class B>
NBX_TARGET_CLONES void mixed_block(const BlockArguments& arguments) {
  auto* out = static_cast<Bool*>(arguments.out);
  const auto* a = static_cast<const A*>(arguments.inputs[0]);
  const auto* b = static_cast<const B*>(arguments.inputs[1]);
  NBX_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < arguments.count; ++i) out[i] = Mixed::apply(a[i], b[i]);
}

template <class Mixed, class A, class B>
constexpr BlockOp mixed_op() {
  BlockOp op;
  op.function = &mixed_block<Mixed, A, B>;
  op.out = Carrier::kBool;
  op.inputs[0] = kCarrierOf<A>;
  op.inputs[1] = kCarrierOf<B>;
  return op;
}

enum class Range : std::uint8_t { kOther, kSigned, kUnsigned };

/// In which of the two 64-bit types an integer operand fits; numbers go by their value.
Range range_of(const TensorView& view, const Scalar* number) {
  if (view.data != nullptr) {
    if (view.dtype == DType::uint64) return Range::kUnsigned;
    return is_integer(view.dtype) || view.dtype == DType::bool_ ? Range::kSigned : Range::kOther;
  }
  if (number == nullptr || number->kind == ScalarKind::kReal ||
      number->kind == ScalarKind::kComplex) {
    return Range::kOther;
  }
  return number->is_unsigned && number->integer < 0 ? Range::kUnsigned : Range::kSigned;
}

/// Whatever op_dtype says, integers are compared in the types that hold them.
template <class Op, class Mixed>
void compare(const KernelCall& call) {
  static constexpr ElementwiseKernel kKernel = ElementwiseEntry<Op>::kKernel;
  static constexpr BlockOp kSignedUnsigned = mixed_op<Mixed, std::int64_t, std::uint64_t>();
  static constexpr BlockOp kUnsignedSigned = mixed_op<Mixed, std::uint64_t, std::int64_t>();
  if (call.tensor_count == 3) {
    const Scalar* number = call.scalar_count > 1 ? &call.scalars[1] : nullptr;
    const Range first = range_of(call.tensors[1], number);
    const Range second = range_of(call.tensors[2], number);
    if (first == Range::kSigned && second == Range::kUnsigned) {
      return run_blocks(kKernel, kSignedUnsigned, call);
    }
    if (first == Range::kUnsigned && second == Range::kSigned) {
      return run_blocks(kKernel, kUnsignedSigned, call);
    }
  }
  run_elementwise(kKernel, call);
}

NBX_COMPARISON("eq", Eq, Narrowed<AllTypes>, a == b, std::cmp_equal)
NBX_COMPARISON("ne", Ne, Narrowed<AllTypes>, a != b, std::cmp_not_equal)
NBX_COMPARISON("lt", Lt, Narrowed<RealAndBoolTypes>, a < b, std::cmp_less)
NBX_COMPARISON("le", Le, Narrowed<RealAndBoolTypes>, a <= b, std::cmp_less_equal)
NBX_COMPARISON("gt", Gt, Narrowed<RealAndBoolTypes>, a > b, std::cmp_greater)
NBX_COMPARISON("ge", Ge, Narrowed<RealAndBoolTypes>, a >= b, std::cmp_greater_equal)

using BoolOnly = Types<Bool>;

/// Truth values are made when operands are loaded, whatever op_dtype says.
#define NBX_LOGICAL(text, Name, ...)                                                    \
  struct Name {                                                                         \
    static constexpr const char* kName = "elementwise:" text;                           \
    static constexpr int kArity = 2;                                                    \
    static constexpr int kExtras = 0;                                                   \
    static constexpr Cost kCost = Cost::kCheap;                                         \
    using Accepts = BoolOnly;                                                           \
    template <class T>                                                                  \
    static NBX_INLINE T apply(T a, T b) {                                               \
      return static_cast<T>(__VA_ARGS__);                                               \
    }                                                                                   \
    static void run(const KernelCall& call) {                                           \
      static constexpr ElementwiseKernel kKernel = ElementwiseEntry<Name>::kKernel;     \
      run_blocks(kKernel, kKernel.ops[static_cast<std::size_t>(Carrier::kBool)], call); \
    }                                                                                   \
  };                                                                                    \
  const HostKernelRegistration register##Name{Name::kName, &Name::run};

NBX_LOGICAL("logical_and", LogicalAnd, a& b)
NBX_LOGICAL("logical_or", LogicalOr, a | b)
NBX_LOGICAL("logical_xor", LogicalXor, a ^ b)

}  // namespace
}  // namespace nbx::cpu
