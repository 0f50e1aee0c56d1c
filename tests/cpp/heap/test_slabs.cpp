// Slots of slabs: sizes, the streams that a slab serves, when it goes back to the heap.
#include "heap/slabs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "fake_device.h"
#include "heap/space.h"

namespace nbx {
namespace {

using testing::fresh_seed;

TEST(SlotSize, EverySizeHasTheSmallestClassThatHoldsIt) {
  std::uint64_t former = 0;
  for (std::uint32_t size_class = 0; size_class < SlotSize::kCount; ++size_class) {
    const std::uint64_t granules = SlotSize::granules(size_class);
    ASSERT_GT(granules, former);
    for (std::uint64_t size = former + 1; size <= granules; ++size) {
      ASSERT_EQ(SlotSize::of(size), size_class) << size;
    }
    // At most an eighth is lost.
    ASSERT_LE((granules - former - 1) * 8, granules) << size_class;
    former = granules;
  }
  EXPECT_EQ(former * 64, SlotSize::kLargest);
}

template <std::uint32_t kGranuleBits>
void check_tables() {
  const SlotTables& tables = kSlotTables<kGranuleBits>;
  const std::uint64_t granule = std::uint64_t{1} << kGranuleBits;
  for (std::uint64_t bytes = 1; bytes <= SlotSize::kLargest; ++bytes) {
    const std::uint32_t size_class = SlotSize::of((bytes + granule - 1) / granule);
    ASSERT_EQ(tables.classes[(bytes - 1) / 64], size_class) << bytes;
    ASSERT_EQ(tables.bytes[size_class], SlotSize::granules(size_class) * granule) << bytes;
  }
}

TEST(SlotSize, TablesSayTheSameInBytes) {
  check_tables<kHostGranuleBits>();
  check_tables<kDeviceGranuleBits>();
}

class SlabsTest : public ::testing::Test {
 protected:
  static constexpr DeviceAddress kBase = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kBytes = std::uint64_t{1} << 20;
  Space space{8};
  Slabs slabs{space};
  Slabs::Share share;

  SlabsTest() {
    space.attach(slabs, 0);
    Segment segment;
    segment.driver_address = segment.base = kBase;
    segment.driver_bytes = segment.bytes = kBytes;
    space.add_segment(std::move(segment));
    // A class has slabs from its fifth request on.
    for (std::uint32_t size_class = 0; size_class < SlotSize::kCount; ++size_class) {
      std::uint32_t ids[1];
      for (int i = 0; i < 4; ++i) EXPECT_EQ(slabs.take(share, size_class, 1, 1, ids), 0u);
    }
  }
  std::vector<std::uint32_t> take(std::uint32_t size_class, StreamId stream, std::uint32_t count) {
    std::vector<std::uint32_t> ids(count);
    ids.resize(slabs.take(share, size_class, stream, count, ids.data()));
    slabs.disown(share);
    return ids;
  }
  void give(std::uint32_t id, StreamId stream, Ticket ticket) {
    space.record(id).stream = stream;
    space.record(id).ticket = ticket;
    slabs.give(id, nullptr);
  }
};

TEST_F(SlabsTest, SlotsLieSideBySideAndAreFoundByAddress) {
  const auto ids = take(3, 1, 8);
  ASSERT_EQ(ids.size(), 8u);
  std::set<DeviceAddress> addresses;
  for (const std::uint32_t id : ids) {
    const BlockRecord& slot = space.record(id);
    EXPECT_TRUE(slot.is_slot());
    EXPECT_EQ(slot.bytes, 4u * 256);
    addresses.insert(slot.address);
    EXPECT_EQ(space.find(slot.address + 5), kNoBlock);  // nobody holds it yet
    space.record(id).state = BlockState::kLive;
    EXPECT_EQ(space.find(slot.address), id);
    EXPECT_EQ(space.find(slot.address + 1023), id);
  }
  ASSERT_EQ(addresses.size(), 8u);
  EXPECT_EQ(*addresses.rbegin() - *addresses.begin(), 7u * 1024);
}

TEST_F(SlabsTest, ASecondEmptySlabGoesBackAndTheLastOneWhenFolded) {
  const auto first = take(0, 1, 8);
  const auto second = take(0, 1, 16);
  ASSERT_EQ(second.size(), 16u);
  const std::uint64_t hole = space.largest_hole();
  for (const std::uint32_t id : first) give(id, 1, 0);
  EXPECT_EQ(space.largest_hole(), hole);
  for (const std::uint32_t id : second) give(id, 1, 0);
  EXPECT_LT(space.largest_hole(), kBytes);
  slabs.fold();
  EXPECT_EQ(space.largest_hole(), kBytes);
  for (const std::uint32_t id : first) EXPECT_FALSE(space.is_live(id, space.record(id).generation));
}

TEST_F(SlabsTest, AnotherStreamHasASlotOnlyOnceItsWorkIsOver) {
  const auto ids = take(2, 1, 8);
  for (const std::uint32_t id : ids) give(id, 1, 7);
  const auto others = take(2, 2, 16);  // a slab of its own
  for (const std::uint32_t id : others) {
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 0);
    EXPECT_EQ(space.record(id).ticket, 0u);
  }
  const auto again = take(2, 1, 1);  // its own stream has one at once, with the ticket
  ASSERT_EQ(std::count(ids.begin(), ids.end(), again.at(0)), 1);
  EXPECT_EQ(space.record(again[0]).ticket, 7u);
  give(again[0], 1, 7);
  space.complete(1, 7);
  const auto moved = take(2, 3, 8);
  for (const std::uint32_t id : moved) {
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 1);
    EXPECT_EQ(space.record(id).ticket, 0u);
    EXPECT_EQ(space.record(id).stream, 3u);
  }
}

TEST_F(SlabsTest, ASlotThatAnotherStreamUsedWaitsForIt) {
  const auto ids = take(2, 1, 8);
  give(ids[0], 1, 3);
  give(ids[1], 2, 5);  // two streams in one slab
  EXPECT_EQ(space.record(ids[1]).state, BlockState::kWaiting);
  EXPECT_EQ(space.newest_ticket(2), 5u);
  const auto streams = space.pending_streams();
  EXPECT_EQ(std::count(streams.begin(), streams.end(), 2u), 1);
  space.complete(2, 4);
  EXPECT_EQ(space.record(ids[1]).state, BlockState::kWaiting);
  space.complete(2, 5);
  EXPECT_EQ(space.record(ids[1]).state, BlockState::kCached);
  EXPECT_EQ(space.record(ids[1]).ticket, 0u);
}

TEST_F(SlabsTest, WorkOfAnEmptySlabKeepsItsMemoryFromOtherStreams) {
  const auto ids = take(1, 1, 8);
  for (const std::uint32_t id : ids) give(id, 1, 9);
  slabs.fold();
  EXPECT_EQ(space.pending_bytes(), 8u * 512);
  EXPECT_LT(space.largest_hole(), kBytes);
  space.complete(1, 9);
  EXPECT_EQ(space.pending_bytes(), 0u);
  EXPECT_EQ(space.largest_hole(), kBytes);
}

TEST_F(SlabsTest, WhatAGraphUsedIsFrozenUntilItIsReleased) {
  const auto ids = take(1, 1, 8);
  const StreamId capture = kCaptureBit | 5;
  space.begin_capture(capture, capture);
  space.record(ids[0]).state = BlockState::kLive;
  const BlockUse use{capture, 0};
  space.give(ids[0], &use, 1);
  EXPECT_EQ(space.record(ids[0]).state, BlockState::kWaiting);
  for (std::size_t i = 1; i < ids.size(); ++i) give(ids[i], 1, 0);
  slabs.fold();
  EXPECT_EQ(space.record(ids[0]).state, BlockState::kWaiting);  // its slab is still cut
  space.release_capture(capture, BlockUse{1, 4});
  EXPECT_EQ(space.record(ids[0]).state, BlockState::kCached);
  EXPECT_EQ(space.record(ids[0]).ticket, 4u);
}

class SharesTest : public SlabsTest {
 protected:
  Slabs::Share other;
  SharesTest() {
    slabs.add(share, &share);
    slabs.add(other, &other);
  }
  std::vector<std::uint32_t> take_as(Slabs::Share& taker, std::uint32_t count,
                                     StreamId stream = 1) {
    std::vector<std::uint32_t> ids(count);
    ids.resize(slabs.take(taker, 1, stream, count, ids.data()));
    return ids;
  }
  std::set<std::uint32_t> slabs_of(const std::vector<std::uint32_t>& ids) {
    std::set<std::uint32_t> result;
    for (const std::uint32_t id : ids) result.insert(space.record(id).slab());
    return result;
  }
};

TEST_F(SharesTest, NobodyTakesFromTheSlabsOfAnother) {
  const auto mine = take_as(share, 5);  // three of its eight slots are free
  const auto theirs = take_as(other, 4);
  for (const std::uint32_t slab : slabs_of(theirs)) EXPECT_EQ(slabs_of(mine).count(slab), 0u);
  const auto more = take_as(share, 3);
  EXPECT_EQ(slabs_of(more), slabs_of(mine));
}

TEST_F(SharesTest, WhatOthersGiveBackIsFoundOnceNothingElseIsLeft) {
  const auto mine = take_as(share, 8);
  space.record(mine[2]).ticket = 6;
  EXPECT_EQ(slabs.give(mine[2], &other), kNoBlock);
  slabs.give(mine[3], nullptr);
  std::uint32_t ids[8];
  EXPECT_EQ(slabs.take_owned(share, 1, 1, 8, ids), 0u);  // not without the lock
  const auto again = take_as(share, 2);
  EXPECT_EQ(std::set<std::uint32_t>(again.begin(), again.end()),
            (std::set<std::uint32_t>{mine[2], mine[3]}));
  EXPECT_EQ(space.record(mine[2]).ticket, 6u);  // its stream's own work
}

TEST_F(SharesTest, ASlabThatOthersGaveBackAltogetherIsNobodys) {
  const auto mine = take_as(share, 8);
  for (const std::uint32_t id : mine) slabs.give(id, &other);
  const auto theirs = take_as(other, 8);
  EXPECT_EQ(slabs_of(theirs), slabs_of(mine));
}

TEST_F(SharesTest, ASlotOfAnotherStreamDoesNotComeIntoAShare) {
  const auto mine = take_as(share, 8);
  space.record(mine[0]).stream = 2;
  space.record(mine[0]).ticket = 5;
  EXPECT_FALSE(slabs.give_owned(share, mine[0]));
  slabs.give(mine[0], &share);
  EXPECT_EQ(space.record(mine[0]).state, BlockState::kWaiting);
  space.complete(2, 5);
  EXPECT_EQ(space.record(mine[0]).state, BlockState::kCached);
  EXPECT_EQ(take_as(share, 1).at(0), mine[0]);
}

TEST_F(SharesTest, OpenSharesServeEverybodyButAnotherStreamHasTheSlabAlone) {
  const auto mine = take_as(share, 6);
  EXPECT_EQ(slabs.take_open(1, 1), kNoBlock);
  slabs.open_shares();
  const std::uint32_t same = slabs.take_open(1, 1);
  ASSERT_NE(same, kNoBlock);
  EXPECT_EQ(slabs_of({same}), slabs_of(mine));
  const std::uint32_t moved = slabs.take_open(1, 2);  // nothing uses the last one
  ASSERT_NE(moved, kNoBlock);
  EXPECT_EQ(slabs_of({moved}), slabs_of(mine));
  slabs.close_shares();
  // The share has no slab any more whose free slots another stream might use.
  space.record(moved).ticket = 3;
  slabs.give(moved, &other);
  std::uint32_t ids[8];
  EXPECT_EQ(slabs.take_owned(share, 1, 1, 8, ids), 0u);
  EXPECT_EQ(std::count(mine.begin(), mine.end(), moved), 0);
  for (const std::uint32_t id : take_as(share, 8)) EXPECT_NE(id, moved);
}

TEST_F(SharesTest, OnlyOpenSharesAreWaitedForAndFolded) {
  const auto mine = take_as(share, 8);
  for (const std::uint32_t id : mine) {
    space.record(id).ticket = 7;
    EXPECT_TRUE(slabs.give_owned(share, id));
  }
  slabs.fold();
  EXPECT_EQ(space.newest_ticket(1), 0u);
  EXPECT_LT(space.largest_hole(), kBytes);
  slabs.open_shares();
  EXPECT_EQ(space.newest_ticket(1), 7u);
  EXPECT_EQ(space.pending_streams(), std::vector<StreamId>{1});
  space.complete(1, 7);
  slabs.fold();
  slabs.close_shares();
  EXPECT_EQ(space.largest_hole(), kBytes);
}

TEST_F(SharesTest, AThreadFoldsItsOwnSlabsAndNobodys) {
  const auto mine = take_as(share, 8);
  const auto theirs = take_as(other, 8);
  for (const std::uint32_t id : mine) ASSERT_TRUE(slabs.give_owned(share, id));
  for (const std::uint32_t id : theirs) ASSERT_TRUE(slabs.give_owned(other, id));
  EXPECT_TRUE(slabs.fold(share));
  EXPECT_EQ(space.record(mine[0]).state, BlockState::kUnused);
  EXPECT_EQ(space.record(theirs[0]).state, BlockState::kCached);
  EXPECT_FALSE(slabs.fold(share));
  slabs.disown(other);
  EXPECT_TRUE(slabs.fold(share));
  EXPECT_EQ(space.largest_hole(), kBytes);
}

TEST_F(SharesTest, RandomGivesAndTakesLoseNothing) {
  std::mt19937_64 random(fresh_seed("RandomGivesAndTakesLoseNothing"));
  Slabs::Share* const shares[] = {&share, &other};
  std::vector<std::uint32_t> live;
  for (int step = 0; step < 20000; ++step) {
    Slabs::Share& taker = *shares[random() % 2];
    switch (random() % 8) {
      case 0:
        slabs.open_shares();
        slabs.fold();
        if (const std::uint32_t id = slabs.take_open(1, 1); id != kNoBlock) live.push_back(id);
        slabs.close_shares();
        break;
      case 1:
        slabs.disown(taker);
        break;
      case 2:
      case 3:
      case 4:
        if (live.size() < 300) {
          for (const std::uint32_t id :
               take_as(taker, 1 + static_cast<std::uint32_t>(random() % 20)))
            live.push_back(id);
        }
        break;
      default:
        for (auto left = random() % 20; left > 0 && !live.empty(); --left) {
          std::swap(live[random() % live.size()], live.back());
          if (random() % 2 == 0 || !slabs.give_owned(taker, live.back())) {
            slabs.give(live.back(), random() % 2 == 0 ? &taker : nullptr);
          }
          live.pop_back();
        }
    }
    ASSERT_EQ(std::set<std::uint32_t>(live.begin(), live.end()).size(), live.size());
  }
  for (const std::uint32_t id : live) slabs.give(id, nullptr);
  slabs.open_shares();
  slabs.fold();
  EXPECT_EQ(space.largest_hole(), kBytes);
}

TEST_F(SlabsTest, ACopyOfTheBooksTakesSlabsForBlocks) {
  const auto ids = take(1, 1, 8);
  for (const std::uint32_t id : ids) space.record(id).state = BlockState::kLive;
  Space copy(space);
  EXPECT_EQ(copy.find(space.record(ids[0]).address), kNoBlock);
  EXPECT_EQ(copy.largest_hole(), space.largest_hole());
  copy.complete(1, 100);
  EXPECT_EQ(space.find(space.record(ids[0]).address), ids[0]);
}

TEST_F(SlabsTest, NoRoomForASlabGivesNothing) {
  const std::uint32_t all = space.take(Space::kSharedHome, 1, kBytes, 256);
  ASSERT_NE(all, kNoBlock);
  EXPECT_TRUE(take(0, 1, 8).empty());
  EXPECT_EQ(space.give(all, nullptr, 0), all);
  EXPECT_EQ(take(0, 1, 8).size(), 8u);
}

}  // namespace
}  // namespace nbx
