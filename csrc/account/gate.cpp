#include "account/gate.h"

#include <chrono>
#include <thread>

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nbx {
namespace {

#if defined(__linux__) && defined(__NR_membarrier) && !defined(NBX_SYMMETRIC_GATES)
bool call(int command) noexcept { return syscall(__NR_membarrier, command, 0, 0) == 0; }
bool register_barrier() noexcept { return call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }
bool issue_barrier() noexcept { return call(MEMBARRIER_CMD_PRIVATE_EXPEDITED); }
#else
bool register_barrier() noexcept { return false; }
bool issue_barrier() noexcept { return false; }
#endif

}  // namespace

// Zero until it is set: gates that are used before that are symmetric on both sides.
const bool Gate::asymmetric_ = register_barrier();

void Gate::barrier() noexcept {
  if (!is_asymmetric()) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return;
  }
  if (issue_barrier() || (register_barrier() && issue_barrier())) return;
  // No barrier after all, as under a filter of system calls set up late: every store buffer is
  // empty long before this is over.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Gate::wait_empty() const noexcept {
  for (int round = 0; inside_.load(std::memory_order_seq_cst); ++round) {
    if (round > 64) std::this_thread::yield();
  }
}

}  // namespace nbx
