#include "arena/plan_problem.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "core/error.h"

namespace nbx {
namespace {

// Sums of sizes stay far from the end of 64 bits.
constexpr std::uint64_t kMaximumTotal = std::uint64_t{1} << 61;

[[noreturn]] void refuse(std::size_t index, const std::string& what) {
  throw Error(ErrorKind::kValue, "plan: interval " + std::to_string(index) + " " + what);
}

std::string text_of(const PlanSpan& span) {
  return "[" + std::to_string(span.lower) + ", " + std::to_string(span.upper) + ")";
}

PlanBytes common_alignment(std::size_t index, std::uint64_t own, std::uint64_t all) {
  if (own == 0 || all == 0) refuse(index, "has alignment 0; give 1 or more bytes");
  const std::uint64_t common = own / std::gcd(own, all);
  if (common > (std::uint64_t{1} << 40) / all) {
    refuse(index, "has alignment " + std::to_string(own) + " besides the plan's " +
                      std::to_string(all) + "; give alignments whose common multiple is at most " +
                      "1 TiB");
  }
  return static_cast<PlanBytes>(common * all);
}

/// The times at which an interval is alive, in order.
std::vector<PlanSpan> alive(std::size_t index, const PlanInterval& interval) {
  const PlanSpan whole{interval.lower, interval.upper};
  if (whole.lower >= whole.upper) {
    refuse(index, "is alive over " + text_of(whole) + "; give a lower below upper");
  }
  std::vector<PlanSpan> gaps = interval.gaps;
  std::sort(gaps.begin(), gaps.end(),
            [](const PlanSpan& a, const PlanSpan& b) { return a.lower < b.lower; });
  std::vector<PlanSpan> spans;
  std::int64_t start = whole.lower;
  for (const PlanSpan& gap : gaps) {
    if (gap.lower >= gap.upper || gap.lower <= start || gap.upper >= whole.upper) {
      refuse(index, "has the gap " + text_of(gap) + "; give gaps inside " + text_of(whole) +
                        ", apart from each other and from its ends");
    }
    spans.push_back(PlanSpan{start, gap.lower});
    start = gap.upper;
  }
  spans.push_back(PlanSpan{start, whole.upper});
  return spans;
}

/// Renumbers the sections so that only those where a buffer starts or ends remain.
void compact(PlanProblem& problem) {
  std::vector<std::uint32_t> marks;
  for (const PlanBuffer& buffer : problem.buffers) {
    for (const auto& [from, to] : buffer.spans) {
      marks.push_back(from);
      marks.push_back(to);
    }
  }
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  const auto number = [&](std::uint32_t mark) {
    return static_cast<std::uint32_t>(std::lower_bound(marks.begin(), marks.end(), mark) -
                                      marks.begin());
  };
  for (PlanBuffer& buffer : problem.buffers) {
    for (auto& [from, to] : buffer.spans) {
      from = number(from);
      to = number(to);
    }
    buffer.first = buffer.spans.front().first;
    buffer.last = buffer.spans.back().second;
  }
  problem.sections = marks.empty() ? 0 : static_cast<std::uint32_t>(marks.size() - 1);
}

}  // namespace

PlanProblem plan_problem(const std::vector<PlanInterval>& intervals, std::uint64_t alignment) {
  std::vector<std::vector<PlanSpan>> spans;
  std::vector<std::int64_t> times;
  std::uint64_t total = 0;
  for (std::size_t k = 0; k < intervals.size(); ++k) {
    spans.push_back(alive(k, intervals[k]));
    const auto step =
        static_cast<std::uint64_t>(common_alignment(k, intervals[k].alignment, alignment));
    if (intervals[k].size > kMaximumTotal || total + intervals[k].size + step > kMaximumTotal) {
      refuse(k, "brings the sizes to more than 2**61 bytes");
    }
    total += intervals[k].size + step;
    for (const PlanSpan& span : spans.back()) {
      times.push_back(span.lower);
      times.push_back(span.upper);
    }
  }
  if (intervals.size() > std::numeric_limits<std::uint32_t>::max() / 4) {
    throw Error(ErrorKind::kValue,
                "plan: got " + std::to_string(intervals.size()) + " intervals; give at most 2**30");
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto section = [&](std::int64_t time) {
    return static_cast<std::uint32_t>(std::lower_bound(times.begin(), times.end(), time) -
                                      times.begin());
  };
  PlanProblem problem;
  for (std::size_t k = 0; k < intervals.size(); ++k) {
    if (intervals[k].size == 0) continue;
    PlanBuffer buffer;
    buffer.id = static_cast<std::uint32_t>(k);
    buffer.size = static_cast<PlanBytes>(intervals[k].size);
    buffer.alignment = common_alignment(k, intervals[k].alignment, alignment);
    for (const PlanSpan& span : spans[k]) {
      buffer.spans.emplace_back(section(span.lower), section(span.upper));
    }
    problem.buffers.push_back(std::move(buffer));
  }
  compact(problem);
  std::stable_sort(problem.buffers.begin(), problem.buffers.end(),
                   [](const PlanBuffer& a, const PlanBuffer& b) { return a.first < b.first; });
  return problem;
}

std::vector<PlanProblem> plan_parts(const PlanProblem& problem) {
  std::vector<PlanProblem> parts;
  std::uint32_t end = 0;
  for (const PlanBuffer& buffer : problem.buffers) {
    if (parts.empty() || buffer.first >= end) parts.emplace_back();
    parts.back().buffers.push_back(buffer);
    end = std::max(end, buffer.last);
  }
  for (PlanProblem& part : parts) compact(part);
  return parts;
}

PlanBytes plan_bound(const PlanProblem& problem) {
  std::vector<PlanBytes> change(problem.sections + std::size_t{1}, 0);
  for (const PlanBuffer& buffer : problem.buffers) {
    for (const auto& [from, to] : buffer.spans) {
      change[from] += buffer.size;
      change[to] -= buffer.size;
    }
  }
  PlanBytes alive_bytes = 0;
  PlanBytes most = 0;
  for (const PlanBytes bytes : change) {
    alive_bytes += bytes;
    most = std::max(most, alive_bytes);
  }
  return most;
}

}  // namespace nbx
