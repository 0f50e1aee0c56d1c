// A compiled kernel on a device: what a launch needs, decided once.
//
// Records are immutable and shared. The module is unloaded when the last one goes, after the work
// that uses it is complete.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launch/kernel.h"
#include "launch/observer.h"
#include "storage/storage.h"

namespace nbx {

/// How the value of a parameter reaches the kernel.
enum class Slot : std::uint8_t {
  kSkip,  // compiled in: not passed
  kRaw1,
  kRaw2,
  kRaw4,
  kRaw8,  // addresses too
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};
[[nodiscard]] std::uint32_t bytes_of(Slot slot) noexcept;
[[nodiscard]] constexpr bool is_real(Slot slot) noexcept { return slot >= Slot::kFloat16; }
/// The bits of a number as its slot passes them.
[[nodiscard]] std::uint64_t pack_real(Slot slot, double value) noexcept;
/// Throws Error(kType) where the number does not fit the slot's kind.
[[nodiscard]] std::uint64_t pack_scalar(Slot slot, const Scalar& scalar);

/// What the compiler says of a kernel.
struct KernelRecipe {
  std::string name;    // for people
  std::string symbol;  // of the image
  std::uint32_t threads = 0;
  std::uint32_t shared_bytes = 0;  // dynamic
  std::uint32_t cluster = 1;       // blocks of a cluster; the grid counts clusters along x
  bool cooperative = false;
  bool programmatic = false;
  std::uint64_t scratch_bytes = 0;  // of one block
  std::uint64_t scratch_alignment = 1;
  std::uint32_t hidden_words =
      0;                    // addresses behind the parameters: of the scratch, then null ones
  std::vector<Slot> slots;  // of all parameters
  std::vector<std::string> parameters;  // their names; empty if they are not known
};

class DeviceKernel : public std::enable_shared_from_this<DeviceKernel> {
 public:
  static constexpr std::size_t kMaximumWords = 128;
  static constexpr std::size_t kMaximumHidden = 4;

  /// Loads the image. `keep` goes after the module. Throws Error(kDevice) if the driver refuses.
  DeviceKernel(Device& device, const void* image, std::size_t bytes, KernelRecipe recipe,
               std::shared_ptr<void> keep = nullptr);
  ~DeviceKernel();
  DeviceKernel(const DeviceKernel&) = delete;
  DeviceKernel& operator=(const DeviceKernel&) = delete;

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] KernelHandle handle() const noexcept { return kernel_; }
  [[nodiscard]] const KernelRecipe& recipe() const noexcept { return recipe_; }
  [[nodiscard]] const std::vector<Slot>& slots() const noexcept { return recipe_.slots; }
  /// Words of a launch: one for each slot that is passed.
  [[nodiscard]] std::size_t word_count() const noexcept { return word_count_; }
  /// Whether a slot's word is not the number's own bits: real numbers are converted.
  [[nodiscard]] bool converts() const noexcept { return converts_; }
  [[nodiscard]] KernelAttributes attributes() const;

  /// Submits the kernel over a grid; `words` holds the bits of each passed parameter, in order.
  /// An empty grid launches nothing. The caller checks and touches the memory. Throws Error(kValue)
  /// for a grid or stream that the kernel cannot have, Error(kDevice) if the driver refuses, and
  /// what earlier work of the device left behind.
  void launch(Stream& stream, const Grid& grid, const std::uint64_t* words) const;

 private:
  [[nodiscard]] Reference<Storage> take_scratch(const Stream& stream, const Grid& grid,
                                                std::uint64_t* address) const;
  void note_captured(Stream& stream, const LaunchGeometry& geometry, void* const* arguments) const;
  [[nodiscard]] LaunchGeometry geometry_of(const Grid& grid) const noexcept;
  [[nodiscard]] Status submit(Stream& stream, const Grid& grid, void* const* arguments) const;
  void check_grid(const Grid& grid) const;
  [[noreturn]] void refuse(Status status) const;

  Device& device_;
  const KernelRecipe recipe_;
  std::shared_ptr<void> keep_;
  ModuleHandle module_ = 0;
  KernelHandle kernel_ = 0;
  LaunchGeometry geometry_{};
  std::size_t word_count_ = 0;
  std::uint64_t most_blocks_ = 0;  // along x
  bool converts_ = false;
  // A graph that nobody knows may run the kernel for as long as the process lives.
  mutable std::atomic<bool> captured_{false};
  mutable std::atomic<bool> launched_{false};
};

}  // namespace nbx
