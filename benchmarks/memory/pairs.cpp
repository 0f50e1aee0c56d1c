// One allocation and one free, beside the peer in the same run.
#include <random>

#include "account/recorder.h"
#include "devices.h"
#include "harness.h"
#include "ordered_set.h"

namespace bench {
namespace {

using namespace nbx;

constexpr std::size_t kLive = 4096;
constexpr int kRuns = 201;

void add(Report* report, const std::string& name, const Pair& pair) {
  report->add(name + "_ns", pair.first);
  report->add(name + "_peer_ns", pair.second);
  report->add(name + "_ratio", pair.ratio);
}

void hot(Report* report, const std::string& name, DeviceMemory& memory, std::uint64_t bytes) {
  Blocks blocks(memory);
  OrderedSetAllocator peer;
  const auto ours = [&](int count) {
    for (int i = 0; i < count; ++i) blocks.give(blocks.take(bytes), bytes);
  };
  const auto theirs = [&](int count) {
    for (int i = 0; i < count; ++i) peer.free(peer.allocate(bytes));
  };
  add(report, name, compare(kRuns, 2000, ours, theirs));
}

/// Sizes and places are drawn beforehand: only the allocators are timed.
void random_sizes(Report* report, const std::string& name, DeviceMemory& memory, double most) {
  constexpr std::size_t kDraws = std::size_t{1} << 16;
  constexpr int kRun = 1000;
  std::mt19937_64 random(1);
  LogUniform size(2, 256.0, most);
  std::vector<std::uint64_t> sizes(kDraws);
  std::vector<std::size_t> places(kDraws);
  for (auto& one : sizes) one = size();
  for (auto& one : places) one = random() % kLive;
  Blocks blocks(memory);
  OrderedSetAllocator peer;
  std::vector<std::uint64_t> held;
  for (std::size_t i = 0; i < kLive; ++i) {
    blocks.hold(sizes[i]);
    held.push_back(peer.allocate(sizes[i]));
  }
  std::size_t at = 0, peer_at = 0;
  const auto ours = [&](int count) {
    for (int i = 0; i < count; ++i, ++at) {
      blocks.exchange(places[at % kDraws], sizes[at % kDraws]);
    }
  };
  const auto theirs = [&](int count) {
    for (int i = 0; i < count; ++i, ++peer_at) {
      std::uint64_t& slot = held[places[peer_at % kDraws]];
      peer.free(slot);
      slot = peer.allocate(sizes[peer_at % kDraws]);
    }
  };
  // Until the holes are those of long use.
  ours(50000);
  theirs(50000);
  add(report, name, compare(kRuns, kRun, ours, theirs));
}

void storages(Report* report) {
  DeviceMemory& memory = host_memory();
  const auto body = [&](int count) {
    for (int i = 0; i < count; ++i) static_cast<void>(Storage::allocate(memory, 4096));
  };
  report->add("storage_hot_ns", median_ns(kRuns, 2000, body));
  set_tag("weights/layer.3");
  report->add("storage_hot_tagged_ns", median_ns(kRuns, 2000, body));
  set_tag("");
}

}  // namespace

void time_pairs(Report* report) {
  hot(report, "hot_4k_cpu", host_memory(), 4096);
  hot(report, "hot_4k_gpu", gpu_memory(), 4096);
  const std::uint64_t events = Recorder::set_events_per_thread(0);
  hot(report, "hot_4k_gpu_unrecorded", gpu_memory(), 4096);
  Recorder::set_events_per_thread(events);
  hot(report, "hot_1m_gpu", gpu_memory(), std::uint64_t{1} << 20);
  random_sizes(report, "random_small_cpu", host_memory(), 65536.0);
  random_sizes(report, "random_small_gpu", gpu_memory(), 65536.0);
  random_sizes(report, "random_wide_gpu", gpu_memory(), 4194304.0);
  storages(report);
}

}  // namespace bench
