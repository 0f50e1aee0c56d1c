// sample:logits: one id of every row, drawn from softmax(logits / temperature).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "core/error.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace nbx::cpu {
namespace {

struct Rule {
  double temperature;
  std::int64_t top_k;  // 0: all
  double top_p;        // 1: all
};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::kValue, "sample:logits: " + text);
}

std::int64_t greatest(const double* x, std::int64_t count, std::int64_t row) {
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(x[i])) {
      refuse("logits[" + std::to_string(row) + ", " + std::to_string(i) + "] is NaN");
    }
    if (x[i] > x[best]) best = i;
  }
  if (x[best] == -std::numeric_limits<double>::infinity()) {
    refuse("every logit of row " + std::to_string(row) + " is -infinity, nothing can be drawn");
  }
  return best;
}

// Keeps the k largest weights and those equal to the least of them; the others become 0.
void keep_largest(double* weights, std::int64_t count, std::int64_t k, double* work) {
  std::copy(weights, weights + count, work);
  std::nth_element(work, work + (k - 1), work + count, std::greater<>());
  const double least = work[k - 1];
  for (std::int64_t i = 0; i < count; ++i) weights[i] = weights[i] < least ? 0.0 : weights[i];
}

// Keeps the shortest run of weights, largest first and of equal ones the first, that reaches the
// share `p` of their sum.
void keep_share(double* weights, std::int64_t count, double p, std::int64_t* order) {
  double sum = 0.0;
  std::int64_t used = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += weights[i];
    if (weights[i] > 0.0) order[used++] = i;
  }
  std::sort(order, order + used, [weights](std::int64_t a, std::int64_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  });
  double reached = 0.0;
  std::int64_t kept = 0;
  while (kept < used && (kept == 0 || reached < p * sum)) reached += weights[order[kept++]];
  for (; kept < used; ++kept) weights[order[kept]] = 0.0;
}

// Walks the ids in order until the uniform number's share of the sum is reached.
std::int64_t draw(const double* weights, std::int64_t count, double uniform) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += weights[i];
  const double wanted = uniform * sum;
  double reached = 0.0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (weights[i] == 0.0) continue;
    reached += weights[i];
    last = i;
    if (reached > wanted) return i;
  }
  return last;
}

std::int64_t sample_row(const TensorView& logits, std::int64_t row, const Rule& rule,
                        double uniform) {
  const std::int64_t count = logits.shape[1];
  double* buffer = scratch<double>(0, count);
  const double* x =
      load_row(row_address(logits, row), logits.dtype, logits.strides[1], count, buffer);
  const std::int64_t best = greatest(x, count, row);
  if (rule.temperature <= 0.0) return best;
  double* weights = scratch<double>(1, count);
  const double top = x[best];
  for (std::int64_t i = 0; i < count; ++i) {
    weights[i] = x[i] == top ? 1.0 : std::exp((x[i] - top) / rule.temperature);
  }
  if (rule.top_k > 0 && rule.top_k < count) {
    keep_largest(weights, count, rule.top_k, scratch<double>(2, count));
  }
  if (rule.top_p < 1.0) keep_share(weights, count, rule.top_p, scratch<std::int64_t>(2, count));
  return draw(weights, count, uniform);
}

void sample(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& logits = call.tensors[1];
  const TensorView& uniforms = call.tensors[2];
  require_floating("sample:logits", "logits", logits);
  const Rule rule{call.scalars[0].real, call.scalars[1].none() ? 0 : call.scalars[1].integer,
                  call.scalars[2].none() ? 1.0 : call.scalars[2].real};
  if (std::isnan(rule.temperature) || rule.top_k < 0 || !(rule.top_p >= 0.0)) {
    refuse("expected a temperature, top_k >= 0 and top_p >= 0, got " +
           std::to_string(rule.temperature) + ", " + std::to_string(rule.top_k) + " and " +
           std::to_string(rule.top_p));
  }
  if (logits.shape[1] == 0) refuse("logits have no columns to choose from");
  parallel_for(logits.shape[0], rows_per_piece(logits.shape[1] * 16),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   double held = 0.0;
                   const double uniform =
                       *load_row(row_address(uniforms, row, 0), uniforms.dtype, 1, 1, &held);
                   *reinterpret_cast<std::int64_t*>(row_address(out, row, 0)) =
                       sample_row(logits, row, rule, uniform);
                 }
               });
}

const HostKernelRegistration register_sample{"sample:logits", &sample};

}  // namespace
}  // namespace nbx::cpu
