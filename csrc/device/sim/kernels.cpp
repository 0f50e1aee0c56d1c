// Modules and kernels of simulated devices: functions of the host, run in stream order.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "device/sim/world.h"

namespace nbx::sim {
namespace {

constexpr std::uint32_t kMostThreads = 1024;
constexpr std::uint32_t kMostShared = 227 * 1024;  // dynamic, of a block
constexpr std::size_t kArgumentAlignment = alignof(std::max_align_t);

/// One launch, with copies of its arguments.
class Launch : public Action {
 public:
  Launch(std::int32_t ordinal, std::shared_ptr<Registration> registration,
         const LaunchGeometry& geometry, void* const* arguments)
      : ordinal_(ordinal), registration_(std::move(registration)), geometry_(geometry) {
    std::size_t end = 0;
    for (const std::uint32_t bytes : registration_->argument_bytes) end += padded(bytes);
    values_.resize((end + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
    auto* at = reinterpret_cast<std::byte*>(values_.data());
    for (const std::uint32_t bytes : registration_->argument_bytes) {
      std::memcpy(at, *arguments++, bytes);
      addresses_.push_back(at);
      at += padded(bytes);
    }
  }

  [[nodiscard]] bool is_kernel() const noexcept override { return true; }

  /// Runs without the lock: the function may take any lock of its own, Python's included.
  void run(World& world, Lock& lock) override {
    if (world.device(ordinal_).backing == Backing::kNone) return;
    Registration& own = *registration_;
    if (own.function == nullptr) {
      world.device(ordinal_).sticky = kInvalidHandle;
      return;
    }
    ++own.running;
    lock.unlock();
    own.function(geometry_, addresses_.data(), addresses_.size(), own.context);
    lock.lock();
    --own.running;
    world.changed.notify_all();
  }

 private:
  static constexpr std::size_t padded(std::size_t bytes) noexcept {
    return (bytes + kArgumentAlignment - 1) / kArgumentAlignment * kArgumentAlignment;
  }

  std::int32_t ordinal_;
  std::shared_ptr<Registration> registration_;
  LaunchGeometry geometry_;
  std::vector<std::max_align_t> values_;
  std::vector<void*> addresses_;
};

bool launchable(const LaunchGeometry& geometry) noexcept {
  std::uint64_t threads = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::uint32_t cluster = std::max(geometry.cluster[i], 1u);
    if (geometry.grid[i] == 0 || geometry.block[i] == 0 || geometry.block[i] > kMostThreads) {
      return false;
    }
    if (geometry.grid[i] % cluster != 0) return false;
    threads *= geometry.block[i];
  }
  return threads <= kMostThreads && geometry.grid[1] <= 65535 && geometry.grid[2] <= 65535;
}

Status module_load(std::int32_t ordinal, const void* image, std::size_t bytes,
                   ModuleHandle* module) {
  const Entry entry(ordinal, Primitive::k_module_load, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  if (image == nullptr || bytes == 0) return kInvalidValue;
  World& world = entry.world();
  const auto found = world.registrations.find({static_cast<const char*>(image), bytes});
  if (found == world.registrations.end()) return kInvalidImage;
  *module = world.next_handle++;
  world.modules.emplace(*module, Module{ordinal, found->second});
  return kSuccess;
}

Status module_unload(std::int32_t ordinal, ModuleHandle handle) {
  const Entry entry(ordinal, Primitive::k_module_unload, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  World& world = entry.world();
  const auto found = world.modules.find(handle);
  if (found == world.modules.end() || found->second.ordinal != ordinal) return kInvalidHandle;
  world.modules.erase(found);
  for (auto kernel = world.kernels.begin(); kernel != world.kernels.end();) {
    kernel = kernel->second.module == handle ? world.kernels.erase(kernel) : std::next(kernel);
  }
  return kSuccess;
}

Status kernel_find(std::int32_t ordinal, ModuleHandle module, const char* name,
                   std::uint32_t dynamic_shared_bytes, KernelHandle* kernel) {
  const Entry entry(ordinal, Primitive::k_kernel_find, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  World& world = entry.world();
  const auto found = world.modules.find(module);
  if (found == world.modules.end() || found->second.ordinal != ordinal) return kInvalidHandle;
  if (found->second.registration->name != name) return kNotFound;
  if (dynamic_shared_bytes > kMostShared) return kInvalidValue;
  *kernel = world.next_handle++;
  world.kernels.emplace(*kernel,
                        Kernel{ordinal, module, dynamic_shared_bytes, found->second.registration});
  return kSuccess;
}

Status kernel_attributes(std::int32_t ordinal, KernelHandle kernel, KernelAttributes* attributes) {
  const Entry entry(ordinal, Primitive::k_kernel_attributes, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const auto found = entry.world().kernels.find(kernel);
  if (found == entry.world().kernels.end() || found->second.ordinal != ordinal) {
    return kInvalidHandle;
  }
  *attributes = KernelAttributes{0, 0, 0, kMostThreads};
  return kSuccess;
}

Status launch(std::int32_t ordinal, KernelHandle kernel, const LaunchGeometry* geometry,
              void* const* arguments, std::size_t argument_count, StreamHandle handle) {
  std::shared_ptr<Action> action;
  const Entry entry(ordinal, Primitive::k_launch, kLaunchCost);
  if (entry.status != kSuccess) return entry.status;
  const auto stream = entry.world().stream(ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  const Status status =
      make_launch(entry.world(), ordinal, kernel, *geometry, arguments, argument_count, &action);
  if (status != kSuccess) return status;
  return entry.world().submit(stream, std::move(action), kKernelSeconds);
}

}  // namespace

Status make_launch(World& world, std::int32_t ordinal, KernelHandle kernel,
                   const LaunchGeometry& geometry, void* const* arguments, std::size_t count,
                   std::shared_ptr<Action>* action) {
  const auto found = world.kernels.find(kernel);
  if (found == world.kernels.end() || found->second.ordinal != ordinal ||
      found->second.registration->function == nullptr) {
    return kInvalidHandle;
  }
  const Kernel& own = found->second;
  if (count != own.registration->argument_bytes.size() || !launchable(geometry) ||
      geometry.shared_bytes > std::max(own.dynamic_shared_bytes, 48u * 1024u)) {
    return kInvalidValue;
  }
  *action = std::make_shared<Launch>(ordinal, own.registration, geometry, arguments);
  return kSuccess;
}

void register_kernel(const std::string& name, KernelFunction function, void* context,
                     std::vector<std::uint32_t> argument_bytes) {
  if (name.empty() || function == nullptr) {
    throw Error(ErrorKind::kValue, "register_kernel: expected a name and a function");
  }
  const Lock lock(world().mutex);
  auto registration = std::make_shared<Registration>(
      Registration{name, function, context, std::move(argument_bytes), 0});
  if (!world().registrations.emplace(name, std::move(registration)).second) {
    throw Error(ErrorKind::kValue,
                "register_kernel: '" + name + "' is registered; unregister it first");
  }
}

void unregister_kernel(const std::string& name) {
  Lock lock(world().mutex);
  const auto found = world().registrations.find(name);
  if (found == world().registrations.end()) {
    throw Error(ErrorKind::kValue, "unregister_kernel: '" + name + "' is not registered");
  }
  const std::shared_ptr<Registration> registration = found->second;
  world().registrations.erase(found);
  registration->function = nullptr;
  if (inside_work()) return;
  world().changed.wait(lock, [&] { return registration->running == 0; });
}

void set_kernel_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(module_load)
  NBX_SET(module_unload)
  NBX_SET(kernel_find)
  NBX_SET(kernel_attributes)
  NBX_SET(launch)
#undef NBX_SET
}

}  // namespace nbx::sim
