// Two threads with blocks of their own: time of each, against one thread alone and two heaps.
#include <atomic>
#include <random>
#include <thread>

#include "devices.h"
#include "harness.h"

namespace bench {
namespace {

using namespace nbx;

constexpr int kTurns = 15;
constexpr int kRuns = 301;

/// The median over the runs of all threads; every run starts on all of them at once.
template <class MakeBody>
double per_thread(int threads, int operations, const MakeBody& make_body) {
  std::atomic<int> arrived{0};
  std::vector<std::vector<double>> times(static_cast<std::size_t>(threads));
  const auto work = [&](int number) {
    auto body = make_body(number);
    for (int run = 0; run < kRuns; ++run) {
      arrived.fetch_add(1);
      while (arrived.load() < threads * (run + 1)) std::this_thread::yield();
      times[static_cast<std::size_t>(number)].push_back(run_ns(operations, body));
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  std::vector<double> all;
  for (const auto& own : times) all.insert(all.end(), own.begin(), own.end());
  return median(std::move(all));
}

/// One thread; two that share a heap; and two that share none, which tells what the machine itself
/// takes from one core for another: in turns, so that what disturbs one reading disturbs all.
template <class MakeBody>
void add(Report* report, const std::string& name, int operations, const MakeBody& make_body) {
  std::vector<double> one, two, apart, to_one, to_apart;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto shared = [&](int number) { return make_body(number, gpu_memory(0)); };
    const auto own = [&](int number) { return make_body(number, gpu_memory(number)); };
    one.push_back(per_thread(1, operations, shared));
    two.push_back(per_thread(2, operations, shared));
    apart.push_back(per_thread(2, operations, own));
    to_one.push_back(two.back() / one.back());
    to_apart.push_back(two.back() / apart.back());
  }
  report->add(name + "_one_thread_ns", median(std::move(one)));
  report->add(name + "_two_threads_ns", median(std::move(two)));
  report->add(name + "_two_threads_apart_ns", median(std::move(apart)));
  report->add(name + "_two_to_one", median(std::move(to_one)));
  report->add(name + "_two_to_apart", median(std::move(to_apart)));
}

}  // namespace

void time_threads(Report* report) {
  add(report, "hot_4k", 2000, [](int, DeviceMemory& memory) {
    return [blocks = std::make_unique<Blocks>(memory)](int count) {
      for (int i = 0; i < count; ++i) blocks->give(blocks->take(4096), 4096);
    };
  });
  add(report, "random_small", 1000, [](int number, DeviceMemory& memory) {
    LogUniform size(static_cast<std::uint64_t>(number) + 3, 256.0, 65536.0);
    auto blocks = std::make_unique<Blocks>(memory);
    std::vector<std::uint64_t> sizes(8192);
    for (auto& one : sizes) one = size();
    for (std::size_t i = 0; i < 4096; ++i) blocks->hold(sizes[i]);
    std::size_t at = 0;
    return [blocks = std::move(blocks), sizes = std::move(sizes), at](int count) mutable {
      for (int i = 0; i < count; ++i, ++at) {
        blocks->exchange(at * 2654435761U % 4096, sizes[at % 8192]);
      }
    };
  });
}

}  // namespace bench
