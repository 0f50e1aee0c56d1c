// Depth first over canonical placements: buffers are placed by rising offset, each as low as the
// buffers under it let it. A placement that is not canonical becomes one by letting buffers drop,
// so that nothing is missed.
//
// A search that took a wrong turn early is not worth its end, so that it restarts: with another
// preference among buffers of equal offset, and with those first whose sections overflowed often.
#include "arena/plan_search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "arena/plan_order.h"

namespace nbx {
namespace {

constexpr PlanBytes kNever = std::numeric_limits<PlanBytes>::max();
constexpr std::uint64_t kFirstNodeLimit = 3000;
constexpr std::uint64_t kNodesPerLook = 64;
constexpr std::size_t kSuspects = 8;

/// Attempts within one capacity; each has a preference among buffers of equal offset.
class Search {
 public:
  Search(const PlanProblem& problem, PlanBytes capacity, const PlanClock& clock, double end);

  SearchOutcome run(const std::vector<std::uint32_t>& ranks, std::uint64_t nodes);
  [[nodiscard]] const std::vector<PlanBytes>& offsets() const noexcept { return offsets_; }
  [[nodiscard]] std::uint64_t nodes() const noexcept { return nodes_; }
  [[nodiscard]] std::vector<double>& overflows() noexcept { return overflows_; }

 private:
  /// The place of the last buffer: every later one comes after it.
  struct Mark {
    PlanBytes offset;
    std::uint32_t rank;  // from 1; 0 where the offset is only a bound
    [[nodiscard]] bool operator<(const Mark& other) const noexcept {
      return offset != other.offset ? offset < other.offset : rank < other.rank;
    }
  };
  struct Choice {
    Mark mark;
    std::uint32_t buffer;
  };
  /// What is left to place at one depth, by first section, and the sections it lies in.
  struct Members {
    const std::uint32_t* ids;
    std::size_t count;
    std::uint32_t first;
    std::uint32_t last;
    PlanBytes height;  // the lowest top that one of them would have
  };
  struct Frame {
    std::vector<std::uint32_t> rest;  // the members without the one just placed
    std::vector<Choice> order;        // the members by the lowest offset they can still have
    std::vector<std::uint32_t> low;   // those that can have the last offset, without an order
    std::vector<std::size_t> breaks;  // where `rest` falls apart
  };

  SearchOutcome solve(std::size_t depth, const std::uint32_t* ids, std::size_t count, Mark last);
  SearchOutcome descend(std::size_t depth, const Members& members, Choice choice);
  SearchOutcome solve_parts(std::size_t depth, Mark last);
  [[nodiscard]] Members members_of(const std::uint32_t* ids, std::size_t count) const noexcept;
  [[nodiscard]] PlanBytes lifted(std::uint32_t buffer, PlanBytes lowest) const noexcept;
  [[nodiscard]] Choice reach(std::uint32_t buffer, Mark last) const noexcept;
  bool bound(Frame& frame, const Members& members, Mark last);
  bool stacks(std::uint32_t section, Mark last);
  bool suspects_stack(const Members& members, Mark last);
  void suspect(std::uint32_t section);
  bool place(std::uint32_t buffer);
  void take_back(std::uint32_t buffer, std::size_t trail) noexcept;
  void split(Frame& frame) const;
  [[nodiscard]] bool over() noexcept;

  const std::vector<PlanBuffer>& buffers_;
  const PlanBytes capacity_;
  const PlanClock& clock_;
  const double end_;
  std::vector<std::vector<std::uint32_t>> neighbours_;  // by size
  std::vector<std::vector<std::uint32_t>> alive_;       // by section
  std::vector<PlanBytes> lowest_;  // of a buffer not placed: the top of what is placed under it
  std::vector<PlanBytes> offsets_;
  std::vector<char> placed_;
  std::vector<PlanBytes> tops_;          // by section, scratch of `bound`
  std::vector<Choice> stack_;            // scratch of `stacks`
  std::vector<double> overflows_;        // by section: how often it was too full, fading
  std::vector<std::uint32_t> suspects_;  // sections that were too full last, newest first
  std::vector<std::uint32_t> ranks_;
  std::vector<std::pair<std::uint32_t, PlanBytes>> trail_;
  std::vector<Frame> frames_;
  std::uint64_t nodes_ = 0, limit_ = 0, next_look_ = 0;
};

Search::Search(const PlanProblem& problem, PlanBytes capacity, const PlanClock& clock, double end)
    : buffers_(problem.buffers),
      capacity_(capacity),
      clock_(clock),
      end_(end),
      neighbours_(buffers_.size()),
      alive_(problem.sections),
      lowest_(buffers_.size()),
      offsets_(buffers_.size()),
      placed_(buffers_.size()),
      tops_(problem.sections),
      overflows_(problem.sections),
      frames_(buffers_.size() + 2) {
  const auto count = static_cast<std::uint32_t>(buffers_.size());
  for (std::uint32_t a = 0; a < count; ++a) {
    for (std::uint32_t b = a + 1; b < count && buffers_[b].first < buffers_[a].last; ++b) {
      if (!plan_overlap(buffers_[a], buffers_[b])) continue;
      neighbours_[a].push_back(b);
      neighbours_[b].push_back(a);
    }
    for (const auto& [from, to] : buffers_[a].spans) {
      for (std::uint32_t s = from; s < to; ++s) alive_[s].push_back(a);
    }
  }
  for (std::vector<std::uint32_t>& list : neighbours_) {
    std::stable_sort(list.begin(), list.end(), [this](std::uint32_t a, std::uint32_t b) {
      return buffers_[a].size < buffers_[b].size;
    });
  }
}

SearchOutcome Search::run(const std::vector<std::uint32_t>& ranks, std::uint64_t nodes) {
  ranks_ = ranks;
  limit_ = nodes_ + nodes;
  next_look_ = nodes_;
  trail_.clear();
  std::fill(placed_.begin(), placed_.end(), char{0});
  std::fill(lowest_.begin(), lowest_.end(), PlanBytes{0});
  std::vector<std::uint32_t> all(buffers_.size());
  std::iota(all.begin(), all.end(), 0U);
  return solve(0, all.data(), all.size(), Mark{-1, 0});
}

bool Search::over() noexcept {
  if (++nodes_ >= limit_) return true;
  if (nodes_ < next_look_) return false;
  next_look_ = nodes_ + kNodesPerLook;
  return clock_.cancelled() || clock_.elapsed() >= end_;
}

// ---- bounds --------------------------------------------------------------------------------

/// The lowest offset of a buffer that was passed over: it must come to lie on one not placed yet.
PlanBytes Search::lifted(std::uint32_t buffer, PlanBytes lowest) const noexcept {
  PlanBytes best = kNever;
  for (const std::uint32_t other : neighbours_[buffer]) {
    if (best <= lowest + buffers_[other].size) break;  // all further ones are larger
    if (placed_[other] != 0) continue;
    best = std::min(best, std::max(lowest_[other], lowest) + buffers_[other].size);
  }
  return best == kNever ? best : align_offset(best, buffers_[buffer].alignment);
}

/// The lowest place a buffer can still have after `last`; offset kNever if it has none.
Search::Choice Search::reach(std::uint32_t buffer, Mark last) const noexcept {
  Mark mark{lowest_[buffer], ranks_[buffer]};
  if (mark < last) mark = Mark{std::max(lifted(buffer, last.offset), last.offset), 0};
  return Choice{mark, buffer};
}

/// Whether what is left in one section fits on top of what is placed. It is served like jobs with
/// release times by one machine, where the order of release ends first.
bool Search::stacks(std::uint32_t section, Mark last) {
  stack_.clear();
  PlanBytes top = last.offset;
  for (const std::uint32_t buffer : alive_[section]) {
    if (placed_[buffer] != 0) continue;
    const Choice choice = reach(buffer, last);
    if (choice.mark.offset == kNever) return false;
    if (choice.mark.offset <= last.offset) {
      top += buffers_[buffer].size;
    } else {
      stack_.push_back(choice);
    }
  }
  std::sort(stack_.begin(), stack_.end(),
            [](const Choice& a, const Choice& b) { return a.mark.offset < b.mark.offset; });
  for (const Choice& choice : stack_) {
    top = std::max(top, choice.mark.offset) + buffers_[choice.buffer].size;
  }
  return top <= capacity_;
}

/// Looks at the sections first that were too full before: most placements fail there.
bool Search::suspects_stack(const Members& members, Mark last) {
  for (const std::uint32_t section : suspects_) {
    // Other parts have marks of their own.
    if (section < members.first || section >= members.last || stacks(section, last)) continue;
    suspect(section);
    return false;
  }
  return true;
}

void Search::suspect(std::uint32_t section) {
  overflows_[section] += 1;
  auto at = std::find(suspects_.begin(), suspects_.end(), section);
  if (at == suspects_.end()) {
    if (suspects_.size() < kSuspects) suspects_.push_back(section);
    at = suspects_.end() - 1;
    *at = section;
  }
  std::rotate(suspects_.begin(), at, at + 1);
}

/// Orders the members by the lowest place they can still have, and stacks them in that order in
/// every section: false if one overflows.
bool Search::bound(Frame& frame, const Members& members, Mark last) {
  frame.order.clear();
  frame.low.clear();
  for (std::size_t k = 0; k < members.count; ++k) {
    const Choice choice = reach(members.ids[k], last);
    if (choice.mark.offset == kNever) return false;
    const PlanBuffer& buffer = buffers_[choice.buffer];
    if (choice.mark.offset + buffer.size > capacity_) {
      suspect(buffer.first);
      return false;
    }
    if (choice.mark.rank == 0 && choice.mark.offset == last.offset) {
      frame.low.push_back(choice.buffer);
    } else {
      frame.order.push_back(choice);
    }
  }
  std::sort(frame.order.begin(), frame.order.end(),
            [](const Choice& a, const Choice& b) { return a.mark < b.mark; });
  const auto begin = tops_.begin() + members.first;
  const auto end = tops_.begin() + members.last;
  std::fill(begin, end, last.offset);
  for (const std::uint32_t id : frame.low) {
    for (const auto& [from, to] : buffers_[id].spans) {
      for (std::uint32_t s = from; s < to; ++s) tops_[s] += buffers_[id].size;
    }
  }
  for (const Choice& choice : frame.order) {
    const PlanBuffer& buffer = buffers_[choice.buffer];
    for (const auto& [from, to] : buffer.spans) {
      for (std::uint32_t s = from; s < to; ++s) {
        tops_[s] = std::max(tops_[s], choice.mark.offset) + buffer.size;
      }
    }
  }
  const auto fullest = std::max_element(begin, end);
  if (*fullest <= capacity_) return true;
  suspect(static_cast<std::uint32_t>(fullest - tops_.begin()));
  return false;
}

// ---- the tree ------------------------------------------------------------------------------

/// True if something not placed yet lies over the buffer.
bool Search::place(std::uint32_t buffer) {
  const PlanBytes top = lowest_[buffer] + buffers_[buffer].size;
  placed_[buffer] = 1;
  offsets_[buffer] = lowest_[buffer];
  bool covered = false;
  for (const std::uint32_t other : neighbours_[buffer]) {
    if (placed_[other] != 0) continue;
    covered = true;
    if (lowest_[other] >= top) continue;
    trail_.emplace_back(other, lowest_[other]);
    lowest_[other] = align_offset(top, buffers_[other].alignment);
  }
  return covered;
}

void Search::take_back(std::uint32_t buffer, std::size_t trail) noexcept {
  placed_[buffer] = 0;
  while (trail_.size() > trail) {
    lowest_[trail_.back().first] = trail_.back().second;
    trail_.pop_back();
  }
}

/// Cuts what is left where no buffer reaches over.
void Search::split(Frame& frame) const {
  frame.breaks.clear();
  std::uint32_t end = 0;
  for (std::size_t k = 0; k < frame.rest.size(); ++k) {
    const PlanBuffer& buffer = buffers_[frame.rest[k]];
    if (k == 0 || buffer.first >= end) frame.breaks.push_back(k);
    end = std::max(end, buffer.last);
  }
  frame.breaks.push_back(frame.rest.size());
}

SearchOutcome Search::solve_parts(std::size_t depth, Mark last) {
  Frame& frame = frames_[depth];
  split(frame);
  for (std::size_t k = 0; k + 1 < frame.breaks.size(); ++k) {
    const std::size_t begin = frame.breaks[k];
    const std::size_t count = frame.breaks[k + 1] - begin;
    const SearchOutcome outcome = solve(depth + 1, frame.rest.data() + begin, count, last);
    if (outcome != SearchOutcome::kFound) return outcome;
  }
  return SearchOutcome::kFound;
}

Search::Members Search::members_of(const std::uint32_t* ids, std::size_t count) const noexcept {
  Members members{ids, count, buffers_[ids[0]].first, 0, kNever};
  for (std::size_t k = 0; k < count; ++k) {
    const PlanBuffer& buffer = buffers_[ids[k]];
    members.last = std::max(members.last, buffer.last);
    members.height = std::min(members.height, lowest_[ids[k]] + buffer.size);
  }
  return members;
}

/// Places one buffer and solves what is left. kNone: this choice and all after it fail; kNext: this
/// one does.
SearchOutcome Search::descend(std::size_t depth, const Members& members, Choice choice) {
  const std::size_t trail = trail_.size();
  const bool covered = place(choice.buffer);
  if (suspects_stack(members, choice.mark)) {
    Frame& frame = frames_[depth];
    frame.rest.clear();
    for (std::size_t k = 0; k < members.count; ++k) {
      if (members.ids[k] != choice.buffer) frame.rest.push_back(members.ids[k]);
    }
    const SearchOutcome outcome = solve_parts(depth, choice.mark);
    if (outcome == SearchOutcome::kFound) return outcome;
    // Parts that were solved stayed placed until here.
    for (const std::uint32_t other : frame.rest) placed_[other] = 0;
    take_back(choice.buffer, trail);
    if (outcome == SearchOutcome::kGaveUp) return outcome;
  } else {
    take_back(choice.buffer, trail);
    if (over()) return SearchOutcome::kGaveUp;
  }
  // A buffer in nobody's way leaves no placement to the others either. And where the members fail
  // without it being placed, because those before it were passed over, every later choice fails.
  if (!covered || !suspects_stack(members, choice.mark)) return SearchOutcome::kNone;
  return SearchOutcome::kNext;
}

SearchOutcome Search::solve(std::size_t depth, const std::uint32_t* ids, std::size_t count,
                            Mark last) {
  if (over()) return SearchOutcome::kGaveUp;
  if (count == 0) return SearchOutcome::kFound;
  const Members members = members_of(ids, count);
  Frame& frame = frames_[depth];
  if (!bound(frame, members, last)) return SearchOutcome::kNone;
  for (std::size_t k = 0; k < frame.order.size(); ++k) {
    const Choice choice = frame.order[k];
    // From here on some member would fit wholly under what is placed: it has to drop first.
    if (choice.mark.offset >= members.height) break;
    if (choice.mark.rank == 0) continue;  // passed over
    const SearchOutcome outcome = descend(depth, members, choice);
    if (outcome != SearchOutcome::kNext) return outcome;
  }
  return SearchOutcome::kNone;
}

}  // namespace

SearchResult search_plan(const PlanProblem& problem, PlanBytes capacity, const PlanClock& clock,
                         double seconds) {
  SearchResult result;
  if (plan_bound(problem) > capacity) {
    result.outcome = SearchOutcome::kNone;
    return result;
  }
  const double end = clock.elapsed() + seconds;
  Search search(problem, capacity, clock, end);
  PlanOrders orders(problem);
  do {
    const std::uint64_t limit = kFirstNodeLimit << orders.turn();
    result.outcome = search.run(orders.next(search.overflows()), limit);
    result.nodes = search.nodes();
    if (result.outcome == SearchOutcome::kFound) result.offsets = search.offsets();
  } while (result.outcome == SearchOutcome::kGaveUp && !clock.cancelled() && clock.elapsed() < end);
  return result;
}

}  // namespace nbx
