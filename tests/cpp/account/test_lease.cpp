// Leases, peaks of a stretch of time, soft limits, memory of others that grows and shrinks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "account/account.h"
#include "core/error.h"

namespace nbx {
namespace {

TEST(Lease, CountsAheadAndTellsTheTruth) {
  Account root("cpu", nullptr);
  Account& tag = root.child("tag");
  Lease& lease = tag.open_lease();
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    ASSERT_EQ(tag.renew_locked(lease, 100, 128), nullptr);
  }
  ASSERT_EQ(lease.account, &tag);
  ASSERT_TRUE(lease.charge(1000, 1024));
  EXPECT_EQ(root.granted(), 1152u);
  ASSERT_TRUE(lease.refund(1000, 1024));
  ASSERT_TRUE(lease.refund(100, 128));
  for (const Account* account : {&root, &tag}) {
    const AccountStatistics s = account->statistics();
    EXPECT_EQ(s.granted, 0u);
    EXPECT_EQ(s.requested, 0u);
    EXPECT_EQ(s.objects, 0u);
    EXPECT_EQ(s.peak_granted, 1152u);
    EXPECT_EQ(s.peak_requested, 1100u);
    EXPECT_EQ(s.peak_error, 0u);
  }
  EXPECT_EQ(lease.spent_now(), -128);  // the first object was counted without the lease
  EXPECT_EQ(lease.most_spent_now(), 1024);
  root.reset_peak();  // takes all leases back
  EXPECT_FALSE(root.has_leases());
  EXPECT_EQ(lease.account, nullptr);
  EXPECT_EQ(root.statistics().peak_granted, 0u);
}

TEST(Lease, NeverCoversMoreThanItHas) {
  Account root("cpu", nullptr);
  Lease& lease = root.open_lease();
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    ASSERT_EQ(root.renew_locked(lease, 0, 0), nullptr);
  }
  const std::uint64_t left = lease.left();
  constexpr std::uint64_t kUnit = Lease::kUnit;
  EXPECT_FALSE(lease.charge(1, left + kUnit));
  EXPECT_FALSE(lease.charge(left + 1, kUnit));
  EXPECT_FALSE(lease.charge_quickly(1, kUnit));  // less than ever would be left
  EXPECT_TRUE(lease.charge(left, left));
  EXPECT_FALSE(lease.charge(0, kUnit));
  EXPECT_FALSE(lease.charge(1, 0));
  EXPECT_FALSE(lease.refund(lease.size + 1, kUnit));
  EXPECT_FALSE(lease.refund(1, lease.size + kUnit));
  EXPECT_TRUE(lease.refund(lease.size, lease.size));
  EXPECT_FALSE(lease.refund(1, kUnit));
  EXPECT_TRUE(lease.charge_quickly(lease.size, lease.size));
  EXPECT_EQ(lease.left(), 0u);
  EXPECT_EQ(lease.requested_left(), 0u);
}

TEST(Lease, AgreesWithPlainSums) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Account root("cpu", nullptr);
  Lease& lease = root.open_lease();
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    for (int i = 0; i < 12; ++i) ASSERT_EQ(root.renew_locked(lease, 0, 0), nullptr);
  }
  ASSERT_EQ(lease.size, Lease::kLargest);
  const auto size = static_cast<std::int64_t>(lease.size);
  std::int64_t granted = size / 2, requested = size / 2, objects = 0;
  std::int64_t least_granted = granted, least_requested = requested;
  for (int step = 0; step < 200000; ++step) {
    const bool takes = random() % 100 < (step / 20000 % 2 == 0 ? 60 : 40);
    const std::uint64_t units = 1 + (random() % 64 == 0 ? random() % 16384 : random() % 64);
    const std::uint64_t bytes = units * Lease::kUnit;
    const std::uint64_t asked = bytes - random() % Lease::kUnit;
    const auto more = static_cast<std::int64_t>(bytes),
               more_asked = static_cast<std::int64_t>(asked);
    if (takes) {
      const bool fits = granted >= more && requested >= more_asked;
      const bool quickly = lease.charge_quickly(asked, bytes);
      if (quickly) {
        ASSERT_TRUE(fits);
        ASSERT_TRUE(granted - more >= least_granted && requested - more_asked >= least_requested);
      }
      ASSERT_EQ(quickly || lease.charge(asked, bytes), fits);
      if (!fits) continue;
      granted -= more;
      requested -= more_asked;
      ++objects;
      least_granted = std::min(least_granted, granted);
      least_requested = std::min(least_requested, requested);
    } else {
      const bool fits = granted + more <= size && requested + more_asked <= size;
      ASSERT_EQ(lease.refund(asked, bytes), fits);
      if (!fits) continue;
      granted += more;
      requested += more_asked;
      --objects;
    }
    ASSERT_EQ(static_cast<std::int64_t>(lease.left()), granted);
    ASSERT_EQ(static_cast<std::int64_t>(lease.requested_left()), requested);
    ASSERT_EQ(lease.objects(), objects);
    ASSERT_EQ(static_cast<std::int64_t>(lease.least_left()), least_granted);
    ASSERT_EQ(static_cast<std::int64_t>(lease.least_requested_left()), least_requested);
  }
}

TEST(Lease, NoneIsGivenNearALimit) {
  Account root("cpu", nullptr);
  Account& tag = root.child("tag");
  root.set_limit(16 * Lease::kLeast + 1000);
  Lease& lease = tag.open_lease();
  const std::lock_guard<ShortLock> guard(root.tree_lock());
  ASSERT_EQ(tag.renew_locked(lease, 1000, 1000), nullptr);
  EXPECT_EQ(lease.account, &tag);
  EXPECT_EQ(lease.size, Lease::kLeast);
  ASSERT_EQ(tag.renew_locked(lease, 1000, 1000), nullptr);
  EXPECT_EQ(lease.account, nullptr);
  EXPECT_EQ(tag.renew_locked(lease, 1, 16 * Lease::kLeast), &root);
  EXPECT_EQ(tag.renew_locked(lease, 1, 16 * Lease::kLeast - 1000), nullptr);
}

TEST(Lease, AnotherThreadsLeaseIsReportedAsThePeaksError) {
  Account root("cpu", nullptr);
  Account& tag = root.child("tag");
  std::atomic<int> stage{0};
  std::uint64_t size = 0;
  std::thread other([&] {
    Lease& lease = tag.open_lease();
    {
      const std::lock_guard<ShortLock> guard(root.tree_lock());
      ASSERT_EQ(tag.renew_locked(lease, 100, 128), nullptr);
    }
    size = lease.size;
    stage = 1;
    while (stage.load() != 2) std::this_thread::yield();
    ASSERT_TRUE(lease.refund(100, 128));
  });
  while (stage.load() != 1) std::this_thread::yield();
  EXPECT_EQ(root.reserve(1000, 1000), nullptr);
  const AccountStatistics s = root.statistics();
  EXPECT_EQ(s.granted, 1128u);
  EXPECT_EQ(s.peak_error, size);
  EXPECT_GE(s.peak_granted, 1128u);
  EXPECT_LE(s.peak_granted, 1128u + s.peak_error);
  EXPECT_EQ(tag.statistics().peak_granted, 128u);
  EXPECT_EQ(tag.statistics().peak_error, 0u);
  stage = 2;
  other.join();
  root.release(1000, 1000);
  EXPECT_EQ(root.granted(), 0u);
}

TEST(Peak, ScopesNestAndOverlap) {
  Account root("cpu", nullptr);
  Account& tag = root.child("tag");
  ASSERT_EQ(tag.reserve(1000, 1024), nullptr);
  const std::uint64_t outer = root.begin_peak();
  EXPECT_EQ(root.peak(outer).granted, 1024u);
  ASSERT_EQ(tag.reserve(100, 128), nullptr);
  tag.release(1000, 1024);
  const std::uint64_t inner = root.begin_peak();
  const std::uint64_t own = tag.begin_peak();
  ASSERT_EQ(root.reserve(10, 64), nullptr);
  EXPECT_EQ(root.peak(outer).granted, 1152u);
  EXPECT_EQ(root.peak(inner).granted, 192u);
  EXPECT_EQ(tag.end_peak(own).granted, 128u);
  const PeakFigures whole = root.end_peak(outer);  // the outer one first
  EXPECT_EQ(whole.granted, 1152u);
  EXPECT_EQ(whole.requested, 1100u);
  EXPECT_EQ(whole.error, 0u);
  ASSERT_EQ(root.reserve(1000, 1000), nullptr);
  EXPECT_EQ(root.end_peak(inner).granted, 1192u);
  EXPECT_EQ(root.statistics().peak_granted, 1192u);
  for (const std::uint64_t scope : {outer, inner, own, std::uint64_t{99}}) {
    EXPECT_THROW(static_cast<void>(root.peak(scope)), Error);
    EXPECT_THROW(static_cast<void>(root.end_peak(scope)), Error);
  }
}

TEST(Peak, AScopeSeesWhatALeaseHandsOut) {
  Account root("cpu", nullptr);
  Lease& lease = root.open_lease();
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    ASSERT_EQ(root.renew_locked(lease, 64, 64), nullptr);
  }
  ASSERT_TRUE(lease.charge(512, 512));
  ASSERT_TRUE(lease.refund(512, 512));
  const std::uint64_t scope = root.begin_peak();  // what was before is not its
  EXPECT_EQ(root.peak(scope).granted, 64u);
  {
    const std::lock_guard<ShortLock> guard(root.tree_lock());
    ASSERT_EQ(root.renew_locked(lease, 64, 64), nullptr);
  }
  ASSERT_TRUE(lease.charge(256, 256));
  ASSERT_TRUE(lease.refund(256, 256));
  EXPECT_EQ(root.end_peak(scope).granted, 384u);
  EXPECT_EQ(root.statistics().peak_granted, 576u);
}

TEST(SoftLimit, CrossingsAreCounted) {
  Account root("cpu", nullptr);
  Account& tag = root.child("tag");
  tag.set_soft_limit(1000);
  EXPECT_EQ(tag.reserve(1000, 1000), nullptr);
  EXPECT_EQ(tag.statistics().soft_crossings, 0u);
  EXPECT_EQ(tag.reserve(1, 1), nullptr);
  EXPECT_EQ(tag.reserve(1, 1), nullptr);
  EXPECT_EQ(tag.statistics().soft_crossings, 1u);
  tag.release(2, 2);
  EXPECT_EQ(tag.reserve(500, 500), nullptr);
  EXPECT_EQ(tag.statistics().soft_crossings, 2u);
  EXPECT_EQ(root.statistics().soft_crossings, 0u);
}

TEST(SoftLimit, CrossingsAreSeenOnceAndTheExcessIsExact) {
  Account root("cpu", nullptr);
  Account& tag = root.child("tag");
  Account& other = root.child("other");
  tag.set_soft_limit(1000);
  root.set_soft_limit(3000);
  EXPECT_EQ(tag.reserve(1000, 1000), nullptr);
  EXPECT_FALSE(root.has_crossings());
  EXPECT_EQ(tag.reserve(24, 24), nullptr);
  EXPECT_EQ(tag.reserve(1, 1), nullptr);
  EXPECT_TRUE(other.has_crossings());  // of the whole tree
  std::vector<AccountHold> crossed = other.take_crossings();
  ASSERT_EQ(crossed.size(), 1u);
  EXPECT_EQ(crossed[0].get(), &tag);
  EXPECT_FALSE(root.has_crossings());
  EXPECT_EQ(tag.soft_excess(), 25u);
  EXPECT_EQ(root.soft_excess(), 0u);
  EXPECT_EQ(other.reserve(2000, 2000), nullptr);
  crossed = root.take_crossings();
  ASSERT_EQ(crossed.size(), 1u);
  EXPECT_EQ(crossed[0].get(), &root);
  EXPECT_EQ(root.soft_excess(), 25u);
}

TEST(Account, RecountsOneObject) {
  Account root("cpu", nullptr);
  Account& library = root.child("external").child("nccl");
  root.set_limit(100);
  EXPECT_EQ(library.recount(0, 0), nullptr);
  EXPECT_EQ(root.statistics().objects, 0u);
  EXPECT_EQ(library.recount(0, 40), nullptr);
  EXPECT_EQ(library.recount(40, 100), nullptr);
  EXPECT_EQ(library.recount(100, 101), &root);
  EXPECT_EQ(library.recount(100, 30), nullptr);
  EXPECT_EQ(root.granted(), 30u);
  EXPECT_EQ(root.statistics().requested, 30u);
  EXPECT_EQ(root.statistics().objects, 1u);
  EXPECT_EQ(library.recount(30, 0), nullptr);
  EXPECT_EQ(root.statistics().objects, 0u);
  EXPECT_EQ(root.granted(), 0u);
}

TEST(Gate, AClosedGateKeepsTheOwnerOut) {
  Gate gate;
  const int key = 0, other = 0;
  EXPECT_FALSE(gate.enter(&key));
  gate.set_key(&key);
  EXPECT_FALSE(gate.enter(&other));
  ASSERT_TRUE(gate.enter(&key));
  gate.leave();
  gate.close();
  gate.close();
  EXPECT_FALSE(gate.enter(&key));
  gate.open();
  EXPECT_FALSE(gate.enter(&key));
  gate.set_key(&other);
  EXPECT_FALSE(gate.enter(&other));
  gate.open();
  EXPECT_FALSE(gate.enter(&key));
  EXPECT_TRUE(gate.enter(&other));
  gate.leave();
}

TEST(Gate, OwnersAndClosersTakeTurns) {
  Gate gate;
  gate.set_key(&gate);
  std::uint64_t value = 0;  // plain: a thread sanitizer would see two at it
  std::atomic<bool> stop{false};
  std::uint64_t entered = 0;
  std::thread owner([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (!gate.enter(&gate)) continue;
      value += 1;
      gate.leave();
      ++entered;
    }
  });
  std::uint64_t closed = 0;
  for (; closed < 300; ++closed) {
    gate.close();
    Gate::barrier();
    gate.wait_empty();
    const std::uint64_t before = value;
    std::this_thread::yield();
    ASSERT_EQ(value, before);
    value += 1;
    gate.open();
  }
  stop = true;
  owner.join();
  EXPECT_EQ(value, entered + closed);
}

}  // namespace
}  // namespace nbx
