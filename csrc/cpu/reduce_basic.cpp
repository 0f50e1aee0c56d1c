// Reductions in one pass: sum, prod, mean, amax, amin, all, any, count_nonzero.

#include "cpu/reduce.h"

namespace nbx::cpu {
namespace {

template <class T>
struct Sum {
  using State = Accumulator<T>;
  static constexpr int kLanes = kSumLanes<T>;
  static constexpr State identity() { return State{}; }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) {
    state += static_cast<State>(value);
  }
  static NBX_INLINE void merge(State& state, State later) { state += later; }
  static State finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct Product {
  using State = Accumulator<T>;
  static constexpr int kLanes = kSumLanes<T>;
  static constexpr State identity() { return State(1); }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) {
    state *= static_cast<State>(value);
  }
  static NBX_INLINE void merge(State& state, State later) { state *= later; }
  static State finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct All {
  using State = Bool;
  static constexpr State identity() { return 1; }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) { state &= value; }
  static NBX_INLINE void merge(State& state, State later) { state &= later; }
  static State finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct Any {
  using State = Bool;
  static constexpr State identity() { return 0; }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) { state |= value; }
  static NBX_INLINE void merge(State& state, State later) { state |= later; }
  static State finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct CountNonzero {
  using State = std::int64_t;
  static constexpr State identity() { return 0; }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) { state += value; }
  static NBX_INLINE void merge(State& state, State later) { state += later; }
  static State finish(State state, const Ending& /*ending*/) { return state; }
};

void sum(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Sum, NumberTypes>();
  run_reduce(call, "reduce:sum", 0, AxisOrder::kMemory, kFunctions);
}
void prod(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Product, NumberTypes>();
  run_reduce(call, "reduce:prod", 0, AxisOrder::kMemory, kFunctions);
}
void mean(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Mean, FieldTypes>();
  run_reduce(call, "reduce:mean", 0, AxisOrder::kMemory, kFunctions);
}
void amax(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Greatest, RealAndBoolTypes>();
  run_reduce(call, "reduce:amax", 0, AxisOrder::kMemory, kFunctions);
}
void amin(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Least, RealAndBoolTypes>();
  run_reduce(call, "reduce:amin", 0, AxisOrder::kMemory, kFunctions);
}

/// Truth values are made when the input is loaded, whatever op_dtype says.
void run_logical(const KernelCall& call, const char* kernel, ReduceFunction function) {
  ReducePlan plan;
  plan_reduction(call, kernel, 0, AxisOrder::kMemory, plan);
  if (plan.units > 0) function(plan, call.tensors[1].dtype, 0.0);
}
void all(const KernelCall& call) {
  run_logical(call, "reduce:all", &run_reduction<All<Bool>, Bool>);
}
void any(const KernelCall& call) {
  run_logical(call, "reduce:any", &run_reduction<Any<Bool>, Bool>);
}
void count_nonzero(const KernelCall& call) {
  run_logical(call, "reduce:count_nonzero", &run_reduction<CountNonzero<Bool>, Bool>);
}

const HostKernelRegistration register_sum{"reduce:sum", &sum};
const HostKernelRegistration register_prod{"reduce:prod", &prod};
const HostKernelRegistration register_mean{"reduce:mean", &mean};
const HostKernelRegistration register_amax{"reduce:amax", &amax};
const HostKernelRegistration register_amin{"reduce:amin", &amin};
const HostKernelRegistration register_all{"reduce:all", &all};
const HostKernelRegistration register_any{"reduce:any", &any};
const HostKernelRegistration register_count{"reduce:count_nonzero", &count_nonzero};

}  // namespace
}  // namespace nbx::cpu
