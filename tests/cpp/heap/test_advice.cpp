// The advice of a refusal is true: what it says would fit is asked for, and fits.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "device/sim/sim.h"
#include "fake_device.h"
#include "heap/heap.h"

namespace nbx {
namespace {

using testing::fresh_seed;

constexpr std::uint64_t kMega = 1 << 20;

const FigureTable& table_of(const Error& error, const std::string& name) {
  for (const auto& [key, value] : error.figures()) {
    if (key == name) return std::get<FigureTable>(value);
  }
  throw std::runtime_error("no table " + name + " in: " + error.what());
}

std::uint64_t figure_of(const Error& error, const std::string& name) {
  for (const auto& [key, value] : error.figures()) {
    if (key == name) return static_cast<std::uint64_t>(std::get<std::int64_t>(value));
  }
  throw std::runtime_error("no figure " + name + " in: " + error.what());
}

class AdviceTest : public ::testing::TestWithParam<bool> {
 protected:
  struct Held {
    Block block;
    std::uint64_t bytes;
  };
  Device& device = open_device(DeviceKind::kSim, 0);
  const std::uint64_t total = sim::books(0).total_bytes;
  Account root{"sim:0", nullptr};
  Account& kv = root.child("kv");
  Account& weights = root.child("weights");
  Heap heap{device, &root.tree_lock(), GetParam()};
  Stream& stream = default_stream(device);
  std::vector<Held> held[2];

  AdviceTest() { sim::set_memory(0, sim::books(0).used_bytes + 64 * kMega); }
  ~AdviceTest() override {
    for (int tag = 0; tag < 2; ++tag) {
      while (!held[tag].empty()) drop(tag, held[tag].size() - 1);
    }
    sim::set_memory(0, total);
  }
  Account& account(int tag) { return tag == 0 ? kv : weights; }
  Block take(int tag, std::uint64_t bytes) {
    return heap.allocate(bytes, 64, stream, account(tag));
  }
  void keep(int tag, std::uint64_t bytes) { held[tag].push_back({take(tag, bytes), bytes}); }
  void drop(int tag, std::size_t place) {
    const Held gone = held[tag][place];
    heap.free(gone.block, gone.bytes, account(tag), stream.id(), 0);
    held[tag].erase(held[tag].begin() + static_cast<std::ptrdiff_t>(place));
  }
  /// The refusal of a request, or false if it was served (and given back).
  bool refuses(std::uint64_t bytes, Error* refusal = nullptr) {
    try {
      const Block block = take(1, bytes);
      heap.free(block, bytes, weights, stream.id(), 0);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
      if (refusal != nullptr) *refusal = error;
      return true;
    }
  }
  void drop_largest(int tag) {
    const auto largest =
        std::max_element(held[tag].begin(), held[tag].end(), [](const Held& a, const Held& b) {
          return a.block.granted != b.block.granted ? a.block.granted < b.block.granted
                                                    : a.block.id > b.block.id;
        });
    drop(tag, static_cast<std::size_t>(largest - held[tag].begin()));
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, AdviceTest, ::testing::Bool(), [](const auto& parameter) {
  return parameter.param ? "pages" : "segments";
});

TEST_P(AdviceTest, WhatItSaysWouldFitDoesAndNoMore) {
  std::mt19937_64 random(fresh_seed("WhatItSaysWouldFitDoesAndNoMore"));
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < 40; ++i) {
      const int tag = static_cast<int>(random() % 2);
      const std::uint64_t bytes = 17 * 1024 + random() % (4 * kMega);
      if (!refuses(bytes)) keep(tag, bytes);
      if (held[tag].size() > 8) drop(tag, random() % held[tag].size());
    }
    Error refusal(ErrorKind::kValue, "none");
    ASSERT_TRUE(refuses(65 * kMega, &refusal));
    const std::uint64_t fits = figure_of(refusal, "would_fit");
    EXPECT_FALSE(refuses(fits)) << "round " << round << ": " << refusal.what();
    EXPECT_TRUE(refuses(fits + 256)) << "round " << round << ": " << refusal.what();
    for (int tag = 0; tag < 2; ++tag) {
      while (held[tag].size() > 3) drop(tag, random() % held[tag].size());
    }
  }
}

TEST_P(AdviceTest, FreeingATagDownToTheNamedBytesLetsTheRequestThrough) {
  std::mt19937_64 random(fresh_seed("FreeingATagDownToTheNamedBytes"));
  int tried = 0;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t bytes = 17 * 1024 + random() % (3 * kMega);
      if (!refuses(bytes)) keep(static_cast<int>(random() % 2), bytes);
    }
    const std::uint64_t wanted = (6 + random() % 12) * kMega;
    Error refusal(ErrorKind::kValue, "none");
    if (!refuses(wanted, &refusal)) continue;
    for (const auto& [path, limit] : table_of(refusal, "fits_if")) {
      if (path != "sim:0/kv") continue;
      ++tried;
      EXPECT_NE(std::string(refusal.what()).find("fits if "), std::string::npos);
      while (kv.granted() > static_cast<std::uint64_t>(limit)) {
        EXPECT_TRUE(refuses(wanted)) << "more was to be freed than is needed";
        drop_largest(0);
      }
      EXPECT_EQ(kv.granted(), static_cast<std::uint64_t>(limit));
      EXPECT_FALSE(refuses(wanted)) << refusal.what();
    }
    for (int tag = 0; tag < 2; ++tag) {
      while (held[tag].size() > 6) drop(tag, random() % held[tag].size());
    }
  }
  EXPECT_GT(tried, 0);
}

TEST_P(AdviceTest, ABudgetNamesOnlyTagsThatCountUnderIt) {
  keep(0, 8 * kMega);
  keep(1, 8 * kMega);
  weights.set_limit(10 * kMega);
  Error refusal(ErrorKind::kValue, "none");
  ASSERT_TRUE(refuses(4 * kMega, &refusal));
  const FigureTable& limits = table_of(refusal, "fits_if");
  ASSERT_FALSE(limits.empty());
  for (const auto& [path, limit] : limits) EXPECT_NE(path, "sim:0/kv");
  EXPECT_EQ(figure_of(refusal, "would_fit"), 2 * kMega);
  weights.set_limit(kUnlimited);
}

TEST_P(AdviceTest, GraphsThatKeepMemoryAreNamed) {
  const std::uint32_t capture = heap.begin_capture(stream);
  const Block block = take(0, 40 * kMega);
  heap.free(block, 40 * kMega, kv, stream.id(), 0);
  heap.end_capture(capture);
  Error refusal(ErrorKind::kValue, "none");
  ASSERT_TRUE(refuses(50 * kMega, &refusal));
  EXPECT_NE(std::string(refusal.what()).find("graphs that keep 40 MiB"), std::string::npos)
      << refusal.what();
  heap.release_capture(capture, BlockUse{});
  EXPECT_FALSE(refuses(50 * kMega));
}

}  // namespace
}  // namespace nbx
