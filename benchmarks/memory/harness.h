// Timing: medians of many runs far shorter than a time slice, so that a busy machine disturbs few.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace bench {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Nanoseconds of one operation in one run of `operations`.
template <class Body>
double run_ns(int operations, Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body(operations);
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / operations;
}

template <class Body>
double median_ns(int runs, int operations, Body body) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) times.push_back(run_ns(operations, body));
  return median(std::move(times));
}

struct Pair {
  double first, second;
  double ratio;  // the median of the ratios of neighbouring runs
};

/// Two bodies in turns, so that what disturbs one disturbs the other.
template <class First, class Second>
Pair compare(int runs, int operations, First first, Second second) {
  std::vector<double> a, b, ratios;
  for (int i = 0; i < runs; ++i) {
    a.push_back(run_ns(operations, first));
    b.push_back(run_ns(operations, second));
    ratios.push_back(a.back() / b.back());
  }
  return Pair{median(std::move(a)), median(std::move(b)), median(std::move(ratios))};
}

/// Sizes whose logarithms are uniform, as those of real programs nearly are.
class LogUniform {
 public:
  LogUniform(std::uint64_t seed, double least, double most)
      : random_(seed), exponent_(std::log(least), std::log(most)) {}
  std::uint64_t operator()() { return static_cast<std::uint64_t>(std::exp(exponent_(random_))); }

 private:
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> exponent_;
};

/// One JSON object, a line a figure.
class Report {
 public:
  void add(const std::string& name, double value) { rows_.emplace_back(name, value); }
  void print() const {
    std::printf("{\n");
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      std::printf("  \"%s\": %.4g%s\n", rows_[i].first.c_str(), rows_[i].second,
                  i + 1 < rows_.size() ? "," : "");
    }
    std::printf("}\n");
  }

 private:
  std::vector<std::pair<std::string, double>> rows_;
};

// ---- the parts, one file each --------------------------------------------------------------

void time_pairs(Report* report);      // hot and random sizes, beside the peer
void time_threads(Report* report);    // the same on two threads
void time_holes(Report* report);      // from a thousand to a million holes
void time_observers(Report* report);  // the recorder, a snapshot

}  // namespace bench
