// A plan: what one call of an op does, decided once for a key of layouts and dtypes.
//
// A hit fills addresses into prepared operands, allocates outputs and temporaries, and runs the
// steps in order on the current stream. Nothing is checked again and no Python runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "launch/device_kernel.h"
#include "launch/kernel.h"
#include "storage/tensor.h"

namespace nbx {

enum class OperandSource : std::uint8_t {
  kArgument,   // tensor number `index` among the call's tensors, lists flattened
  kOutput,     // new tensor number `index`, returned
  kTemporary,  // new tensor number `index`, dropped after the last step
  kAbsent,     // an optional operand that was not given: a view with null data and rank 0
};

/// One operand of a step: where its storage comes from and which window of it the kernel sees.
struct Operand {
  OperandSource source;
  std::uint16_t index;
  DType dtype;
  std::int64_t byte_offset;  // added to the source's address of element 0
  Layout layout;             // what the kernel sees: broadcast, permuted, reshaped
};

/// One scalar of a step: a constant of the plan, or runtime scalar `index` of the call.
struct ScalarSource {
  bool from_call;
  std::uint16_t index;
  Scalar constant;
};

/// One parameter of a device kernel: what fills its word when the step runs.
struct ArgumentSource {
  enum class Kind : std::uint8_t { kAddress, kWord, kScalar };
  Kind kind;
  Slot slot;            // of the parameter
  std::uint16_t index;  // of the operand whose address it is, or of the call's runtime scalar
  std::uint64_t word;   // a constant, as the slot passes it
};

/// Runs a host kernel, or a kernel of the plan's device if `device_kernel` is set.
struct Step {
  HostKernel kernel = nullptr;
  std::shared_ptr<const DeviceKernel> device_kernel;
  Grid grid;
  std::vector<ArgumentSource> arguments;  // of a device kernel, one for each word
  /// Of a step that calls back into the language above; kept alive until the step has run.
  std::shared_ptr<void> context;
  std::vector<Operand> operands;
  std::vector<ScalarSource> scalars;
  std::uint16_t written = 1;  // the first `written` operands are outputs of the step
};

struct TensorSpecification {
  DType dtype;
  Layout layout;  // contiguous
  std::uint64_t bytes;
};

/// What the call returns, in order: a new output or one of its arguments (in-place ops).
struct ResultReference {
  OperandSource source;  // kOutput or kArgument
  std::uint16_t index;
};

struct Plan {
  std::string name;  // of the op, for the errors of its kernels
  std::vector<TensorSpecification> outputs;
  std::vector<TensorSpecification> temporaries;
  std::vector<Step> steps;
  std::vector<ResultReference> results;
};

/// Throws Error(kUnsupported) under the op's name if a step cannot run on the device: a host kernel
/// where the host cannot read the memory, or a kernel of another device.
void require_runnable(const Plan& plan, const Device& device);

/// Runs a plan. `arguments` are the call's tensors in order, `scalars` its runtime scalars;
/// `outputs` receives one new tensor per specification. On the cpu the steps run here; on other
/// devices that take host kernels (sim) they are submitted in stream order, as kernels of the
/// device are. All storages are touched. Throws what allocation and kernels throw; nothing is
/// leaked then.
/// `alone`: nobody gives the arguments other memory meanwhile, so that nothing needs to be held.
void run_plan(const Plan& plan, DeviceMemory& memory, Stream& stream, TensorMeta* const* arguments,
              std::size_t argument_count, const Scalar* scalars, std::size_t scalar_count,
              TensorMeta* outputs, bool alone = false);
/// True if running the plan is to submit kernels and nothing else: nothing is allocated.
[[nodiscard]] bool only_launches(const Plan& plan) noexcept;

/// One kernel outside a plan, the same way: the first `written` tensors are outputs, null ones are
/// absent operands, and the caller keeps `context` alive until the work has run. Used by the
/// tensor floor's copies, fills and index assignments.
void run_kernel(HostKernel kernel, void* context, Stream& stream, TensorMeta* const* tensors,
                std::size_t tensor_count, std::size_t written, const Scalar* scalars,
                std::size_t scalar_count);

}  // namespace nbx
