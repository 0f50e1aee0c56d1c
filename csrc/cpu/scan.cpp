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
  // Sums of floats in double meet no overflow on the way, so that they may start anywhere.
  static constexpr bool kSegments = std::is_same_v<T, float>;
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
  static constexpr bool kSegments = false;
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
  static constexpr bool kSegments = false;
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

/// Running sums of a whole block: its segments side by side, which a single chain of additions
/// would have wait for each other, then the sum before each. Returns the sum after the block.
NBX_TARGET_CLONES double sum_segments(double before, const float* values, double* sums) {
  constexpr int kSegments = 8;
  constexpr std::int64_t kLength = kBlock / kSegments;
  double running[kSegments] = {};
  for (std::int64_t i = 0; i < kLength; ++i) {
    for (int s = 0; s < kSegments; ++s) {
      running[s] += static_cast<double>(values[s * kLength + i]);
      sums[s * kLength + i] = running[s];
    }
  }
  for (int s = 0; s < kSegments; ++s) {
    double* segment = sums + s * kLength;
    for (std::int64_t i = 0; i < kLength; ++i) segment[i] += before;
    before += running[s];
  }
  return before;
}

struct ScanPlan {
  const TensorView* tensors;  // outputs, then the input
  int outputs;
  Loop outer;  // over all axes but the last
  std::int64_t length;
  std::int64_t strides[3];  // along the last axis
  bool by_columns;
  bool streams;  // results are written past the caches
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
  plan.streams = !plan.by_columns && outgrows_cache(call.tensors[0]);
  for (int i = 0; i < outputs; ++i) {
    const bool dense = plan.strides[i] == 1 && call.tensors[i].data != in.data;
    plan.streams = plan.streams && dense;
  }
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
      if (plan_.streams) stream_fence();
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
      if (Rule::kSegments && count == kBlock) {
        if constexpr (Rule::kSegments) state = sum_segments(state, values, results);
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          Rule::step(state, values[i], k + i);
          results[i] = Rule::result(state);
          if constexpr (Rule::kOutputs == 2) indices[i] = state.index;
        }
      }
      save(0, store_, results, along(0, out, k), count);
      if constexpr (Rule::kOutputs == 2) {
        save(1, store_index_, indices, along(1, head(1, row).address(), k), count);
      }
    }
  }

  /// A block of results along a row.
  void save(int operand, Storer store, const void* block, std::byte* target,
            std::int64_t count) const {
    if (!plan_.streams) return store(block, target, plan_.strides[operand], count);
    alignas(64) std::byte converted[kBlock * sizeof(Complex128)];
    store(block, converted, 1, count);
    stream_bytes(target, converted,
                 static_cast<std::size_t>(count * itemsize_of(plan_.tensors[operand].dtype)));
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
