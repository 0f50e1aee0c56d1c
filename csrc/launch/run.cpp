#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "device/sim/sim.h"
#include "launch/graph.h"
#include "launch/plan.h"
#include "storage/late.h"
#include "stream/callback.h"
#include "stream/fault.h"

namespace nbx {
namespace {

/// A kernel's error under the name of the op that ran it, which the caller knows.
Error named_error(const Error& error, const std::string& name) {
  std::string text = error.what();
  if (name.empty() || text.compare(0, name.size() + 2, name + ": ") == 0) return error;
  const std::size_t end = text.find(": ");
  const std::size_t colon = text.find(':');
  if (end != std::string::npos && colon < end && text.find(' ') > end) text.erase(0, end + 2);
  Error named(error.kind(), name + ": " + text);
  for (const auto& [figure, value] : error.figures()) named.with(figure, value);
  return named;
}

void run_queued(void* payload) {
  const CallbackScope scope;
  auto& call = *static_cast<HostCall*>(payload);
  try {
    call.kernel(KernelCall{call.views.data(), call.views.size(), call.scalars.data(),
                           call.scalars.size(), call.context.get()});
  } catch (const Error& error) {
    record_fault(*call.device, named_error(error, call.name));
  } catch (const std::exception& error) {
    record_fault(*call.device, Error(ErrorKind::kDevice, error.what()));
  }
}

void discard_queued(void* payload) {
  const CallbackScope scope;
  const std::unique_ptr<HostCall> owned(static_cast<HostCall*>(payload));
}

/// The caller's addresses end with the call, so shapes and strides move into the payload.
void copy_views(HostCall& queued, const TensorView* views, std::size_t count) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) total += 2 * static_cast<std::size_t>(views[i].rank);
  queued.extents.reserve(total);
  queued.views.assign(views, views + count);
  for (TensorView& view : queued.views) {
    const std::size_t start = queued.extents.size();
    queued.extents.insert(queued.extents.end(), view.shape, view.shape + view.rank);
    queued.extents.insert(queued.extents.end(), view.strides, view.strides + view.rank);
    view.shape = queued.extents.data() + start;
    view.strides = view.shape + view.rank;
  }
}

void submit(const KernelCall& call, std::shared_ptr<void> context, HostKernel kernel,
            Stream& stream, const std::string& name) {
  Device& device = stream.device();
  device.require(Primitive::k_launch_host);
  auto queued = std::make_unique<HostCall>();
  queued->kernel = kernel;
  queued->name = name;
  queued->context = std::move(context);
  queued->device = &device;
  copy_views(*queued, call.tensors, call.tensor_count);
  queued->scalars.assign(call.scalars, call.scalars + call.scalar_count);
  const HostWork work{&run_queued, &discard_queued, queued.get()};
  // From here on the device discards the payload, also when it refuses the work.
  HostCall* payload = queued.release();
  device.check(device.primitives().launch_host(device.ordinal(), &work, 0.0, stream.handle()),
               "launch_host");
  if (stream.is_captured()) [[unlikely]]
    note_captured_call(stream, *payload);
}

/// In check mode: whether the stream may have the operand, and once the work is submitted that it
/// has it. Windows with gaps are left out, as others may use what lies between.
void check_operand(const TensorMeta& tensor, const TensorView& view, Stream& stream, bool writes,
                   bool submitted) {
  if (tensor.storage->memory().checker == nullptr) [[likely]]
    return;
  if (!is_contiguous(view.shape, view.strides, view.rank)) return;
  std::int64_t elements = 1;
  for (std::int32_t axis = 0; axis < view.rank; ++axis) elements *= view.shape[axis];
  const auto address = reinterpret_cast<DeviceAddress>(view.data);
  const std::uint64_t bytes = bytes_of(view.dtype, elements);
  if (submitted) {
    tensor.storage->note_launch(address, bytes, stream, writes);
  } else {
    tensor.storage->check_launch(address, bytes, stream, writes);
  }
}

/// Views and scalars of the step at hand; on the stack for every op of ordinary size.
template <class T, std::size_t kInline>
class Buffer {
 public:
  explicit Buffer(std::size_t count) {
    if (count > kInline) overflow_.resize(count);
    data_ = count > kInline ? overflow_.data() : inline_.data();
  }
  [[nodiscard]] T* data() noexcept { return data_; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }

 private:
  std::array<T, kInline> inline_;
  std::vector<T> overflow_;
  T* data_;
};

/// Kernels know absent operands by null data, so that an operand without memory needs another
/// address, which nobody reads.
std::byte* present(DeviceAddress data) noexcept {
  constexpr DeviceAddress kNowhere = 64;
  return reinterpret_cast<std::byte*>(data == 0 ? kNowhere : data);
}

TensorView view_of(const TensorMeta& tensor) noexcept {
  TensorView view = tensor.view();
  view.data = present(tensor.data);
  return view;
}

/// Work of the host is complete when the call returns, unless a capture keeps it for later.
bool runs_here(const Stream& stream) noexcept {
  return stream.device().properties().integrated_work && !stream.is_captured();
}

TensorMeta allocate(const TensorSpecification& specification, DeviceMemory& memory) {
  TensorMeta meta;
  meta.storage = Storage::allocate(memory, specification.bytes);
  meta.data = meta.storage->address();
  meta.dtype = specification.dtype;
  meta.layout = specification.layout;
  return meta;
}

struct PlanRun {
  const Plan& plan;
  Stream& stream;
  TensorMeta* const* arguments;
  const Scalar* scalars;
  TensorMeta* outputs;
  TensorMeta* temporaries;
  bool alone;

  [[nodiscard]] TensorMeta* tensor_of(const Operand& operand) const noexcept {
    switch (operand.source) {
      case OperandSource::kArgument:
        return arguments[operand.index];
      case OperandSource::kOutput:
        return &outputs[operand.index];
      case OperandSource::kTemporary:
        return &temporaries[operand.index];
      case OperandSource::kAbsent:
        break;
    }
    return nullptr;
  }

  [[nodiscard]] std::byte* data_of(const Operand& operand) const noexcept {
    const TensorMeta* tensor = tensor_of(operand);
    return tensor == nullptr ? nullptr : present(tensor->data) + operand.byte_offset;
  }
  [[nodiscard]] DeviceAddress address_of(const Operand& operand) const noexcept {
    return reinterpret_cast<DeviceAddress>(data_of(operand));
  }
  [[nodiscard]] TensorView view_of(const Operand& operand) const noexcept {
    return TensorView{data_of(operand), operand.layout.shape(), operand.layout.strides(),
                      operand.layout.rank(), operand.dtype};
  }

  void view_operands(const Step& step, TensorView* views) const noexcept {
    for (std::size_t i = 0; i < step.operands.size(); ++i) views[i] = view_of(step.operands[i]);
  }

  void run(const Step& step) const {
    if (step.device_kernel != nullptr) {
      launch(step);
      return;
    }
    const std::size_t count = step.operands.size();
    Buffer<TensorView, 8> views(count);
    view_operands(step, views.data());
    Buffer<Scalar, 8> values(step.scalars.size());
    for (std::size_t i = 0; i < step.scalars.size(); ++i) {
      const ScalarSource& source = step.scalars[i];
      values[i] = source.from_call ? scalars[source.index] : source.constant;
    }
    const KernelCall call{views.data(), count, values.data(), step.scalars.size(),
                          step.context.get()};
    if (runs_here(stream)) {
      try {
        step.kernel(call);
      } catch (const Error& error) {
        throw named_error(error, plan.name);
      }
      return;
    }
    std::vector<Reference<Storage>> storages;
    storages.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const TensorMeta* tensor = tensor_of(step.operands[i]);
      if (tensor == nullptr) continue;
      tensor->storage->require_awake();
      check_operand(*tensor, views[i], stream, i < step.written, false);
      storages.push_back(tensor->storage);
    }
    submit(call, step.context, step.kernel, stream, plan.name);
    for (const Reference<Storage>& storage : storages) storage->touch(stream);
    check_operands(step, true);
  }

  void launch(const Step& step) const {
    Buffer<std::uint64_t, 32> words(step.arguments.size());
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      const ArgumentSource& source = step.arguments[i];
      switch (source.kind) {
        case ArgumentSource::Kind::kAddress:
          words[i] = address_of(step.operands[source.index]);
          break;
        case ArgumentSource::Kind::kWord:
          words[i] = source.word;
          break;
        case ArgumentSource::Kind::kScalar:
          words[i] = pack_scalar(source.slot, scalars[source.index]);
          break;
      }
    }
    Buffer<Storage*, 8> storages(step.operands.size());
    Buffer<Reference<Storage>, 8> held(alone ? 0 : step.operands.size());
    std::size_t count = 0;
    bool checks = false;
    for (const Operand& operand : step.operands) {
      const TensorMeta* tensor = tensor_of(operand);
      if (tensor == nullptr) continue;
      // Held while the launch may let other threads run.
      if (!alone) held[count] = tensor->storage;
      Storage* storage = alone ? tensor->storage.get() : held[count].get();
      storage->require_awake();
      checks |= storage->memory().checker != nullptr;
      storages[count++] = storage;
    }
    if (checks) [[unlikely]]
      check_operands(step, false);
    submit_kernel(step, words.data(), storages.data(), count);
    if (checks) [[unlikely]]
      check_operands(step, true);
  }

  void submit_kernel(const Step& step, const std::uint64_t* words, Storage* const* storages,
                     std::size_t count) const {
    try {
      step.device_kernel->launch(stream, step.grid, words);
    } catch (const Error& error) {
      throw named_error(error, plan.name);
    }
    const BlockUse use = stream.use();
    for (std::size_t i = 0; i < count; ++i) storages[i]->touch(stream, use);
    run_late_owners();
  }

  /// In check mode: the step is about to be submitted, or it was.
  void check_operands(const Step& step, bool submitted) const {
    for (std::size_t i = 0; i < step.operands.size(); ++i) {
      const TensorMeta* tensor = tensor_of(step.operands[i]);
      if (tensor == nullptr || tensor->storage->memory().checker == nullptr) continue;
      check_operand(*tensor, view_of(step.operands[i]), stream, i < step.written, submitted);
    }
  }
};

}  // namespace

void require_runnable(const Plan& plan, const Device& device) {
  const bool takes_host_kernels = device.host_readable() || sim::simulates(device.properties());
  for (const Step& step : plan.steps) {
    if (step.device_kernel == nullptr && !takes_host_kernels) {
      throw Error(ErrorKind::kUnsupported,
                  plan.name + ": no kernel for " + device.primitives().kind_name +
                      "; move the operands to the cpu, or write a kernel with nbx.kernel");
    }
    if (step.device_kernel != nullptr && &step.device_kernel->device() != &device) {
      throw Error(ErrorKind::kValue, plan.name + ": the plan for " + device.name() +
                                         " launches a kernel of " +
                                         step.device_kernel->device().name() +
                                         "; prepare it for the device of the call");
    }
  }
}

void run_plan(const Plan& plan, DeviceMemory& memory, Stream& stream, TensorMeta* const* arguments,
              std::size_t /*argument_count*/, const Scalar* scalars, std::size_t /*scalar_count*/,
              TensorMeta* outputs, bool alone) {
  if (!stream.device().properties().integrated_work) raise_fault(stream.device());
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    outputs[i] = allocate(plan.outputs[i], memory);
  }
  if (plan.temporaries.empty()) {
    const PlanRun run{plan, stream, arguments, scalars, outputs, nullptr, alone};
    for (const Step& step : plan.steps) run.run(step);
    return;
  }
  std::vector<TensorMeta> temporaries;
  temporaries.reserve(plan.temporaries.size());
  for (const TensorSpecification& specification : plan.temporaries) {
    temporaries.push_back(allocate(specification, memory));
  }
  const PlanRun run{plan, stream, arguments, scalars, outputs, temporaries.data(), alone};
  for (const Step& step : plan.steps) run.run(step);
}

bool only_launches(const Plan& plan) noexcept {
  return plan.outputs.empty() && plan.temporaries.empty() &&
         std::all_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
           return step.device_kernel != nullptr && step.device_kernel->recipe().scratch_bytes == 0;
         });
}

void run_kernel(HostKernel kernel, void* context, Stream& stream, TensorMeta* const* tensors,
                std::size_t tensor_count, std::size_t written, const Scalar* scalars,
                std::size_t scalar_count) {
  Buffer<TensorView, 8> views(tensor_count);
  for (std::size_t i = 0; i < tensor_count; ++i) {
    views[i] = tensors[i] == nullptr ? TensorView{nullptr, nullptr, nullptr, 0, DType::bool_}
                                     : view_of(*tensors[i]);
  }
  const KernelCall call{views.data(), tensor_count, scalars, scalar_count, context};
  if (runs_here(stream)) {
    kernel(call);
    return;
  }
  raise_fault(stream.device());
  std::vector<Reference<Storage>> storages;
  storages.reserve(tensor_count);
  for (std::size_t i = 0; i < tensor_count; ++i) {
    if (tensors[i] == nullptr) continue;
    tensors[i]->storage->require_awake();
    check_operand(*tensors[i], views[i], stream, i < written, false);
    storages.push_back(tensors[i]->storage);
  }
  // The caller keeps `context` alive until the stream has run the work.
  submit(call, std::shared_ptr<void>(context, [](void*) {}), kernel, stream, {});
  for (const Reference<Storage>& storage : storages) storage->touch(stream);
  for (std::size_t i = 0; i < tensor_count; ++i) {
    if (tensors[i] == nullptr) continue;
    check_operand(*tensors[i], views[i], stream, i < written, true);
  }
}

}  // namespace nbx
