// Times of many short sections, by the processor's own counter where it has one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "account/recorder.h"
#include "core/clock.h"

namespace nbx {

/// Ticks are turned into nanoseconds by the whole run's length on the monotonic clock, and the cost
/// of reading the counter is taken off.
class LatencySamples {
 public:
  [[nodiscard]] static std::uint64_t ticks() noexcept { return Recorder::ticks(); }

  /// Forgets what was measured before; makes room, so that `add` allocates nothing.
  void start(std::size_t most) {
    samples_.clear();
    samples_.reserve(most);
    // The cheapest of a batch of empty sections is what reading the counter costs.
    overhead_ = UINT64_MAX;
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t first = ticks();
      overhead_ = std::min(overhead_, ticks() - first);
    }
    start_ns_ = clock_nanoseconds();
    start_ticks_ = ticks();
  }
  void add(std::uint64_t ticks) { samples_.push_back(ticks - std::min(ticks, overhead_)); }
  /// Ends the measured run, which lasts at least long enough for the two clocks to be compared.
  void finish() {
    while (clock_nanoseconds() - start_ns_ < kShortest) {
    }
    const std::uint64_t passed = ticks() - start_ticks_;
    const std::uint64_t nanoseconds = clock_nanoseconds() - start_ns_;
    ns_per_tick_ = static_cast<double>(nanoseconds) / static_cast<double>(passed);
    std::sort(samples_.begin(), samples_.end());
  }
  /// The nearest-rank quantile in nanoseconds; 0 when nothing was measured.
  [[nodiscard]] double quantile(double share) const noexcept {
    if (samples_.empty()) return 0.0;
    const auto rank =
        static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples_.size())));
    return static_cast<double>(samples_[std::max<std::size_t>(rank, 1) - 1]) * ns_per_tick_;
  }

 private:
  static constexpr std::uint64_t kShortest = 1000000;  // nanoseconds

  std::vector<std::uint64_t> samples_;
  std::uint64_t overhead_ = 0;
  std::uint64_t start_ns_ = 0, start_ticks_ = 0;
  double ns_per_tick_ = 1.0;
};

}  // namespace nbx
