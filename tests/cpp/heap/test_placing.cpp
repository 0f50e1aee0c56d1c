// Where in a hole of a range a block is placed.
#include <gtest/gtest.h>

#include "device/sim/sim.h"
#include "heap/heap.h"

namespace nbx {
namespace {

constexpr std::uint64_t kHalf = std::uint64_t{512} << 10;
constexpr std::uint64_t kMega = 2 * kHalf;

/// Three blocks in a row on pages of 2 MiB, the middle one freed.
class Placing : public ::testing::Test {
 protected:
  Device& device = open_device(DeviceKind::kSim, 0);
  Account root{"sim:0", nullptr};
  Heap heap{device, &root.tree_lock()};
  Stream& stream = default_stream(device);
  Block left, right;
  std::uint64_t left_bytes = 0, right_bytes = 0;

  void make_hole(std::uint64_t before, std::uint64_t hole, std::uint64_t after) {
    left_bytes = before;
    right_bytes = after;
    left = take(before);
    const Block middle = take(hole);
    right = take(after);
    ASSERT_EQ(middle.address, left.address + before);
    ASSERT_EQ(right.address, middle.address + hole);
    give(middle, hole);
  }
  ~Placing() override {
    give(left, left_bytes);
    give(right, right_bytes);
  }
  Block take(std::uint64_t bytes) { return heap.allocate(bytes, 256, stream, root); }
  void give(const Block& block, std::uint64_t bytes) {
    heap.free(block, bytes, root, kNoStream, 0);
  }
  /// Of a block that lives for a moment: bytes from the start of the left block.
  std::uint64_t place_of(std::uint64_t bytes) {
    const Block block = take(bytes);
    give(block, bytes);
    return block.address - left.address;
  }
};

TEST_F(Placing, ABlockLiesBesideOneOfItsOwnSize) {
  make_hole(4 * kMega, 12 * kMega, 3 * kMega);
  EXPECT_EQ(place_of(3 * kMega), 13 * kMega);
  EXPECT_EQ(place_of(4 * kMega), 4 * kMega);
}

TEST_F(Placing, ABlockLiesWhereItSpoilsFewerWholePages) {
  make_hole(4 * kMega, 5 * kMega, 3 * kMega);
  EXPECT_EQ(place_of(kMega), 8 * kMega);
}

TEST_F(Placing, ABlockLeavesLittleOfThePageThatItCuts) {
  make_hole(3 * kMega, 5 * kMega, 4 * kMega);
  EXPECT_EQ(place_of(3 * kHalf), 13 * kHalf);
}

TEST_F(Placing, ABlockThatFillsItsHoleLiesThere) {
  make_hole(3 * kMega, 5 * kMega, 4 * kMega);
  EXPECT_EQ(place_of(5 * kMega), 3 * kMega);
}

}  // namespace
}  // namespace nbx
