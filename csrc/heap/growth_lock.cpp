#include "heap/growth_lock.h"

#include <chrono>
#include <thread>

#include "core/error.h"
#include "stream/callback.h"

namespace nbx {
namespace {

constinit thread_local char mark_of_thread = 0;

[[noreturn]] void refuse_to_stand() {
  throw Error(ErrorKind::kDevice,
              "heap: another thread waits for the device while it moves memory, and host work of a "
              "stream, which it may wait for, cannot wait for it in turn; allocate what host work "
              "needs before the work is queued");
}

}  // namespace

bool GrowthLock::is_mine() const noexcept {
  return owner_.load(std::memory_order_relaxed) == &mark_of_thread;
}

bool GrowthLock::try_lock() noexcept {
  if (!is_mine()) {
    if (!mutex_.try_lock()) return false;
    owner_.store(&mark_of_thread, std::memory_order_relaxed);
  }
  ++depth_;
  return true;
}

void GrowthLock::lock() {
  if (is_mine() || !inside_callback()) {
    if (!is_mine()) {
      mutex_.lock();
      owner_.store(&mark_of_thread, std::memory_order_relaxed);
    }
    ++depth_;
    return;
  }
  while (!try_lock()) {
    if (standing_.load(std::memory_order_acquire) != 0) refuse_to_stand();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void GrowthLock::unlock() noexcept {
  // In the child of a fork the lock is new.
  if (!is_mine() || --depth_ != 0) return;
  owner_.store(nullptr, std::memory_order_relaxed);
  mutex_.unlock();
}

// ---- pauses --------------------------------------------------------------------------------

GrowthLock::Pause::Pause(GrowthLock& growth) noexcept : growth_(growth) {
  if (!growth_.is_mine()) return;
  // A callback, which waits for nothing, could not take it back without standing still.
  if (inside_callback()) return;
  stands_ = growth_.undivided_ != 0;
  if (stands_) {
    growth_.standing_.fetch_add(1, std::memory_order_release);
    return;
  }
  depth_ = growth_.depth_;
  growth_.depth_ = 0;
  growth_.owner_.store(nullptr, std::memory_order_relaxed);
  growth_.mutex_.unlock();
}

GrowthLock::Pause::~Pause() {
  if (stands_) growth_.standing_.fetch_sub(1, std::memory_order_release);
  if (depth_ == 0) return;
  growth_.mutex_.lock();
  growth_.owner_.store(&mark_of_thread, std::memory_order_relaxed);
  growth_.depth_ = depth_;
}

GrowthLock::Undivided::Undivided(GrowthLock& growth) : growth_(growth) {
  if (!inside_callback()) {
    growth_.asking_.lock();
  } else if (!growth_.asking_.try_lock()) {
    refuse_to_stand();
  }
  try {
    growth_.lock();
  } catch (...) {
    growth_.asking_.unlock();
    throw;
  }
  ++growth_.undivided_;
}

GrowthLock::Undivided::~Undivided() {
  if (!growth_.is_mine()) return;
  --growth_.undivided_;
  growth_.unlock();
  growth_.asking_.unlock();
}

GrowthLock::Asking::Asking(GrowthLock& growth) : growth_(growth) {
  if (growth_.asker_.load(std::memory_order_relaxed) == &mark_of_thread) return;
  if (!growth_.asking_.try_lock()) {
    if (inside_callback()) return;
    const Pause pause(growth_);
    growth_.asking_.lock();
    waited_ = true;
  }
  may_ = true;
  growth_.asker_.store(&mark_of_thread, std::memory_order_relaxed);
}

GrowthLock::Asking::~Asking() {
  // In the child of a fork the lock is new.
  if (!may_ || growth_.asker_.load(std::memory_order_relaxed) != &mark_of_thread) return;
  growth_.asker_.store(nullptr, std::memory_order_relaxed);
  growth_.asking_.unlock();
}

}  // namespace nbx
