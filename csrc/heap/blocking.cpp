#include "heap/blocking.h"

#include <atomic>

namespace nbx {
namespace {

std::atomic<void* (*)() noexcept> enter_hook{nullptr};
std::atomic<void (*)(void*) noexcept> leave_hook{nullptr};

}  // namespace

void set_blocking_hooks(const BlockingHooks& hooks) noexcept {
  leave_hook.store(hooks.leave, std::memory_order_release);
  enter_hook.store(hooks.enter, std::memory_order_release);
}

BlockingScope::BlockingScope() noexcept
    : hooks_{enter_hook.load(std::memory_order_acquire),
             leave_hook.load(std::memory_order_acquire)},
      state_(hooks_.enter != nullptr ? hooks_.enter() : nullptr) {}

BlockingScope::~BlockingScope() {
  if (hooks_.enter != nullptr && hooks_.leave != nullptr) hooks_.leave(state_);
}

}  // namespace nbx
