// The heap of one device: blocks cut out of segments, split and coalesced, best fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "account/account.h"
#include "core/error.h"
#include "device/device.h"
#include "heap/space.h"
#include "stream/stream.h"

namespace nbx {

/// A granted block. `generation` tells a reused block from the one that was freed: every address
/// of an older generation is void.
struct Block {
  DeviceAddress address = 0;
  std::uint64_t granted = 0;  // bytes
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
};

struct HeapStatistics {
  std::uint64_t live;     // granted bytes of live blocks
  std::uint64_t parked;   // free bytes inside segments
  std::uint64_t pending;  // freed bytes whose ticket is not complete
  std::uint64_t mapped;   // bytes held from the driver: live + parked + pending
  std::uint64_t peak_live;
  std::uint64_t peak_mapped;
  std::uint64_t live_blocks;
  std::uint64_t free_blocks;
  std::uint64_t largest_hole;
  std::uint64_t driver_calls;
};

class Heap {
 public:
  /// `lock`: the lock of the account tree that most blocks are counted in (Account::tree_lock), so
  /// that one lock serves both; without it the heap has its own.
  explicit Heap(Device& device, ShortLock* lock = nullptr);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// At least `bytes` bytes aligned to `alignment` (a power of two, at most 4 KiB), for use
  /// on `stream`. Zero bytes give a block without memory (address 0, granted 0).
  /// The bytes are admitted by `account` first. Throws Error(kOutOfMemory) with every figure of
  /// design section 4 after the whole refusal pipeline has failed; nothing is held then.
  [[nodiscard]] Block allocate(std::uint64_t bytes, std::uint64_t alignment, Stream& stream,
                               Account& account);

  /// Gives a block back; reusable on `stream` at once, elsewhere when `ticket` is complete.
  /// From any thread, finalizer or callback; never blocks on the device.
  void free(const Block& block, std::uint64_t requested, Account& account, StreamHandle stream,
            Ticket ticket) noexcept;

  /// The same for a block that work of several streams may still touch; each use needs its ticket.
  void free_after(const Block& block, std::uint64_t requested, Account& account,
                  const BlockUse* uses, std::size_t count) noexcept;
  /// Throws Error(kValue) unless the handle names a live block: it was freed, or is not of this
  /// heap.
  void require_live(const Block& block) const;

  /// The error of bytes that `refused`, an account of this device, did not admit.
  [[nodiscard]] Error over_budget(std::uint64_t bytes, Account& refused) const;

  /// Takes every lock, so that a child process starts with whole books; afterwards gives them back.
  void before_fork() noexcept;
  void after_fork(bool child) noexcept;

  /// Free memory back to the driver until at most `keep` parked bytes remain; returns bytes given
  /// back.
  std::uint64_t trim(std::uint64_t keep = 0);
  [[nodiscard]] HeapStatistics statistics() const;
  void reset_peak() noexcept;
  /// The live block that holds this address, interior addresses included; false if none does.
  [[nodiscard]] bool find(DeviceAddress address, Block* block) const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nbx
