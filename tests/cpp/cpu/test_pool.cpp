#include "cpu/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/error.h"

namespace nbx::cpu {
namespace {

class PoolTest : public ::testing::Test {
 protected:
  void SetUp() override { before_ = thread_count(); }
  void TearDown() override { set_thread_count(before_); }

 private:
  int before_ = 1;
};

std::int64_t sum_with_pool(std::int64_t count, std::int64_t grain) {
  std::atomic<std::int64_t> sum{0};
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t part = 0;
    for (std::int64_t i = begin; i < end; ++i) part += i;
    sum += part;
  });
  return sum.load();
}

TEST_F(PoolTest, EveryIndexIsVisitedOnce) {
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1009}) {
      for (const std::int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
          ASSERT_LT(begin, end);
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (const auto& visit : visits) ASSERT_EQ(visit.load(), 1);
      }
    }
  }
}

TEST_F(PoolTest, PiecesBeginAtMultiplesOfTheGrain) {
  set_thread_count(3);
  parallel_for(1000, 7, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(begin % 7, 0);
    EXPECT_TRUE(end == 1000 || end - begin >= 7);
  });
}

TEST_F(PoolTest, ManyShortJobs) {
  set_thread_count(4);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(sum_with_pool(100, 1), 4950);
}

TEST_F(PoolTest, NestedRangesRunInline) {
  set_thread_count(4);
  std::atomic<std::int64_t> total{0};
  parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto caller = std::this_thread::get_id();
      parallel_for(10, 1, [&](std::int64_t b, std::int64_t e) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        total += e - b;
      });
    }
  });
  EXPECT_EQ(total.load(), 160);
}

TEST_F(PoolTest, TheFirstExceptionReachesTheCaller) {
  set_thread_count(4);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(parallel_for(100, 1,
                              [](std::int64_t begin, std::int64_t end) {
                                if (begin <= 42 && 42 < end) throw std::runtime_error("42");
                              }),
                 std::runtime_error);
    ASSERT_EQ(sum_with_pool(100, 1), 4950);
  }
}

TEST_F(PoolTest, SeveralCallersAtOnce) {
  set_thread_count(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  callers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) wrong += sum_with_pool(200, 1) == 19900 ? 0 : 1;
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(PoolTest, SetReturnsTheFormerCountAndRefusesNonsense) {
  set_thread_count(2);
  EXPECT_EQ(set_thread_count(3), 2);
  EXPECT_EQ(thread_count(), 3);
  EXPECT_THROW(set_thread_count(0), Error);
  EXPECT_THROW(set_thread_count(-4), Error);
  EXPECT_EQ(thread_count(), 3);
}

TEST_F(PoolTest, TheEnvironmentDecides) {
  const char* before = std::getenv("NBX_NUM_THREADS");
  const std::string saved = before == nullptr ? "" : before;
  setenv("NBX_NUM_THREADS", "3", 1);
  EXPECT_EQ(default_thread_count(), 3);
  for (const char* wrong : {"-1", "two", "3x", "1025", "100000000000"}) {
    setenv("NBX_NUM_THREADS", wrong, 1);
    EXPECT_THROW((void)default_thread_count(), Error) << wrong;
  }
  unsetenv("NBX_NUM_THREADS");
  const int cores = default_thread_count();
  EXPECT_GE(cores, 1);
  setenv("NBX_NUM_THREADS", "0", 1);
  EXPECT_EQ(default_thread_count(), cores);
  unsetenv("NBX_NUM_THREADS");
  if (before != nullptr) setenv("NBX_NUM_THREADS", saved.c_str(), 1);
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(PoolTest, AChildOfForkHasAPoolOfItsOwn) {
  set_thread_count(3);
  ASSERT_EQ(sum_with_pool(1000, 1), 499500);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(sum_with_pool(1000, 1) == 499500 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(sum_with_pool(1000, 1), 499500);
}
#endif

}  // namespace
}  // namespace nbx::cpu
