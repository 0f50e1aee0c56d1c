// Greedy plans first, then search: at the lower bound, then halving what lies between.
#include "arena/plan.h"

#include <algorithm>
#include <numeric>

#include "arena/plan_greedy.h"
#include "arena/plan_problem.h"
#include "arena/plan_search.h"

namespace nbx {
namespace {

// Beyond these sizes one attempt of the search takes longer than it is worth.
constexpr std::size_t kSearchedBuffers = 6000;
constexpr std::size_t kSearchedPairs = 8'000'000;
constexpr double kGreedyShare = 0.5;  // of the time, where a search follows
constexpr double kFirstShare = 0.5;   // of what is left, for the search at the lower bound
constexpr double kNextShare = 0.25;

/// The plan of one part so far.
struct Part {
  PlanProblem problem;
  std::vector<PlanBytes> offsets;
  PlanBytes peak = 0;
  PlanBytes bound = 0;
  PlanBytes unit = 1;  // every offset that buffers push each other to is a multiple
  std::string method;
};

bool searchable(const PlanProblem& problem) {
  if (problem.buffers.size() > kSearchedBuffers) return false;
  // Pairs alive together, counted from the open buffers at each start.
  std::size_t pairs = 0;
  std::vector<std::int64_t> change(problem.sections + std::size_t{1}, 0);
  for (const PlanBuffer& buffer : problem.buffers) {
    ++change[buffer.first];
    --change[buffer.last];
  }
  std::int64_t open = 0;
  for (std::size_t s = 0; s < problem.sections; ++s) {
    const std::int64_t before = open;
    open += change[s];
    if (open > before) pairs += static_cast<std::size_t>((open - before) * open);
  }
  return pairs <= kSearchedPairs;
}

/// One search; true if it answered, with the part's plan or its bound improved.
bool attempt(Part& part, PlanBytes capacity, const PlanClock& clock, double seconds,
             StaticPlan& plan) {
  const SearchResult result = search_plan(part.problem, capacity, clock, seconds);
  plan.nodes += result.nodes;
  if (result.outcome == SearchOutcome::kNone) {
    part.bound = std::max(part.bound, capacity + 1);
    return true;
  }
  if (result.outcome != SearchOutcome::kFound) return false;
  part.offsets = result.offsets;
  part.peak = 0;
  for (std::size_t k = 0; k < part.offsets.size(); ++k) {
    part.peak = std::max(part.peak, part.offsets[k] + part.problem.buffers[k].size);
  }
  part.method = "search";
  return true;
}

/// Brings a part down to `enough`, as far as the time goes.
void improve(Part& part, PlanBytes enough, const PlanClock& clock, StaticPlan& plan) {
  const auto left = [&] { return clock.limit() - clock.elapsed(); };
  if (part.peak <= enough || clock.over() || !searchable(part.problem)) return;
  attempt(part, std::max(enough, part.bound), clock, kFirstShare * left(), plan);
  // The answer lies above `low`, or was not found there.
  PlanBytes low = std::max(enough, part.bound);
  while (part.peak > std::max(enough, part.bound) && part.peak - low > part.unit && !clock.over()) {
    const PlanBytes middle =
        std::min(part.peak - 1, (low + (part.peak - low) / 2) / part.unit * part.unit);
    if (middle <= low) break;
    attempt(part, middle, clock, kNextShare * left(), plan);
    if (part.peak > middle) low = std::max(middle, part.bound);
  }
  // One step below the best closes the gap where the search can prove it.
  if (part.peak > std::max(enough, part.bound) && !clock.over()) {
    attempt(part, part.peak - 1, clock, left(), plan);
  }
  if (part.bound > part.peak) part.bound = part.peak;
}

std::vector<Part> parts_of(const PlanProblem& problem) {
  std::vector<Part> parts;
  for (PlanProblem& part : plan_parts(problem)) {
    Part made;
    made.problem = std::move(part);
    made.bound = plan_bound(made.problem);
    made.unit = 0;
    for (const PlanBuffer& buffer : made.problem.buffers) {
      made.unit =
          std::gcd(made.unit,
                   std::gcd(buffer.size, buffer.alignment == 1 ? PlanBytes{0} : buffer.alignment));
    }
    parts.push_back(std::move(made));
  }
  return parts;
}

void gather(const std::vector<Part>& parts, StaticPlan& plan) {
  for (const Part& part : parts) {
    for (std::size_t k = 0; k < part.offsets.size(); ++k) {
      plan.offsets[part.problem.buffers[k].id] = static_cast<std::uint64_t>(part.offsets[k]);
    }
    plan.lower_bound = std::max(plan.lower_bound, static_cast<std::uint64_t>(part.bound));
    if (static_cast<std::uint64_t>(part.peak) <= plan.peak) continue;
    plan.peak = static_cast<std::uint64_t>(part.peak);
    plan.method = part.method;
  }
}

}  // namespace

std::uint64_t plan_lower_bound(const std::vector<PlanInterval>& intervals,
                               std::uint64_t alignment) {
  return static_cast<std::uint64_t>(plan_bound(plan_problem(intervals, alignment)));
}

StaticPlan make_plan(const std::vector<PlanInterval>& intervals, const PlanOptions& options) {
  const PlanClock clock(options.seconds, options.cancel);
  const PlanProblem problem = plan_problem(intervals, options.alignment);
  std::vector<Part> parts = parts_of(problem);
  StaticPlan plan;
  plan.offsets.assign(intervals.size(), 0);
  // No part needs to be smaller than what the fullest one takes anyway.
  PlanBytes enough = 0;
  for (const Part& part : parts) enough = std::max(enough, part.bound);
  const bool fits_a_capacity = options.capacity != 0;
  if (fits_a_capacity) {
    enough = static_cast<PlanBytes>(
        std::min(options.capacity, static_cast<std::uint64_t>(PlanBytes{1} << 62)));
  }
  for (std::size_t k = 0; k < parts.size(); ++k) {
    Part& part = parts[k];
    const double share = (clock.limit() - clock.elapsed()) / static_cast<double>(parts.size() - k);
    const double greedy = searchable(part.problem) ? std::min(kGreedyShare * share, 2.0) : share;
    GreedyPlan first = greedy_plan(part.problem, enough, clock, greedy);
    part.offsets = std::move(first.offsets);
    part.peak = first.peak;
    part.method = std::move(first.method);
  }
  for (Part& part : parts) {
    if (fits_a_capacity) {
      if (part.peak > enough && part.bound <= enough && searchable(part.problem)) {
        attempt(part, enough, clock, clock.limit() - clock.elapsed(), plan);
      }
      continue;
    }
    improve(part, enough, clock, plan);
    enough = std::max(enough, part.peak);
  }
  gather(parts, plan);
  plan.optimal = plan.peak == plan.lower_bound;
  plan.cancelled = clock.cancelled();
  plan.seconds = clock.elapsed();
  return plan;
}

}  // namespace nbx
