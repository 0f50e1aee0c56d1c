// A door to what one thread uses without locks, which others can close for a while.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/inline.h"

#if !defined(__linux__) || defined(__SANITIZE_THREAD__)
#define NBX_SYMMETRIC_GATES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NBX_SYMMETRIC_GATES 1
#endif
#endif

namespace nbx {

/// A gate is open for one key at a time, or closed. The owner passes with two plain moves; whoever
/// closes the gate pays for both, with a barrier on every core that runs this process. Where no
/// system has such a barrier the owner's first store is an atomic exchange; where this one refuses
/// it, gates stay closed and the owner takes its lock.
class Gate {
 public:
  Gate() noexcept : closers_(least_closers_) {}
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // ---- the owner -------------------------------------------------------------------------------
  /// False unless the gate is open for `key`: `leave` is not called then. Nothing between the two
  /// waits.
  [[nodiscard]] NBX_INLINE bool enter(const void* key) noexcept {
#if defined(NBX_SYMMETRIC_GATES)
    static_cast<void>(inside_.exchange(true, std::memory_order_seq_cst));
#else
    inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
    if (open_for_.load(kOrder) == key) [[likely]]
      return true;
    leave();
    return false;
  }
  NBX_INLINE void leave() noexcept { inside_.store(false, std::memory_order_release); }

  // ---- others, with the lock that the gate belongs to -------------------------------------------
  /// Whom it is open for, unless it is closed; null: nobody.
  void set_key(const void* key) noexcept {
    key_ = key;
    if (closers_ == 0) open_for_.store(key, std::memory_order_release);
  }
  /// The owner is out once this, then `barrier`, then `wait_empty` have returned, and stays out
  /// until as many calls of `open`. Several may close a gate at a time.
  void close() noexcept {
    ++closers_;
    open_for_.store(nullptr, std::memory_order_seq_cst);
  }
  void open() noexcept {
    --closers_;
    set_key(key_);
  }
  // These two without the lock.
  static void barrier() noexcept;  // one for any number of gates
  void wait_empty() const noexcept;

  /// In the child of a fork, where an owner or a closer may have been left behind.
  void reset() noexcept {
    inside_.store(false, std::memory_order_relaxed);
    closers_ = least_closers_;
    set_key(key_);
  }

 private:
#if defined(NBX_SYMMETRIC_GATES)
  static constexpr std::memory_order kOrder = std::memory_order_seq_cst;
#else
  static constexpr std::memory_order kOrder = std::memory_order_acquire;
#endif
  static const std::uint32_t least_closers_;  // 1 where there is no barrier
  std::atomic<const void*> open_for_{nullptr};
  std::atomic<bool> inside_{false};
  std::uint32_t closers_;
  const void* key_ = nullptr;
};

}  // namespace nbx
