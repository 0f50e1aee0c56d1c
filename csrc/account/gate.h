// A door to what one thread uses without locks, which others can close for a while.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#define NBX_SYMMETRIC_GATES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NBX_SYMMETRIC_GATES 1
#endif
#endif

namespace nbx {

/// The owner passes with two plain stores; whoever closes the gate pays for both, with a barrier on
/// every core that runs this process. Where the system has no such barrier the owner's first store
/// is an atomic exchange.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // ---- the owner
  // ---------------------------------------------------------------------------------
  /// False while the gate is closed: `leave` is not called then. Nothing between the two waits.
  [[nodiscard]] bool enter() noexcept {
    if (is_asymmetric()) {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (closed_.load(std::memory_order_acquire) == 0) [[likely]]
        return true;
    } else {
      static_cast<void>(inside_.exchange(true, std::memory_order_seq_cst));
      if (closed_.load(std::memory_order_seq_cst) == 0) [[likely]]
        return true;
    }
    inside_.store(false, std::memory_order_release);
    return false;
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  // ---- others
  // ------------------------------------------------------------------------------------
  /// The owner is out once this, then `barrier`, then `wait_empty` have returned, and stays out
  /// until as many calls of `open`. Several may close a gate at a time.
  void close() noexcept { closed_.fetch_add(1, std::memory_order_seq_cst); }
  static void barrier() noexcept;  // one for any number of gates
  void wait_empty() const noexcept;
  void open() noexcept { closed_.fetch_sub(1, std::memory_order_release); }

  /// In the child of a fork, where an owner or a closer may have been left behind.
  void reset() noexcept {
    inside_.store(false, std::memory_order_relaxed);
    closed_.store(0, std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] static bool is_asymmetric() noexcept {
#if defined(NBX_SYMMETRIC_GATES)
    return false;
#else
    return asymmetric_;
#endif
  }

  static const bool asymmetric_;
  std::atomic<bool> inside_{false};
  std::atomic<std::uint32_t> closed_{0};
};

}  // namespace nbx
