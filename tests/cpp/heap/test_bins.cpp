// The bins of free blocks, and the table of records, against naive lists.
#include "heap/bins.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "fake_device.h"
#include "heap/records.h"

namespace nbx {
namespace {

using testing::fresh_seed;

constexpr std::uint32_t kGranuleBits = 8;
constexpr std::uint64_t kGranule = std::uint64_t{1} << kGranuleBits;

struct Shelf {
  RecordTable records;
  Bins bins{kGranuleBits};
  std::uint64_t next_address = kGranule;

  std::uint32_t add(std::uint64_t granules) {
    records.ensure(1);
    const std::uint32_t id = records.acquire();
    records[id].address = std::exchange(next_address, next_address + granules * kGranule);
    records[id].bytes = granules * kGranule;
    // What a live block kept where free ones keep their links.
    records[id].set_requested(0xFFFF'FFFF'FFFFu);
    bins.insert(records, id);
    return id;
  }
  void drop(std::uint32_t id) {
    bins.remove(records, id);
    records.release(id);
  }
};

// answers: 26
TEST(Bins, TheSmallestBlockThatFitsIsFoundByOneLook) {
  const std::uint64_t seed = fresh_seed("Bins");
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  Shelf shelf;
  std::vector<std::uint32_t> ids;
  std::multiset<std::uint64_t> sizes;
  for (int step = 0; step < 20000; ++step) {
    if (ids.size() < 50 || (random() % 2 == 0 && ids.size() < 3000)) {
      const std::uint64_t granules = 1 + random() % 2047;
      ids.push_back(shelf.add(granules));
      sizes.insert(granules * kGranule);
    } else {
      const std::size_t at = random() % ids.size();
      sizes.erase(sizes.find(shelf.records[ids[at]].bytes));
      shelf.drop(ids[at]);
      ids[at] = ids.back();
      ids.pop_back();
    }
    const std::uint64_t wanted = (1 + random() % 2047) * kGranule;
    const std::uint64_t before = shelf.bins.visited();
    const std::uint32_t found = shelf.bins.find(shelf.records, wanted);
    const auto expected = sizes.lower_bound(wanted);
    ASSERT_EQ(found == kNoBlock, expected == sizes.end());
    if (found == kNoBlock) continue;
    ASSERT_EQ(shelf.records[found].bytes, *expected);
    ASSERT_EQ(shelf.bins.visited(), before + 1);
  }
  EXPECT_EQ(shelf.bins.count(), ids.size());
  EXPECT_EQ(shelf.bins.largest(shelf.records), *sizes.rbegin());
}

TEST(Bins, AtEqualSizeTheBlockFreedLastIsFound) {
  Shelf shelf;
  const std::uint32_t first = shelf.add(7), second = shelf.add(7), third = shelf.add(7);
  EXPECT_EQ(shelf.bins.find(shelf.records, 7 * kGranule), third);
  shelf.drop(third);
  EXPECT_EQ(shelf.bins.find(shelf.records, 5 * kGranule), second);
  // From the middle of a list whose first block has changed.
  const std::uint32_t fourth = shelf.add(7);
  shelf.drop(second);
  shelf.drop(fourth);
  EXPECT_EQ(shelf.bins.find(shelf.records, 7 * kGranule), first);
  shelf.drop(first);
  EXPECT_TRUE(shelf.bins.empty());
  EXPECT_EQ(shelf.bins.find(shelf.records, kGranule), kNoBlock);
}

TEST(Bins, BlocksOfEverySizeAreFound) {
  for (std::uint64_t granules = 1; granules < std::uint64_t{1} << 48;
       granules += granules / 3 + 1) {
    Shelf shelf;
    const std::uint32_t id = shelf.add(granules);
    const std::uint64_t bytes = granules * kGranule;
    ASSERT_EQ(shelf.bins.find(shelf.records, bytes), id) << granules;
    ASSERT_EQ(shelf.bins.find(shelf.records, kGranule), id) << granules;
    ASSERT_EQ(shelf.bins.find(shelf.records, bytes + kGranule), kNoBlock) << granules;
    ASSERT_EQ(shelf.bins.largest(shelf.records), bytes);
    std::uint64_t seen = 0;
    shelf.bins.for_each(shelf.records, [&](std::uint32_t) { ++seen; }, bytes);
    ASSERT_EQ(seen, 1u);
    shelf.drop(id);
    ASSERT_TRUE(shelf.bins.empty());
  }
}

TEST(Records, StayWhereTheyAreWhileTheTableGrowsAndAreCopiedAsTheyStand) {
  RecordTable table;
  std::vector<BlockRecord*> places;
  // Past the first large page, which comes in small ones, and the second.
  for (std::uint64_t i = 0; i < 70 * std::uint64_t{RecordTable::kChunk}; ++i) {
    table.ensure(1);
    BlockRecord& record = table[table.acquire()];
    ASSERT_EQ(record.generation, 1u);
    record.bytes = i;
    places.push_back(&record);
  }
  const RecordTable copy(table);
  EXPECT_EQ(copy.size(), table.size());
  std::set<std::uint64_t> seen;
  for (std::uint32_t id = 1; id <= places.size(); ++id) {
    ASSERT_EQ(copy[id].bytes, table[id].bytes);
    seen.insert(copy[id].bytes);
  }
  for (std::uint64_t i = 0; i < places.size(); ++i) ASSERT_EQ(places[i]->bytes, i);
  EXPECT_EQ(seen.size(), places.size());
}

}  // namespace
}  // namespace nbx
