// Static plans: against exhaustive search, hard published instances, and a validator that is itself
// tested by damage.
#include "arena/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "heap/fake_device.h"

namespace nbx {
namespace {

using testing::fresh_seed;

/// Whether two intervals are alive together, read off the definition.
bool together(const PlanInterval& a, const PlanInterval& b) {
  const auto alive = [](const PlanInterval& x, std::int64_t time) {
    if (time < x.lower || time >= x.upper) return false;
    return std::none_of(x.gaps.begin(), x.gaps.end(),
                        [&](const PlanSpan& g) { return time >= g.lower && time < g.upper; });
  };
  for (std::int64_t time = std::max(a.lower, b.lower); time < std::min(a.upper, b.upper); ++time) {
    if (alive(a, time) && alive(b, time)) return true;
  }
  return false;
}

/// The smallest peak over all orders of placing, each buffer at the lowest place that is free: some
/// order makes every placement in which nothing can drop.
std::uint64_t smallest_peak(const std::vector<PlanInterval>& intervals) {
  std::vector<std::size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::uint64_t best = ~std::uint64_t{0};
  do {
    std::vector<std::uint64_t> offsets(intervals.size());
    std::uint64_t peak = 0;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const PlanInterval& interval = intervals[order[k]];
      std::uint64_t offset = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t j = 0; j < k; ++j) {
          const PlanInterval& other = intervals[order[j]];
          if (!together(interval, other) || offset >= offsets[order[j]] + other.size ||
              offsets[order[j]] >= offset + interval.size) {
            continue;
          }
          offset = offsets[order[j]] + other.size;
          offset = (offset + interval.alignment - 1) / interval.alignment * interval.alignment;
          moved = true;
        }
      }
      offsets[order[k]] = offset;
      peak = std::max(peak, offset + interval.size);
    }
    best = std::min(best, peak);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

std::vector<PlanInterval> random_intervals(std::mt19937_64& random, std::size_t count, bool fancy) {
  std::vector<PlanInterval> intervals;
  for (std::size_t k = 0; k < count; ++k) {
    PlanInterval interval;
    interval.lower = static_cast<std::int64_t>(random() % 12) - 6;
    interval.upper = interval.lower + 1 + static_cast<std::int64_t>(random() % 8);
    interval.size = 1 + random() % 9;
    if (fancy && random() % 3 == 0) interval.alignment = std::uint64_t{1} << (random() % 3);
    if (fancy && interval.upper - interval.lower >= 3 && random() % 3 == 0) {
      interval.gaps.push_back(PlanSpan{interval.lower + 1, interval.upper - 1});
    }
    intervals.push_back(interval);
  }
  return intervals;
}

std::vector<PlanInterval> read_instance(const std::string& name) {
  std::ifstream file(std::string(NBX_TEST_DATA) + "/traces/minimalloc/" + name + ".1048576.csv");
  std::vector<PlanInterval> intervals;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream fields(line);
    std::string id;
    PlanInterval interval;
    fields >> id >> interval.lower >> interval.upper >> interval.size;
    intervals.push_back(interval);
  }
  return intervals;
}

TEST(Plan, EqualsExhaustiveSearchOnSmallProblems) {
  std::mt19937_64 random(fresh_seed("EqualsExhaustiveSearchOnSmallProblems"));
  for (int round = 0; round < 150; ++round) {
    const auto intervals = random_intervals(random, 1 + random() % 6, round % 2 == 1);
    const StaticPlan plan = make_plan(intervals, PlanOptions{});
    ASSERT_EQ(plan_fault(intervals, plan.offsets, plan.peak), "") << "round " << round;
    ASSERT_EQ(plan.peak, smallest_peak(intervals)) << "round " << round;
    ASSERT_TRUE(plan.optimal) << "round " << round;
    ASSERT_GE(plan.peak, plan_lower_bound(intervals));
  }
}

TEST(Plan, TellsTheCapacityThatCannotHold) {
  std::mt19937_64 random(fresh_seed("TellsTheCapacityThatCannotHold"));
  for (int round = 0; round < 60; ++round) {
    const auto intervals = random_intervals(random, 2 + random() % 5, true);
    const std::uint64_t smallest = smallest_peak(intervals);
    PlanOptions options;
    options.capacity = smallest;
    EXPECT_LE(make_plan(intervals, options).peak, smallest);
    options.capacity = smallest - 1;
    if (options.capacity == 0) continue;
    const StaticPlan plan = make_plan(intervals, options);
    EXPECT_GT(plan.peak, options.capacity);
    EXPECT_LT(plan.seconds, options.seconds / 2);  // proven, not given up
  }
}

TEST(Plan, FitsTheHardInstances) {
  for (const char* name : {"A", "B", "C"}) {
    const auto intervals = read_instance(name);
    ASSERT_GT(intervals.size(), 150u) << name;
    PlanOptions options;
    options.capacity = 1048576;
    options.seconds = 600;  // on a busy machine; it takes seconds
    const StaticPlan plan = make_plan(intervals, options);
    EXPECT_LE(plan.peak, options.capacity) << name;
    EXPECT_EQ(plan_fault(intervals, plan.offsets, options.capacity), "") << name;
  }
}

TEST(Plan, HoldsForManyRandomBuffers) {
  std::mt19937_64 random(fresh_seed("HoldsForManyRandomBuffers"));
  for (int round = 0; round < 6; ++round) {
    std::vector<PlanInterval> intervals;
    for (int k = 0; k < 3000; ++k) {
      PlanInterval interval;
      interval.lower = static_cast<std::int64_t>(random() % 4000);
      interval.upper = interval.lower + 1 + static_cast<std::int64_t>(random() % 200);
      interval.size = random() % 5000;
      interval.alignment = 1 + random() % 3;
      intervals.push_back(interval);
    }
    PlanOptions options;
    options.alignment = 64;
    options.seconds = 0.2;
    const StaticPlan plan = make_plan(intervals, options);
    ASSERT_EQ(plan_fault(intervals, plan.offsets, plan.peak, 64), "");
    ASSERT_GE(plan.peak, plan.lower_bound);
  }
}

TEST(Plan, StopsWhenCancelledWithTheBestSoFar) {
  const auto intervals = read_instance("A");
  std::atomic<bool> cancel{true};
  PlanOptions options;
  options.capacity = 1;
  options.cancel = &cancel;
  const StaticPlan plan = make_plan(intervals, options);
  EXPECT_TRUE(plan.cancelled);
  EXPECT_EQ(plan_fault(intervals, plan.offsets, plan.peak), "");
}

TEST(Plan, NeedsNothingForNothing) {
  EXPECT_EQ(make_plan({}, PlanOptions{}).peak, 0u);
  EXPECT_TRUE(make_plan({}, PlanOptions{}).optimal);
  PlanInterval none;
  none.upper = 3;
  const StaticPlan plan = make_plan({none, none}, PlanOptions{});
  EXPECT_EQ(plan.peak, 0u);
  EXPECT_EQ(plan.offsets, (std::vector<std::uint64_t>{0, 0}));
}

TEST(Plan, RefusesIntervalsByName) {
  const auto refused = [](PlanInterval bad) {
    PlanInterval good;
    good.upper = 1;
    try {
      static_cast<void>(make_plan({good, bad}, PlanOptions{}));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  PlanInterval bad;
  bad.lower = bad.upper = 4;
  EXPECT_NE(refused(bad).find("interval 1 is alive over [4, 4)"), std::string::npos);
  bad.upper = 9;
  bad.alignment = 0;
  EXPECT_NE(refused(bad).find("alignment 0"), std::string::npos);
  bad.alignment = 1;
  bad.gaps = {PlanSpan{4, 6}};
  EXPECT_NE(refused(bad).find("gap [4, 6)"), std::string::npos);
  bad.gaps = {PlanSpan{5, 7}, PlanSpan{6, 8}};
  EXPECT_NE(refused(bad).find("gap [6, 8)"), std::string::npos);
  bad.gaps.clear();
  bad.size = ~std::uint64_t{0};
  EXPECT_NE(refused(bad).find("2**61"), std::string::npos);
}

TEST(PlanFault, FindsEveryDamage) {
  std::mt19937_64 random(fresh_seed("FindsEveryDamage"));
  int damaged = 0;
  for (int round = 0; round < 400; ++round) {
    const auto intervals = random_intervals(random, 2 + random() % 10, true);
    PlanOptions options;
    options.seconds = 0.05;
    const StaticPlan plan = make_plan(intervals, options);
    std::vector<std::uint64_t> offsets = plan.offsets;
    const std::size_t k = random() % offsets.size();
    offsets[k] = random() % (plan.peak + 4);
    bool wrong =
        offsets[k] + intervals[k].size > plan.peak || offsets[k] % intervals[k].alignment != 0;
    for (std::size_t j = 0; j < offsets.size(); ++j) {
      wrong |= j != k && together(intervals[j], intervals[k]) &&
               offsets[j] < offsets[k] + intervals[k].size &&
               offsets[k] < offsets[j] + intervals[j].size;
    }
    EXPECT_EQ(!plan_fault(intervals, offsets, plan.peak).empty(), wrong) << "round " << round;
    damaged += wrong ? 1 : 0;
  }
  EXPECT_GT(damaged, 50);
  EXPECT_NE(plan_fault({PlanInterval{}}, {}, 0), "");
}

}  // namespace
}  // namespace nbx
