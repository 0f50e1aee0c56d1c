// Reductions with a shift or a power: var, std, logsumexp, norm.

#include <cmath>

#include "cpu/elementwise_math.h"
#include "cpu/reduce.h"

namespace nbx::cpu {
namespace {

/// Sum of squared distances from the mean, which is found first: never negative. The extra is the
/// correction that is taken off the number of elements.
template <class T>
struct Variance {
  using First = Mean<T>;
  using State = double;
  static double shift_from(double mean) { return mean; }
  static constexpr State identity() { return 0.0; }
  static NBX_INLINE void step(State& state, T value, double mean) {
    const double distance = static_cast<double>(value) - mean;
    state += distance * distance;
  }
  static NBX_INLINE void merge(State& state, State later) { state += later; }
  static double finish(State state, const Ending& ending) {
    return state / std::max(0.0, static_cast<double>(ending.length) - ending.extra);
  }
};

template <class T>
struct Deviation : Variance<T> {
  static double finish(double state, const Ending& ending) {
    return std::sqrt(Variance<T>::finish(state, ending));
  }
};

/// Sum of exponentials below the greatest value, which is found first.
template <class T>
struct LogSumExp {
  using First = Greatest<T>;
  using State = double;
  /// An infinite greatest value decides the sum by itself; a shift by it would give NaN.
  static double shift_from(T greatest) { return std::isinf(greatest) ? 0.0 : greatest; }
  static constexpr State identity() { return 0.0; }
  static NBX_INLINE void step(State& state, T value, double greatest) {
    state += static_cast<double>(math::exponential(value - static_cast<T>(greatest)));
  }
  static NBX_INLINE void merge(State& state, State later) { state += later; }
  static double finish(State state, const Ending& ending) { return std::log(state) + ending.shift; }
};

template <class T>
NBX_INLINE double magnitude(T value) {
  if constexpr (kIsField<T>) {
    return std::hypot(static_cast<double>(value.real()), static_cast<double>(value.imag()));
  } else {
    return std::fabs(static_cast<double>(value));
  }
}

struct AddedNorm {
  using State = double;
  static constexpr State identity() { return 0.0; }
  static NBX_INLINE void merge(State& state, State later) { state += later; }
};

template <class T>
struct EuclideanNorm : AddedNorm {
  static NBX_INLINE void step(State& state, T value, double /*p*/) {
    if constexpr (kIsField<T>) {
      const double real = value.real();
      const double imaginary = value.imag();
      state += real * real + imaginary * imaginary;
    } else {
      state += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  static double finish(State state, const Ending& /*ending*/) { return std::sqrt(state); }
};

template <class T>
struct AbsoluteNorm : AddedNorm {
  static NBX_INLINE void step(State& state, T value, double /*p*/) { state += magnitude(value); }
  static double finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct NonzeroNorm : AddedNorm {
  static NBX_INLINE void step(State& state, T value, double /*p*/) {
    state += value != T(0) ? 1.0 : 0.0;
  }
  static double finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct PowerNorm : AddedNorm {
  static NBX_INLINE void step(State& state, T value, double p) {
    state += std::pow(magnitude(value), p);
  }
  static double finish(State state, const Ending& ending) {
    return std::pow(state, 1.0 / ending.extra);
  }
};

template <class T>
struct GreatestNorm : Greatest<double> {
  static constexpr double identity() { return 0.0; }
  static NBX_INLINE void step(double& state, T value, double p) {
    Greatest<double>::step(state, magnitude(value), p);
  }
};
template <class T>
struct LeastNorm : Least<double> {
  static NBX_INLINE void step(double& state, T value, double p) {
    Least<double>::step(state, magnitude(value), p);
  }
};

void var(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Variance, FloatTypes>();
  run_reduce(call, "reduce:var", 1, AxisOrder::kMemory, kFunctions);
}
void standard_deviation(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<Deviation, FloatTypes>();
  run_reduce(call, "reduce:std", 1, AxisOrder::kMemory, kFunctions);
}
void logsumexp(const KernelCall& call) {
  static constexpr auto kFunctions = reduce_functions<LogSumExp, FloatTypes>();
  run_reduce(call, "reduce:logsumexp", 0, AxisOrder::kMemory, kFunctions);
}

const ReduceFunctions& norm_functions(double p) {
  static constexpr auto kEuclidean = reduce_functions<EuclideanNorm, FieldTypes>();
  static constexpr auto kAbsolute = reduce_functions<AbsoluteNorm, FieldTypes>();
  static constexpr auto kNonzero = reduce_functions<NonzeroNorm, FieldTypes>();
  static constexpr auto kGreatest = reduce_functions<GreatestNorm, FieldTypes>();
  static constexpr auto kLeast = reduce_functions<LeastNorm, FieldTypes>();
  static constexpr auto kPower = reduce_functions<PowerNorm, FieldTypes>();
  if (p == 2.0) return kEuclidean;
  if (p == 1.0) return kAbsolute;
  if (p == 0.0) return kNonzero;
  if (std::isinf(p)) return p > 0 ? kGreatest : kLeast;
  return kPower;
}

void norm(const KernelCall& call) {
  run_reduce(call, "reduce:norm", 1, AxisOrder::kMemory, norm_functions(reduce_extra(call, 0)));
}

const HostKernelRegistration register_var{"reduce:var", &var};
const HostKernelRegistration register_std{"reduce:std", &standard_deviation};
const HostKernelRegistration register_logsumexp{"reduce:logsumexp", &logsumexp};
const HostKernelRegistration register_norm{"reduce:norm", &norm};

}  // namespace
}  // namespace nbx::cpu
