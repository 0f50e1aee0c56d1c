#include "account/account.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/error.h"

namespace nbx {
namespace {

TEST(Account, CountsUpToTheRoot) {
  Account root("sim:0", nullptr);
  Account& layer = root.child("device").child("weights").child("layer.3");
  EXPECT_EQ(layer.path(), "sim:0/device/weights/layer.3");
  EXPECT_EQ(layer.reserve(100, 128), nullptr);
  EXPECT_EQ(root.child("device").reserve(7, 64), nullptr);
  for (const Account* account : {&layer, layer.parent()}) {
    EXPECT_EQ(account->statistics().requested, 100u);
    EXPECT_EQ(account->statistics().granted, 128u);
    EXPECT_EQ(account->statistics().objects, 1u);
  }
  EXPECT_EQ(root.statistics().requested, 107u);
  EXPECT_EQ(root.statistics().granted, 192u);
  EXPECT_EQ(root.statistics().objects, 2u);
  layer.release(100, 128);
  root.child("device").release(7, 64);
  EXPECT_EQ(root.granted(), 0u);
  EXPECT_EQ(root.statistics().peak_granted, 192u);
  EXPECT_EQ(root.statistics().peak_requested, 107u);
  EXPECT_EQ(layer.statistics().peak_granted, 128u);
  EXPECT_EQ(root.statistics().objects, 0u);
}

TEST(Account, ChildIsTheSameEachTimeAndNamesAreChecked) {
  Account root("cpu", nullptr);
  EXPECT_EQ(&root.child("kv"), &root.child("kv"));
  EXPECT_NE(&root.child("kv"), &root.child("KV"));
  for (const char* name : {"", "a/b", "/"}) {
    try {
      static_cast<void>(root.child(name));
      FAIL() << "accepted '" << name << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kValue);
    }
  }
}

TEST(Account, LimitHoldsToTheByteAtEveryLevel) {
  Account root("cpu", nullptr);
  Account& tag = root.child("device").child("kv");
  EXPECT_EQ(root.set_limit(1000), kUnlimited);
  EXPECT_EQ(tag.set_limit(100), kUnlimited);
  EXPECT_EQ(tag.reserve(101, 101), &tag);
  EXPECT_EQ(tag.reserve(100, 100), nullptr);
  EXPECT_EQ(tag.reserve(1, 1), &tag);
  EXPECT_EQ(tag.reserve(0, 0), nullptr);
  EXPECT_EQ(root.reserve(901, 901), &root);
  EXPECT_EQ(root.reserve(900, 900), nullptr);
  EXPECT_EQ(tag.set_limit(kUnlimited), 100u);
  EXPECT_EQ(tag.reserve(1, 1), &root);
  EXPECT_EQ(root.granted(), 1000u);
  EXPECT_EQ(tag.granted(), 100u);
  EXPECT_EQ(root.set_limit(10), 1000u);  // below what is held: nothing more is admitted
  root.release(900, 900);
  EXPECT_EQ(tag.reserve(1, 1), &root);
  EXPECT_NE(tag.reserve(kUnlimited, kUnlimited), nullptr);  // no sum wraps
}

TEST(Account, ReportRowsAddUpWhileOthersCount) {
  Account root("cpu", nullptr);
  Account* leaves[] = {&root.child("a").child("x"), &root.child("a").child("y"), &root.child("b"),
                       &root.child("a")};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; !stop.load(); ++i) {
        Account& leaf = *leaves[i % 4];
        if (leaf.reserve(3, 64) == nullptr) leaf.release(3, 64);
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    const auto rows = root.report();
    ASSERT_EQ(rows.size(), 5u);
    ASSERT_EQ(rows[0].path, "cpu");
    ASSERT_EQ(rows[2].path, "cpu/a/x");
    ASSERT_EQ(rows[4].path, "cpu/b");
    ASSERT_GE(rows[1].granted, rows[2].granted + rows[3].granted);
    ASSERT_EQ(rows[0].granted, rows[1].granted + rows[4].granted);
    ASSERT_EQ(rows[0].objects * 64, rows[0].granted);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(root.granted(), 0u);
}

TEST(Account, LimitHoldsUnderRacingThreads) {
  Account root("cpu", nullptr);
  Account* leaves[] = {&root.child("a"), &root.child("b")};
  root.set_limit(1000);
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if (leaves[t % 2]->reserve(7, 7) == nullptr) admitted.fetch_add(1);
        ASSERT_LE(root.granted(), 1000u);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // Nobody gave anything back: exactly as many as fit were admitted.
  EXPECT_EQ(admitted.load(), 142);
  EXPECT_EQ(root.granted(), 994u);
  EXPECT_EQ(root.statistics().peak_granted, 994u);
}

TEST(Account, PeakIsResetToWhatIsHeld) {
  Account root("cpu", nullptr);
  Account& tag = root.child("kv");
  ASSERT_EQ(tag.reserve(100, 100), nullptr);
  ASSERT_EQ(tag.reserve(50, 50), nullptr);
  tag.release(100, 100);
  root.reset_peak();
  EXPECT_EQ(tag.statistics().peak_granted, 50u);
  EXPECT_EQ(root.statistics().peak_requested, 50u);
  EXPECT_EQ(root.statistics().granted, 50u);
}

}  // namespace
}  // namespace nbx
