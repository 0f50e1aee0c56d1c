#include "arena/plan_greedy.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace nbx {
namespace {

constexpr std::size_t kChunk = 256;

/// The buffers placed so far by offset, in chunks, so that a new one is cheap to put in.
class Placed {
 public:
  explicit Placed(const std::vector<PlanBuffer>& buffers) : buffers_(buffers), chunks_(1) {}

  /// The lowest offset at which the buffer fits, or the start of the tightest gap that holds it.
  [[nodiscard]] PlanBytes find(const PlanBuffer& buffer, bool tightest) const {
    constexpr PlanBytes kNone = std::numeric_limits<PlanBytes>::max();
    PlanBytes cursor = 0;
    PlanBytes best = kNone;
    PlanBytes room = kNone;
    for (const Chunk& chunk : chunks_) {
      if (chunk.first >= buffer.last || chunk.last <= buffer.first) continue;
      for (const Item& item : chunk.items) {
        if (item.first >= buffer.last || item.last <= buffer.first || item.top <= cursor) continue;
        if (!plan_overlap(buffer, buffers_[item.buffer])) continue;
        if (item.offset >= cursor + buffer.size) {
          if (!tightest) return cursor;
          if (item.offset - cursor < room) {
            room = item.offset - cursor;
            best = cursor;
          }
        }
        cursor = align_offset(item.top, buffer.alignment);
      }
    }
    return best == kNone ? cursor : best;
  }

  void insert(std::uint32_t id, PlanBytes offset) {
    const PlanBuffer& buffer = buffers_[id];
    const Item item{offset, offset + buffer.size, buffer.first, buffer.last, id};
    const auto later = std::upper_bound(
        chunks_.begin() + 1, chunks_.end(), offset,
        [](PlanBytes value, const Chunk& chunk) { return value < chunk.items.front().offset; });
    const auto chunk = later - 1;
    const auto at =
        std::upper_bound(chunk->items.begin(), chunk->items.end(), offset,
                         [](PlanBytes value, const Item& other) { return value < other.offset; });
    chunk->items.insert(at, item);
    chunk->first = std::min(chunk->first, item.first);
    chunk->last = std::max(chunk->last, item.last);
    if (chunk->items.size() < kChunk) return;
    Chunk upper;
    upper.items.assign(chunk->items.begin() + kChunk / 2, chunk->items.end());
    chunk->items.resize(kChunk / 2);
    measure(*chunk);
    measure(upper);
    chunks_.insert(chunk + 1, std::move(upper));
  }

 private:
  struct Item {
    PlanBytes offset;
    PlanBytes top;
    std::uint32_t first;
    std::uint32_t last;
    std::uint32_t buffer;
  };
  struct Chunk {
    std::vector<Item> items;
    std::uint32_t first = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t last = 0;
  };
  static void measure(Chunk& chunk) {
    chunk.first = std::numeric_limits<std::uint32_t>::max();
    chunk.last = 0;
    for (const Item& item : chunk.items) {
      chunk.first = std::min(chunk.first, item.first);
      chunk.last = std::max(chunk.last, item.last);
    }
  }

  const std::vector<PlanBuffer>& buffers_;
  std::vector<Chunk> chunks_;
};

double width(const PlanBuffer& buffer) { return buffer.last - buffer.first; }
double size(const PlanBuffer& buffer) { return static_cast<double>(buffer.size); }
double area(const PlanBuffer& buffer) { return size(buffer) * width(buffer); }
double start(const PlanBuffer& buffer) { return -static_cast<double>(buffer.first); }
double end(const PlanBuffer& buffer) { return buffer.last; }

struct Rule {
  const char* name;
  double (*first)(const PlanBuffer&);  // larger ones come first
  double (*second)(const PlanBuffer&);
  bool tightest;
};
constexpr Rule kRules[] = {
    {"size", size, width, false},
    {"size, tightest gap", size, width, true},
    {"area", area, size, false},
    {"lifetime", width, size, false},
    {"start, tightest gap", start, size, true},
    {"end", end, size, false},
    {"area, tightest gap", area, size, true},
    {"lifetime, tightest gap", width, size, true},
    {"start", start, area, false},
    {"end, tightest gap", end, size, true},
};

using Order = std::vector<std::uint32_t>;

Order order_of(const std::vector<PlanBuffer>& buffers, const Rule& rule) {
  Order order(buffers.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const double x = rule.first(buffers[a]);
    const double y = rule.first(buffers[b]);
    return x != y ? x > y : rule.second(buffers[a]) > rule.second(buffers[b]);
  });
  return order;
}

/// False if the clock ran out before the plan was whole.
bool fill(const std::vector<PlanBuffer>& buffers, const Order& order, bool tightest,
          const PlanClock& clock, double limit, GreedyPlan& plan) {
  Placed placed(buffers);
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
    Trial trial{&rule, order_of(buffers, rule), {}};
    const double until = trials.empty() ? std::numeric_limits<double>::infinity() : limit;
    // Without the first there would be no plan at all: it ignores a cancellation too.
    const PlanClock endless(until, nullptr);
    const PlanClock& own = trials.empty() ? endless : clock;
    if (!fill(buffers, trial.order, rule.tightest, own, until, trial.plan)) return best;
    keep(trial);
    if (best.peak <= enough) return best;
    trials.push_back(std::move(trial));
  }
  constexpr std::size_t kMended = 4;
  constexpr int kRounds = 64;
  std::sort(trials.begin(), trials.end(),
            [](const Trial& a, const Trial& b) { return a.plan.peak < b.plan.peak; });
  trials.resize(std::min(trials.size(), kMended));
  for (int round = 0; round < kRounds; ++round) {
    for (Trial& trial : trials) {
      mend(buffers, trial.plan, enough, trial.order);
      if (!fill(buffers, trial.order, trial.rule->tightest, clock, limit, trial.plan)) return best;
      keep(trial);
      if (best.peak <= enough) return best;
    }
  }
  return best;
}

}  // namespace nbx
