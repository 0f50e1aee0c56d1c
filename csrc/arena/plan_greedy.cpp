#include "arena/plan_greedy.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace nbx {
namespace {

constexpr std::size_t kChunk = 256;

struct Item {
  PlanBytes offset;
  PlanBytes top;
  std::uint32_t first;
  std::uint32_t last;
  std::uint32_t buffer;
};

/// Buffers by offset, in chunks, so that a new one is cheap to put in.
class SortedItems {
 public:
  template <class Visit>  // false: enough
  void for_each(const Visit& visit) const {
    for (const std::vector<Item>& chunk : chunks_) {
      for (const Item& item : chunk) {
        if (!visit(item)) return;
      }
    }
  }

  void insert(const Item& item) {
    if (chunks_.empty()) chunks_.emplace_back();
    const auto by_offset = [](PlanBytes value, const Item& other) { return value < other.offset; };
    const auto later = std::upper_bound(chunks_.begin() + 1, chunks_.end(), item.offset,
                                        [](PlanBytes value, const std::vector<Item>& chunk) {
                                          return value < chunk.front().offset;
                                        });
    std::vector<Item>& chunk = *(later - 1);
    chunk.insert(std::upper_bound(chunk.begin(), chunk.end(), item.offset, by_offset), item);
    if (chunk.size() < kChunk) return;
    std::vector<Item> upper(chunk.begin() + kChunk / 2, chunk.end());
    chunk.resize(kChunk / 2);
    chunks_.insert(later, std::move(upper));
  }

 private:
  std::vector<std::vector<Item>> chunks_;
};

/// The buffers placed so far. Time is cut in halves, quarters, and so on; each piece lists what is
/// alive in it, so that a short buffer is compared with those near it in time only.
class Placed {
 public:
  Placed(const std::vector<PlanBuffer>& buffers, std::uint32_t sections) : buffers_(buffers) {
    while ((std::uint64_t{kPieces} << shift_) < sections) ++shift_;
    for (std::uint32_t pieces = kPieces; pieces > 0; pieces /= 2) levels_.emplace_back(pieces);
  }

  /// The lowest offset at which the buffer fits, or the start of the tightest gap that holds it.
  [[nodiscard]] PlanBytes find(const PlanBuffer& buffer, bool tightest) const {
    constexpr PlanBytes kNone = std::numeric_limits<PlanBytes>::max();
    PlanBytes cursor = 0;
    PlanBytes best = kNone;
    PlanBytes room = kNone;
    piece_of(buffer).for_each([&](const Item& item) {
      if (item.first >= buffer.last || item.last <= buffer.first || item.top <= cursor) return true;
      if (!plan_overlap(buffer, buffers_[item.buffer])) return true;
      if (item.offset >= cursor + buffer.size && item.offset - cursor < room) {
        room = item.offset - cursor;
        best = cursor;
        if (!tightest) return false;
      }
      cursor = align_offset(item.top, buffer.alignment);
      return true;
    });
    return best == kNone ? cursor : best;
  }

  void insert(std::uint32_t id, PlanBytes offset) {
    const PlanBuffer& buffer = buffers_[id];
    const Item item{offset, offset + buffer.size, buffer.first, buffer.last, id};
    std::uint32_t first = buffer.first >> shift_;
    std::uint32_t last = (buffer.last - 1) >> shift_;
    for (std::vector<SortedItems>& pieces : levels_) {
      for (std::uint32_t piece = first; piece <= last; ++piece) pieces[piece].insert(item);
      first /= 2;
      last /= 2;
    }
  }

 private:
  static constexpr std::uint32_t kPieces = 64;

  /// The smallest piece that the buffer is wholly alive in.
  [[nodiscard]] const SortedItems& piece_of(const PlanBuffer& buffer) const {
    std::uint32_t first = buffer.first >> shift_;
    std::uint32_t last = (buffer.last - 1) >> shift_;
    std::size_t level = 0;
    for (; first != last; ++level) {
      first /= 2;
      last /= 2;
    }
    return levels_[level][first];
  }

  const std::vector<PlanBuffer>& buffers_;
  std::uint32_t shift_ = 0;
  std::vector<std::vector<SortedItems>> levels_;  // the shortest pieces first
};

double width(const PlanBuffer& buffer) { return buffer.last - buffer.first; }
double size(const PlanBuffer& buffer) { return static_cast<double>(buffer.size); }
double area(const PlanBuffer& buffer) { return size(buffer) * width(buffer); }
double start(const PlanBuffer& buffer) { return -static_cast<double>(buffer.first); }

struct Rule {
  const char* name;
  bool crowded;                        // first what is alive when the most is
  double (*first)(const PlanBuffer&);  // larger ones come first
  double (*second)(const PlanBuffer&);
  bool tightest;
  bool mended;  // worth another round
};
constexpr Rule kRules[] = {
    {"size", false, size, width, false, false},
    {"crowd, size", true, size, width, false, true},
    {"crowd, lifetime, tightest gap", true, width, size, true, true},
    {"area", false, area, size, false, false},
    {"start", false, start, area, false, true},
    {"lifetime", false, width, size, false, false},
    {"lifetime, tightest gap", false, width, size, true, false},
    {"crowd, lifetime", true, width, size, false, true},
    {"start, tightest gap", false, start, size, true, false},
    {"size, tightest gap", false, size, width, true, false},
};

using Order = std::vector<std::uint32_t>;

/// Bytes alive in the fullest section of each buffer, from the maxima of runs of 1, 2, 4, ...
/// sections.
std::vector<PlanBytes> crowds_of(const PlanProblem& problem) {
  std::vector<std::vector<PlanBytes>> most(1);
  most[0].assign(problem.sections + std::size_t{1}, 0);
  for (const PlanBuffer& buffer : problem.buffers) {
    for (const auto& [from, to] : buffer.spans) {
      most[0][from] += buffer.size;
      most[0][to] -= buffer.size;
    }
  }
  std::partial_sum(most[0].begin(), most[0].end(), most[0].begin());
  for (std::size_t run = 1; 2 * run <= most[0].size(); run *= 2) {
    const std::vector<PlanBytes>& half = most.back();
    std::vector<PlanBytes> whole(half.size() - run);
    for (std::size_t s = 0; s < whole.size(); ++s) whole[s] = std::max(half[s], half[s + run]);
    most.push_back(std::move(whole));
  }
  std::vector<PlanBytes> crowds(problem.buffers.size(), 0);
  for (std::size_t b = 0; b < crowds.size(); ++b) {
    for (const auto& [from, to] : problem.buffers[b].spans) {
      const auto level = static_cast<std::size_t>(31 - __builtin_clz(to - from));
      const std::size_t second = to - (std::size_t{1} << level);
      crowds[b] = std::max({crowds[b], most[level][from], most[level][second]});
    }
  }
  return crowds;
}

Order order_of(const std::vector<PlanBuffer>& buffers, const std::vector<PlanBytes>& crowds,
               const Rule& rule) {
  Order order(buffers.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (rule.crowded && crowds[a] != crowds[b]) return crowds[a] > crowds[b];
    const double x = rule.first(buffers[a]);
    const double y = rule.first(buffers[b]);
    return x != y ? x > y : rule.second(buffers[a]) > rule.second(buffers[b]);
  });
  return order;
}

/// False if the clock ran out before the plan was whole.
bool fill(const PlanProblem& problem, const Order& order, bool tightest, const PlanClock& clock,
          double limit, GreedyPlan& plan) {
  const std::vector<PlanBuffer>& buffers = problem.buffers;
  Placed placed(buffers, problem.sections);
  plan.offsets.assign(buffers.size(), 0);
  plan.peak = 0;
  std::size_t count = 0;
  for (const std::uint32_t id : order) {
    if (++count % kChunk == 0 && (clock.cancelled() || clock.elapsed() >= limit)) return false;
    const PlanBytes offset = placed.find(buffers[id], tightest);
    placed.insert(id, offset);
    plan.offsets[id] = offset;
    plan.peak = std::max(plan.peak, offset + buffers[id].size);
  }
  return true;
}

/// Moves what ends above `enough` before everything else, and keeps the order otherwise.
void mend(const std::vector<PlanBuffer>& buffers, const GreedyPlan& plan, PlanBytes enough,
          Order& order) {
  std::stable_partition(order.begin(), order.end(), [&](std::uint32_t id) {
    return plan.offsets[id] + buffers[id].size > enough;
  });
}

}  // namespace

GreedyPlan greedy_plan(const PlanProblem& problem, PlanBytes enough, const PlanClock& clock,
                       double seconds) {
  const std::vector<PlanBuffer>& buffers = problem.buffers;
  const double limit = clock.elapsed() + seconds;
  const std::vector<PlanBytes> crowds = crowds_of(problem);
  GreedyPlan best;
  struct Trial {
    const Rule* rule;
    Order order;
    GreedyPlan plan;
  };
  std::vector<Trial> trials;
  const auto keep = [&](const Trial& trial) {
    if (!best.method.empty() && trial.plan.peak >= best.peak) return;
    best = trial.plan;
    best.method = trial.rule->name;
  };
  for (const Rule& rule : kRules) {
    Trial trial{&rule, order_of(buffers, crowds, rule), {}};
    const bool first = best.method.empty();
    const double until = first ? std::numeric_limits<double>::infinity() : limit;
    // Without the first there would be no plan at all: it ignores a cancellation too.
    const PlanClock endless(until, nullptr);
    const PlanClock& own = first ? endless : clock;
    if (!fill(problem, trial.order, rule.tightest, own, until, trial.plan)) return best;
    keep(trial);
    if (best.peak <= enough) return best;
    if (rule.mended) trials.push_back(std::move(trial));
  }
  constexpr int kRounds = 64;
  for (int round = 0; round < kRounds; ++round) {
    for (Trial& trial : trials) {
      mend(buffers, trial.plan, enough, trial.order);
      if (!fill(problem, trial.order, trial.rule->tightest, clock, limit, trial.plan)) return best;
      keep(trial);
      if (best.peak <= enough) return best;
    }
  }
  return best;
}

}  // namespace nbx
