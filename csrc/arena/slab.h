// Slabs: blocks at a stable address for memory that comes and goes in the same way again and again.
// What a slab has no room for is left to the heap, and counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "arena/carve.h"
#include "heap/bins.h"

namespace nbx {

/// Best fit with coalescing, by the heap's own bins: no search over the holes, no sort.
///
/// Where something lies depends on what was returned before. What must have the same address every
/// time belongs in a StepSlab.
class ReplaySlab : public Carver {
 public:
  ReplaySlab(std::string name, Heap& heap, Account& account, Stream& stream,
             std::uint64_t capacity);

  [[nodiscard]] std::uint64_t shortfall() const;  // bytes that it had no room for, summed
  [[nodiscard]] std::uint64_t holes() const;      // count
  [[nodiscard]] std::uint64_t largest_hole() const;
  /// No more is carved; the block goes back to the heap with the last carving in it.
  void retire();

 protected:
  bool take(std::uint64_t bytes, std::uint64_t origin, Carving* carving) override;
  bool put(DeviceAddress address) override;
  void put_tensor(const Carving& carving) noexcept override;
  [[nodiscard]] bool was_carved(DeviceAddress address) const override;

 private:
  void split(std::uint32_t id, std::uint64_t bytes) noexcept;
  void absorb(std::uint32_t left, std::uint32_t right) noexcept;

  RecordTable records_;
  Bins bins_;
  std::unordered_map<DeviceAddress, std::uint32_t> live_;
  std::uint64_t shortfall_ = 0;
};

/// Steps that carve the same sizes in the same order get the same addresses, whenever the memory is
/// returned: returns are absorbed, and `reset` starts the next step over.
class StepSlab : public Carver {
 public:
  StepSlab(std::string name, Heap& heap, Account& account, Stream& stream, std::uint64_t capacity);

  /// How large to make a slab for steps that carve `total` bytes in all: a quarter and 64 MiB more,
  /// for steps that grow. The bytes of a whole step count, not what was alive at one time.
  [[nodiscard]] static std::uint64_t capacity_for(std::uint64_t total);

  /// Starts the next step at the first byte. True if the step that ends carved the sizes of the one
  /// before it, in order; its first step has none before.
  bool reset();
  [[nodiscard]] std::uint64_t shortfall() const;
  [[nodiscard]] std::vector<std::uint64_t> carve_sizes() const;   // of this step
  [[nodiscard]] std::vector<std::uint64_t> former_sizes() const;  // of the step before
  /// The first carving at which this step left the sizes of the one before; -1 while it did not.
  [[nodiscard]] std::int64_t first_difference() const;

 protected:
  bool take(std::uint64_t bytes, std::uint64_t origin, Carving* carving) override;
  bool put(DeviceAddress address) override;
  void put_tensor(const Carving& carving) noexcept override;
  [[nodiscard]] bool was_carved(DeviceAddress address) const override;

 private:
  std::vector<std::uint64_t> sizes_, former_;
  std::vector<DeviceAddress> starts_;
  std::int64_t difference_ = -1;
  std::uint64_t highest_ = 0;  // bytes used in any step before
  std::uint64_t shortfall_ = 0;
  std::uint64_t steps_ = 0;
};

/// What a plan says of one allocation: the `ordinal`-th of its origin in a step, from 0.
struct PlannedKey {
  std::uint64_t origin = 0;
  std::uint32_t ordinal = 0;
  std::uint64_t bytes = 0;
};

/// A static plan at run time. A hint only: what does not match it, or would lie over something that
/// is still in use, is left to the heap.
class PlannedSlab : public Carver {
 public:
  /// `offsets`: one a key, multiples of 256. Throws Error(kValue) for an offset that is not, or two
  /// keys of the same origin and ordinal.
  PlannedSlab(std::string name, Heap& heap, Account& account, Stream& stream,
              const std::vector<PlannedKey>& keys, const std::vector<std::uint64_t>& offsets);

  /// The next step: ordinals start at 0 again. What is in use stays.
  void begin_step();
  [[nodiscard]] std::uint64_t hits() const;
  [[nodiscard]] std::uint64_t misses() const;     // no such key, or of another size
  [[nodiscard]] std::uint64_t conflicts() const;  // of the plan with what was in use

 protected:
  bool take(std::uint64_t bytes, std::uint64_t origin, Carving* carving) override;
  bool put(DeviceAddress address) override;
  void put_tensor(const Carving& carving) noexcept override;
  [[nodiscard]] bool was_carved(DeviceAddress address) const override;

 private:
  struct Key {
    std::uint64_t origin;
    std::uint32_t ordinal;
    [[nodiscard]] bool operator==(const Key& other) const noexcept {
      return origin == other.origin && ordinal == other.ordinal;
    }
  };
  struct Hash {
    [[nodiscard]] std::size_t operator()(const Key& key) const noexcept {
      return static_cast<std::size_t>((key.origin ^ (std::uint64_t{key.ordinal} << 40)) *
                                      0x9E3779B97F4A7C15U);
    }
  };
  struct Place {
    std::uint64_t bytes;
    std::uint64_t offset;
  };
  std::unordered_map<Key, Place, Hash> places_;
  std::unordered_map<std::uint64_t, std::uint32_t> ordinals_;
  std::map<std::uint64_t, std::uint64_t> in_use_;  // offset -> padded bytes
  std::uint64_t hits_ = 0, misses_ = 0, conflicts_ = 0;
};

}  // namespace nbx
