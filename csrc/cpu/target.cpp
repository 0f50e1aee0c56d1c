#include "cpu/target.h"

#include <atomic>

namespace nbx::cpu {
namespace {

Simd best_level() noexcept {
#if NBX_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return Simd::kAvx512;
    }
    return Simd::kAvx2;
  }
#endif
  return Simd::kPortable;
}

std::atomic<Simd> level{best_level()};

}  // namespace

Simd simd_level() noexcept { return level.load(std::memory_order_relaxed); }

Simd limit_simd(Simd limit) noexcept {
  const Simd best = best_level();
  return level.exchange(limit < best ? limit : best);
}

}  // namespace nbx::cpu
