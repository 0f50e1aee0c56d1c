// Plans by one rule: buffers in some order, each into a gap among those placed before it.
#pragma once

#include <string>
#include <vector>

#include "arena/plan_problem.h"

namespace nbx {

struct GreedyPlan {
  std::vector<PlanBytes> offsets;  // by index of the problem's buffers
  PlanBytes peak = 0;
  std::string method;
};

/// The best plan of a portfolio of orders, which ends early at a peak of `enough` bytes or when
/// `seconds` more of the clock have passed; the first order is always finished. When time is left
/// and the best is not enough, the orders are mended: what lies too high moves to the front.
[[nodiscard]] GreedyPlan greedy_plan(const PlanProblem& problem, PlanBytes enough,
                                     const PlanClock& clock, double seconds);

}  // namespace nbx
