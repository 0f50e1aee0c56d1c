// A planning problem in sections: the times between two changes, numbered.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "arena/plan.h"

namespace nbx {

using PlanBytes = std::int64_t;

struct PlanBuffer {
  std::uint32_t id = 0;     // index among the caller's intervals
  std::uint32_t first = 0;  // sections [first, last)
  std::uint32_t last = 0;
  PlanBytes size = 0;
  PlanBytes alignment = 1;
  // Sections it is alive in: one range, or several where it has gaps.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> spans;
};

[[nodiscard]] constexpr PlanBytes align_offset(PlanBytes offset, PlanBytes alignment) noexcept {
  return (offset + alignment - 1) / alignment * alignment;
}

[[nodiscard]] inline bool plan_overlap(const PlanBuffer& a, const PlanBuffer& b) noexcept {
  if (a.first >= b.last || b.first >= a.last) return false;
  for (const auto& [first, last] : a.spans) {
    for (const auto& [begin, end] : b.spans) {
      if (first < end && begin < last) return true;
    }
  }
  return false;
}

/// Intervals without bytes are left out: their offset is 0.
struct PlanProblem {
  std::vector<PlanBuffer> buffers;  // by first section
  std::uint32_t sections = 0;
};

/// Throws Error(kValue) as `make_plan` does.
[[nodiscard]] PlanProblem plan_problem(const std::vector<PlanInterval>& intervals,
                                       std::uint64_t alignment);
/// The parts of a problem between times at which nothing is alive, each with sections of its own.
[[nodiscard]] std::vector<PlanProblem> plan_parts(const PlanProblem& problem);
/// The most bytes alive in one section.
[[nodiscard]] PlanBytes plan_bound(const PlanProblem& problem);

/// When to stop: the time is up, or somebody asks.
class PlanClock {
 public:
  PlanClock(double seconds, const std::atomic<bool>* cancel) noexcept
      : start_(std::chrono::steady_clock::now()), seconds_(seconds), cancel_(cancel) {}
  [[nodiscard]] double elapsed() const noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  [[nodiscard]] double limit() const noexcept { return seconds_; }
  [[nodiscard]] bool cancelled() const noexcept {
    return cancel_ != nullptr && cancel_->load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool over() const noexcept { return cancelled() || elapsed() >= seconds_; }

 private:
  std::chrono::steady_clock::time_point start_;
  double seconds_;
  const std::atomic<bool>* cancel_;
};

}  // namespace nbx
