// Arena: one block, a pointer that only rises, and a reset that voids everything at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arena/carve.h"

namespace nbx {

/// An interior address, resolved.
struct Resolved {
  DeviceAddress start = 0;   // of the carving
  std::uint64_t bytes = 0;   // of it, as asked
  std::uint64_t offset = 0;  // of the address in it
  std::uint64_t generation = 0;
};

class Arena : public Carver {
 public:
  /// `guarded`: at least 256 bytes behind every carving hold a pattern, which `verify`, `reset` and
  /// `close` look at.
  Arena(std::string name, Heap& heap, Account& account, Stream& stream, std::uint64_t capacity,
        bool guarded = false);

  /// Throws Error(kValue) naming used and capacity when there is no room, and Error(kUnsupported)
  /// where guards are asked for and the device cannot fill or copy memory.
  [[nodiscard]] Carving allocate(std::uint64_t bytes, Stream& stream);
  /// Recycles everything: addresses issued before are void.
  void reset();
  /// The carving that holds an address of the current generation. Throws Error(kValue) for one that
  /// was carved before the last reset, for padding, and for memory of others.
  [[nodiscard]] Resolved resolve(DeviceAddress address) const;
  /// Throws Error(kValue) naming the first carving whose guard was overwritten.
  void verify();

 protected:
  bool take(std::uint64_t bytes, std::uint64_t origin, Carving* carving) override;
  bool put(DeviceAddress address) override;
  void put_tensor(const Carving& carving) noexcept override;
  void before_close() override;
  [[nodiscard]] bool was_carved(DeviceAddress address) const override;

 private:
  void check_guards();
  void write_guard(DeviceAddress address, std::uint64_t bytes);

  const bool guarded_;
  StreamHandle stream_ = 0;        // of the newest guard
  std::vector<Carving> carvings_;  // of this generation, by address
  std::uint64_t highest_ = 0;      // bytes used in any generation before
};

}  // namespace nbx
