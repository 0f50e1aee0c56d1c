#include "cpu/elementwise.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cpu/stream.h"

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
  BlockFunction function;
  const TensorView* operands;
  Extras extras;
  Input inputs[kMaximumInputs];
  Loop loop;
  Storer store;
  bool stores_in_place;
  bool streams;        // the result is written past the caches
  int out_bytes;       // of one carrier element
  std::int64_t block;  // elements
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
  prepared.streams = outgrows_cache(out);
  for (int k = 0; k < kernel.inputs; ++k) {
    // Written in place, the lines have just been read.
    if (call.tensors[k + 1].data == out.data) prepared.streams = false;
  }
  plan_loop(call.tensors, kernel.inputs + 1, AxisOrder::kMemory, prepared.loop);
}

// ---- narrow integers ---------------------------------------------------------------------------

template <int kBytes>
struct Unit {
  std::byte bytes[kBytes];
};
template <class U>
void gather(const std::byte* source, std::int64_t stride, std::int64_t count, void* block) {
  const auto* from = reinterpret_cast<const U*>(source);
  auto* to = static_cast<U*>(block);
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}
template <class U>
void scatter(const void* block, std::byte* target, std::int64_t stride, std::int64_t count) {
  const auto* from = static_cast<const U*>(block);
  auto* to = reinterpret_cast<U*>(target);
  for (std::int64_t i = 0; i < count; ++i) to[i * stride] = from[i];
}

/// Whether an integer of this type holds the number.
bool holds(DType dtype, const Scalar& number) {
  if (number.kind != ScalarKind::kBoolean && number.kind != ScalarKind::kInteger) return false;
  alignas(8) std::byte narrow[8];
  std::int64_t back = 0;
  storer_for(Carrier::kInt64, dtype)(&number.integer, narrow, 1, 1);
  loader_for(dtype, Carrier::kInt64)(narrow, 1, 1, &back);
  return back == number.integer && !(number.is_unsigned && number.integer < 0);
}

/// The function for the one narrow type of all operands; null if they differ.
BlockFunction narrow_function(const ElementwiseKernel& kernel, const BlockOp& op,
                              const KernelCall& call) {
  constexpr DType kTypes[] = {
#define NBX_DTYPE(name, type) DType::name,
      NBX_NARROW_TYPES(NBX_DTYPE)
#undef NBX_DTYPE
  };
  if (kernel.narrow[0] == nullptr || op.inputs[0] != Carrier::kInt64) return nullptr;
  const TensorView* given = nullptr;
  std::size_t next = 1 + static_cast<std::size_t>(kernel.extras);
  for (int k = 1; k <= kernel.inputs; ++k) {
    const TensorView& view = call.tensors[k];
    if (view.data != nullptr && given != nullptr && view.dtype != given->dtype) return nullptr;
    if (view.data != nullptr) given = &view;
  }
  const DType result = call.tensors[0].dtype;
  if (given == nullptr || result != (op.out == Carrier::kBool ? DType::bool_ : given->dtype)) {
    return nullptr;
  }
  for (int k = 1; k <= kernel.inputs; ++k) {
    if (call.tensors[k].data != nullptr) continue;
    if (next >= call.scalar_count || !holds(given->dtype, call.scalars[next++])) return nullptr;
  }
  const DType* found = std::find(std::begin(kTypes), std::end(kTypes), given->dtype);
  return found == std::end(kTypes) ? nullptr
                                   : kernel.narrow[static_cast<std::size_t>(found - kTypes)];
}

/// Lets the operands reach the narrow function as they lie in memory.
void narrow_operands(const KernelCall& call, Call& prepared) {
  DType dtype = call.tensors[0].dtype;
  for (int k = 0; k < prepared.kernel->inputs; ++k) {
    if (call.tensors[k + 1].data != nullptr) dtype = call.tensors[k + 1].dtype;
  }
  const int bytes = itemsize_of(dtype);
  const Loader load = bytes == 1   ? &gather<Unit<1>>
                      : bytes == 2 ? &gather<Unit<2>>
                                   : &gather<Unit<4>>;
  for (int k = 0; k < prepared.kernel->inputs; ++k) {
    Input& input = prepared.inputs[k];
    input.bytes = bytes;
    input.load = load;
    input.is_direct = true;
    std::int64_t number = 0;
    std::memcpy(&number, input.number, sizeof(number));
    storer_for(Carrier::kInt64, dtype)(&number, input.number, 1, 1);
  }
  if (call.tensors[0].dtype != dtype) return;
  prepared.store = bytes == 1   ? &scatter<Unit<1>>
                   : bytes == 2 ? &scatter<Unit<2>>
                                : &scatter<Unit<4>>;
  prepared.stores_in_place = true;
  prepared.out_bytes = bytes;
}

/// Small elements come in larger blocks, as a block's cost beside its elements is the same.
std::int64_t block_of(const Call& prepared) {
  constexpr std::int64_t kBlockBytes = 8192;
  std::int64_t widest = std::max(prepared.out_bytes, itemsize_of(prepared.operands[0].dtype));
  for (int k = 0; k < prepared.kernel->inputs; ++k) {
    widest = std::max<std::int64_t>(widest, prepared.inputs[k].bytes);
  }
  return std::max(kBlock, kBlockBytes / widest);
}

// ---- the walk ----------------------------------------------------------------------------------

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

/// Writes a block of results past the caches.
void stream_block(const Call& call, Cursor& out, std::int64_t length, const std::byte* block) {
  alignas(64) std::byte narrow[kBufferBytes];
  const DType dtype = call.operands[0].dtype;
  const auto bytes = static_cast<std::size_t>(length * itemsize_of(dtype));
  if (!call.stores_in_place) {
    call.store(block, narrow, 1, length);
    block = narrow;
  }
  stream_bytes(out.address(), block, bytes);
  out.advance(length);
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
      splat(input, std::min(call.block, end - begin), buffers[k]);
      arguments.inputs[k] = buffers[k];
    } else if (!input.is_missing) {
      cursors[k] = Cursor(call.loop, k + 1, call.operands[k + 1], begin);
    }
  }
  for (std::int64_t left = end - begin; left > 0; left -= arguments.count) {
    const std::int64_t length = block_length(call.loop, out, left, call.block);
    arguments.count = length;
    for (int k = 0; k < count; ++k) {
      const Input& input = call.inputs[k];
      if (input.is_number || input.is_missing) continue;
      arguments.inputs[k] = fetch(input, cursors[k], length, buffers[k]);
    }
    const bool dense = out.stride() == 1 && out.run() >= length;
    const bool in_place = call.stores_in_place && dense && !call.streams;
    std::byte* buffer = buffers[kMaximumInputs];
    arguments.out = in_place ? out.address() : buffer;
    call.function(arguments);
    if (in_place) {
      out.advance(length);
    } else if (dense && call.streams) {
      stream_block(call, out, length, buffer);
    } else {
      out.for_runs(length, [&](std::byte* address, std::int64_t stride, std::int64_t run,
                               std::int64_t done) {
        call.store(buffer + done * call.out_bytes, address, stride, run);
      });
    }
  }
  if (call.streams) stream_fence();
}

}  // namespace

void run_blocks(const ElementwiseKernel& kernel, const BlockOp& op, const KernelCall& call,
                BlockFunction narrow) {
  Call prepared;
  prepared.kernel = &kernel;
  prepared.op = &op;
  prepared.operands = call.tensors;
  prepared.function = narrow == nullptr ? op.function : narrow;
  prepare(call, prepared);
  if (narrow != nullptr) narrow_operands(call, prepared);
  prepared.block = block_of(prepared);
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
  run_blocks(kernel, op, call, narrow_function(kernel, op, call));
}

}  // namespace nbx::cpu
