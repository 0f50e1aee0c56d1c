// Orders of buffers in which placements are tried: several measures, chance, and past failures.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/plan_problem.h"

namespace nbx {

class PlanOrders {
 public:
  explicit PlanOrders(const PlanProblem& problem);

  /// How often the attempt that comes next may double its length: rarely far, without end.
  [[nodiscard]] std::uint32_t turn() const noexcept;
  /// The next order as one rank from 1 a buffer; `overflows`, by section, fade with every round.
  [[nodiscard]] std::vector<std::uint32_t> next(std::vector<double>& overflows);

 private:
  [[nodiscard]] std::vector<double> failures(const std::vector<double>& overflows,
                                             bool summed) const;
  [[nodiscard]] double chance() noexcept;  // in [0, 1), the same sequence in every run

  const PlanProblem& problem_;
  std::vector<std::vector<std::uint32_t>> fixed_;  // ranks, by measure
  std::uint64_t count_ = 0;
  std::uint64_t state_ = 1;
};

}  // namespace nbx
