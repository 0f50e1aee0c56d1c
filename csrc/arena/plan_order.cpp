#include "arena/plan_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace nbx {
namespace {

using Measure = PlanBytes (*)(const PlanBuffer&);
PlanBytes width(const PlanBuffer& buffer) { return buffer.last - buffer.first; }
PlanBytes height(const PlanBuffer& buffer) { return buffer.size; }
PlanBytes area(const PlanBuffer& buffer) { return buffer.size * width(buffer); }
PlanBytes lower(const PlanBuffer& buffer) { return -PlanBytes{buffer.first}; }
PlanBytes upper(const PlanBuffer& buffer) { return -PlanBytes{buffer.last}; }

struct Preference {
  Measure first;  // larger ones come first
  Measure second;
  bool crowded;  // before both: the fullest section it is alive in
};
constexpr Preference kPreferences[] = {
    {area, width, true},  {width, area, false}, {width, area, true},  {height, width, false},
    {area, width, false}, {lower, area, false}, {upper, area, false}, {height, area, true},
};

/// How far past failures and chance move a buffer from its place; 1 is the whole order.
struct Mix {
  double failures;
  double chance;
  bool summed;  // over the sections of a buffer, instead of its worst one
};
constexpr Mix kMixes[] = {
    {1.0, 0.2, false}, {0.5, 0.2, true}, {1.0, 0.1, false}, {0.0, 0.2, false}};
constexpr double kFading = 0.8;

std::vector<std::uint32_t> ranks_of(const PlanProblem& problem, const Preference& preference) {
  std::vector<PlanBytes> totals(problem.sections, 0);
  for (const PlanBuffer& buffer : problem.buffers) {
    for (const auto& [from, to] : buffer.spans) {
      for (std::uint32_t s = from; s < to; ++s) totals[s] += buffer.size;
    }
  }
  struct Key {
    PlanBytes crowd, first, second;
    std::uint32_t buffer;
  };
  std::vector<Key> keys;
  for (std::uint32_t b = 0; b < problem.buffers.size(); ++b) {
    const PlanBuffer& buffer = problem.buffers[b];
    PlanBytes crowd = 0;
    for (const auto& [from, to] : buffer.spans) {
      for (std::uint32_t s = from; s < to && preference.crowded; ++s) {
        crowd = std::max(crowd, totals[s]);
      }
    }
    keys.push_back(Key{crowd, preference.first(buffer), preference.second(buffer), b});
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    if (a.crowd != b.crowd) return a.crowd > b.crowd;
    if (a.first != b.first) return a.first > b.first;
    if (a.second != b.second) return a.second > b.second;
    return a.buffer < b.buffer;
  });
  std::vector<std::uint32_t> ranks(keys.size());
  for (std::uint32_t k = 0; k < keys.size(); ++k) ranks[keys[k].buffer] = k + 1;
  return ranks;
}

}  // namespace

PlanOrders::PlanOrders(const PlanProblem& problem) : problem_(problem) {
  for (const Preference& preference : kPreferences) {
    fixed_.push_back(ranks_of(problem, preference));
  }
}

std::uint32_t PlanOrders::turn() const noexcept {
  const std::uint64_t round = count_ / std::size(kPreferences) + 1;
  return static_cast<std::uint32_t>(std::min(__builtin_ctzll(round), 40));
}

double PlanOrders::chance() noexcept {
  state_ = state_ * 6364136223846793005U + 1442695040888963407U;
  return static_cast<double>(state_ >> 11) * 0x1p-53;
}

std::vector<double> PlanOrders::failures(const std::vector<double>& overflows, bool summed) const {
  std::vector<double> result(problem_.buffers.size());
  double most = 1;
  for (std::size_t b = 0; b < result.size(); ++b) {
    for (const auto& [from, to] : problem_.buffers[b].spans) {
      for (std::uint32_t s = from; s < to; ++s) {
        result[b] = summed ? result[b] + overflows[s] : std::max(result[b], overflows[s]);
      }
    }
    if (!summed) result[b] = std::sqrt(result[b]);
    most = std::max(most, result[b]);
  }
  for (double& value : result) value /= most;
  return result;
}

std::vector<std::uint32_t> PlanOrders::next(std::vector<double>& overflows) {
  const std::size_t kinds = std::size(kPreferences);
  const std::uint64_t round = count_ / kinds;
  const std::vector<std::uint32_t>& fixed = fixed_[count_ % kinds];
  ++count_;
  if (round == 0) return fixed;
  if (count_ % kinds == 1) {
    for (double& value : overflows) value *= kFading;
  }
  const Mix& mix = kMixes[(count_ + round) % std::size(kMixes)];
  const std::vector<double> failed = failures(overflows, mix.summed);
  const auto scale = static_cast<double>(fixed.size());
  std::vector<std::pair<double, std::uint32_t>> keys;
  for (std::uint32_t b = 0; b < fixed.size(); ++b) {
    keys.emplace_back(fixed[b] + scale * (mix.chance * chance() - mix.failures * failed[b]), b);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::uint32_t> ranks(fixed.size());
  for (std::uint32_t k = 0; k < keys.size(); ++k) ranks[keys[k].second] = k + 1;
  return ranks;
}

}  // namespace nbx
