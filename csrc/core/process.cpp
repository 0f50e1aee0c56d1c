#include "core/process.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <string>

#include "core/error.h"

namespace nbx {
namespace {
std::atomic<std::uint32_t> forks{0};
}  // namespace

void watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (registered != 0) {
    throw Error(ErrorKind::kDevice,
                std::string("device: fork could not be watched: ") + std::strerror(registered));
  }
}

std::uint32_t fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace nbx
