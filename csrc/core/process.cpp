#include "core/process.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <string>

#include "core/error.h"

namespace nbx {
namespace {
std::atomic<bool> forked{false};
}  // namespace

void watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  if (registered != 0) {
    throw Error(ErrorKind::kDevice,
                std::string("device: fork could not be watched: ") + std::strerror(registered));
  }
}

bool is_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

}  // namespace nbx
