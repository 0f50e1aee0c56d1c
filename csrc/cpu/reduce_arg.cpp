// Places of extrema: argmax, argmin. The index counts the reduced axes in row-major order; the
// first of equals wins, and NaN wins over every number.

#include "cpu/reduce.h"

namespace nbx::cpu {
namespace {

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
    std::int64_t i = 0;
    while (i + 1 < count && values[i] != best && (best == best || values[i] == values[i])) ++i;
    state = {best, first + i};
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
