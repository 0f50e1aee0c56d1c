// Host cost of the allocator: ns per allocate and free, medians of repeats.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "device/device.h"
#include "storage/storage.h"

namespace {

using namespace nbx;

double median_ns(int repeats, int operations, const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    times.push_back(spent.count() / operations);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print(const char* name, double value, bool last = false) {
  std::printf("  \"%s\": %.1f%s\n", name, value, last ? "" : ",");
}

/// Pairs of free and allocate of random sizes while `live` blocks stay live.
double random_sizes(DeviceMemory& memory, std::size_t live, std::uint64_t largest) {
  constexpr int kOperations = 200000;
  Stream& stream = current_stream(memory.device);
  std::mt19937_64 random(1);
  std::vector<std::pair<Block, std::uint64_t>> held;
  std::vector<std::uint64_t> sizes(kOperations);
  std::vector<std::size_t> picks(kOperations);
  for (auto& size : sizes) size = 1 + random() % largest;
  for (auto& pick : picks) pick = random() % live;
  for (std::size_t i = 0; i < live; ++i) {
    held.emplace_back(memory.heap.allocate(sizes[i], 64, stream, memory.tensors), sizes[i]);
  }
  // Runs far shorter than a time slice: a busy machine disturbs few of them.
  constexpr int kRun = 2000;
  std::size_t at = 0;
  const double result = median_ns(kOperations / kRun, kRun, [&] {
    for (int i = 0; i < kRun; ++i, ++at) {
      auto& slot = held[picks[at]];
      memory.heap.free(slot.first, slot.second, memory.tensors, kNoStream, Ticket{0});
      slot.second = sizes[at];
      slot.first = memory.heap.allocate(slot.second, 64, stream, memory.tensors);
    }
  });
  for (auto& [block, bytes] : held) {
    memory.heap.free(block, bytes, memory.tensors, kNoStream, Ticket{0});
  }
  return result;
}

double two_threads(DeviceMemory& memory) {
  constexpr int kOperations = 200000;
  const auto work = [&memory] {
    for (int i = 0; i < kOperations; ++i) static_cast<void>(Storage::allocate(memory, 4096));
  };
  return median_ns(5, 2 * kOperations, [&] {
    std::thread other(work);
    work();
    other.join();
  });
}

}  // namespace

int main() {
  DeviceMemory& memory = memory_of(open_device(DeviceKind::kCpu, 0));
  Stream& stream = current_stream(memory.device);
  constexpr int kOperations = 5000;
  std::printf("{\n");
  print("heap_hot_ns", median_ns(501, kOperations, [&] {
          for (int i = 0; i < kOperations; ++i) {
            const Block block = memory.heap.allocate(4096, 64, stream, memory.tensors);
            memory.heap.free(block, 4096, memory.tensors, kNoStream, Ticket{0});
          }
        }));
  print("storage_hot_ns", median_ns(501, kOperations, [&] {
          for (int i = 0; i < kOperations; ++i) static_cast<void>(Storage::allocate(memory, 4096));
        }));
  set_tag("weights/layer.3");
  print("storage_hot_tagged_ns", median_ns(501, kOperations, [&] {
          for (int i = 0; i < kOperations; ++i) static_cast<void>(Storage::allocate(memory, 4096));
        }));
  set_tag("");
  print("heap_random_sizes_4k_live_ns", random_sizes(memory, 4096, 16384));
  print("heap_random_sizes_64k_live_ns", random_sizes(memory, 65536, 16384));
  print("storage_two_threads_ns", two_threads(memory), true);
  std::printf("}\n");
  return 0;
}
