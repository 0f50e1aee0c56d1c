// Accounts that come and go: who keeps one, when it ends, and what its number means afterwards.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "account/account.h"

namespace nbx {
namespace {

using Path = std::vector<std::string>;

std::set<std::string> paths_of(const Account& root) {
  std::set<std::string> paths;
  for (const AccountStatistics& row : root.report()) paths.insert(row.path);
  return paths;
}

TEST(Prune, EndsWhatNobodyNeedsAndNothingElse) {
  Account root("cpu", nullptr);
  for (const char* name : {"gone", "object", "limit", "soft", "scope", "asleep", "crossed"}) {
    static_cast<void>(root.child(name));
  }
  static_cast<void>(root.child("gone").child("below").child("it"));
  static_cast<void>(root.child("object").child("unused"));
  ASSERT_EQ(root.child("object").reserve(0, 0), nullptr);
  root.child("limit").set_limit(5);
  root.child("soft").set_soft_limit(5);
  const std::uint64_t scope = root.child("scope").begin_peak();
  Account& asleep = root.child("asleep");
  ASSERT_EQ(asleep.reserve(7, 8), nullptr);
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    asleep.sleep_locked(8);
  }
  Account& crossed = root.child("crossed");
  crossed.set_soft_limit(1);
  ASSERT_EQ(crossed.reserve(2, 2), nullptr);
  crossed.release(2, 2);
  crossed.set_soft_limit(kUnlimited);
  AccountHold held = root.descend({"held", "below"});
  EXPECT_EQ(root.prune(), 4u);
  const std::set<std::string> left = {"cpu",      "cpu/object",     "cpu/limit",
                                      "cpu/soft", "cpu/scope",      "cpu/asleep",
                                      "cpu/held", "cpu/held/below", "cpu/crossed"};
  EXPECT_EQ(paths_of(root), left);
  EXPECT_EQ(root.prune(), 0u);
  // Each reason ends.
  root.child("object").release(0, 0);
  root.child("limit").set_limit(kUnlimited);
  root.child("soft").set_soft_limit(kUnlimited);
  static_cast<void>(root.child("scope").end_peak(scope));
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    asleep.release_asleep_locked(7, 8);
  }
  EXPECT_EQ(root.take_crossings().size(), 1u);
  held = AccountHold();
  EXPECT_EQ(root.prune(), 8u);
  EXPECT_EQ(paths_of(root), std::set<std::string>{"cpu"});
  EXPECT_EQ(root.statistics().objects, 0u);
}

TEST(Prune, ALeaseKeepsNoAccountAndIsCountedFirst) {
  Account root("cpu", nullptr);
  Account& first = root.child("first");
  Account& second = root.child("second");
  Lease& lease = root.open_lease();
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    ASSERT_EQ(first.renew_locked(lease, 64, 64), nullptr);
  }
  ASSERT_TRUE(lease.charge(32, 64));
  EXPECT_EQ(root.prune(), 1u) << "the second";
  EXPECT_EQ(first.statistics().objects, 2u);
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    ASSERT_EQ(first.renew_locked(lease, 64, 64), nullptr);
  }
  ASSERT_TRUE(lease.refund(64, 64));
  ASSERT_TRUE(lease.refund(32, 64));
  ASSERT_TRUE(lease.refund(64, 64));
  EXPECT_EQ(lease.account, &first);
  EXPECT_EQ(root.prune(), 1u);
  EXPECT_EQ(lease.account, nullptr);
  EXPECT_EQ(root.statistics().granted, 0u);
  static_cast<void>(second);
}

TEST(Prune, ATreeOfManyShortLivedNamesStaysSmall) {
  Account root("cpu", nullptr);
  const AccountHold kind = root.descend({"device"});
  const AccountHold kept = kind->descend({"kept"});
  std::size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    const AccountHold request = kind->descend({"request." + std::to_string(i), "kv"});
    ASSERT_EQ(request->reserve(10, 64), nullptr);
    request->release(10, 64);
    if (i % 100 == 0) most = std::max(most, root.report().size());
  }
  EXPECT_LT(most, 600u);
  EXPECT_EQ(kept->path(), "cpu/device/kept");
  // Names in use move the bound up.
  std::vector<AccountHold> many;
  for (int i = 0; i < 1000; ++i) many.push_back(kind->descend({"many." + std::to_string(i)}));
  EXPECT_EQ(kind->descend({"many.0"}).get(), many.front().get());
  many.clear();
  static_cast<void>(root.prune());
  EXPECT_EQ(paths_of(root), (std::set<std::string>{"cpu", "cpu/device", "cpu/device/kept"}));
}

TEST(Prune, ANumberIsGivenAgainOnlyLongAfterItsAccountEnded) {
  Account root("cpu", nullptr);
  const std::uint32_t first = root.child("first").id();
  EXPECT_EQ(root.prune(), 1u);
  ASSERT_EQ(root.pruned().size(), 1u);
  EXPECT_EQ(root.pruned()[0], std::make_pair(first, std::string("cpu/first")));
  std::set<std::uint32_t> seen = {root.id(), first};
  for (std::size_t i = 0; i + 1 < Account::kPrunedNames; ++i) {
    ASSERT_TRUE(seen.insert(root.child("x" + std::to_string(i)).id()).second);
    if (i % 1000 == 0) static_cast<void>(root.prune());
  }
  static_cast<void>(root.prune());
  EXPECT_EQ(root.pruned().size(), Account::kPrunedNames);
  EXPECT_EQ(root.child("again").id(), first) << "the oldest";
  EXPECT_EQ(root.pruned().size(), Account::kPrunedNames - 1);
}

TEST(Prune, AHeldAccountIsFoundAgainUnlessSomeHaveEnded) {
  Account root("cpu", nullptr);
  std::uint64_t version = 0;
  Account* account = root.descend({"a", "b"}, &version).get();
  ASSERT_TRUE(root.hold_again(account, version));
  EXPECT_EQ(root.prune(), 0u);
  account->drop();
  ASSERT_TRUE(root.hold_again(account, version));
  account->drop();
  EXPECT_EQ(root.prune(), 2u);
  EXPECT_FALSE(root.hold_again(account, version));
}

TEST(Prune, ThreadsNameCountAndPruneAtTheSameTime) {
  Account root("cpu", nullptr);
  std::atomic<bool> stop{false};
  std::thread pruner([&] {
    while (!stop.load()) {
      static_cast<void>(root.prune());
      for (const AccountHold& account : root.subtree()) static_cast<void>(account->path());
      static_cast<void>(root.report());
    }
  });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 3000; ++i) {
        const Path path = {"t" + std::to_string(random() % 5), "u" + std::to_string(random() % 9)};
        Account* account = nullptr;
        {
          const AccountHold held = root.descend(path);
          account = held.get();
          ASSERT_EQ(account->reserve(3, 64), nullptr);
        }
        // The object alone keeps it.
        ASSERT_EQ(account->name(), path.back());
        account->release(3, 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  pruner.join();
  static_cast<void>(root.prune());
  EXPECT_EQ(root.report().size(), 1u);
  EXPECT_EQ(root.statistics().granted, 0u);
  EXPECT_EQ(root.statistics().objects, 0u);
}

}  // namespace
}  // namespace nbx
