// Leases, peaks of a stretch of time, soft limits, memory of others.
#include <gtest/gtest.h>

#include <atomic>
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
  EXPECT_FALSE(lease.charge(1, left + 1));
  EXPECT_FALSE(lease.charge(left + 1, 1));
  EXPECT_TRUE(lease.charge(left, left));
  EXPECT_FALSE(lease.charge(0, 1));
  EXPECT_FALSE(lease.charge(1, 0));
  EXPECT_FALSE(lease.refund(lease.size + 1, 1));
  EXPECT_FALSE(lease.refund(1, lease.size + 1));
  EXPECT_TRUE(lease.refund(lease.size, lease.size));
  EXPECT_FALSE(lease.refund(1, 1));
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
      ASSERT_EQ(tag.renew_locked(lease, 100, 100), nullptr);
    }
    size = lease.size;
    stage = 1;
    while (stage.load() != 2) std::this_thread::yield();
    ASSERT_TRUE(lease.refund(100, 100));
  });
  while (stage.load() != 1) std::this_thread::yield();
  EXPECT_EQ(root.reserve(1000, 1000), nullptr);
  const AccountStatistics s = root.statistics();
  EXPECT_EQ(s.granted, 1100u);
  EXPECT_EQ(s.peak_error, size);
  EXPECT_GE(s.peak_granted, 1100u);
  EXPECT_LE(s.peak_granted, 1100u + s.peak_error);
  EXPECT_EQ(tag.statistics().peak_granted, 100u);
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

TEST(External, NamesAndSizesAreKept) {
  Account root("cpu", nullptr);
  root.set_external("blas", 100);
  root.set_external("comm", 50);
  EXPECT_EQ(root.statistics().external, 150u);
  root.set_external("blas", 30);
  EXPECT_EQ(root.statistics().external, 80u);
  EXPECT_EQ(root.statistics().granted, 0u);
  root.set_external("comm", 0);
  ASSERT_EQ(root.externals().size(), 1u);
  EXPECT_EQ(root.externals()[0].first, "blas");
  EXPECT_THROW(root.set_external("", 1), Error);
}

TEST(Account, IsFoundByNumber) {
  Account root("cpu", nullptr);
  Account& tag = root.child("a").child("b");
  EXPECT_EQ(root.find(tag.id()), &tag);
  EXPECT_EQ(tag.find(root.id()), &root);
  EXPECT_EQ(root.find(12345), nullptr);
}

TEST(Gate, AClosedGateKeepsTheOwnerOut) {
  Gate gate;
  ASSERT_TRUE(gate.enter());
  gate.leave();
  gate.close();
  gate.close();
  EXPECT_FALSE(gate.enter());
  gate.open();
  EXPECT_FALSE(gate.enter());
  gate.open();
  EXPECT_TRUE(gate.enter());
  gate.leave();
}

TEST(Gate, OwnersAndClosersTakeTurns) {
  Gate gate;
  std::uint64_t value = 0;  // plain: a thread sanitizer would see two at it
  std::atomic<bool> stop{false};
  std::uint64_t entered = 0;
  std::thread owner([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (!gate.enter()) continue;
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
