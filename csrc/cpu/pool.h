// The worker pool of the CPU device: persistent threads that sleep when there is nothing to do.
#pragma once

#include <cstdint>

namespace nbx::cpu {

/// Threads that a kernel may use, the calling one included: NBX_NUM_THREADS, else the cores that
/// affinity and cgroup allow.
[[nodiscard]] int thread_count() noexcept;
/// The same, computed anew. Throws Error(kValue) when NBX_NUM_THREADS is not a number from 0 up.
[[nodiscard]] int default_thread_count();
/// Sets it (1 or more; Error(kValue) otherwise) and returns the former count.
int set_thread_count(int count);

using RangeFunction = void (*)(void* context, std::int64_t begin, std::int64_t end);
/// Calls `function` on pieces of [0, count) that begin at multiples of `grain` and are at least
/// that long except the last, on the pool and the calling thread; returns when all are done. Runs
/// inline when count <= grain, on one thread, inside another parallel range, or while another
/// thread uses the pool. The first exception is rethrown here.
void parallel_range(std::int64_t count, std::int64_t grain, RangeFunction function, void* context);

/// `body(begin, end)` over [0, count). Results must not depend on how the range is cut.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  parallel_range(
      count, grain,
      [](void* context, std::int64_t begin, std::int64_t end) {
        (*static_cast<const Body*>(context))(begin, end);
      },
      const_cast<Body*>(&body));
}

}  // namespace nbx::cpu
