#include "account/gate.h"

#include <chrono>
#include <thread>

#if !defined(NBX_SYMMETRIC_GATES)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nbx {

#if defined(NBX_SYMMETRIC_GATES)

const std::uint32_t Gate::least_closers_ = 0;

void Gate::barrier() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

#else

namespace {

bool call(int command) noexcept { return syscall(__NR_membarrier, command, 0, 0) == 0; }
bool register_barrier() noexcept { return call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }
bool issue_barrier() noexcept { return call(MEMBARRIER_CMD_PRIVATE_EXPEDITED); }

}  // namespace

const std::uint32_t Gate::least_closers_ = register_barrier() ? 0 : 1;

void Gate::barrier() noexcept {
  if (issue_barrier() || (register_barrier() && issue_barrier())) return;
  // No barrier: no gate is open, unless a filter of system calls was set up late. Every store
  // buffer is empty long before this is over.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

#endif

void Gate::wait_empty() const noexcept {
  for (int round = 0; inside_.load(std::memory_order_seq_cst); ++round) {
    if (round > 64) std::this_thread::yield();
  }
}

}  // namespace nbx
