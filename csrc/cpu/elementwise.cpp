#include "cpu/elementwise.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"

namespace nbx::cpu {
namespace {

constexpr int kMaximumInputs = kMaximumOperands - 1;
constexpr std::size_t kBufferBytes = static_cast<std::size_t>(kBlock) * 16;

/// How one input reaches the op.
struct Input {
  Loader load;
  int bytes;        // of one carrier element
  bool is_direct;   // memory is a block already
  bool is_number;   // an absent operand with a number
  bool is_missing;  // an absent operand without one
  alignas(16) std::byte number[16];
};

struct Call {
  const ElementwiseKernel* kernel;
  const BlockOp* op;
  const TensorView* operands;
  Extras extras;
  Input inputs[kMaximumInputs];
  Loop loop;
  Storer store;
  bool stores_in_place;
  int out_bytes;
};

[[noreturn]] void refuse(const ElementwiseKernel& kernel, const std::string& what) {
  throw Error(ErrorKind::kValue, std::string(kernel.name) + ": " + what);
}

void check_operand(const ElementwiseKernel& kernel, const TensorView& out, const TensorView& view) {
  if (bits_of(view.dtype) < 8) {
    throw Error(ErrorKind::kType, std::string(kernel.name) + ": " + facts_of(view.dtype).name +
                                      " is packed; expected a type of whole bytes, convert first");
  }
  if (view.rank != out.rank || !std::equal(view.shape, view.shape + view.rank, out.shape)) {
    refuse(kernel, "an input's shape differs from the output's; expected broadcast operands");
  }
}

void prepare_inputs(const KernelCall& call, Call& prepared) {
  const ElementwiseKernel& kernel = *prepared.kernel;
  std::size_t next = 1 + static_cast<std::size_t>(kernel.extras);
  for (int k = 0; k < kernel.inputs; ++k) {
    const TensorView& view = call.tensors[k + 1];
    const Carrier carrier = prepared.op->inputs[k];
    Input& input = prepared.inputs[k];
    input.bytes = itemsize_of(storage_of(carrier));
    input.is_number = false;
    input.is_missing = false;
    if (view.data != nullptr) {
      check_operand(kernel, call.tensors[0], view);
      input.load = loader_for(view.dtype, carrier);
      // Bool bytes other than 0 and 1 have to be made so first.
      input.is_direct = storage_of(carrier) == view.dtype && view.dtype != DType::bool_;
      continue;
    }
    if (next >= call.scalar_count) {
      refuse(kernel, "input " + std::to_string(k) + " is absent and has no number; got " +
                         std::to_string(call.scalar_count) + " scalars");
    }
    const Scalar& number = call.scalars[next++];
    input.is_missing = number.none();
    input.is_number = !input.is_missing;
    if (input.is_missing && !kernel.optional_inputs) {
      refuse(kernel, "input " + std::to_string(k) + " is absent; expected a tensor or a number");
    }
    scalar_to(number, carrier, input.number);
  }
}

void prepare(const KernelCall& call, Call& prepared) {
  const ElementwiseKernel& kernel = *prepared.kernel;
  require_operands(call, kernel.name, static_cast<std::size_t>(kernel.inputs) + 1,
                   static_cast<std::size_t>(kernel.extras) + 1);
  const TensorView& out = call.tensors[0];
  check_operand(kernel, out, out);
  for (int i = 0; i < kernel.extras; ++i) {
    const Scalar& scalar = call.scalars[1 + i];
    prepared.extras.given[i] = !scalar.none();
    prepared.extras.value[i] = scalar.real;
  }
  prepare_inputs(call, prepared);
  prepared.store = storer_for(prepared.op->out, out.dtype);
  prepared.stores_in_place = storage_of(prepared.op->out) == out.dtype;
  prepared.out_bytes = itemsize_of(storage_of(prepared.op->out));
  plan_loop(call.tensors, kernel.inputs + 1, AxisOrder::kMemory, prepared.loop);
}

/// The next `length` elements of an input as a block: in place, or gathered into `buffer`.
const void* fetch(const Input& input, Cursor& cursor, std::int64_t length, std::byte* buffer) {
  if (input.is_direct && cursor.stride() == 1 && cursor.run() >= length) {
    const void* block = cursor.address();
    cursor.advance(length);
    return block;
  }
  cursor.for_runs(
      length, [&](std::byte* address, std::int64_t stride, std::int64_t count, std::int64_t done) {
        input.load(address, stride, count, buffer + done * input.bytes);
      });
  return buffer;
}

void splat(const Input& input, std::int64_t count, std::byte* buffer) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(buffer + i * input.bytes, input.number, static_cast<std::size_t>(input.bytes));
  }
}

/// Elements [begin, end) of the loop.
void run_range(const Call& call, std::int64_t begin, std::int64_t end) {
  alignas(64) std::byte buffers[kMaximumOperands][kBufferBytes];
  const int count = call.kernel->inputs;
  Cursor out(call.loop, 0, call.operands[0], begin);
  Cursor cursors[kMaximumInputs] = {out, out, out, out};
  BlockArguments arguments{};
  arguments.extras = &call.extras;
  arguments.out_dtype = call.operands[0].dtype;
  for (int k = 0; k < count; ++k) {
    const Input& input = call.inputs[k];
    if (input.is_number) {
      splat(input, std::min(kBlock, end - begin), buffers[k]);
      arguments.inputs[k] = buffers[k];
    } else if (!input.is_missing) {
      cursors[k] = Cursor(call.loop, k + 1, call.operands[k + 1], begin);
    }
  }
  for (std::int64_t left = end - begin; left > 0; left -= arguments.count) {
    const std::int64_t length = block_length(call.loop, out, left);
    arguments.count = length;
    for (int k = 0; k < count; ++k) {
      const Input& input = call.inputs[k];
      if (input.is_number || input.is_missing) continue;
      arguments.inputs[k] = fetch(input, cursors[k], length, buffers[k]);
    }
    const bool in_place = call.stores_in_place && out.stride() == 1 && out.run() >= length;
    std::byte* buffer = buffers[kMaximumInputs];
    arguments.out = in_place ? out.address() : buffer;
    call.op->function(arguments);
    if (in_place) {
      out.advance(length);
      continue;
    }
    out.for_runs(length,
                 [&](std::byte* address, std::int64_t stride, std::int64_t run, std::int64_t done) {
                   call.store(buffer + done * call.out_bytes, address, stride, run);
                 });
  }
}

}  // namespace

void run_blocks(const ElementwiseKernel& kernel, const BlockOp& op, const KernelCall& call) {
  Call prepared;
  prepared.kernel = &kernel;
  prepared.op = &op;
  prepared.operands = call.tensors;
  prepare(call, prepared);
  if (prepared.loop.count == 0) return;
  for_element_ranges(prepared.loop.count, kernel.grain, [&](std::int64_t begin, std::int64_t end) {
    run_range(prepared, begin, end);
  });
}

void run_elementwise(const ElementwiseKernel& kernel, const KernelCall& call) {
  const DType op_dtype = op_dtype_of(call, kernel.name);
  const BlockOp& op = kernel.ops[static_cast<std::size_t>(carrier_of(op_dtype, kernel.name))];
  if (op.function == nullptr) {
    std::string accepted;
    for (std::size_t i = 0; i < kernel.ops.size(); ++i) {
      if (kernel.ops[i].function == nullptr) continue;
      if (!accepted.empty()) accepted += ", ";
      accepted += facts_of(storage_of(static_cast<Carrier>(i))).name;
    }
    throw Error(ErrorKind::kType, std::string(kernel.name) + ": does not compute in " +
                                      facts_of(op_dtype).name + "; expected one of " + accepted);
  }
  run_blocks(kernel, op, call);
}

}  // namespace nbx::cpu
