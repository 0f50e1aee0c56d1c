// Static plans: an offset for each of many intervals, so that those alive together do not overlap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nbx {

/// Times lower <= t < upper.
struct PlanSpan {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
};

/// One buffer of a plan: alive over [lower, upper), except in its gaps, where its bytes may serve
/// others and lose their content.
struct PlanInterval {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::uint64_t size = 0;       // bytes
  std::uint64_t alignment = 1;  // of the offset; any positive number
  std::vector<PlanSpan> gaps;   // inside (lower, upper), apart from each other
};

struct PlanOptions {
  std::uint64_t capacity = 0;                 // bytes to fit into; 0: as few as possible
  std::uint64_t alignment = 1;                // of every offset, besides each interval's own
  double seconds = 60;                        // time to improve a plan; the best so far is kept
  const std::atomic<bool>* cancel = nullptr;  // set from elsewhere: stop with the best so far
};

struct StaticPlan {
  std::vector<std::uint64_t> offsets;  // one an interval, in the order given
  std::uint64_t peak = 0;              // bytes that hold them all
  std::uint64_t lower_bound = 0;       // no plan can be smaller
  bool optimal = false;                // peak == lower_bound
  bool cancelled = false;
  double seconds = 0;
  std::uint64_t nodes = 0;  // placements that the search tried
  std::string method;       // what found it: a greedy order, or "search"
};

/// The most bytes alive at one time: no plan is smaller. Throws as `make_plan` does.
[[nodiscard]] std::uint64_t plan_lower_bound(const std::vector<PlanInterval>& intervals,
                                             std::uint64_t alignment = 1);

/// Plans the intervals. With a capacity the first plan that fits it is the answer, and peak >
/// capacity says that none was found. Throws Error(kValue) for an interval that is empty in time,
/// whose gaps are not inside it, or whose alignment is 0.
[[nodiscard]] StaticPlan make_plan(const std::vector<PlanInterval>& intervals,
                                   const PlanOptions& options);

/// Checks a plan by a sweep of its own: empty if it holds, else what is wrong.
[[nodiscard]] std::string plan_fault(const std::vector<PlanInterval>& intervals,
                                     const std::vector<std::uint64_t>& offsets,
                                     std::uint64_t capacity, std::uint64_t alignment = 1);

}  // namespace nbx
