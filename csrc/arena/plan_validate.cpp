// The validator shares nothing with the planners: it sweeps over the times of the intervals
// themselves and keeps what is alive ordered by offset.
#include <algorithm>
#include <iterator>
#include <map>

#include "arena/plan.h"

namespace nbx {
namespace {

struct Change {
  std::int64_t time;
  bool starts;
  std::size_t interval;
};

std::string name_of(std::size_t interval) { return "interval " + std::to_string(interval); }

std::string outside(const std::vector<PlanInterval>& intervals,
                    const std::vector<std::uint64_t>& offsets, std::uint64_t capacity,
                    std::uint64_t alignment) {
  if (offsets.size() != intervals.size()) {
    return std::to_string(offsets.size()) + " offsets for " + std::to_string(intervals.size()) +
           " intervals";
  }
  for (std::size_t k = 0; k < intervals.size(); ++k) {
    const PlanInterval& interval = intervals[k];
    if (interval.size == 0) continue;
    if (offsets[k] > capacity || interval.size > capacity - offsets[k]) {
      return name_of(k) + " of " + std::to_string(interval.size) + " bytes at offset " +
             std::to_string(offsets[k]) + " ends above the capacity of " +
             std::to_string(capacity) + " bytes";
    }
    for (const std::uint64_t step : {interval.alignment, alignment}) {
      if (step == 0 || offsets[k] % step != 0) {
        return name_of(k) + " at offset " + std::to_string(offsets[k]) + " is not aligned to " +
               std::to_string(step) + " bytes";
      }
    }
  }
  return {};
}

/// Starts and ends of every time at which an interval is alive; ends first at equal times.
std::vector<Change> changes_of(const std::vector<PlanInterval>& intervals) {
  std::vector<Change> changes;
  for (std::size_t k = 0; k < intervals.size(); ++k) {
    if (intervals[k].size == 0) continue;
    changes.push_back(Change{intervals[k].lower, true, k});
    for (const PlanSpan& gap : intervals[k].gaps) {
      changes.push_back(Change{gap.lower, false, k});
      changes.push_back(Change{gap.upper, true, k});
    }
    changes.push_back(Change{intervals[k].upper, false, k});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.time != b.time ? a.time < b.time : a.starts < b.starts;
  });
  return changes;
}

}  // namespace

std::string plan_fault(const std::vector<PlanInterval>& intervals,
                       const std::vector<std::uint64_t>& offsets, std::uint64_t capacity,
                       std::uint64_t alignment) {
  std::string fault = outside(intervals, offsets, capacity, alignment);
  if (!fault.empty()) return fault;
  std::map<std::uint64_t, std::size_t> alive;  // by offset
  for (const Change& change : changes_of(intervals)) {
    const std::uint64_t offset = offsets[change.interval];
    if (!change.starts) {
      alive.erase(offset);
      continue;
    }
    const auto above = alive.lower_bound(offset);
    std::size_t other = intervals.size();
    if (above != alive.end() && above->first < offset + intervals[change.interval].size) {
      other = above->second;
    } else if (above != alive.begin()) {
      const auto below = std::prev(above);
      if (below->first + intervals[below->second].size > offset) other = below->second;
    }
    if (other != intervals.size()) {
      return name_of(change.interval) + " and " + name_of(other) + " overlap at time " +
             std::to_string(change.time);
    }
    alive.emplace(offset, change.interval);
  }
  return {};
}

}  // namespace nbx
