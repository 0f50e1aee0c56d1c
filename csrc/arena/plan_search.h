// Search for a placement of all buffers within a capacity, or a proof that there is none.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/plan_problem.h"

namespace nbx {

enum class SearchOutcome : std::uint8_t {
  kFound,
  kNone,    // proven
  kGaveUp,  // time or nodes ran out
  kNext,    // inside the search: no answer yet
};

struct SearchResult {
  SearchOutcome outcome = SearchOutcome::kGaveUp;
  std::vector<PlanBytes> offsets;  // by index of the problem's buffers, when found
  std::uint64_t nodes = 0;
};

/// Looks until `seconds` of `clock` have passed. The problem is one part of `plan_parts`.
[[nodiscard]] SearchResult search_plan(const PlanProblem& problem, PlanBytes capacity,
                                       const PlanClock& clock, double seconds);

}  // namespace nbx
