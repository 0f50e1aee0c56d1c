// What threads keep for themselves: hits, recalls, threads that come and go, budgets to the byte.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fake_device.h"
#include "heap/heap.h"

namespace nbx {
namespace {

using testing::driver;
using testing::fake_device;
using testing::fresh_seed;

constexpr std::uint64_t kMega = 1 << 20;

class FrontTest : public ::testing::TestWithParam<bool> {
 protected:
  Device& device = fake_device(GetParam());
  Account root{"fake", nullptr};
  Account& account = root.child("device");
  std::unique_ptr<Heap> heap = std::make_unique<Heap>(device, &root.tree_lock());
  Stream stream{device, 0, false};

  Block take(std::uint64_t bytes) { return heap->allocate(bytes, 64, stream, account); }
  void give(const Block& block, std::uint64_t bytes, Ticket ticket = 0) {
    heap->free(block, bytes, account, stream.id(), ticket);
  }
  void expect_identity() {
    const HeapStatistics s = heap->statistics();
    ASSERT_EQ(s.live, root.granted());
    ASSERT_EQ(s.live_blocks, root.statistics().objects);
    ASSERT_EQ(s.mapped, s.live + s.parked + s.pending);
    ASSERT_EQ(s.mapped, driver().used);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, FrontTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "host" : "device"; });

TEST_P(FrontTest, AFreedBlockIsTheNextOfItsSize) {
  for (const std::uint64_t bytes : {1u, 100u, 4096u, 60000u, 100000u, 1000000u}) {
    // A size is kept from its second time on, where it is no class's.
    give(take(bytes), bytes);
    const Block first = take(bytes);
    give(first, bytes);
    const std::uint64_t calls = heap->statistics().driver_calls;
    const Block again = take(bytes);
    EXPECT_EQ(again.address, first.address) << bytes;
    EXPECT_NE(again.generation, first.generation);
    EXPECT_EQ(heap->statistics().driver_calls, calls);
    EXPECT_THROW(heap->require_live(first), Error);
    heap->require_live(again);
    give(again, bytes);
  }
  expect_identity();
}

TEST_P(FrontTest, EveryFigureIsExactForOneThread) {
  std::mt19937_64 random(fresh_seed("EveryFigureIsExactForOneThread"));
  Account* tags[] = {&account, &account.child("a"), &account.child("a").child("b"),
                     &root.child("other")};
  struct Held {
    Block block;
    std::uint64_t bytes;
    std::size_t tag;
  };
  struct Figures {
    std::uint64_t requested = 0, granted = 0, objects = 0, most_requested = 0, most_granted = 0;
    void add(const Held& held) {
      requested += held.bytes;
      granted += held.block.granted;
      ++objects;
      most_requested = std::max(most_requested, requested);
      most_granted = std::max(most_granted, granted);
    }
    void remove(const Held& held) {
      requested -= held.bytes;
      granted -= held.block.granted;
      --objects;
    }
  };
  const auto holds = [&](std::size_t above, std::size_t tag) {
    const Account* at = tags[tag];
    while (at != nullptr && at != tags[above]) at = at->parent();
    return at != nullptr;
  };
  Figures model[4], whole;
  std::vector<Held> held;
  std::uint64_t peak_live = 0, live = 0;
  std::size_t tag = 0;
  for (int step = 0; step < 30000; ++step) {
    if (random() % 50 == 0) tag = random() % 4;
    if (held.empty() || (held.size() < 300 && random() % 100 < (step / 3000 % 2 == 0 ? 58 : 42))) {
      const std::uint64_t bytes = 1 + random() % (std::uint64_t{1} << (random() % 22));
      held.push_back({heap->allocate(bytes, 64, stream, *tags[tag]), bytes, tag});
      for (std::size_t i = 0; i < 4; ++i) {
        if (holds(i, tag)) model[i].add(held.back());
      }
      whole.add(held.back());
      live += held.back().block.granted;
      peak_live = std::max(peak_live, live);
    } else {
      std::swap(held[random() % held.size()], held.back());
      const Held gone = held.back();
      held.pop_back();
      heap->free(gone.block, gone.bytes, *tags[gone.tag], stream.id(), 0);
      for (std::size_t i = 0; i < 4; ++i) {
        if (holds(i, gone.tag)) model[i].remove(gone);
      }
      whole.remove(gone);
      live -= gone.block.granted;
    }
    const std::size_t at = random() % 5;
    const AccountStatistics s = at == 4 ? root.statistics() : tags[at]->statistics();
    const Figures& m = at == 4 ? whole : model[at];
    ASSERT_EQ(s.requested, m.requested) << "step " << step << " account " << at;
    ASSERT_EQ(s.granted, m.granted);
    ASSERT_EQ(s.objects, m.objects);
    ASSERT_EQ(s.peak_requested, m.most_requested) << "step " << step << " account " << at;
    ASSERT_EQ(s.peak_granted, m.most_granted);
    ASSERT_EQ(s.peak_error, 0u);
    ASSERT_EQ(heap->statistics().peak_live, peak_live);
    if (step % 64 == 0) expect_identity();
    if (step % 5000 == 4999) heap->trim();
  }
  for (const Held& entry : held) {
    heap->free(entry.block, entry.bytes, *tags[entry.tag], stream.id(), 0);
  }
  heap->trim();
  EXPECT_EQ(driver().used, 0u);
  EXPECT_EQ(root.granted(), 0u);
}

TEST_P(FrontTest, ATrimTakesBackWhatOtherThreadsKeep) {
  std::atomic<int> stage{0};
  std::thread other([&] {
    std::vector<Block> blocks;
    for (int i = 0; i < 200; ++i) blocks.push_back(take(1000));
    for (const Block& block : blocks) give(block, 1000);
    stage = 1;
    while (stage.load() != 2) std::this_thread::yield();
    give(take(1000), 1000);  // its front still serves
  });
  while (stage.load() != 1) std::this_thread::yield();
  EXPECT_GT(heap->statistics().kept, 0u);
  heap->trim();
  EXPECT_EQ(heap->statistics().kept, 0u);
  EXPECT_EQ(driver().used, 0u);
  stage = 2;
  other.join();
  heap->trim();
  EXPECT_EQ(driver().used, 0u);
}

TEST_P(FrontTest, PressureRecallsBeforeItRefuses) {
  driver().capacity = 8 * kMega;
  std::atomic<bool> freed{false}, done{false};
  std::thread other([&] {
    std::vector<Block> blocks;
    for (int i = 0; i < 60; ++i) blocks.push_back(take(64 * 1024));
    for (const Block& block : blocks) give(block, 64 * 1024);
    freed = true;
    while (!done.load()) std::this_thread::yield();
  });
  while (!freed.load()) std::this_thread::yield();
  const Block block = take(8 * kMega - 4096);  // the driver has nothing left beside what is kept
  give(block, 8 * kMega - 4096);
  done = true;
  other.join();
  expect_identity();
}

TEST_P(FrontTest, ASlotThatAnotherThreadKeepsIsFoundBeforeARefusal) {
  driver().capacity = 4 * kMega;
  constexpr std::uint64_t kBytes = 4096;
  std::vector<Block> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(take(kBytes));  // slabs on pages of their own
  std::vector<std::pair<Block, std::uint64_t>> filling;
  for (std::uint64_t bytes = 2 * kMega; bytes >= 256; bytes /= 2) {
    try {
      for (;;) filling.emplace_back(take(bytes), bytes);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    }
  }
  std::atomic<int> stage{0};
  std::thread other([&] {
    for (std::size_t i = 0; i < blocks.size(); i += 2) give(blocks[i], kBytes);
    stage = 1;
    while (stage.load() != 2) std::this_thread::yield();
  });
  while (stage.load() != 1) std::this_thread::yield();
  for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i] = take(kBytes);
  stage = 2;
  other.join();
  for (const Block& block : blocks) give(block, kBytes);
  for (const auto& [block, bytes] : filling) give(block, bytes);
  expect_identity();
}

TEST_P(FrontTest, AThreadThatBeginsWhileARequestIsServedKeepsNothingFromIt) {
  driver().capacity = 4 * kMega;
  constexpr std::uint64_t kHalf = 32 * 1024, kFew = 256;
  // Blocks of the heap itself, side by side, as no size has slabs at first.
  const Block halves[] = {take(kHalf), take(kHalf)};
  const Block little = take(kFew);
  std::vector<std::pair<Block, std::uint64_t>> filling;
  const auto fill = [&](std::uint64_t bytes) {
    EXPECT_THROW(
        {
          for (;;) filling.emplace_back(take(bytes), bytes);
        },
        Error);
  };
  for (std::uint64_t bytes = 2 * kMega; bytes >= kFew; bytes /= 2) fill(bytes);
  fill(2 * kHalf);  // what slabs of the last sizes had left aside
  give(little, kFew);
  heap->recall();
  std::atomic<bool> freed{false}, done{false};
  std::thread other;
  heap->add_reclaimer(1, [&](std::uint64_t) -> std::uint64_t {
    if (other.joinable()) return 0;
    other = std::thread([&] {
      const Block own = take(kFew);  // it counts by itself from here on
      for (const Block& half : halves) give(half, kHalf);
      give(own, kFew);
      freed = true;
      while (!done.load()) std::this_thread::yield();
    });
    while (!freed.load()) std::this_thread::yield();
    return 2 * kHalf;
  });
  Block whole;
  EXPECT_NO_THROW(whole = take(2 * kHalf));
  EXPECT_TRUE(freed.load());
  done = true;
  other.join();
  give(whole, 2 * kHalf);
  for (const auto& [block, bytes] : filling) give(block, bytes);
  expect_identity();
}

TEST_P(FrontTest, AThreadThatEndsLeavesNothing) {
  for (int i = 0; i < 20; ++i) {
    std::thread([&] {
      std::vector<Block> blocks;
      for (std::uint64_t bytes = 1; bytes < 100000; bytes += bytes / 2 + 1) {
        blocks.push_back(take(bytes));
        give(blocks.back(), bytes);
      }
    }).join();
    const HeapStatistics s = heap->statistics();
    EXPECT_EQ(s.kept, 0u);
    EXPECT_EQ(s.live, 0u);
    EXPECT_EQ(root.statistics().peak_error, 0u);
  }
  heap->trim();
  EXPECT_EQ(driver().used, 0u);
}

TEST_P(FrontTest, AHeapMayGoBeforeItsThreads) {
  std::atomic<int> stage{0};
  std::thread other([&] {
    give(take(100), 100);
    stage = 1;
    while (stage.load() != 2) std::this_thread::yield();
    Account second("fake", nullptr);
    Heap fresh(device, &second.tree_lock());
    const Block block = fresh.allocate(100, 64, stream, second);
    fresh.free(block, 100, second, stream.id(), 0);
    EXPECT_EQ(second.granted(), 0u);
  });
  while (stage.load() != 1) std::this_thread::yield();
  heap.reset();
  EXPECT_EQ(root.granted(), 0u);
  EXPECT_EQ(driver().used, 0u);
  stage = 2;
  other.join();
}

TEST_P(FrontTest, BlocksFreedByOtherThreadsFlowBack) {
  std::mutex mutex;
  std::vector<Block> sent;
  std::atomic<bool> done{false};
  std::thread consumer([&] {
    for (;;) {
      const bool last = done.load();
      std::vector<Block> got;
      {
        const std::lock_guard<std::mutex> guard(mutex);
        got.swap(sent);
      }
      for (const Block& block : got) give(block, 500);
      if (last && got.empty()) return;
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 20000; ++i) {
    const Block block = take(500);
    const std::lock_guard<std::mutex> guard(mutex);
    sent.push_back(block);
    if (sent.size() > 100) std::this_thread::yield();
  }
  done = true;
  consumer.join();
  expect_identity();
  EXPECT_EQ(root.granted(), 0u);
  EXPECT_LE(driver().used, 64 * kMega);
}

TEST_P(FrontTest, NoBudgetIsExceededByOneByteByManyThreads) {
  constexpr int kThreads = 64;
  const std::uint64_t seed = fresh_seed("NoBudgetIsExceededByOneByteByManyThreads");
  constexpr std::uint64_t kBudget = 300 * 1000;
  root.set_limit(kBudget);
  Account& tag = account.child("tag");
  tag.set_limit(kBudget / 3);
  std::atomic<std::uint64_t> granted{0}, tagged{0}, refused{0}, served{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<std::uint64_t>(t));
      std::vector<std::pair<Block, std::uint64_t>> held[2];
      for (int i = 0; i < 100; ++i) {
        const std::size_t which = random() % 2;
        Account& own = which == 0 ? account : tag;
        if (random() % 2 == 0) {
          const std::uint64_t bytes = 1 + random() % 9000;
          try {
            held[which].emplace_back(heap->allocate(bytes, 64, stream, own), bytes);
          } catch (const Error&) {
            refused.fetch_add(1);
            continue;
          }
          served.fetch_add(1);
          const std::uint64_t more = held[which].back().first.granted;
          // Counted after the heap has, and before it stops: never more than what it counts.
          ASSERT_LE(granted.fetch_add(more) + more, kBudget);
          if (which == 1) {
            ASSERT_LE(tagged.fetch_add(more) + more, kBudget / 3);
          }
        } else if (!held[which].empty()) {
          const auto [block, bytes] = held[which].back();
          held[which].pop_back();
          granted.fetch_sub(block.granted);
          if (which == 1) tagged.fetch_sub(block.granted);
          heap->free(block, bytes, own, stream.id(), 0);
        }
      }
      for (std::size_t which = 0; which < 2; ++which) {
        for (const auto& [block, bytes] : held[which]) {
          granted.fetch_sub(block.granted);
          if (which == 1) tagged.fetch_sub(block.granted);
          heap->free(block, bytes, which == 0 ? account : tag, stream.id(), 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(served.load(), 0u);
  EXPECT_EQ(root.granted(), 0u);
  EXPECT_LE(root.statistics().peak_granted, kBudget);
  EXPECT_LE(tag.statistics().peak_granted, kBudget / 3);
  expect_identity();
}

TEST_P(FrontTest, WhatOthersHaveLeasedIsTakenBackBeforeARefusal) {
  root.set_limit(4 * kMega);
  std::atomic<bool> leased{false}, done{false};
  std::thread other([&] {
    const Block block = take(1000);
    leased = true;
    while (!done.load()) std::this_thread::yield();
    give(block, 1000);
  });
  while (!leased.load()) std::this_thread::yield();
  const std::uint64_t left = 4 * kMega - root.granted();
  const Block rest = take(left);  // the whole of it, to the byte
  EXPECT_EQ(root.granted(), 4 * kMega);
  EXPECT_THROW(static_cast<void>(take(1)), Error);
  give(rest, left);
  done = true;
  other.join();
  EXPECT_EQ(root.granted(), 0u);
}

TEST_P(FrontTest, StressOfThreadsThatComeAndGo) {
  const std::uint64_t seed = fresh_seed("StressOfThreadsThatComeAndGo");
  std::mutex mutex;
  std::vector<std::pair<Block, std::uint64_t>> shared;
  std::atomic<bool> stop{false};
  std::thread recaller([&] {
    while (!stop.load()) {
      heap->trim(kMega);
      root.set_limit(root.limit());
      static_cast<void>(root.report());
      static_cast<void>(heap->statistics());
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 8; ++t) {
      threads.emplace_back([&, t, round] {
        std::mt19937_64 random(seed + t + 100 * static_cast<unsigned>(round));
        std::vector<std::pair<Block, std::uint64_t>> held;
        for (int i = 0; i < 1500; ++i) {
          if (held.size() < 20 && random() % 2 == 0) {
            const std::uint64_t bytes = 1 + random() % (std::uint64_t{1} << (random() % 20));
            held.emplace_back(take(bytes), bytes);
          } else if (!held.empty()) {
            std::swap(held.back(), held[random() % held.size()]);
            if (random() % 4 == 0) {
              const std::lock_guard<std::mutex> guard(mutex);
              shared.push_back(held.back());
              std::swap(shared.back(), shared[random() % shared.size()]);
              held.back() = shared.back();
              shared.pop_back();
            }
            give(held.back().first, held.back().second);
            held.pop_back();
          }
        }
        for (const auto& [block, bytes] : held) give(block, bytes);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  stop = true;
  recaller.join();
  for (const auto& [block, bytes] : shared) give(block, bytes);
  expect_identity();
  EXPECT_EQ(root.granted(), 0u);
  heap->trim();
  EXPECT_EQ(driver().used, 0u);
}

class QueuedFront : public FrontTest {};
INSTANTIATE_TEST_SUITE_P(Device, QueuedFront, ::testing::Values(false));

TEST_P(QueuedFront, ASmallBlockStaysWithItsStreamUntilItsWorkIsOver) {
  std::mt19937_64 random(fresh_seed("ASmallBlockStaysWithItsStreamUntilItsWorkIsOver"));
  Stream streams[] = {{device, 20, false}, {device, 21, false}, {device, 22, false},
                      {device, 23, false}, {device, 24, false}, {device, 25, false}};
  constexpr std::size_t kStreams = 6;
  struct Held {
    Block block;
    std::uint64_t bytes;
    std::size_t stream;
  };
  struct Freed {
    std::size_t stream;
    Ticket ticket;
  };
  std::vector<Held> held;
  std::map<DeviceAddress, std::vector<Freed>> freed;  // by first byte: slots and their neighbours
  std::map<DeviceAddress, DeviceAddress> live;
  Ticket submitted[kStreams] = {1, 1, 1, 1, 1, 1};
  for (int step = 0; step < 20000; ++step) {
    const std::size_t s = random() % kStreams;
    if (random() % 16 == 0) driver().completed[20 + s] = submitted[s] - random() % 2;
    if (step % 1000 == 999) heap->trim(kMega);
    if (held.size() < 200 && random() % 100 < 55) {
      const std::uint64_t bytes = 1 + random() % 3000;
      const Block block = heap->allocate(bytes, 64, streams[s], account);
      const DeviceAddress end = block.address + block.granted;
      const auto above = live.lower_bound(block.address);
      if (above != live.end()) {
        ASSERT_LE(end, above->first);
      }
      if (above != live.begin()) {
        ASSERT_LE(std::prev(above)->second, block.address);
      }
      live[block.address] = end;
      for (auto range = freed.lower_bound(block.address);
           range != freed.end() && range->first < end; ++range) {
        for (const Freed& use : range->second) {
          if (use.stream != s) {
            ASSERT_LE(use.ticket, driver().completed[20 + use.stream]) << "step " << step;
          }
        }
      }
      held.push_back({block, bytes, s});
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const Held gone = held.back();
      held.pop_back();
      live.erase(gone.block.address);
      std::vector<BlockUse> uses;
      for (std::size_t user = 0; user < kStreams; ++user) {
        if (random() % 6 != 0 && (user != gone.stream || random() % 4 == 0)) continue;
        uses.push_back({streams[user].id(), ++submitted[user]});
        freed[gone.block.address].push_back({user, submitted[user]});
      }
      if (uses.size() == 1) {
        heap->free(gone.block, gone.bytes, account, uses[0].stream, uses[0].ticket);
      } else {
        heap->free_after(gone.block, gone.bytes, account, uses.data(), uses.size());
      }
    }
    if (step % 100 == 0) expect_identity();
  }
  for (const Held& entry : held) {
    heap->free(entry.block, entry.bytes, account, streams[entry.stream].id(), 0);
  }
  for (std::size_t s = 0; s < kStreams; ++s) driver().completed[20 + s] = submitted[s];
  heap->trim();
  EXPECT_EQ(driver().used, 0u);
}

}  // namespace
}  // namespace nbx
