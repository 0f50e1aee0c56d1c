// What one exchange of a block costs among a thousand, 64 thousand and a million holes.
#include <algorithm>
#include <utility>

#include "devices.h"
#include "harness.h"

namespace bench {
namespace {

using namespace nbx;

constexpr std::size_t kHot = 4096;
constexpr int kRuns = 201;
constexpr int kRun = 1000;

struct Costs {
  double holes, hot_ns, hot_visited, random_ns, random_visited;
};

double visited_by(const Blocks& blocks, std::uint64_t before, int operations) {
  return static_cast<double>(blocks.statistics().visited - before) / operations;
}

/// Blocks above what slabs serve, log-uniform 20 to 256 KiB; every other one freed.
Costs costs_among(std::size_t holes) {
  Blocks blocks(gpu_memory());
  LogUniform size(4, 20480.0, 262144.0);
  const std::size_t total = holes + std::max(holes, kHot);
  const std::size_t stride = total / holes;
  for (std::size_t i = 0; i < total; ++i) blocks.hold(size());
  // From the end, as the last block takes the place of a dropped one.
  for (std::size_t i = holes; i-- > 0;) blocks.drop(i * stride);
  std::vector<std::uint64_t> sizes(std::size_t{1} << 16);
  for (auto& one : sizes) one = size();
  std::size_t at = 0;
  std::uint64_t state = 5;
  const auto draw = [&](std::size_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>((state >> 32) * below >> 32);
  };
  const auto among = [&](std::size_t live) {
    return [&, live, next = draw(live)](int count) mutable {
      for (int i = 0; i < count; ++i, ++at) {
        const std::size_t one = std::exchange(next, draw(live));
        blocks.fetch(next);
        blocks.exchange(one, sizes[at % sizes.size()]);
      }
    };
  };
  const auto measured = [&](std::size_t live, double* visited) {
    auto body = among(live);
    body(20000);
    const std::uint64_t before = blocks.statistics().visited;
    const double ns = median_ns(kRuns, kRun, body);
    *visited = visited_by(blocks, before, kRuns * kRun);
    return ns;
  };
  Costs costs{};
  costs.holes = static_cast<double>(blocks.statistics().free_blocks);
  costs.hot_ns = measured(kHot, &costs.hot_visited);
  costs.random_ns = measured(blocks.size(), &costs.random_visited);
  return costs;
}

}  // namespace

void time_holes(Report* report) {
  std::vector<Costs> all;
  for (const auto& [name, holes] :
       {std::pair<const char*, std::size_t>{"1k", 1000}, {"64k", 64000}, {"1m", 1000000}}) {
    all.push_back(costs_among(holes));
    const std::string prefix = std::string("holes_") + name;
    report->add(prefix, all.back().holes);
    report->add(prefix + "_hot_ns", all.back().hot_ns);
    report->add(prefix + "_hot_visited", all.back().hot_visited);
    report->add(prefix + "_random_ns", all.back().random_ns);
    report->add(prefix + "_random_visited", all.back().random_visited);
  }
  report->add("holes_hot_time_1m_to_1k", all.back().hot_ns / all.front().hot_ns);
  report->add("holes_hot_visited_1m_to_1k", all.back().hot_visited / all.front().hot_visited);
  report->add("holes_random_time_1m_to_1k", all.back().random_ns / all.front().random_ns);
  report->add("holes_random_visited_1m_to_1k",
              all.back().random_visited / all.front().random_visited);
}

}  // namespace bench
