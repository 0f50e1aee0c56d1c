// Sleep while other threads allocate, free what sleeps, and look at the heap.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "heap/blocks.h"
#include "sleepers.h"

namespace nbx {
namespace {

using testing::fresh_seed;
using testing::kMega;

constexpr std::uint64_t kSmallest = 64 * 1024 + 256;  // what lies outside of slabs

class SleepThreads : public testing::Sleepers {
 protected:
  void write(Held* held, std::uint32_t pattern) {
    held->pattern = pattern;
    device.check(table.fill(0, held->block.address, pattern, 4, held->bytes / 4, 0), "fill");
    device.check(table.stream_synchronize(0, 0), "stream_synchronize");
  }
  [[nodiscard]] bool is_whole(const Held& held) {
    const std::vector<std::uint32_t> words = words_at(held.block.address, held.bytes);
    return std::all_of(words.begin(), words.end(),
                       [&](std::uint32_t word) { return word == held.pattern; });
  }
  // What it waited for is over: `write` waits.
  void give(const Held& held) { heap.free(held.block, held.bytes, *held.account, stream.id(), 0); }
  static std::uint64_t count(const HeapBlocks& found, BlockState state) {
    return static_cast<std::uint64_t>(std::count_if(
        found.blocks.begin(), found.blocks.end(),
        [&](const BlockView& block) { return block.state == static_cast<std::uint32_t>(state); }));
  }
};

TEST_F(SleepThreads, OthersFreeWhatSleepsAllocateAndLook) {
  const std::uint64_t seed = fresh_seed("OthersFreeWhatSleepsAllocateAndLook");
  std::mutex mutex;
  std::vector<Held> shared;  // of `weights` and below, for anybody to free
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed + i + 1);
      std::vector<Held> own;  // of `kv`, never asleep
      while (!stop) {
        if (own.size() < 8 && random() % 3 != 0) {
          own.push_back(take(kSmallest + random() % kMega, kv));
        } else if (!own.empty()) {
          give(own.back());
          own.pop_back();
        }
        Held victim;
        {
          const std::lock_guard<std::mutex> guard(mutex);
          if (random() % 4 != 0 || shared.size() < 4) continue;
          std::swap(shared[random() % shared.size()], shared.back());
          victim = shared.back();
          shared.pop_back();
        }
        give(victim);
      }
      for (const Held& held : own) give(held);
    });
  }
  threads.emplace_back([&] {
    while (!stop) {
      const HeapStatistics figures = heap.statistics();
      if (figures.asleep_held > figures.asleep || figures.parked > figures.mapped) ++wrong;
      static_cast<void>(heap.blocks());
      static_cast<void>(heap.sleeping(weights));
    }
  });
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 6; ++i) {
      Held held = take(kSmallest + random() % kMega, random() % 2 != 0 ? weights : layer);
      held.bytes -= held.bytes % 4;
      write(&held, static_cast<std::uint32_t>(random()));
      const std::lock_guard<std::mutex> guard(mutex);
      shared.push_back(held);
    }
    Account& tag = random() % 3 == 0 ? layer : weights;
    heap.sleep(tag, true);
    std::this_thread::yield();
    heap.wake(tag);
    std::vector<Held> mine;
    {
      const std::lock_guard<std::mutex> guard(mutex);
      mine.swap(shared);
    }
    for (const Held& held : mine) {
      ASSERT_FALSE(heap.is_asleep(held.block));
      ASSERT_TRUE(is_whole(held)) << "seed " << seed << ", round " << round;
    }
    const std::lock_guard<std::mutex> guard(mutex);
    shared.insert(shared.end(), mine.begin(), mine.end());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  for (const Held& held : shared) give(held);
  heap.recall();
  const HeapStatistics last = heap.statistics();
  EXPECT_EQ(last.live, 0u);
  EXPECT_EQ(last.asleep, 0u);
  EXPECT_EQ(last.asleep_blocks, 0u);
  EXPECT_EQ(last.asleep_contents, 0u);
  EXPECT_EQ(root.granted(), 0u);
  EXPECT_EQ(weights.statistics().objects, 0u);
}

TEST_F(SleepThreads, TwoTagsSleepAndWakeOnTwoThreads) {
  const std::uint64_t seed = fresh_seed("TwoTagsSleepAndWakeOnTwoThreads");
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      Account& tag = i == 0 ? weights : kv;
      std::mt19937_64 random(seed + i);
      std::vector<Held> held;
      for (int j = 0; j < 6; ++j) {
        held.push_back(take(4 * (kSmallest / 4 + 64 + random() % (kMega / 8)), tag));
        write(&held.back(), static_cast<std::uint32_t>(random()));
      }
      for (int round = 0; round < 8; ++round) {
        EXPECT_EQ(heap.sleep(tag, true).blocks, held.size());
        EXPECT_EQ(heap.wake(tag).blocks, held.size());
        for (const Held& entry : held) ASSERT_TRUE(is_whole(entry)) << "round " << round;
      }
      for (const Held& entry : held) give(entry);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heap.statistics().live, 0u);
}

TEST_F(SleepThreads, ASnapshotTellsSleepersFromTheLiving) {
  std::vector<Held> held;
  for (int i = 0; i < 5; ++i) held.push_back(take(3 * kMega + 4096, i < 3 ? weights : kv));
  heap.sleep(weights, true);
  const HeapBlocks found = heap.blocks();
  EXPECT_EQ(count(found, BlockState::kAsleep), 3u);
  EXPECT_EQ(count(found, BlockState::kLive), 2u);
  for (const BlockView& block : found.blocks) {
    if (block.state != static_cast<std::uint32_t>(BlockState::kAsleep)) continue;
    EXPECT_EQ(block.account, weights.id());
    EXPECT_EQ(block.requested, 3 * kMega + 4096);
    EXPECT_TRUE(std::any_of(held.begin(), held.begin() + 3, [&](const Held& entry) {
      return entry.block.address == block.address;
    }));
  }
  give(held[0]);
  EXPECT_EQ(count(heap.blocks(), BlockState::kAsleep), 2u);
  heap.wake(weights);
  EXPECT_EQ(count(heap.blocks(), BlockState::kLive), 4u);
  EXPECT_EQ(count(heap.blocks(), BlockState::kAsleep), 0u);
  for (std::size_t i = 1; i < held.size(); ++i) give(held[i]);
}

}  // namespace
}  // namespace nbx
