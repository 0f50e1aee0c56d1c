// Memory carved from one heap block: what arenas and slabs share.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "account/account.h"
#include "core/process.h"
#include "heap/heap.h"
#include "stream/stream.h"

namespace nbx {

/// Every carving starts at a multiple of this many bytes, and is padded to one.
inline constexpr std::uint64_t kCarveAlignment = 256;

[[nodiscard]] constexpr std::uint64_t carve_bytes(std::uint64_t bytes) noexcept {
  return (bytes + kCarveAlignment - 1) / kCarveAlignment * kCarveAlignment;
}

/// A piece of a block. `generation` is the number of resets before it was carved: after the next
/// reset its address is void. Zero bytes are address 0.
struct Carving {
  DeviceAddress address = 0;
  std::uint64_t bytes = 0;  // as asked
  std::uint64_t generation = 0;
  std::uint64_t number = 0;  // of the carvings of its block, from 1
};

/// One heap block that others are carved from. It is counted like any block, and goes back when it
/// was closed, or nobody holds it, and the last tensor in it has been returned.
///
/// Thread-safe. The account must outlive it; the device's tree does.
class Carver {
 public:
  Carver(std::string name, Heap& heap, Account& account, Stream& stream, std::uint64_t capacity);
  virtual ~Carver();
  Carver(const Carver&) = delete;
  Carver& operator=(const Carver&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] const Heap& heap() const noexcept { return heap_; }
  [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] DeviceAddress base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t used() const;  // bytes carved and not recycled, padded
  [[nodiscard]] std::uint64_t peak() const;  // the most of them at one time
  [[nodiscard]] std::uint64_t generation() const;
  [[nodiscard]] std::uint64_t tensors() const;  // carved as tensors and not returned
  [[nodiscard]] bool closed() const;

  /// Carves `bytes` for work on `stream`; false if there is no room, which some carvers refuse
  /// instead. Throws Error(kValue) when closed.
  /// `origin`: where it is asked for, which only planned slabs look at.
  [[nodiscard]] bool carve(std::uint64_t bytes, Stream& stream, Carving* carving,
                           std::uint64_t origin = 0);
  /// Takes back what `carve` gave, by its address: the start of a live carving. What was carved
  /// before the last reset is ignored and counted. Throws Error(kValue) for any other address.
  void give(DeviceAddress address);

  /// The carving becomes a tensor's, `key` stands for it until `tensor_returned`.
  void tensor_made(const void* key, const Carving& carving);
  void tensor_returned(const void* key, const Carving& carving) noexcept;
  /// Throws Error(kValue) if the tensor was carved before the last reset, or is not of this block.
  void require_tensor(const void* key, DeviceAddress address) const;

  /// Nothing more is carved; the block goes back with the last tensor in it.
  void close();
  [[nodiscard]] std::uint64_t stale_gives() const;

 protected:
  // All with the lock held.
  virtual bool take(std::uint64_t bytes, std::uint64_t origin, Carving* carving) = 0;
  virtual bool put(DeviceAddress address) = 0;  // false: no live carving starts there
  virtual void put_tensor(const Carving& carving) noexcept = 0;
  [[nodiscard]] virtual bool was_carved(DeviceAddress address) const = 0;  // before the last reset
  // Without it.
  virtual void before_close() {}

  void require_open(const char* action) const;
  void end() noexcept;  // closes
  void count_used(std::uint64_t bytes) noexcept {
    used_ += bytes;
    if (used_ > peak_) peak_ = used_;
  }
  [[nodiscard]] bool contains(DeviceAddress address) const noexcept {
    return address >= base_ && address - base_ < capacity_;
  }
  /// "arena 'decoder' of sim:0"
  [[nodiscard]] std::string title() const;

  mutable std::mutex lock_;
  std::uint64_t used_ = 0, peak_ = 0, generation_ = 0, carved_ = 0, stale_ = 0;
  bool falls_through_ = false;  // no room any more, even when closed, rather than an error

 private:
  [[nodiscard]] std::vector<BlockUse> uses() const;
  void release() noexcept;

  std::string name_;
  Heap& heap_;
  Account& account_;
  Device& device_;
  std::uint64_t capacity_;
  Block block_;
  const std::uint32_t fork_ = fork_generation();  // of the process that it is of
  DeviceAddress base_ = 0;
  std::vector<StreamId> streams_;  // that memory was carved for
  std::unordered_map<const void*, Carving> tensors_;
  std::uint64_t tensor_count_ = 0;
  bool closed_ = false;
};

}  // namespace nbx
