// Owners of borrowed memory that get it back once queued work is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "account/account.h"
#include "stream/order.h"

namespace nbx {

struct LateOwner {
  void* owner;
  void (*finalizer)(void* owner) noexcept;
  Account* account;
  std::uint64_t counted;       // bytes charged to it
  std::vector<BlockUse> uses;  // what must be over first
};

/// Gives the memory back now if nothing uses it, else when `run_late_owners` finds it so.
void finish_owner(LateOwner late) noexcept;
inline constinit std::atomic<std::uint64_t> late_owner_count{0};
[[nodiscard]] inline std::uint64_t late_owners() noexcept {
  return late_owner_count.load(std::memory_order_acquire);
}
void finish_late_owners() noexcept;
/// After a wait: gives back what is not used any more. Costs one load when nothing is late.
inline void run_late_owners() noexcept {
  if (late_owners() != 0) [[unlikely]]
    finish_late_owners();
}

}  // namespace nbx
