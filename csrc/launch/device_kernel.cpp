#include "launch/device_kernel.h"

#include <bit>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

#include "core/align.h"
#include "core/half.h"
#include "core/log.h"
#include "device/host_status.h"
#include "heap/blocking.h"
#include "launch/graph.h"
#include "stream/callback.h"
#include "stream/fault.h"

namespace nbx {
namespace {

constexpr std::uint64_t kGridX = 0x7fffffff;
constexpr std::uint64_t kGridYz = 65535;

std::string text_of(const Grid& grid) {
  return "(" + std::to_string(grid.x) + ", " + std::to_string(grid.y) + ", " +
         std::to_string(grid.z) + ")";
}

std::uint64_t now() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

/// What the driver may still use after its kernel has gone. Never destroyed.
void keep_for_ever(std::shared_ptr<void> kept) {
  static std::mutex mutex;
  static auto* const all = std::make_unique<std::vector<std::shared_ptr<void>>>().release();
  const std::lock_guard<std::mutex> guard(mutex);
  all->push_back(std::move(kept));
}

}  // namespace

std::uint32_t bytes_of(Slot slot) noexcept {
  switch (slot) {
    case Slot::kSkip:
      return 0;
    case Slot::kRaw1:
      return 1;
    case Slot::kRaw2:
    case Slot::kFloat16:
    case Slot::kBfloat16:
      return 2;
    case Slot::kRaw4:
    case Slot::kFloat32:
      return 4;
    case Slot::kRaw8:
    case Slot::kFloat64:
      break;
  }
  return 8;
}

std::uint64_t pack_real(Slot slot, double value) noexcept {
  switch (slot) {
    case Slot::kFloat16:
      return from_float<Float16>(round_to_odd(value)).bits;
    case Slot::kBfloat16:
      return from_float<BFloat16>(round_to_odd(value)).bits;
    case Slot::kFloat32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    default:
      return std::bit_cast<std::uint64_t>(value);
  }
}

std::uint64_t pack_scalar(Slot slot, const Scalar& scalar) {
  if (scalar.none() || scalar.kind == ScalarKind::kComplex) {
    throw Error(ErrorKind::kType, scalar.none()
                                      ? "a kernel's number is None; give a number"
                                      : "a kernel takes no complex numbers; give the real and the "
                                        "imaginary part");
  }
  if (is_real(slot)) return pack_real(slot, scalar.real);
  if (scalar.kind == ScalarKind::kReal) {
    throw Error(ErrorKind::kType,
                "a kernel takes an integer, got the real number " + std::to_string(scalar.real));
  }
  return static_cast<std::uint64_t>(scalar.integer);
}

DeviceKernel::DeviceKernel(Device& device, const void* image, std::size_t bytes,
                           KernelRecipe recipe, std::shared_ptr<void> keep)
    : device_(device), recipe_(std::move(recipe)), keep_(std::move(keep)) {
  for (const Slot slot : recipe_.slots) {
    word_count_ += slot != Slot::kSkip ? 1 : 0;
    converts_ |= is_real(slot);
  }
  if (word_count_ > kMaximumWords || recipe_.hidden_words > kMaximumHidden) {
    throw Error(ErrorKind::kValue, "kernel '" + recipe_.name + "' has " +
                                       std::to_string(word_count_) + " run-time parameters; at " +
                                       "most " + std::to_string(kMaximumWords) + " are passed");
  }
  for (const Primitive needed : {Primitive::k_module_load, Primitive::k_module_unload,
                                 Primitive::k_kernel_find, Primitive::k_launch}) {
    device.require(needed);
  }
  const Primitives& table = device.primitives();
  device.check(table.module_load(device.ordinal(), image, bytes, &module_), "module_load");
  const Status status = table.kernel_find(device.ordinal(), module_, recipe_.symbol.c_str(),
                                          recipe_.shared_bytes, &kernel_);
  if (status != kSuccess) {
    static_cast<void>(table.module_unload(device.ordinal(), module_));
    device.check(status, ("kernel_find of " + recipe_.symbol).c_str());
  }
  most_blocks_ = kGridX / recipe_.cluster;
  geometry_ = LaunchGeometry{
      {1, 1, 1},           {recipe_.threads, 1, 1}, recipe_.shared_bytes, {recipe_.cluster, 1, 1},
      recipe_.cooperative, recipe_.programmatic};
}

DeviceKernel::~DeviceKernel() {
  // A driver may not be called from its callbacks, and a graph may still hold the code: it stays.
  if (captured_.load(std::memory_order_relaxed) || inside_callback()) {
    keep_for_ever(std::move(keep_));
    return;
  }
  const BlockingScope scope;
  Status status = kSuccess;
  if (launched_.load(std::memory_order_relaxed)) {
    try {
      synchronize_device(device_);
    } catch (const std::exception& error) {
      log(LogLevel::kDebug, "kernel '" + recipe_.name + "': " + error.what());
    }
  }
  status = device_.primitives().module_unload(device_.ordinal(), module_);
  if (status != kSuccess && status != kForkedChild) {
    log(LogLevel::kDebug,
        std::string("module_unload: ") + device_.primitives().status_text(status));
  }
}

KernelAttributes DeviceKernel::attributes() const {
  device_.require(Primitive::k_kernel_attributes);
  KernelAttributes attributes{};
  device_.check(device_.primitives().kernel_attributes(device_.ordinal(), kernel_, &attributes),
                "kernel_attributes");
  return attributes;
}

void DeviceKernel::check_grid(const Grid& grid) const {
  if (grid.x <= most_blocks_ && grid.y <= kGridYz && grid.z <= kGridYz) [[likely]]
    return;
  throw Error(ErrorKind::kValue, "kernel '" + recipe_.name + "': the grid is " + text_of(grid) +
                                     "; at most (" + std::to_string(most_blocks_) +
                                     ", 65535, 65535) blocks; give each block more work");
}

void DeviceKernel::refuse(Status status) const {
  device_.check(status, ("launch of kernel '" + recipe_.name + "'").c_str());
  throw Error(ErrorKind::kDevice, "kernel '" + recipe_.name + "': the launch failed");
}

Reference<Storage> DeviceKernel::take_scratch(const Stream& stream, const Grid& grid,
                                              std::uint64_t* address) const {
  DeviceMemory& memory = memory_of(device_);
  if (&current_stream(device_) != &stream) {
    throw Error(ErrorKind::kValue, "kernel '" + recipe_.name +
                                       "' takes scratch memory, which belongs to the current "
                                       "stream; make its stream current first");
  }
  const std::uint64_t extra =
      recipe_.scratch_alignment > kTensorAlignment ? recipe_.scratch_alignment : 0;
  std::uint64_t bytes = recipe_.scratch_bytes;
  for (const std::uint64_t factor : {std::uint64_t{recipe_.cluster}, grid.x, grid.y, grid.z}) {
    if (bytes > std::numeric_limits<std::uint64_t>::max() / 2 / factor) {
      throw Error(ErrorKind::kOverflow, "kernel '" + recipe_.name +
                                            "': the scratch memory of grid " + text_of(grid) +
                                            " has no size");
    }
    bytes *= factor;
  }
  Reference<Storage> scratch = Storage::allocate(memory, bytes + extra);
  *address = extra == 0 ? scratch->address() : round_up(scratch->address(), extra);
  return scratch;
}

LaunchGeometry DeviceKernel::geometry_of(const Grid& grid) const noexcept {
  LaunchGeometry geometry = geometry_;
  geometry.grid[0] = static_cast<std::uint32_t>(grid.x) * recipe_.cluster;
  geometry.grid[1] = static_cast<std::uint32_t>(grid.y);
  geometry.grid[2] = static_cast<std::uint32_t>(grid.z);
  return geometry;
}

/// Tells the graph, which keeps the kernel. It is never unloaded if nobody listens.
void DeviceKernel::note_captured(Stream& stream, const LaunchGeometry& geometry,
                                 void* const* arguments) const {
  GraphNode node;
  node.name = recipe_.name;
  node.kernel = kernel_;
  node.geometry = geometry;
  node.keep = weak_from_this().lock();
  const bool named = recipe_.parameters.size() == recipe_.slots.size();
  std::size_t at = 0;
  for (std::size_t i = 0; i < recipe_.slots.size(); ++i) {
    const Slot slot = recipe_.slots[i];
    if (slot == Slot::kSkip) continue;
    node.arguments.push_back(
        GraphArgument{named ? recipe_.parameters[i] : "argument" + std::to_string(at), slot,
                      *static_cast<const std::uint64_t*>(arguments[at])});
    ++at;
  }
  for (; at < word_count_ + recipe_.hidden_words; ++at) {
    node.arguments.push_back(
        GraphArgument{{}, Slot::kRaw8, *static_cast<const std::uint64_t*>(arguments[at])});
  }
  if (node.keep == nullptr || !note_captured_launch(stream, std::move(node))) {
    captured_.store(true, std::memory_order_relaxed);
  }
}

Status DeviceKernel::submit(Stream& stream, const Grid& grid, void* const* arguments) const {
  const LaunchGeometry geometry = geometry_of(grid);
  const std::size_t count = word_count_ + recipe_.hidden_words;
  const auto launch = device_.primitives().launch;
  if (!launches_observed.load(std::memory_order_relaxed)) [[likely]] {
    return launch(device_.ordinal(), kernel_, &geometry, arguments, count, stream.handle());
  }
  const std::uint64_t start = now();
  const Status status =
      launch(device_.ordinal(), kernel_, &geometry, arguments, count, stream.handle());
  if (status == kSuccess) note_launch(LaunchNote{recipe_.name, grid, stream, now() - start});
  return status;
}

void DeviceKernel::launch(Stream& stream, const Grid& grid, const std::uint64_t* words) const {
  if (&stream.device() != &device_) {
    throw Error(ErrorKind::kValue, "kernel '" + recipe_.name + "' is of " + device_.name() +
                                       ", the stream of " + stream.device().name() +
                                       "; launch it on a stream of its device");
  }
  raise_fault(device_);
  if (grid.empty()) return;
  check_grid(grid);
  std::array<void*, kMaximumWords + kMaximumHidden> arguments;
  for (std::size_t i = 0; i < word_count_; ++i) {
    arguments[i] = const_cast<std::uint64_t*>(words + i);
  }
  std::array<std::uint64_t, kMaximumHidden> hidden{};
  for (std::size_t i = 0; i < recipe_.hidden_words; ++i) {
    arguments[word_count_ + i] = &hidden[i];
  }
  Reference<Storage> scratch;
  if (recipe_.scratch_bytes != 0) scratch = take_scratch(stream, grid, hidden.data());
  const Status status = submit(stream, grid, arguments.data());
  if (status != kSuccess) [[unlikely]]
    refuse(status);
  launched_.store(true, std::memory_order_relaxed);
  if (stream.is_captured()) [[unlikely]]
    note_captured(stream, geometry_of(grid), arguments.data());
  if (scratch) scratch->touch(stream);
}

}  // namespace nbx
