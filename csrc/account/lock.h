// A lock for sections of some tens of nanoseconds: one atomic exchange to take, one store to give.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace nbx {

/// Never held across a driver call, a wait or a callback. A waiter spins briefly, then yields,
/// then sleeps, so that a holder which lost its core gets it back.
class ShortLock {
 public:
  ShortLock() = default;
  ShortLock(const ShortLock&) = delete;
  ShortLock& operator=(const ShortLock&) = delete;

  void lock() noexcept {
    if (!taken_.exchange(true, std::memory_order_acquire)) return;
    wait();
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
  }

  __attribute__((noinline, cold)) void wait() noexcept {
    for (int round = 0;; ++round) {
      if (!taken_.load(std::memory_order_relaxed) &&
          !taken_.exchange(true, std::memory_order_acquire)) {
        return;
      }
      if (round < 128) {
        pause();
      } else if (round < 256) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  std::atomic<bool> taken_{false};
};

}  // namespace nbx
