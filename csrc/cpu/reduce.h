// The frame of reductions: which elements belong to one output, in which pieces they are added up,
// and in which order the pieces meet. Pieces depend on the layout alone, so results do not depend
// on the number of threads.
//
// Kernels take (out of rank r, in of rank r + m), scalars [op_dtype, m, extras...]; the trailing m
// axes are reduced. Floats are added up in double, integers in 64 bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "cpu/cast.h"
#include "cpu/elementwise.h"
#include "cpu/elementwise_walk.h"
#include "cpu/pool.h"
#include "cpu/target.h"
#include "launch/kernel.h"

namespace nbx::cpu {

/// The type in which values of T are added up.
template <class T>
using Accumulator = std::conditional_t<
    std::is_floating_point_v<T>, double,
    std::conditional_t<kIsField<T>, Complex128,
                       std::conditional_t<std::is_same_v<T, std::int64_t>, std::uint64_t, T>>>;

/// Outputs of one unit of work when they are reduced side by side.
inline constexpr std::int64_t kColumns = 256;
/// Elements of one piece of one output, and rows of one piece of a unit of columns.
inline constexpr std::int64_t kPiece = 64 * kBlock;
inline constexpr std::int64_t kPieceRows = 1024;

/// How a reduction walks its operands.
struct ReducePlan {
  TensorView out;
  TensorView heads;     // the kept axes of the input
  TensorView tails;     // its reduced axes
  Loop outer;           // operands: out, heads
  Loop inner;           // operand: tails
  std::int64_t length;  // elements of one output; 0 if the reduced axes are empty
  bool by_columns;      // neighbouring outputs are reduced side by side
  std::int64_t piece;   // elements of one piece
  std::int64_t pieces;  // of one output, at least 1
  std::int64_t units;   // of outputs
  std::int64_t units_per_row;
};

/// Checks the operands and lays out the work. Throws Error(kValue).
void plan_reduction(const KernelCall& call, const char* kernel, std::size_t extras,
                    AxisOrder inner_order, ReducePlan& plan);

/// Where a unit of outputs begins, and how many they are.
struct UnitSpan {
  std::int64_t first;
  std::int64_t width;
};
[[nodiscard]] UnitSpan unit_span(const ReducePlan& plan, std::int64_t unit) noexcept;
/// Units worth another thread.
[[nodiscard]] std::int64_t unit_grain(const ReducePlan& plan) noexcept;

// A reduction of values T is a struct with
//   State, identity(), step(state, value, shift), merge(state, later), finish(state, ending)
// and, where the values are first shifted by another reduction's result, `First` and
// `shift_from(that result)`; elsewhere the shift is the kernel's extra number. An indexed one
// has step(state, value, index) and block(state, values, count, first index) instead.

/// What is known when an output is finished.
struct Ending {
  std::int64_t length;  // elements of the output
  double shift;
  double extra;
};

template <class Op>
concept Indexed = Op::kIndexed;
template <class Op>
concept TwoPass = requires { typename Op::First; };

/// States side by side. A choice between two values is made one lane at a time where the compiler
/// unrolls the lanes entirely, so extrema ask for more of them.
template <class Op>
constexpr int lanes_of() {
  if constexpr (requires { Op::kLanes; }) return Op::kLanes;
  return 16;
}

/// Enough that additions need not wait for each other.
template <class T>
inline constexpr int kSumLanes = kIsField<T> ? 16 : 32;

template <class Op, class T>
NBX_INLINE void reduce_lanes(typename Op::State& state, const T* values, std::int64_t count,
                             double shift) {
  constexpr int kLanes = lanes_of<Op>();
  std::int64_t i = 0;
  if (count >= kLanes) {
    typename Op::State lanes[kLanes];
    for (auto& lane : lanes) lane = Op::identity();
    for (; i + kLanes <= count; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) Op::step(lanes[k], values[i + k], shift);
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) Op::merge(lanes[k], lanes[k + half]);
    }
    Op::merge(state, lanes[0]);
  }
  for (; i < count; ++i) Op::step(state, values[i], shift);
}
template <class Op, class T>
NBX_TARGET_CLONES void reduce_lanes_cloned(typename Op::State& state, const T* values,
                                           std::int64_t count, double shift) {
  reduce_lanes<Op, T>(state, values, count, shift);
}
/// Values side by side go to several states in turn, which meet in pairs.
template <class Op, class T>
void reduce_block(typename Op::State& state, const T* values, std::int64_t count, double shift) {
  if constexpr (kIsField<T>) {
    reduce_lanes<Op, T>(state, values, count, shift);
  } else {
    reduce_lanes_cloned<Op, T>(state, values, count, shift);
  }
}

template <class Op, class T>
NBX_INLINE void reduce_each(typename Op::State* states, const T* values, std::int64_t count,
                            const double* shifts) {
  NBX_INDEPENDENT_LOOP
  for (std::int64_t j = 0; j < count; ++j) Op::step(states[j], values[j], shifts[j]);
}
template <class Op, class T>
NBX_TARGET_CLONES void reduce_each_cloned(typename Op::State* states, const T* values,
                                          std::int64_t count, const double* shifts) {
  reduce_each<Op, T>(states, values, count, shifts);
}
/// Every value goes to a state of its own.
template <class Op, class T>
void reduce_row(typename Op::State* states, const T* values, std::int64_t count,
                const double* shifts) {
  if constexpr (kIsField<T>) {
    reduce_each<Op, T>(states, values, count, shifts);
  } else {
    reduce_each_cloned<Op, T>(states, values, count, shifts);
  }
}

/// `count` values that lie `stride` apart: in place where they form a block, else in `buffer`.
template <class T>
class ValueReader {
 public:
  explicit ValueReader(DType dtype)
      : load_(loader_for(dtype, kCarrierOf<T>)),
        is_direct_(storage_of(kCarrierOf<T>) == dtype && dtype != DType::bool_) {}
  const T* read(const std::byte* address, std::int64_t stride, std::int64_t count,
                T* buffer) const {
    if (is_direct_ && (stride == 1 || count == 1)) return reinterpret_cast<const T*>(address);
    load_(address, stride, count, buffer);
    return buffer;
  }
  /// The next `count` values of a cursor.
  const T* read(Cursor& cursor, std::int64_t count, T* buffer) const {
    if (cursor.run() >= count) {
      const T* values = read(cursor.address(), cursor.stride(), count, buffer);
      cursor.advance(count);
      return values;
    }
    cursor.for_runs(count, [&](std::byte* address, std::int64_t stride, std::int64_t run,
                               std::int64_t done) { load_(address, stride, run, buffer + done); });
    return buffer;
  }

 private:
  Loader load_;
  bool is_direct_;
};

template <class Op, class T>
class Reduction {
 public:
  using State = typename Op::State;
  using Result = decltype(Op::finish(State{}, Ending{}));

  Reduction(const ReducePlan& plan, DType in, double extra)
      : plan_(plan),
        reader_(in),
        store_(storer_for(kCarrierOf<Result>, plan.out.dtype)),
        extra_(extra) {}

  void run() const {
    if (plan_.pieces == 1) {
      parallel_for(plan_.units, unit_grain(plan_), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t unit = begin; unit < end; ++unit) run_unit(unit);
      });
      return;
    }
    std::vector<double> shifts(static_cast<std::size_t>(plan_.outer.count), extra_);
    if constexpr (TwoPass<Op>) {
      using First = typename Op::First;
      std::vector<typename First::State> states = run_pieces<First>(shifts);
      for (std::size_t i = 0; i < shifts.size(); ++i) {
        shifts[i] = Op::shift_from(First::finish(states[i], {plan_.length, 0.0, extra_}));
      }
    }
    const std::vector<State> states = run_pieces<Op>(shifts);
    emit(0, plan_.outer.count, states.data(), shifts.data());
  }

 private:
  /// One unit of outputs from start to end.
  void run_unit(std::int64_t unit) const {
    const UnitSpan span = unit_span(plan_, unit);
    double shifts[kColumns];
    State states[kColumns];
    shifts[0] = extra_;
    std::fill_n(shifts, span.width, extra_);
    if constexpr (TwoPass<Op>) {
      using First = typename Op::First;
      typename First::State first[kColumns];
      accumulate<First>(span, 0, plan_.length, shifts, first);
      for (std::int64_t j = 0; j < span.width; ++j) {
        shifts[j] = Op::shift_from(First::finish(first[j], {plan_.length, 0.0, extra_}));
      }
    }
    accumulate<Op>(span, 0, plan_.length, shifts, states);
    emit(span.first, span.width, states, shifts);
  }

  /// Every output from its pieces, which meet in their order.
  template <class Pass>
  std::vector<typename Pass::State> run_pieces(const std::vector<double>& shifts) const {
    const auto outputs = static_cast<std::size_t>(plan_.outer.count);
    std::vector<typename Pass::State> partial(outputs * static_cast<std::size_t>(plan_.pieces));
    parallel_for(plan_.units * plan_.pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const UnitSpan span = unit_span(plan_, i / plan_.pieces);
        const std::int64_t piece = i % plan_.pieces;
        const std::int64_t first = piece * plan_.piece;
        typename Pass::State* states = partial.data() + piece * plan_.outer.count + span.first;
        accumulate<Pass>(span, first, std::min(plan_.length, first + plan_.piece),
                         shifts.data() + span.first, states);
      }
    });
    for (std::size_t piece = 1; piece < static_cast<std::size_t>(plan_.pieces); ++piece) {
      for (std::size_t j = 0; j < outputs; ++j) {
        Pass::merge(partial[j], partial[piece * outputs + j]);
      }
    }
    partial.resize(outputs);
    return partial;
  }

  /// Elements [begin, end) of each output of a unit.
  template <class Pass>
  void accumulate(const UnitSpan& span, std::int64_t begin, std::int64_t end, const double* shifts,
                  typename Pass::State* states) const {
    std::fill_n(states, span.width, Pass::identity());
    if (begin >= end) return;
    const Cursor head(plan_.outer, 1, plan_.heads, span.first);
    TensorView tails = plan_.tails;
    tails.data = head.address();
    Cursor cursor(plan_.inner, 0, tails, begin);
    if (plan_.by_columns) {
      T buffer[kColumns];
      for (std::int64_t k = begin; k < end; ++k) {
        const T* values = reader_.read(cursor.address(), head.stride(), span.width, buffer);
        if constexpr (Indexed<Pass>) {
          for (std::int64_t j = 0; j < span.width; ++j) Pass::step(states[j], values[j], k);
        } else {
          reduce_row<Pass, T>(states, values, span.width, shifts);
        }
        cursor.advance(1);
      }
      return;
    }
    T buffer[kBlock];
    for (std::int64_t k = begin; k < end;) {
      const std::int64_t count = block_length(plan_.inner, cursor, end - k);
      const T* values = reader_.read(cursor, count, buffer);
      if constexpr (Indexed<Pass>) {
        Pass::block(states[0], values, count, k);
      } else {
        reduce_block<Pass, T>(states[0], values, count, shifts[0]);
      }
      k += count;
    }
  }

  void emit(std::int64_t first, std::int64_t count, const State* states,
            const double* shifts) const {
    Cursor out(plan_.outer, 0, plan_.out, first);
    for (std::int64_t j = 0; j < count; ++j) {
      const Result result = Op::finish(states[j], {plan_.length, shifts[j], extra_});
      store_(&result, out.address(), 1, 1);
      out.advance(1);
    }
  }

  const ReducePlan& plan_;
  ValueReader<T> reader_;
  Storer store_;
  double extra_;
};

using ReduceFunction = void (*)(const ReducePlan& plan, DType in, double extra);

template <class Op, class T>
void run_reduction(const ReducePlan& plan, DType in, double extra) {
  Reduction<Op, T>(plan, in, extra).run();
}

template <template <class> class Op, class Set, class T>
constexpr ReduceFunction reduce_function() {
  if constexpr (Set::template kHas<T>) {
    return &run_reduction<Op<T>, T>;
  } else {
    return nullptr;
  }
}

using ReduceFunctions = std::array<ReduceFunction, kCarrierCount>;

template <template <class> class Op, class Set>
constexpr ReduceFunctions reduce_functions() {
  return {
#define NBX_FUNCTION(name, type, dtype) reduce_function<Op, Set, type>(),
      NBX_CARRIERS(NBX_FUNCTION)
#undef NBX_FUNCTION
  };
}

/// Runs the function for op_dtype. Throws Error(kType) if there is none.
void run_reduce(const KernelCall& call, const char* kernel, std::size_t extras,
                AxisOrder inner_order, const ReduceFunctions& functions);

/// Number i after [op_dtype, m].
[[nodiscard]] inline double reduce_extra(const KernelCall& call, std::size_t i) noexcept {
  return call.scalar_count > 2 + i ? call.scalars[2 + i].real : 0.0;
}

/// NaN wins; the first of equals stays.
template <class T>
struct Greatest {
  using State = T;
  static constexpr int kLanes = 64;
  static constexpr State identity() {
    if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::min();
  }
  static NBX_INLINE bool beats(T value, T best) {
    return value > best || (value != value && best == best);
  }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) {
    const bool takes = static_cast<bool>((value > state) | (value != value));
    state = takes ? value : state;
  }
  static NBX_INLINE void merge(State& state, State later) { step(state, later, 0.0); }
  static T finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct Least {
  using State = T;
  static constexpr int kLanes = 64;
  static constexpr State identity() {
    if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::max();
  }
  static NBX_INLINE bool beats(T value, T best) {
    return value < best || (value != value && best == best);
  }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) {
    const bool takes = static_cast<bool>((value < state) | (value != value));
    state = takes ? value : state;
  }
  static NBX_INLINE void merge(State& state, State later) { step(state, later, 0.0); }
  static T finish(State state, const Ending& /*ending*/) { return state; }
};

template <class T>
struct Mean {
  using State = Accumulator<T>;
  static constexpr int kLanes = kSumLanes<T>;
  static constexpr State identity() { return State{}; }
  static NBX_INLINE void step(State& state, T value, double /*shift*/) {
    state += static_cast<State>(value);
  }
  static NBX_INLINE void merge(State& state, State later) { state += later; }
  static State finish(State state, const Ending& ending) {
    return state / static_cast<double>(ending.length);
  }
};

}  // namespace nbx::cpu
