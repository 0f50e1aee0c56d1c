#include "cpu/reduce.h"

#include <cstdlib>

namespace nbx::cpu {

namespace {

void check(const KernelCall& call, const char* kernel, std::size_t extras) {
  require_operands(call, kernel, 2, 2 + extras);
  const TensorView& out = call.tensors[0];
  const TensorView& in = call.tensors[1];
  const std::int64_t axes = call.scalars[1].integer;
  if (axes < 0 || out.rank + axes != in.rank ||
      !std::equal(out.shape, out.shape + out.rank, in.shape)) {
    throw Error(ErrorKind::kValue,
                std::string(kernel) + ": an input of rank " + std::to_string(in.rank) + " over " +
                    std::to_string(axes) + " trailing axes does not give an output of rank " +
                    std::to_string(out.rank) + "; expected the kept axes to agree");
  }
  for (const TensorView* view : {&out, &in}) {
    if (bits_of(view->dtype) >= 8) continue;
    throw Error(ErrorKind::kType, std::string(kernel) + ": " + facts_of(view->dtype).name +
                                      " is packed; expected a type of whole bytes, convert first");
  }
}

/// Side by side where that follows memory, and where one output is too short to fill a block.
bool prefers_columns(const ReducePlan& plan) {
  const std::int64_t across = std::abs(plan.outer.inner_stride(1));
  const std::int64_t along = std::abs(plan.inner.inner_stride(0));
  return plan.outer.inner() >= 8 && (across < along || plan.length <= 32);
}

}  // namespace

void plan_reduction(const KernelCall& call, const char* kernel, std::size_t extras,
                    AxisOrder inner_order, ReducePlan& plan) {
  check(call, kernel, extras);
  const TensorView& in = call.tensors[1];
  plan.out = call.tensors[0];
  const std::int32_t kept = plan.out.rank;
  plan.heads = {in.data, in.shape, in.strides, kept, in.dtype};
  plan.tails = {in.data, in.shape + kept, in.strides + kept, in.rank - kept, in.dtype};
  plan.length = plan.tails.element_count();
  const TensorView operands[] = {plan.out, plan.heads};
  plan_loop(operands, 2, AxisOrder::kMemory, plan.outer);
  plan.units = 0;
  plan.pieces = 1;
  if (plan.outer.count == 0) return;
  if (plan.length > 0) {
    plan_loop(&plan.tails, 1, inner_order, plan.inner);
    plan.by_columns = prefers_columns(plan);
  } else {
    plan.by_columns = false;
  }
  plan.piece = plan.by_columns ? kPieceRows : kPiece;
  plan.pieces = plan.length <= plan.piece ? 1 : (plan.length + plan.piece - 1) / plan.piece;
  const std::int64_t width = plan.outer.inner();
  plan.units_per_row = plan.by_columns ? (width + kColumns - 1) / kColumns : width;
  plan.units = plan.outer.count / width * plan.units_per_row;
}

UnitSpan unit_span(const ReducePlan& plan, std::int64_t unit) noexcept {
  if (!plan.by_columns) return {unit, 1};
  const std::int64_t width = plan.outer.inner();
  const std::int64_t column = unit % plan.units_per_row * kColumns;
  return {unit / plan.units_per_row * width + column, std::min(kColumns, width - column)};
}

std::int64_t unit_grain(const ReducePlan& plan) noexcept {
  constexpr std::int64_t kGrain = 1 << 15;
  const std::int64_t elements = (plan.by_columns ? kColumns : 1) * (plan.length + 1);
  return std::max<std::int64_t>(1, kGrain / elements);
}

void run_reduce(const KernelCall& call, const char* kernel, std::size_t extras,
                AxisOrder inner_order, const ReduceFunctions& functions) {
  const DType op_dtype = op_dtype_of(call, kernel);
  const ReduceFunction function = functions[static_cast<std::size_t>(carrier_of(op_dtype, kernel))];
  if (function == nullptr) {
    throw Error(ErrorKind::kType, std::string(kernel) + ": does not compute in " +
                                      facts_of(op_dtype).name + "; convert the input first");
  }
  ReducePlan plan;
  plan_reduction(call, kernel, extras, inner_order, plan);
  if (plan.units > 0) function(plan, call.tensors[1].dtype, reduce_extra(call, 0));
}

}  // namespace nbx::cpu
