// Arenas, slabs and layouts over a heap: addresses, accounts, and who holds the block until when.
#include "arena/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "arena/layout.h"
#include "arena/slab.h"
#include "core/error.h"
#include "device/device.h"
#include "device/sim/sim.h"
#include "heap/fake_device.h"
#include "heap/heap.h"
#include "stream/stream.h"

namespace nbx {
namespace {

using testing::fresh_seed;

class Carvers : public ::testing::Test {
 protected:
  Device& device = open_device(DeviceKind::kSim, 0);
  Stream& stream = default_stream(device);
  Account root{"sim:0", nullptr};
  Account& tag = root.child("kv");
  Heap heap{device, &root.tree_lock()};

  ~Carvers() override { EXPECT_EQ(root.granted(), 0u); }

  template <class Function>
  static std::string refused(const Function& function) {
    try {
      function();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kValue);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return {};
  }
  static bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(Carvers, ArenaIsOneBlockUnderItsTag) {
  Arena arena("decoder", heap, tag, stream, 10'000);
  EXPECT_EQ(arena.capacity(), 10'240u);
  EXPECT_EQ(tag.granted(), 10'240u);
  EXPECT_EQ(arena.allocate(0, stream).address, 0u);
  const Carving first = arena.allocate(1, stream);
  const Carving second = arena.allocate(257, stream);
  EXPECT_EQ(first.address, arena.base());
  EXPECT_EQ(second.address, arena.base() + 256);
  EXPECT_EQ(arena.allocate(1, stream).address, arena.base() + 768);
  EXPECT_EQ(arena.used(), 1024u);
  EXPECT_EQ(heap.statistics().live_blocks, 1u);
}

TEST_F(Carvers, ArenaOverflowNamesUsedAndCapacity) {
  Arena arena("decoder", heap, tag, stream, 1024);
  static_cast<void>(arena.allocate(700, stream));
  const std::string text = refused([&] { static_cast<void>(arena.allocate(300, stream)); });
  EXPECT_TRUE(says(text, "arena 'decoder' of sim:0"));
  EXPECT_TRUE(says(text, "300 bytes with 768 of 1024 used"));
  EXPECT_EQ(arena.used(), 768u);
  EXPECT_EQ(arena.allocate(256, stream).address, arena.base() + 768);
  for (const std::uint64_t huge : {~std::uint64_t{0}, std::uint64_t{1} << 62}) {
    EXPECT_TRUE(
        says(refused([&] { static_cast<void>(arena.allocate(huge, stream)); }), "alloc of"));
  }
}

TEST_F(Carvers, ResetVoidsTheAddressesBeforeIt) {
  Arena arena("decoder", heap, tag, stream, 4096);
  const Carving first = arena.allocate(1000, stream);
  const Carving second = arena.allocate(1000, stream);
  const Resolved inside = arena.resolve(second.address + 999);
  EXPECT_EQ(inside.start, second.address);
  EXPECT_EQ(inside.offset, 999u);
  EXPECT_EQ(inside.bytes, 1000u);
  EXPECT_TRUE(says(refused([&] { static_cast<void>(arena.resolve(second.address + 1000)); }),
                   "no carving holds"));
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.peak(), 2048u);
  EXPECT_TRUE(says(refused([&] { static_cast<void>(arena.resolve(second.address)); }),
                   "was carved before reset 1"));
  const Carving again = arena.allocate(10, stream);
  EXPECT_EQ(again.address, first.address);
  EXPECT_EQ(again.generation, first.generation + 1);
  EXPECT_EQ(arena.resolve(again.address).generation, 1u);
}

TEST_F(Carvers, TheBlockStaysUntilTheLastTensorReturns) {
  Arena arena("decoder", heap, tag, stream, 4096);
  const Carving carving = arena.allocate(1000, stream);
  int tensor = 0;
  arena.tensor_made(&tensor, carving);
  arena.require_tensor(&tensor, carving.address);
  arena.close();
  EXPECT_EQ(tag.granted(), 4096u);  // its output is still there
  EXPECT_TRUE(says(refused([&] { static_cast<void>(arena.allocate(1, stream)); }), "freed"));
  EXPECT_TRUE(says(refused([&] { arena.reset(); }), "freed"));
  arena.tensor_returned(&tensor, carving);
  EXPECT_EQ(tag.granted(), 0u);
  arena.close();
}

TEST_F(Carvers, AStaleTensorIsNamed) {
  Arena arena("decoder", heap, tag, stream, 4096);
  const Carving carving = arena.allocate(1000, stream);
  int tensor = 0;
  arena.tensor_made(&tensor, carving);
  arena.reset();
  const std::string text = refused([&] { arena.require_tensor(&tensor, carving.address); });
  EXPECT_TRUE(says(text, "carved before reset 1"));
  int other = 0;
  EXPECT_TRUE(says(refused([&] { arena.require_tensor(&other, 5); }), "not carved from it"));
  arena.tensor_returned(&tensor, carving);
  EXPECT_EQ(arena.stale_gives(), 1u);
  EXPECT_EQ(arena.tensors(), 0u);
}

TEST_F(Carvers, GuardsTellWhatWasWrittenPastItsEnd) {
  Arena arena("decoder", heap, tag, stream, 4096, true);
  static_cast<void>(arena.allocate(256, stream));
  const Carving bad = arena.allocate(100, stream);
  arena.verify();
  ASSERT_EQ(device.primitives().fill(0, bad.address + 256, 0, 4, 1, stream.handle()), kSuccess);
  const std::string text = refused([&] { arena.verify(); });
  EXPECT_TRUE(says(text, "carving 2 of 100 bytes at offset 512"));
  arena.verify();  // told once
  arena.reset();
  static_cast<void>(arena.allocate(256, stream));
  arena.verify();
}

TEST_F(Carvers, ARefusedBlockLeavesNothingBehind) {
  tag.set_limit(1000);
  EXPECT_THROW(Arena("big", heap, tag, stream, 4096), Error);
  EXPECT_THROW(StepSlab("big", heap, tag, stream, 4096), Error);
  EXPECT_THROW(Arena("none", heap, tag, stream, 0), Error);
  EXPECT_EQ(root.statistics().objects, 0u);
  EXPECT_EQ(heap.statistics().live_blocks, 0u);
}

TEST_F(Carvers, ReplaySlabEqualsAMapOfHoles) {
  std::mt19937_64 random(fresh_seed("ReplaySlabEqualsAMapOfHoles"));
  constexpr std::uint64_t kCapacity = 1 << 20;
  ReplaySlab slab("graph", heap, tag, stream, kCapacity);
  std::map<DeviceAddress, std::uint64_t> live;
  std::uint64_t short_of = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (!live.empty() && random() % 5 < 2) {
      auto chosen = live.begin();
      std::advance(chosen, static_cast<long>(random() % live.size()));
      slab.give(chosen->first);
      live.erase(chosen);
    } else {
      const std::uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 60'000 : 3'000);
      Carving carving;
      std::uint64_t largest = 0;
      std::uint64_t end = slab.base();
      for (const auto& [address, held] : live) {
        largest = std::max(largest, address - end);
        end = address + carve_bytes(held);
      }
      largest = std::max(largest, slab.base() + kCapacity - end);
      ASSERT_EQ(slab.largest_hole(), largest);
      const bool fits = slab.carve(bytes, stream, &carving);
      ASSERT_EQ(fits, carve_bytes(bytes) <= largest);
      if (!fits) {
        short_of += bytes;
        continue;
      }
      ASSERT_EQ(carving.address % kCarveAlignment, 0u);
      const auto above = live.lower_bound(carving.address);
      ASSERT_TRUE(above == live.end() || carving.address + carve_bytes(bytes) <= above->first);
      ASSERT_TRUE(above == live.begin() ||
                  std::prev(above)->first + carve_bytes(std::prev(above)->second) <=
                      carving.address);
      live.emplace(carving.address, bytes);
    }
  }
  EXPECT_EQ(slab.shortfall(), short_of);
  EXPECT_GT(short_of, 0u);
  for (const auto& [address, bytes] : live) slab.give(address);
  EXPECT_EQ(slab.used(), 0u);
  EXPECT_EQ(slab.holes(), 1u);
  EXPECT_EQ(slab.largest_hole(), kCapacity);
}

TEST_F(Carvers, ReplaySlabRefusesForeignAndDoubleFrees) {
  ReplaySlab slab("graph", heap, tag, stream, 4096);
  Carving carving;
  ASSERT_TRUE(slab.carve(300, stream, &carving));
  EXPECT_TRUE(says(refused([&] { slab.give(carving.address + 256); }), "no carving starts"));
  EXPECT_TRUE(says(refused([&] { slab.give(1); }), "no carving starts"));
  slab.give(carving.address);
  EXPECT_TRUE(says(refused([&] { slab.give(carving.address); }), "freed before"));
  slab.give(0);
}

TEST_F(Carvers, RetiredReplaySlabReturnsWithItsLastCarving) {
  ReplaySlab slab("graph", heap, tag, stream, 4096);
  Carving raw, carved;
  ASSERT_TRUE(slab.carve(300, stream, &raw));
  ASSERT_TRUE(slab.carve(300, stream, &carved));
  int tensor = 0;
  slab.tensor_made(&tensor, carved);
  slab.retire();
  EXPECT_EQ(tag.granted(), 4096u);
  Carving more;
  EXPECT_FALSE(slab.carve(10, stream, &more));  // the heap serves it
  EXPECT_EQ(slab.shortfall(), 10u);
  slab.give(raw.address);
  EXPECT_EQ(tag.granted(), 4096u);
  slab.tensor_returned(&tensor, carved);
  EXPECT_EQ(tag.granted(), 0u);
  EXPECT_FALSE(slab.carve(10, stream, &more));
}

TEST_F(Carvers, StepSlabAddressesDoNotDependOnWhenMemoryReturns) {
  std::mt19937_64 random(fresh_seed("StepSlabAddressesDoNotDependOnWhenMemoryReturns"));
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (int k = 0; k < 200; ++k) {
    sizes.push_back(1 + random() % 50'000);
    total += carve_bytes(sizes.back());
  }
  StepSlab slab("decode", heap, tag, stream, StepSlab::capacity_for(total));
  EXPECT_GE(slab.capacity(), total + total / 4 + (64 << 20));
  std::vector<DeviceAddress> first, late;
  for (int step = 0; step < 6; ++step) {
    std::vector<DeviceAddress> addresses;
    for (const std::uint64_t size : sizes) {
      Carving carving;
      ASSERT_TRUE(slab.carve(size, stream, &carving));
      addresses.push_back(carving.address);
      if (random() % 2 == 0) {
        slab.give(carving.address);  // absorbed
      } else {
        late.push_back(carving.address);
      }
      // Finalizers of earlier steps run at any time.
      while (!late.empty() && random() % 3 == 0) {
        slab.give(late.back());
        late.pop_back();
      }
    }
    if (step == 0) first = addresses;
    ASSERT_EQ(addresses, first) << "step " << step;
    ASSERT_EQ(slab.carve_sizes(), sizes);
    EXPECT_EQ(slab.reset(), step > 0);
    ASSERT_EQ(slab.former_sizes(), sizes);
  }
  for (const DeviceAddress address : late) slab.give(address);
  EXPECT_GT(slab.stale_gives(), 0u);
  EXPECT_EQ(slab.shortfall(), 0u);
}

TEST_F(Carvers, StepSlabTellsWhereStepsDiffer) {
  StepSlab slab("decode", heap, tag, stream, 4096);
  Carving carving;
  for (const std::uint64_t size : {100u, 200u, 300u}) {
    ASSERT_TRUE(slab.carve(size, stream, &carving));
  }
  EXPECT_FALSE(slab.reset());
  ASSERT_TRUE(slab.carve(100, stream, &carving));
  EXPECT_EQ(slab.first_difference(), -1);
  ASSERT_TRUE(slab.carve(201, stream, &carving));
  EXPECT_EQ(slab.first_difference(), 1);
  EXPECT_FALSE(slab.carve(5000, stream, &carving));
  EXPECT_EQ(slab.shortfall(), 5000u);
  EXPECT_FALSE(slab.reset());
  EXPECT_TRUE(says(refused([&] { slab.give(slab.base() + 2048); }), "no carving starts"));
}

TEST_F(Carvers, PlannedSlabServesWhatThePlanKnows) {
  // Origin 7 asks twice, origin 8 once, and the third lies over the first.
  const std::vector<PlannedKey> keys = {{7, 0, 1000}, {7, 1, 500}, {8, 0, 1000}};
  PlannedSlab slab("train", heap, tag, stream, keys, {0, 1024, 0});
  for (int step = 0; step < 3; ++step) {
    Carving a, b, c, other;
    ASSERT_TRUE(slab.carve(1000, stream, &a, 7));
    EXPECT_EQ(a.address, slab.base());
    ASSERT_TRUE(slab.carve(500, stream, &b, 7));
    EXPECT_EQ(b.address, slab.base() + 1024);
    EXPECT_FALSE(slab.carve(1000, stream, &c, 8));  // the first still lives
    slab.give(a.address);
    EXPECT_FALSE(slab.carve(1000, stream, &other, 8));  // ordinal 1 of it is unknown
    EXPECT_FALSE(slab.carve(500, stream, &other, 9));
    slab.give(b.address);
    slab.begin_step();
  }
  EXPECT_EQ(slab.hits(), 6u);
  EXPECT_EQ(slab.conflicts(), 3u);
  EXPECT_EQ(slab.misses(), 6u);
  Carving c;
  EXPECT_FALSE(slab.carve(999, stream, &c, 8));  // another size
  EXPECT_TRUE(says(refused([&] { PlannedSlab("x", heap, tag, stream, keys, {0, 100, 0}); }),
                   "multiples of 256"));
  EXPECT_TRUE(says(refused([&] { PlannedSlab("x", heap, tag, stream, keys, {0}); }), "1 offsets"));
  EXPECT_TRUE(
      says(refused([&] { PlannedSlab("x", heap, tag, stream, {{1, 0, 1}, {1, 0, 1}}, {0, 0}); }),
           "earlier one"));
}

TEST_F(Carvers, QueuedWorkKeepsAFreedBlockPending) {
  const std::shared_ptr<Stream> busy = create_stream(device, 0);
  {
    Arena arena("decoder", heap, tag, stream, 1 << 20);
    const Carving carving = arena.allocate(1 << 20, *busy);
    ASSERT_EQ(device.primitives().fill(0, carving.address, 1, 4, 1 << 18, busy->handle()),
              kSuccess);
  }
  EXPECT_EQ(tag.granted(), 0u);
  EXPECT_EQ(heap.statistics().pending, std::uint64_t{1} << 20);
  busy->synchronize();
  static_cast<void>(heap.trim(kUnlimited));
  EXPECT_EQ(heap.statistics().pending, 0u);
}

TEST(BlockLayout, PutsEntriesBehindEachOther) {
  BlockLayout layout;
  EXPECT_EQ(layout.add("a", 100, 1), 0u);
  EXPECT_EQ(layout.add("b", 10, 64), 128u);
  EXPECT_EQ(layout.add("c", 0, 256), 256u);
  EXPECT_EQ(layout.add("d", 1, 2), 256u);
  EXPECT_EQ(layout.total(), 512u);
  EXPECT_EQ(layout.find("b").offset, 128u);
  EXPECT_EQ(layout.find("b").bytes, 10u);
  EXPECT_THROW(layout.add("a", 1, 1), Error);
  EXPECT_THROW(layout.add("e", 1, 3), Error);
  EXPECT_THROW(layout.add("e", ~std::uint64_t{0}, 1), Error);
  EXPECT_THROW(static_cast<void>(layout.find("e")), Error);
  EXPECT_EQ(layout.entries().size(), 4u);
}

}  // namespace
}  // namespace nbx
