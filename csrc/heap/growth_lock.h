// The lock of a heap's slow path, which gives way while its holder waits for the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace nbx {

/// Recursive, as work that a wait runs may come back on the same thread. Whoever holds it waits for
/// the device only inside a `Pause`: host work of a stream may want the lock, and the wait would be
/// for that host work.
class GrowthLock {
 public:
  GrowthLock() = default;
  GrowthLock(const GrowthLock&) = delete;
  GrowthLock& operator=(const GrowthLock&) = delete;

  /// Inside a callback it throws Error(kDevice) instead of standing still behind a holder that
  /// waits for the device and cannot give way.
  void lock();
  [[nodiscard]] bool try_lock() noexcept;
  void unlock() noexcept;

  /// Around a wait for the device, and around code of the program: others may hold the lock
  /// meanwhile, and change everything that it guards.
  class Pause {
   public:
    explicit Pause(GrowthLock& growth) noexcept;
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    GrowthLock& growth_;
    std::uint32_t depth_ = 0;
    bool stands_ = false;
  };

  /// Holds the lock for something that nobody may come between: pauses inside keep it.
  class Undivided {
   public:
    explicit Undivided(GrowthLock& growth);
    ~Undivided();
    Undivided(const Undivided&) = delete;
    Undivided& operator=(const Undivided&) = delete;

   private:
    GrowthLock& growth_;
  };

  /// One thread at a time asks the reclaimers. The lock is held by the caller, given up while
  /// another thread asks, and held again afterwards.
  class Asking {
   public:
    explicit Asking(GrowthLock& growth);
    ~Asking();
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    /// False on a thread that runs a reclaimer, and inside a callback while another thread asks.
    [[nodiscard]] bool may() const noexcept { return may_; }
    /// Another thread asked in between.
    [[nodiscard]] bool waited() const noexcept { return waited_; }

   private:
    GrowthLock& growth_;
    bool may_ = false, waited_ = false;
  };

 private:
  [[nodiscard]] bool is_mine() const noexcept;

  std::mutex mutex_;
  std::atomic<const void*> owner_{nullptr};
  std::uint32_t depth_ = 0, undivided_ = 0;  // the owner's
  std::atomic<std::uint32_t> standing_{0};   // waits of an owner that does not give way
  std::recursive_mutex asking_;              // taken before `mutex_`
  std::atomic<const void*> asker_{nullptr};
};

}  // namespace nbx
