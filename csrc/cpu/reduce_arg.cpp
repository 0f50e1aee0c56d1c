// Places of extrema: argmax, argmin. The index counts the reduced axes in row-major order; the
// first of equals wins, and NaN wins over every number.

#include "cpu/reduce.h"

namespace nbx::cpu {
namespace {

template <class T>
NBX_TARGET_CLONES std::int64_t count_before(const T* values, std::int64_t count, T wanted) {
  constexpr std::int64_t kChunk = 64;
  const bool seeks_nan = wanted != wanted;
  std::int64_t i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    int hits = 0;
    for (std::int64_t k = 0; k < kChunk; ++k) {
      const T value = values[i + k];
      hits |= static_cast<int>(value == wanted) | static_cast<int>(seeks_nan & (value != value));
    }
    if (hits != 0) break;
  }
  while (i < count && values[i] != wanted && !(seeks_nan && values[i] != values[i])) ++i;
  return i;
}

template <class T, template <class> class Extremum>
struct Place {
  static constexpr bool kIndexed = true;
  using Order = Extremum<T>;
  struct State {
    T best;
    std::int64_t index;
  };
  static constexpr State identity() { return {Order::identity(), -1}; }
  static NBX_INLINE void step(State& state, T value, std::int64_t index) {
    if (state.index < 0 || Order::beats(value, state.best)) state = {value, index};
  }
  /// Most blocks hold no new extremum: one vector pass tells, and only then the place is looked
  /// for.
  static void block(State& state, const T* values, std::int64_t count, std::int64_t first) {
    T best = Order::identity();
    reduce_block<Order, T>(best, values, count, 0.0);
    if (state.index >= 0 && !Order::beats(best, state.best)) return;
    state = {best, first + count_before(values, count, best)};
  }
  static NBX_INLINE void merge(State& state, const State& later) {
    if (later.index < 0) return;
    if (state.index < 0 || Order::beats(later.best, state.best)) state = later;
  }
  static std::int64_t finish(const State& state, const Ending& /*ending*/) { return state.index; }
};

template <class T>
struct ArgMax : Place<T, Greatest> {};
template <class T>
struct ArgMin : Place<T, Least> {};

void argmax(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<ArgMax, RealAndBoolTypes>();
  run_reduce(call, "reduce:argmax", 0, AxisOrder::kRowMajor, kFunctions);
}
void argmin(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<ArgMin, RealAndBoolTypes>();
  run_reduce(call, "reduce:argmin", 0, AxisOrder::kRowMajor, kFunctions);
}

const HostKernelRegistration register_argmax{"reduce:argmax", &argmax};
const HostKernelRegistration register_argmin{"reduce:argmin", &argmin};

}  // namespace
}  // namespace nbx::cpu
