#include "cpu/pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/environment.h"
#include "core/error.h"

namespace nbx::cpu {
namespace {

constexpr int kMaximumThreads = 1024;
constexpr int kPiecesPerThread = 4;
// Long enough to bridge the gap between two ops of a model, short enough to cost no battery.
constexpr std::chrono::microseconds kSpin{20};

// ---------------------------------------------------------------- how many threads

int affinity_count() noexcept {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

#if defined(__linux__)
// Cores granted by a quota of one cgroup folder, or a large number if it sets none.
int quota_count(const std::string& folder) {
  double quota = -1.0;
  double period = 100000.0;
  std::string word;
  if (std::ifstream v2(folder + "/cpu.max"); v2 >> word >> period) {
    if (word != "max") quota = std::strtod(word.c_str(), nullptr);
  } else if (std::ifstream v1(folder + "/cpu.cfs_quota_us"); v1 >> quota) {
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0.0 || period <= 0.0) return kMaximumThreads;
  return std::max(1, static_cast<int>((quota + period - 1.0) / period));
}

// A limit may be set on any ancestor, so every level up to the root counts.
int cgroup_count() {
  int count = kMaximumThreads;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string root = "/sys/fs/cgroup";
    if (!controllers.empty()) {
      if (("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
      root += "/" + controllers;
    }
    std::string path = line.substr(second + 1);
    while (true) {
      count = std::min(count, quota_count(root + path));
      if (path.empty()) break;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return count;
}
#else
int cgroup_count() { return kMaximumThreads; }
#endif

int initial_thread_count() noexcept {
  try {
    return default_thread_count();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nbxtensor: %s; using 1 thread\n", error.what());
    return 1;
  }
}

std::atomic<int>& wanted_threads() noexcept {
  static std::atomic<int> count{initial_thread_count()};
  return count;
}

// ---------------------------------------------------------------- the pool

void pause_briefly() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

template <class Condition>
bool spin_until(const Condition& condition) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause_briefly();
    }
    if (std::chrono::steady_clock::now() >= deadline) return condition();
  }
}

thread_local bool inside_range = false;

// One word says which job is offered, whether it may still be joined, and how many workers are in
// it, so that a worker that wakes late can neither hold up a job nor touch the next one's fields.
class Pool {
 public:
  // Returns false if another thread is using the pool.
  bool run(std::int64_t count, std::int64_t piece, int threads, RangeFunction function,
           void* context) {
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    start_workers(threads - 1);
    function_ = function;
    context_ = context;
    count_ = count;
    piece_ = piece;
    next_.store(0, std::memory_order_relaxed);
    limit_.store(threads - 1, std::memory_order_relaxed);
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);

    const std::uint64_t generation = (state_.load() >> kGenerationShift) + 1;
    state_.store((generation << kGenerationShift) | kOpen);
    wake();
    inside_range = true;
    work();
    inside_range = false;
    state_.fetch_and(~kOpen);
    const auto left = [this] { return (state_.load() & kActiveMask) == 0; };
    if (!spin_until(left)) {
      std::unique_lock<std::mutex> lock(mutex_);
      all_left_.wait(lock, left);
    }
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
    return true;
  }

 private:
  static constexpr int kGenerationShift = 16;
  static constexpr std::uint64_t kOpen = 1U << 15;
  static constexpr std::uint64_t kActiveMask = kOpen - 1;

  void start_workers(int wanted) {
    if (started_ >= wanted) return;
    // Signals belong to the program's own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = 0;
    try {
      while (started_ < wanted) {
        std::thread([this, index = started_] { serve(index); }).detach();
        ++started_;
      }
    } catch (const std::system_error& error) {
      failure = error.code().value();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failure != 0) {
      throw Error(ErrorKind::kDevice,
                  "cpu: worker thread " + std::to_string(started_ + 1) + " of " +
                      std::to_string(wanted) + " could not start (" + std::strerror(failure) +
                      "); set NBX_NUM_THREADS to at most " + std::to_string(started_ + 1));
    }
  }

  void wake() {
    if (sleepers_.load() == 0) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }
    offered_.notify_all();
  }

  void work() noexcept {
    while (true) {
      const std::int64_t begin = next_.fetch_add(piece_, std::memory_order_relaxed);
      if (begin >= count_) return;
      try {
        function_(context_, begin, std::min(count_, begin + piece_));
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
        next_.store(count_, std::memory_order_relaxed);
      }
    }
  }

  bool enter(std::uint64_t generation) noexcept {
    std::uint64_t state = state_.load();
    while ((state >> kGenerationShift) == generation && (state & kOpen) != 0) {
      if (state_.compare_exchange_weak(state, state + 1)) return true;
    }
    return false;
  }

  void leave() noexcept {
    const std::uint64_t before = state_.fetch_sub(1);
    if ((before & kOpen) == 0 && (before & kActiveMask) == 1) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
      }
      all_left_.notify_one();
    }
  }

  void serve(int index) noexcept {
    inside_range = true;
    std::uint64_t seen = 0;
    const auto offered = [this, &seen] { return (state_.load() >> kGenerationShift) != seen; };
    while (true) {
      if (!spin_until(offered)) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        offered_.wait(lock, offered);
        sleepers_.fetch_sub(1);
      }
      seen = state_.load() >> kGenerationShift;
      if (index < limit_.load(std::memory_order_relaxed) && enter(seen)) {
        work();
        leave();
      }
    }
  }

  std::mutex turn_;  // held for one job
  std::mutex mutex_;
  std::condition_variable offered_;
  std::condition_variable all_left_;
  alignas(64) std::atomic<std::uint64_t> state_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> limit_{0};
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) RangeFunction function_ = nullptr;
  void* context_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t piece_ = 1;
  int started_ = 0;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

// Never destroyed: workers may still sleep in it while the process exits. A child of fork has no
// workers, so it starts over with a pool of its own.
std::atomic<Pool*> current_pool{nullptr};
std::mutex creation;

Pool& pool() {
  Pool* found = current_pool.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  const std::lock_guard<std::mutex> lock(creation);
  found = current_pool.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  static const int registered = pthread_atfork([] { creation.lock(); }, [] { creation.unlock(); },
                                               [] {
                                                 current_pool.store(nullptr);
                                                 inside_range = false;
                                                 creation.unlock();
                                               });
  if (registered != 0) {
    throw Error(ErrorKind::kDevice,
                std::string("cpu: the worker pool could not prepare for fork (") +
                    std::strerror(registered) + ")");
  }
  found = std::make_unique<Pool>().release();
  current_pool.store(found, std::memory_order_release);
  return *found;
}

}  // namespace

int default_thread_count() {
  const std::string text = environment_text("NBX_NUM_THREADS");
  int count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, count);
  if (code != std::errc() || stop != end || count < 0 || count > kMaximumThreads) {
    throw Error(ErrorKind::kValue, "NBX_NUM_THREADS: expected a number from 1 to " +
                                       std::to_string(kMaximumThreads) +
                                       ", or 0 for the cores that may be used, got '" + text +
                                       "'; correct it or unset it");
  }
  if (count > 0) return count;
  return std::clamp(std::min(affinity_count(), cgroup_count()), 1, kMaximumThreads);
}

int thread_count() noexcept { return wanted_threads().load(std::memory_order_relaxed); }

int set_thread_count(int count) {
  if (count < 1 || count > kMaximumThreads) {
    throw Error(ErrorKind::kValue, "set_num_threads: count must be from 1 to " +
                                       std::to_string(kMaximumThreads) + ", got " +
                                       std::to_string(count));
  }
  return wanted_threads().exchange(count);
}

void parallel_range(std::int64_t count, std::int64_t grain, RangeFunction function, void* context) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t grains = (count + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<std::int64_t>(thread_count(), grains));
  if (threads <= 1 || inside_range) {
    function(context, 0, count);
    return;
  }
  const std::int64_t pieces = static_cast<std::int64_t>(threads) * kPiecesPerThread;
  const std::int64_t piece = grain * ((grains + pieces - 1) / pieces);
  if (!pool().run(count, piece, threads, function, context)) function(context, 0, count);
}

}  // namespace nbx::cpu
