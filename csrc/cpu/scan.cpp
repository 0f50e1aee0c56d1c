// Scans along the last axis: cumsum, cumprod (out, in) and cummax, cummin (values, indices, in),
// scalars [op_dtype]. Floats are added up in double and rounded once for each output.

#include <array>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "cpu/reduce.h"
#include "cpu/stream.h"

namespace nbx::cpu {
namespace {

template <class T>
struct CumulativeSum {
  static constexpr int kOutputs = 1;
  using State = Accumulator<T>;
  using Result = State;
  static State identity() { return State{}; }
  static NBX_INLINE void step(State& state, T value, std::int64_t /*index*/) {
    state += static_cast<State>(value);
  }
  static NBX_INLINE Result result(const State& state) { return state; }
};

template <class T>
struct CumulativeProduct {
  static constexpr int kOutputs = 1;
  using State = Accumulator<T>;
  using Result = State;
  static State identity() { return State(1); }
  static NBX_INLINE void step(State& state, T value, std::int64_t /*index*/) {
    state *= static_cast<State>(value);
  }
  static NBX_INLINE Result result(const State& state) { return state; }
};

/// The last of equals is the place; from a NaN on, the last NaN.
template <class T, bool kGreatest>
struct CumulativeExtremum {
  static constexpr int kOutputs = 2;
  struct State {
    T best;
    std::int64_t index;
  };
  using Result = T;
  static State identity() { return {T{}, -1}; }
  static NBX_INLINE void step(State& state, T value, std::int64_t index) {
    const bool better = kGreatest ? value >= state.best : value <= state.best;
    if (state.index < 0 || value != value || better) state = {value, index};
  }
  static NBX_INLINE Result result(const State& state) { return state.best; }
};
template <class T>
using CumulativeMaximum = CumulativeExtremum<T, true>;
template <class T>
using CumulativeMinimum = CumulativeExtremum<T, false>;

struct ScanPlan {
  const TensorView* tensors;  // outputs, then the input
  int outputs;
  Loop outer;  // over all axes but the last
  std::int64_t length;
  std::int64_t strides[3];  // along the last axis
  bool by_columns;
};

void plan_scan(const KernelCall& call, const char* kernel, int outputs, ScanPlan& plan) {
  require_operands(call, kernel, static_cast<std::size_t>(outputs) + 1, 1);
  plan.tensors = call.tensors;
  plan.outputs = outputs;
  const TensorView& in = call.tensors[outputs];
  TensorView heads[3];
  for (int i = 0; i <= outputs; ++i) {
    const TensorView& view = call.tensors[i];
    const bool fits = view.rank == in.rank && view.rank >= 1 && bits_of(view.dtype) >= 8 &&
                      std::equal(view.shape, view.shape + view.rank, in.shape);
    if (!fits) {
      throw Error(ErrorKind::kValue, std::string(kernel) + ": operand " + std::to_string(i) +
                                         " has rank " + std::to_string(view.rank) + " and type " +
                                         facts_of(view.dtype).name +
                                         "; expected one shape of rank 1 or more for all, and no "
                                         "packed type");
    }
    heads[i] = view;
    heads[i].rank -= 1;
    plan.strides[i] = view.strides[view.rank - 1];
  }
  plan.length = in.shape[in.rank - 1];
  plan_loop(heads, outputs + 1, AxisOrder::kMemory, plan.outer);
  plan.by_columns = plan.outer.inner() >= 8 &&
                    std::abs(plan.outer.inner_stride(outputs)) < std::abs(plan.strides[outputs]);
}

template <template <class> class Op, class T>
class Scan {
 public:
  using Rule = Op<T>;
  using State = typename Rule::State;
  using Result = typename Rule::Result;

  explicit Scan(const ScanPlan& plan)
      : plan_(plan),
        reader_(plan.tensors[Rule::kOutputs].dtype),
        store_(storer_for(kCarrierOf<Result>, plan.tensors[0].dtype)),
        store_index_(storer_for(Carrier::kInt64, plan.tensors[1].dtype)) {}

  void run() const {
    const std::int64_t width = plan_.outer.inner();
    const std::int64_t tiles = plan_.by_columns ? (width + kColumns - 1) / kColumns : width;
    const std::int64_t units = plan_.outer.count / width * tiles;
    const std::int64_t elements = plan_.length * (plan_.by_columns ? kColumns : 1);
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 14) / elements);
    parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t unit = begin; unit < end; ++unit) {
        if (plan_.by_columns) {
          const std::int64_t column = unit % tiles * kColumns;
          scan_columns(unit / tiles * width + column, std::min(kColumns, width - column));
        } else {
          scan_row(unit);
        }
      }
    });
  }

 private:
  [[nodiscard]] Cursor head(int operand, std::int64_t position) const {
    return Cursor(plan_.outer, operand, plan_.tensors[operand], position);
  }
  /// Element k of the row that begins at `address`.
  [[nodiscard]] std::byte* along(int operand, std::byte* address, std::int64_t k) const {
    return address + k * plan_.strides[operand] * itemsize_of(plan_.tensors[operand].dtype);
  }

  void scan_row(std::int64_t row) const {
    T buffer[kBlock];
    Result results[kBlock];
    std::int64_t indices[kBlock];
    std::byte* const out = head(0, row).address();
    std::byte* const in = head(Rule::kOutputs, row).address();
    State state = Rule::identity();
    for (std::int64_t k = 0; k < plan_.length; k += kBlock) {
      const std::int64_t count = std::min(kBlock, plan_.length - k);
      const T* values =
          reader_.read(along(Rule::kOutputs, in, k), plan_.strides[Rule::kOutputs], count, buffer);
      for (std::int64_t i = 0; i < count; ++i) {
        Rule::step(state, values[i], k + i);
        results[i] = Rule::result(state);
        if constexpr (Rule::kOutputs == 2) indices[i] = state.index;
      }
      store_(results, along(0, out, k), plan_.strides[0], count);
      if constexpr (Rule::kOutputs == 2) {
        store_index_(indices, along(1, head(1, row).address(), k), plan_.strides[1], count);
      }
    }
  }

  /// `width` neighbouring rows side by side.
  void scan_columns(std::int64_t first, std::int64_t width) const {
    T buffer[kColumns];
    Result results[kColumns];
    std::int64_t indices[kColumns];
    State states[kColumns];
    for (State& state : states) state = Rule::identity();
    const Cursor out = head(0, first);
    const Cursor in = head(Rule::kOutputs, first);
    for (std::int64_t k = 0; k < plan_.length; ++k) {
      const T* values =
          reader_.read(along(Rule::kOutputs, in.address(), k), in.stride(), width, buffer);
      for (std::int64_t j = 0; j < width; ++j) {
        Rule::step(states[j], values[j], k);
        results[j] = Rule::result(states[j]);
        if constexpr (Rule::kOutputs == 2) indices[j] = states[j].index;
      }
      store_(results, along(0, out.address(), k), out.stride(), width);
      if constexpr (Rule::kOutputs == 2) {
        const Cursor place = head(1, first);
        store_index_(indices, along(1, place.address(), k), place.stride(), width);
      }
    }
  }

  const ScanPlan& plan_;
  ValueReader<T> reader_;
  Storer store_;
  Storer store_index_;
};

using ScanFunction = void (*)(const ScanPlan& plan);

template <template <class> class Op, class T>
void run_scan(const ScanPlan& plan) {
  Scan<Op, T>(plan).run();
}

template <template <class> class Op, class Set, class T>
constexpr ScanFunction scan_function() {
  if constexpr (Set::template kHas<T>) {
    return &run_scan<Op, T>;
  } else {
    return nullptr;
  }
}

template <template <class> class Op, class Set>
void scan(const KernelCall& call, const char* kernel, int outputs) {
  static constexpr std::array<ScanFunction, kCarrierCount> kFunctions = {
#define NBX_FUNCTION(name, type, dtype) scan_function<Op, Set, type>(),
      NBX_CARRIERS(NBX_FUNCTION)
#undef NBX_FUNCTION
  };
  const DType op_dtype = op_dtype_of(call, kernel);
  const ScanFunction function = kFunctions[static_cast<std::size_t>(carrier_of(op_dtype, kernel))];
  if (function == nullptr) {
    throw Error(ErrorKind::kType, std::string(kernel) + ": does not compute in " +
                                      facts_of(op_dtype).name + "; convert the input first");
  }
  ScanPlan plan;
  plan_scan(call, kernel, outputs, plan);
  if (plan.outer.count > 0 && plan.length > 0) function(plan);
}

void cumsum(const KernelCall& call) { scan<CumulativeSum, NumberTypes>(call, "scan:cumsum", 1); }
void cumprod(const KernelCall& call) {
  scan<CumulativeProduct, NumberTypes>(call, "scan:cumprod", 1);
}
void cummax(const KernelCall& call) {
  scan<CumulativeMaximum, RealAndBoolTypes>(call, "scan:cummax", 2);
}
void cummin(const KernelCall& call) {
  scan<CumulativeMinimum, RealAndBoolTypes>(call, "scan:cummin", 2);
}

const HostKernelRegistration register_cumsum{"scan:cumsum", &cumsum};
const HostKernelRegistration register_cumprod{"scan:cumprod", &cumprod};
const HostKernelRegistration register_cummax{"scan:cummax", &cummax};
const HostKernelRegistration register_cummin{"scan:cummin", &cummin};

}  // namespace
}  // namespace nbx::cpu
