// Sleep and wake by tag: addresses and contents stay, memory goes, and nothing is ever half asleep.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "account/recorder.h"
#include "sleepers.h"

namespace nbx {
namespace {

using testing::fresh_seed;

using testing::kMega;
using testing::kPage;

class Sleep : public testing::Sleepers {
 protected:
  Held take(std::uint64_t bytes, Account& account, Lifetime lifetime = Lifetime::kTransient) {
    Held held = Sleepers::take(bytes, account, lifetime);
    held.pattern = static_cast<std::uint32_t>(held.block.address) ^ 0x5bd1e995u;
    fill(held.block.address, held.pattern, bytes);
    return held;
  }
  void expect_contents(const Held& held) {
    expect_words(held.block.address, held.pattern, held.bytes);
  }
};

TEST_F(Sleep, AddressesAndContentsStayAndTheMemoryGoes) {
  const Held a = take(5 * kMega, weights);
  const Held b = take(300, layer);
  const Held c = take(6 * kMega + 12, kv);  // ends the third page
  const std::uint64_t before = root.granted();
  const SleepReport slept = heap.sleep(weights, true);
  EXPECT_EQ(slept.blocks, 2u);
  EXPECT_EQ(slept.bytes, 5 * kMega + 512);
  EXPECT_EQ(slept.contents, slept.bytes);
  EXPECT_EQ(slept.moved, 2 * kPage) << "the third page is shared with kv";
  EXPECT_EQ(root.granted(), before - slept.bytes);
  EXPECT_EQ(root.statistics().asleep, slept.bytes);
  EXPECT_EQ(weights.statistics().asleep, slept.bytes);
  EXPECT_EQ(layer.statistics().asleep, 512u);
  EXPECT_EQ(weights.statistics().objects, 2u);
  EXPECT_TRUE(heap.is_asleep(a.block));
  EXPECT_TRUE(heap.is_asleep(b.block));
  EXPECT_FALSE(heap.is_asleep(c.block));
  EXPECT_THROW(heap.require_live(a.block), Error);
  EXPECT_EQ(heap.statistics().asleep_held, slept.bytes - 2 * kPage);
  expect_identity();
  expect_contents(c);
  const SleepReport woke = heap.wake(weights);
  EXPECT_EQ(woke.blocks, 2u);
  EXPECT_EQ(woke.bytes, slept.bytes);
  EXPECT_EQ(woke.moved, slept.moved);
  EXPECT_EQ(root.granted(), before);
  for (const Held& held : {a, b, c}) {
    heap.require_live(held.block);
    expect_contents(held);
  }
  expect_identity();
  for (const Held& held : {a, b, c}) give(held);
  expect_nothing_left();
}

TEST_F(Sleep, DroppedContentsTakeNoHostMemory) {
  const Held a = take(6 * kMega, weights);
  const SleepReport slept = heap.sleep(weights, false);
  EXPECT_EQ(slept.contents, 0u);
  EXPECT_EQ(slept.moved, 3 * kPage);
  EXPECT_EQ(heap.statistics().asleep_contents, 0u);
  EXPECT_EQ(heap.wake(weights).contents, 0u);
  heap.require_live(a.block);
  give(a);
  expect_nothing_left();
}

TEST_F(Sleep, TheRecorderSaysWhatSleptAndWoke) {
  const Held a = take(6 * kMega, weights);
  static_cast<void>(heap.sleep(weights, true));
  static_cast<void>(heap.wake(weights));
  std::vector<RecordedAction> seen;
  for (const RecordedRun& run : Recorder::read()) {
    for (const RecordedEvent& event : run.events) {
      const RecordedFields fields = event.unpack();
      if (fields.action != RecordedAction::kSleep && fields.action != RecordedAction::kWake) {
        continue;
      }
      if (fields.account != weights.id() || fields.bytes != a.block.granted) continue;
      seen.push_back(fields.action);
    }
  }
  ASSERT_GE(seen.size(), 2u);
  EXPECT_EQ(seen[seen.size() - 2], RecordedAction::kSleep);
  EXPECT_EQ(seen[seen.size() - 1], RecordedAction::kWake);
  give(a);
}

TEST_F(Sleep, SleepingTwiceAndWakingTwiceDoNothingMore) {
  const Held a = take(3 * kMega, weights);
  EXPECT_EQ(heap.wake(weights).blocks, 0u) << "awake";
  EXPECT_EQ(heap.sleep(weights, true).blocks, 1u);
  EXPECT_EQ(heap.sleep(weights, true).blocks, 0u) << "asleep";
  EXPECT_EQ(heap.sleep(kv, true).blocks, 0u) << "empty";
  // What is allocated under a sleeping tag is awake, and the next sleep's.
  const Held b = take(3 * kMega, weights);
  EXPECT_FALSE(heap.is_asleep(b.block));
  EXPECT_EQ(heap.sleep(weights, true).blocks, 1u);
  EXPECT_EQ(heap.sleeping(weights).blocks, 2u);
  EXPECT_EQ(heap.wake(weights).blocks, 2u);
  EXPECT_EQ(heap.wake(weights).blocks, 0u);
  for (const Held& held : {a, b}) {
    expect_contents(held);
    give(held);
  }
  expect_nothing_left();
}

TEST_F(Sleep, TagsInsideASleepingTagWakeAlone) {
  const Held a = take(3 * kMega, weights);
  const Held b = take(5 * kMega, layer);
  EXPECT_EQ(heap.sleep(layer, true).blocks, 1u);
  EXPECT_EQ(heap.sleep(weights, true).blocks, 1u);
  EXPECT_EQ(heap.wake(layer).blocks, 1u);
  EXPECT_TRUE(heap.is_asleep(a.block));
  expect_contents(b);
  expect_identity();
  EXPECT_EQ(heap.sleep(root, true).blocks, 1u);
  EXPECT_EQ(heap.sleeping(root).blocks, 2u);
  EXPECT_EQ(heap.wake(root).blocks, 2u);
  for (const Held& held : {a, b}) {
    expect_contents(held);
    give(held);
  }
  expect_nothing_left();
}

TEST_F(Sleep, ABlockFreedInItsSleepIsGone) {
  const Held a = take(5 * kMega, weights);
  const Held b = take(5 * kMega, layer);
  heap.sleep(weights, true);
  give(a);
  EXPECT_FALSE(heap.is_asleep(a.block));
  EXPECT_EQ(heap.sleeping(weights).blocks, 1u);
  EXPECT_EQ(weights.statistics().objects, 1u);
  expect_identity();
  give(a);  // logged, and nothing else
  expect_identity();
  // Its addresses serve others, also in the page that it shares with a sleeping block.
  const Held c = take(5 * kMega, kv);
  expect_identity();
  EXPECT_EQ(heap.wake(weights).blocks, 1u);
  expect_contents(b);
  expect_contents(c);
  give(b);
  give(c);
  expect_nothing_left();
}

TEST_F(Sleep, WorkOnTheBlocksIsWaitedFor) {
  StreamHandle handle = 0;
  ASSERT_EQ(table.stream_create(0, 0, &handle), kSuccess);
  Stream other(device, handle, true);
  Held a = take(4 * kMega, weights);
  ASSERT_EQ(table.synchronize(0), kSuccess);
  ASSERT_EQ(table.fill(0, a.block.address, 77, 4, a.bytes / 4, handle), kSuccess);
  a.pattern = 77;
  heap.sleep(weights, true);
  EXPECT_EQ(sim::books(0).queued_work, 0u);
  heap.wake(weights);
  expect_contents(a);
  give(a);
}

TEST_F(Sleep, TheBudgetOfSleepersIsFreeForOthersAndAskedForAgain) {
  root.set_limit(8 * kMega);
  const Held a = take(6 * kMega, weights);
  EXPECT_THROW(static_cast<void>(take(6 * kMega, kv)), Error);
  heap.sleep(weights, true);
  const Held b = take(6 * kMega, kv);
  try {
    heap.wake(weights);
    FAIL() << "admitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
  EXPECT_TRUE(heap.is_asleep(a.block));
  expect_identity();
  // A reclaimer is asked before the wake is refused.
  const std::uint64_t number =
      heap.add_reclaimer(1.0, [&](std::uint64_t) { return heap.sleep(kv, true).bytes; });
  EXPECT_EQ(heap.wake(weights).blocks, 1u);
  heap.remove_reclaimer(number);
  EXPECT_TRUE(heap.is_asleep(b.block));
  expect_contents(a);
  give(a);
  heap.wake(kv);
  expect_contents(b);
  give(b);
  root.set_limit(kUnlimited);
  expect_nothing_left();
}

TEST_F(Sleep, AnotherProcessHasTheMemoryMeanwhileAndTheWakeSaysSo) {
  sim::set_memory(0, used + 64 * kMega);
  const Held a = take(48 * kMega, weights);
  heap.sleep(weights, true);
  EXPECT_EQ(sim::books(0).used_bytes, used) << "the driver has it all";
  sim::set_pressure(0, 60 * kMega);
  try {
    heap.wake(weights);
    FAIL() << "there was no memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
  EXPECT_TRUE(heap.is_asleep(a.block));
  expect_identity();
  sim::set_pressure(0, 0);
  heap.wake(weights);
  expect_contents(a);
  give(a);
  expect_nothing_left();
}

TEST_F(Sleep, WakingTakesThePagesOfFreeBlocks) {
  sim::set_memory(0, used + 64 * kMega);
  const Held a = take(40 * kMega, weights);
  heap.sleep(weights, true);
  std::vector<Held> held;
  for (int i = 0; i < 15; ++i) held.push_back(take(4 * kMega, kv));
  for (const Held& entry : held) give(entry);
  heap.wake(weights);
  EXPECT_GT(heap.statistics().stolen_bytes, 0u);
  expect_contents(a);
  expect_identity();
  give(a);
  expect_nothing_left();
}

TEST_F(Sleep, LargeHandlesGoWholeAndStayWhereOthersLieOnThem) {
  const Held a = take(40 * kMega, weights, Lifetime::kSteady);
  const Held b = take(20 * kMega, layer, Lifetime::kSteady);
  const Held c = take(1 * kMega, kv);
  const SleepReport slept = heap.sleep(weights, true);
  EXPECT_EQ(slept.moved % kPage, 0u);
  expect_identity();
  heap.wake(weights);
  for (const Held& held : {a, b, c}) {
    expect_contents(held);
    give(held);
  }
  expect_nothing_left();
}

TEST_F(Sleep, AThousandCyclesDriftByNothing) {
  // Little is written, so that pages come and go quickly: one with a hole, one that others keep.
  std::vector<Held> held = {take(kMega / 16, weights), take(300, layer)};
  const Held hole = take(2 * kMega - kMega / 8, kv);
  held.push_back(take(kMega / 8, layer));
  const Held other = take(kMega, kv);
  give(hole);
  ASSERT_EQ(table.synchronize(0), kSuccess);
  heap.sleep(weights, true);
  heap.wake(weights);
  const HeapStatistics before = heap.statistics();
  const AccountStatistics account = root.statistics();
  const sim::Books books = sim::books(0);
  for (int cycle = 0; cycle < 1000; ++cycle) {
    heap.sleep(weights, true);
    heap.wake(weights);
  }
  const HeapStatistics after = heap.statistics();
  const AccountStatistics same = root.statistics();
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.mapped, before.mapped);
  EXPECT_EQ(after.parked, before.parked);
  EXPECT_EQ(after.live_blocks, before.live_blocks);
  EXPECT_EQ(after.free_blocks, before.free_blocks);
  EXPECT_EQ(after.asleep_contents, 0u);
  EXPECT_EQ(same.granted, account.granted);
  EXPECT_EQ(same.requested, account.requested);
  EXPECT_EQ(same.objects, account.objects);
  EXPECT_EQ(same.asleep, 0u);
  EXPECT_EQ(sim::books(0).pages, books.pages);
  EXPECT_EQ(sim::books(0).mappings, books.mappings);
  EXPECT_EQ(sim::books(0).used_bytes, books.used_bytes);
  expect_identity();
  for (const Held& entry : held) expect_contents(entry);
  for (const Held& entry : held) give(entry);
  give(other);
  expect_nothing_left();
}

/// Fails each call in turn, and all calls of a primitive from one on, through a sleep and the wake
/// after it.
TEST_F(Sleep, AFailureAtAnyCallLeavesAllAsleepOrAllAwake) {
  int failed = 0;
  const auto attempt = [&](const sim::Fault& fault) {
    const std::vector<Held> held = {take(2 * kMega, weights), take(700, kv), take(3 * kMega, layer),
                                    take(kMega, layer)};
    ASSERT_EQ(table.synchronize(0), kSuccess);
    sim::add_fault(0, fault);
    for (int step = 0; step < 2; ++step) {
      try {
        if (step == 0) heap.sleep(weights, true);
        if (step == 1) heap.wake(weights);
      } catch (const Error& error) {
        ++failed;
      }
      const std::uint64_t asleep = heap.sleeping(weights).blocks;
      ASSERT_TRUE(asleep == 0 || asleep == 3)
          << name_of(fault.primitive) << " call " << fault.first_call;
      expect_identity();
    }
    sim::clear_faults(0);
    static_cast<void>(table.last_error(0));
    ASSERT_EQ(table.synchronize(0), kSuccess);
    heap.wake(weights);
    for (const Held& entry : held) expect_contents(entry);
    for (const Held& entry : held) give(entry);
    expect_nothing_left();
  };
  sim::Fault fault{Primitive::k_copy};
  fault.status = Status{719};
  fault.every_primitive = true;
  for (fault.first_call = 1; fault.first_call <= 50 && !HasFatalFailure(); ++fault.first_call) {
    attempt(fault);
  }
  EXPECT_GT(failed, 15);
  fault.every_primitive = false;
  fault.call_count = 1000;
  for (const Primitive primitive :
       {Primitive::k_synchronize, Primitive::k_copy, Primitive::k_stream_synchronize,
        Primitive::k_page_unmap, Primitive::k_page_release, Primitive::k_page_create,
        Primitive::k_page_map, Primitive::k_page_access}) {
    fault.primitive = primitive;
    for (fault.first_call = 1; fault.first_call <= 4 && !HasFatalFailure(); ++fault.first_call) {
      attempt(fault);
    }
  }
}

TEST_F(Sleep, DevicesWithoutVirtualMemoryAreNamed) {
  Heap segments(device, &root.tree_lock(), false);
  try {
    segments.sleep(weights, true);
    FAIL() << "slept";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("sim:0"), std::string::npos);
  }
}

TEST_F(Sleep, RandomNapsFollowANaiveModel) {
  std::mt19937_64 random(fresh_seed("RandomNapsFollowANaiveModel"));
  sim::set_memory(0, used + 96 * kMega);
  Account* const tags[] = {&weights, &layer, &kv};
  std::vector<Held> held;
  const auto below = [&](const Account* account, const Account* tag) {
    while (account != nullptr && account != tag) account = account->parent();
    return account == tag;
  };
  for (int step = 0; step < 200; ++step) {
    const std::uint64_t action = random() % 100;
    Account& tag = *tags[random() % 3];
    try {
      if (action < 45) {
        const std::uint64_t bytes =
            random() % 4 == 0 ? 4 + random() % kMega : 4 + random() % (8 * kMega);
        held.push_back(
            take(bytes, tag, random() % 8 == 0 ? Lifetime::kSteady : Lifetime::kTransient));
      } else if (action < 85 && !held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        give(held.back());
        held.pop_back();
      } else if (action < 93) {
        heap.sleep(tag, true);
        for (const Held& entry : held) {
          ASSERT_TRUE(!below(entry.account, &tag) || heap.is_asleep(entry.block));
        }
      } else {
        heap.wake(tag);
        for (const Held& entry : held) {
          ASSERT_TRUE(!below(entry.account, &tag) || !heap.is_asleep(entry.block));
        }
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
    }
    expect_identity();
    if (step % 25 != 0) continue;
    for (const Held& entry : held) {
      if (!heap.is_asleep(entry.block)) expect_contents(entry);
    }
  }
  for (const Held& entry : held) {
    if (!heap.is_asleep(entry.block)) expect_contents(entry);
    give(entry);
  }
  expect_nothing_left();
}

}  // namespace
}  // namespace nbx
