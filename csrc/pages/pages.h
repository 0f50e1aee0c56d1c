// Virtual memory of one device: reserved ranges of addresses, page handles, and the page bank.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"

namespace nbx {

/// How long memory is expected to stay: a hint for the sizes of the handles under it.
enum class Lifetime : std::uint8_t {
  kTransient,  // many small handles: their memory can move to where it is wanted
  kSteady,     // few large ones: cheap to make, for weights and caches that stay
};

/// A reserved range of addresses. Cells say which handle lies under each granule.
class PageRange {
 public:
  struct Cell {
    PageHandle handle = 0;
    std::uint32_t place = 0;     // of this granule in its handle
    std::uint32_t granules = 0;  // of the handle; 0: no memory here
  };

  PageRange(DeviceAddress base, std::uint64_t bytes, std::uint64_t granule);

  [[nodiscard]] DeviceAddress base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t granule() const noexcept { return granule_; }
  [[nodiscard]] std::uint64_t index_of(DeviceAddress address) const noexcept {
    return (address - base_) / granule_;
  }
  [[nodiscard]] DeviceAddress address_of(std::uint64_t index) const noexcept {
    return base_ + index * granule_;
  }
  [[nodiscard]] const Cell& operator[](std::uint64_t index) const noexcept { return cells_[index]; }
  [[nodiscard]] bool mapped(std::uint64_t index) const noexcept {
    return cells_[index].granules != 0;
  }
  /// True if no memory lies under any granule.
  [[nodiscard]] bool empty() const noexcept;

 private:
  friend class Pages;
  struct Free {
    void operator()(Cell* cells) const noexcept;
  };

  DeviceAddress base_;
  std::uint64_t bytes_;
  std::uint64_t granule_;
  std::unique_ptr<Cell[], Free> cells_;
};

/// Granules of a range, next to each other.
struct PageRun {
  PageRange* range = nullptr;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// What `Pages::fill` did, also when it failed.
struct FillResult {
  Status status = kSuccess;
  const char* call = "";      // the primitive that failed
  std::uint64_t taken = 0;    // victims that have lost their memory, from the front of the list
  std::uint64_t stolen = 0;   // bytes of them
  std::uint64_t created = 0;  // bytes asked of the driver
};

/// Calls the driver, so no lock of the heap is held; callers see to it that only one thread is
/// inside (the heap's growth). Every failure leaves each handle mapped once, banked or released.
class Pages {
 public:
  /// `granule`: of a device that names none.
  explicit Pages(Device& device, std::uint64_t granule = 0);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  /// True if the device has virtual memory: a granularity, and every primitive of it.
  [[nodiscard]] static bool supported(const Device& device) noexcept {
    return device.properties().page_granularity != 0 && has_primitives(device);
  }
  [[nodiscard]] static bool has_primitives(const Device& device) noexcept;
  [[nodiscard]] std::uint64_t granule() const noexcept { return granule_; }

  /// A range of `bytes`, rounded up to granules; null if the driver refuses.
  [[nodiscard]] PageRange* reserve(std::uint64_t bytes);
  /// Gives back a range without memory.
  Status release(PageRange* range) noexcept;

  /// Puts memory under every run of `targets`, which have none: from the bank, then from `victims`
  /// in order as far as needed, then from the driver. All of it or none; victims that were taken
  /// stay without memory, and what was gathered waits in the bank then.
  [[nodiscard]] FillResult fill(const std::vector<PageRun>& targets,
                                const std::vector<PageRun>& victims, Lifetime lifetime);
  /// Takes the memory from under a run of whole handles, into the bank.
  [[nodiscard]] Status unmap(const PageRun& run);
  /// Gives handles of the bank to the driver until at most `keep` bytes are in it.
  [[nodiscard]] Status empty_bank(std::uint64_t keep);

  [[nodiscard]] std::uint64_t banked_bytes() const noexcept {
    return banked_.load(std::memory_order_relaxed);
  }
  /// Bytes of all handles, the bank's included.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept {
    return held_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept {
    return calls_.load(std::memory_order_relaxed);
  }

 private:
  // Handles of one, 16 and 256 granules: a driver's cost is per handle.
  static constexpr std::array<std::uint32_t, 3> kSizes = {1, 16, 256};
  struct Handle {
    PageHandle handle;
    std::uint32_t granules;
  };
  using Handles = std::vector<Handle>;

  /// A run to be filled, and the handles that will lie under it.
  struct Target {
    PageRun run;
    std::uint64_t missing;  // granules without a handle yet
    Handles handles;
  };

  void called() noexcept { calls_.fetch_add(1, std::memory_order_relaxed); }
  void bank(const Handle& handle);
  void bank_all(std::vector<Target>* targets, Handles* handles);
  [[nodiscard]] Status destroy(const Handle& handle);
  [[nodiscard]] Status take(const PageRun& run, Handles* handles);
  void take_banked(std::uint64_t granules, Lifetime lifetime, Handles* handles);
  [[nodiscard]] Status place(Handles* handles, std::vector<Target>* targets);
  [[nodiscard]] Status create(Target* target, Lifetime lifetime, FillResult* result);
  [[nodiscard]] Status map(const Target& target, const char** call);
  void unmap_again(const std::vector<Target>& targets);

  Device& device_;
  std::uint64_t granule_;
  std::vector<std::unique_ptr<PageRange>> ranges_;
  std::array<std::vector<PageHandle>, kSizes.size()> bank_;
  std::atomic<std::uint64_t> banked_{0}, held_{0}, calls_{0};
};

}  // namespace nbx
