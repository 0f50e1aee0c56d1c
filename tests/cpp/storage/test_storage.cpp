#include "storage/storage.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "../heap/fake_device.h"

namespace nbx {
namespace {

using testing::driver;
using testing::fake_device;

constexpr std::uint64_t kMega = 1 << 20;

struct Owner {
  int finalized = 0;
  static void finalize(void* owner) noexcept { ++static_cast<Owner*>(owner)->finalized; }
};

class StorageTest : public ::testing::TestWithParam<bool> {
 protected:
  Device& device = fake_device(GetParam());
  DeviceMemory memory{device};
  ~StorageTest() override { set_tag(""); }
};

INSTANTIATE_TEST_SUITE_P(Devices, StorageTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "host" : "device"; });

TEST_P(StorageTest, BytesAreCountedWhileAReferenceLives) {
  Reference<Storage> storage = Storage::allocate(memory, 1000);
  EXPECT_EQ(storage->bytes(), 1000u);
  EXPECT_EQ(storage->address() % 64, 0u);
  EXPECT_TRUE(storage->writable());
  EXPECT_FALSE(storage->borrowed());
  EXPECT_EQ(&storage->account(), &memory.tensors);
  EXPECT_EQ(memory.tensors.statistics().requested, 1000u);
  EXPECT_EQ(memory.root.granted(), memory.heap.statistics().live);
  Reference<Storage> second = storage;
  storage = Reference<Storage>();
  EXPECT_EQ(memory.tensors.statistics().objects, 1u);
  second = Reference<Storage>();
  EXPECT_EQ(memory.root.statistics().objects, 0u);
  EXPECT_EQ(memory.root.granted(), 0u);
}

TEST_P(StorageTest, ANewBlockVoidsTheOldHandle) {
  Reference<Storage> storage = Storage::allocate(memory, 100);
  const Block old{storage->address(), 0, storage->block_id(), storage->generation()};
  memory.heap.require_live(old);
  storage = Reference<Storage>();
  storage = Storage::allocate(memory, 100);
  EXPECT_EQ(storage->address(), old.address);
  EXPECT_THROW(memory.heap.require_live(old), Error);
}

TEST_P(StorageTest, TagsDecideTheAccount) {
  EXPECT_EQ(set_tag("weights/layer.3"), "");
  const Reference<Storage> storage = Storage::allocate(memory, 64);
  EXPECT_EQ(storage->account().path(), device.name() + "/device/weights/layer.3");
  EXPECT_EQ(set_tag("kv"), "weights/layer.3");
  const Reference<Storage> other = Storage::allocate(memory, 64);
  EXPECT_EQ(other->account().path(), device.name() + "/device/kv");
  std::thread([&] {
    const Reference<Storage> untagged = Storage::allocate(memory, 64);
    EXPECT_EQ(&untagged->account(), &memory.tensors);
  }).join();
  for (const char* path : {"/", "a/", "/a", "a//b"}) {
    EXPECT_THROW(set_tag(path), Error) << path;
    EXPECT_EQ(&tagged_account(memory.tensors), &memory.tensors.child("kv"));
  }
  EXPECT_EQ(set_tag(""), "kv");
  EXPECT_EQ(&tagged_account(memory.tensors), &memory.tensors);
}

TEST_P(StorageTest, TheTagsAccountSurvivesManyKinds) {
  set_tag("kv");
  std::vector<Account*> kinds;
  for (int i = 0; i < 9; ++i) kinds.push_back(&memory.root.child("kind" + std::to_string(i)));
  for (int round = 0; round < 3; ++round) {
    for (Account* kind : kinds) EXPECT_EQ(&tagged_account(*kind), &kind->child("kv"));
  }
}

TEST_P(StorageTest, BorrowedMemoryIsCountedAndFinalizedOnce) {
  Owner owner;
  {
    const Reference<Storage> storage =
        Storage::borrow(memory, 4096, 500, 500, false, &owner, Owner::finalize);
    EXPECT_TRUE(storage->borrowed());
    EXPECT_FALSE(storage->writable());
    EXPECT_EQ(storage->address(), 4096u);
    EXPECT_EQ(memory.mapped.granted(), 500u);
    EXPECT_EQ(memory.root.granted(), 500u);
    EXPECT_EQ(owner.finalized, 0);
  }
  EXPECT_EQ(owner.finalized, 1);
  EXPECT_EQ(memory.root.granted(), 0u);
  static_cast<void>(Storage::borrow(memory, 4096, 500, 0, true, &owner, Owner::finalize));
  EXPECT_EQ(owner.finalized, 2);
  EXPECT_EQ(memory.root.statistics().objects, 0u);
  EXPECT_EQ(memory.root.statistics().peak_granted, 500u);
  static_cast<void>(Storage::borrow(memory, 4096, 500, 0, true, nullptr, nullptr));
}

TEST_P(StorageTest, ABudgetRefusesBothKindsAndChangesNothing) {
  Owner owner;
  memory.root.set_limit(kMega);
  const Reference<Storage> storage = Storage::allocate(memory, kMega / 2);
  for (int kind = 0; kind < 2; ++kind) {
    try {
      if (kind == 0) static_cast<void>(Storage::allocate(memory, kMega));
      if (kind == 1) {
        static_cast<void>(
            Storage::borrow(memory, 4096, kMega, kMega, true, &owner, Owner::finalize));
      }
      FAIL() << "admitted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
      EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(owner.finalized, 0);
  EXPECT_EQ(memory.root.granted(), kMega / 2);
  EXPECT_EQ(memory.root.statistics().objects, 1u);
}

TEST_P(StorageTest, StoragesMoveBetweenThreads) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<Reference<Storage>> exchange;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      set_tag("thread" + std::to_string(t));
      for (unsigned i = 0; i < 3000; ++i) {
        Reference<Storage> storage = Storage::allocate(memory, 1 + (i * 37 + t) % 9000);
        const std::lock_guard<std::mutex> guard(mutex);
        exchange.push_back(std::move(storage));
        std::swap(exchange.front(), exchange.back());
        if (exchange.size() > 100) exchange.pop_back();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(memory.root.granted(), memory.heap.statistics().live);
  exchange.clear();
  EXPECT_EQ(memory.root.granted(), 0u);
  EXPECT_EQ(memory.heap.statistics().live_blocks, 0u);
}

TEST_P(StorageTest, TagsThatNobodyUsesEnd) {
  set_tag("kept");
  const Reference<Storage> kept = Storage::allocate(memory, 64);
  set_tag("borrowed");
  Owner owner;
  // Counted elsewhere: it keeps no account.
  const Reference<Storage> shared =
      Storage::borrow(memory, 4096, 500, 0, false, &owner, Owner::finalize);
  set_tag("request.1/kv");
  static_cast<void>(Storage::allocate(memory, 64));
  Account& current = tagged_account(memory.tensors);
  static_cast<void>(account_at(memory.tensors, "asked/for"));
  static_cast<void>(memory.trim(0));
  EXPECT_EQ(&tagged_account(memory.tensors), &current) << "the thread's tag";
  EXPECT_EQ(memory.root.report().size(), 1u + 4 + 3);
  EXPECT_EQ(kept->account().path(), device.name() + "/device/kept");
  EXPECT_EQ(&shared->account(), &memory.mapped);
  // Back at a tag that has ended.
  set_tag("kept");
  static_cast<void>(memory.trim(0));
  EXPECT_EQ(memory.root.report().size(), 1u + 4 + 1);
  set_tag("request.1/kv");
  EXPECT_EQ(Storage::allocate(memory, 64)->account().path(),
            device.name() + "/device/request.1/kv");
  // At a tag that was left and is there.
  set_tag("kept");
  EXPECT_EQ(&tagged_account(memory.tensors), &kept->account());
}

TEST_P(StorageTest, AReclaimerMayLeaveTheTagOfARequestThatWaitsForIt) {
  memory.root.set_limit(kMega);
  Reference<Storage> spare = Storage::allocate(memory, kMega / 2);
  const std::uint64_t number = memory.heap.add_reclaimer(1.0, [&](std::uint64_t) {
    const std::string former = set_tag("elsewhere");
    static_cast<void>(memory.trim(0));
    spare = Reference<Storage>();
    set_tag(former);
    static_cast<void>(memory.trim(0));
    return std::uint64_t{1};
  });
  set_tag("request/kv");
  const Reference<Storage> storage = Storage::allocate(memory, kMega);
  EXPECT_EQ(storage->account().path(), device.name() + "/device/request/kv");
  EXPECT_THROW(static_cast<void>(Storage::allocate(memory, kMega)), Error);
  memory.heap.remove_reclaimer(number);
}

TEST_P(StorageTest, AReclaimersTagStaysWhileItIsKnown) {
  const std::uint64_t number = memory.heap.add_reclaimer(
      1.0, [](std::uint64_t) { return std::uint64_t{0}; },
      account_at(memory.tensors, "cache").get());
  static_cast<void>(memory.trim(0));
  EXPECT_EQ(memory.root.report().size(), 1u + 4 + 1);
  memory.heap.remove_reclaimer(number);
  static_cast<void>(memory.trim(0));
  EXPECT_EQ(memory.root.report().size(), 1u + 4);
}

TEST_P(StorageTest, ThreadsTagPerRequestWhileUnusedTagsEnd) {
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<Reference<Storage>> exchange;
  std::thread pruner([&] {
    while (!stop.load()) {
      static_cast<void>(memory.trim(0));
      for (const AccountStatistics& row : memory.report()) ASSERT_FALSE(row.path.empty());
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 1500; ++i) {
        set_tag("request." + std::to_string((i * 7 + t) % 90) + "/kv");
        Reference<Storage> storage = Storage::allocate(memory, 1 + (i * 37 + t) % 200000);
        ASSERT_EQ(storage->account().name(), "kv");
        const std::lock_guard<std::mutex> guard(mutex);
        exchange.push_back(std::move(storage));
        std::swap(exchange[i % exchange.size()], exchange.back());
        if (exchange.size() > 20) exchange.resize(10);
      }
      set_tag("");
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  pruner.join();
  EXPECT_EQ(memory.root.granted(), memory.heap.statistics().live);
  exchange.clear();
  static_cast<void>(memory.trim(0));
  EXPECT_EQ(memory.root.granted(), 0u);
  EXPECT_EQ(memory.root.report().size(), 1u + 4);
}

TEST_P(StorageTest, AForkedChildHasWholeBooks) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) static_cast<void>(Storage::allocate(memory_of(device), 4096));
  });
  for (int i = 0; i < 5; ++i) {
    const Reference<Storage> kept = Storage::allocate(memory_of(device), 100);
    const pid_t child = fork();
    if (child == 0) {
      // Only this thread exists here; none of the locks may be left held.
      static_cast<void>(memory_of(device).root.report());
      static_cast<void>(memory_of(device).heap.statistics());
      static_cast<void>(memory_of(device).heap.trim());
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

class QueuedStorage : public StorageTest {
 protected:
  Stream first{device, 11, false};
  Stream second{device, 12, false};
};
INSTANTIATE_TEST_SUITE_P(Device, QueuedStorage, ::testing::Values(false));

TEST_P(QueuedStorage, IsIdleOnceEveryStreamThatTouchedItIs) {
  const Reference<Storage> storage = Storage::allocate(memory, 100);
  EXPECT_TRUE(storage->is_idle());
  driver().submitted[11] = 3;
  storage->touch(first);
  driver().submitted[12] = 9;
  storage->touch(second);
  EXPECT_FALSE(storage->is_idle());
  driver().completed[11] = 3;
  EXPECT_FALSE(storage->is_idle());
  driver().completed[12] = 9;
  EXPECT_TRUE(storage->is_idle());
  driver().submitted[11] = 4;
  storage->touch(first);
  EXPECT_FALSE(storage->is_idle());
  storage->wait();
  EXPECT_TRUE(storage->is_idle());
  EXPECT_EQ(driver().completed[11], 4u);
}

TEST_P(QueuedStorage, ItsMemoryWaitsForEveryStream) {
  Reference<Storage> storage = Storage::allocate(memory, 2 * kMega);
  driver().submitted[11] = driver().submitted[12] = 1;
  storage->touch(first);
  storage->touch(second);
  storage = Reference<Storage>();
  EXPECT_EQ(memory.heap.statistics().pending, 2 * kMega);
  EXPECT_EQ(memory.root.granted(), 0u);
  driver().completed[11] = driver().completed[12] = 1;
  EXPECT_EQ(memory.heap.trim(), 2 * kMega);
}

TEST_P(QueuedStorage, ABorrowedOwnerWaitsForQueuedWork) {
  Owner owner;
  Reference<Storage> storage =
      Storage::borrow(memory, 4096, 500, 500, true, &owner, Owner::finalize);
  driver().submitted[11] = 6;
  storage->touch(first);
  storage = Reference<Storage>();
  EXPECT_EQ(owner.finalized, 1);
  EXPECT_EQ(driver().completed[11], 6u);
}

TEST_P(QueuedStorage, AStreamThatCannotBeAskedIsWaitedFor) {
  const Reference<Storage> storage = Storage::allocate(memory, 100);
  driver().gone[11] = true;
  storage->touch(first);
  EXPECT_EQ(driver().synchronizations, 1u);
  EXPECT_TRUE(storage->is_idle());
}

}  // namespace
}  // namespace nbx
