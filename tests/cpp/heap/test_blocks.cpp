#include "heap/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "account/account.h"
#include "account/recorder.h"
#include "core/error.h"
#include "device/device.h"
#include "heap/heap.h"
#include "storage/storage.h"

namespace nbx {
namespace {

bool is(const BlockView& block, BlockState state) {
  return block.state == static_cast<std::uint32_t>(state);
}

class HeapBlocksTest : public testing::TestWithParam<bool> {};

TEST_P(HeapBlocksTest, EveryBlockIsThereWithWhoHoldsIt) {
  Device& device = open_device(DeviceKind::kSim, 0);
  Account root("root", nullptr);
  Heap heap(device, &root.tree_lock(), GetParam());
  Stream& stream = default_stream(device);
  Account& tag = root.child("kv");
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::map<DeviceAddress, std::pair<Block, std::uint64_t>> live;
  for (int round = 0; round < 400; ++round) {
    if (!live.empty() && random() % 3 == 0) {
      const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      heap.free(victim->second.first, victim->second.second, tag, stream.id(), 0);
      live.erase(victim);
    } else {
      const std::uint64_t bytes = 1 + random() % (random() % 2 == 0 ? 100 : 300000);
      const Block block = heap.allocate(bytes, 1, stream, tag);
      live[block.address] = {block, bytes};
    }
  }
  const HeapBlocks view = heap.blocks();
  std::size_t found = 0;
  for (const BlockView& block : view.blocks) {
    if (!is(block, BlockState::kLive)) continue;
    const auto held = live.find(block.address);
    ASSERT_NE(held, live.end());
    EXPECT_EQ(block.bytes, held->second.first.granted);
    EXPECT_EQ(block.requested, held->second.second);
    EXPECT_EQ(block.generation, held->second.first.generation);
    EXPECT_EQ(block.account, tag.id());
    EXPECT_EQ(std::count_if(view.segments.begin(), view.segments.end(),
                            [&](const SegmentView& segment) {
                              return block.address >= segment.address &&
                                     block.address + block.bytes <= segment.address + segment.bytes;
                            }),
              1);
    ++found;
  }
  EXPECT_EQ(found, live.size());
  for (const auto& [address, held] : live) {
    heap.free(held.first, held.second, tag, stream.id(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutPages, HeapBlocksTest, testing::Bool());

TEST(HeapBlocks, ReadingGoesOnWhileOthersAllocate) {
  Device& device = open_device(DeviceKind::kCpu, 0);
  Account root("root", nullptr);
  Heap heap(device, &root.tree_lock());
  Stream& stream = default_stream(device);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const Block block = heap.allocate(1000, 1, stream, root);
      heap.free(block, 1000, root, stream.id(), 0);
    }
  });
  const Block mine = heap.allocate(12345, 1, stream, root);
  for (int round = 0; round < 200; ++round) {
    std::size_t found = 0;
    for (const BlockView& block : heap.blocks().blocks) {
      found += is(block, BlockState::kLive) && block.address == mine.address ? 1u : 0u;
    }
    ASSERT_EQ(found, 1u);
  }
  stop.store(true, std::memory_order_relaxed);
  other.join();
  heap.free(mine, 12345, root, stream.id(), 0);
}

class HeapNotesTest : public testing::TestWithParam<bool> {};

TEST_P(HeapNotesTest, TheRecorderKnowsPagesAndRefusals) {
  Account root("root", nullptr);
  std::map<RecordedAction, int> notes;
  Recording recording(std::uint64_t{1} << 20);
  {
    Heap heap(open_device(DeviceKind::kSim, 0), &root.tree_lock(), GetParam());
    Stream& stream = default_stream(open_device(DeviceKind::kSim, 0));
    const Block block = heap.allocate(96u << 20, 1, stream, root);
    root.set_limit(1);
    EXPECT_THROW(static_cast<void>(heap.allocate(2u << 20, 1, stream, root)), Error);
    heap.free(block, 96u << 20, root, stream.id(), 0);
    heap.trim(0);
  }
  for (const RecordedRun& run : recording.stop()) {
    for (const RecordedEvent& event : run.events) ++notes[event.unpack().action];
  }
  EXPECT_EQ(notes[RecordedAction::kAllocate], 1);
  EXPECT_EQ(notes[RecordedAction::kFree], 1);
  EXPECT_EQ(notes[RecordedAction::kRefuse], 1);
  EXPECT_GE(notes[RecordedAction::kMap], 1);
  EXPECT_GE(notes[RecordedAction::kUnmap], 1);
}

TEST_P(HeapNotesTest, TheRecorderKnowsWhenTheLastUseOfAFreedBlockIsOver) {
  Device& device = open_device(DeviceKind::kSim, 0);
  Account root("root", nullptr);
  Heap heap(device, &root.tree_lock(), GetParam());
  const auto a = create_stream(device, 0);
  const auto b = create_stream(device, 0);
  const HostWork work{[](void*) {}, [](void*) {}, nullptr};
  const Primitives& table = device.primitives();
  Recording recording(std::uint64_t{1} << 20);
  const Block block = heap.allocate(3u << 20, 1, *a, root);
  for (const auto& stream : {a, b}) {
    device.check(table.launch_host(0, &work, 1.0, stream->handle()), "launch_host");
  }
  const BlockUse uses[] = {a->use(), b->use()};
  heap.free_after(block, 3u << 20, root, uses, 2);
  const auto waits = [](const BlockView& view) { return is(view, BlockState::kWaiting); };
  const HeapBlocks before = heap.blocks();
  const auto view = std::find_if(before.blocks.begin(), before.blocks.end(), waits);
  ASSERT_NE(view, before.blocks.end());
  EXPECT_EQ(view->requested, 3u << 20);
  EXPECT_EQ(view->account, root.id());
  a->synchronize();
  static_cast<void>(heap.trim(~std::uint64_t{0}));  // asks for the streams' progress
  b->synchronize();
  static_cast<void>(heap.trim(~std::uint64_t{0}));
  const HeapBlocks after = heap.blocks();
  EXPECT_TRUE(std::none_of(after.blocks.begin(), after.blocks.end(), waits));
  std::vector<RecordedFields> seen;
  for (const RecordedRun& run : recording.stop()) {
    for (const RecordedEvent& event : run.events) {
      const RecordedFields fields = event.unpack();
      if (fields.address == block.address) seen.push_back(fields);
    }
  }
  seen.erase(std::remove_if(seen.begin(), seen.end(),
                            [](const RecordedFields& fields) {
                              return fields.action == RecordedAction::kMap ||
                                     fields.action == RecordedAction::kUnmap;
                            }),
             seen.end());
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].action, RecordedAction::kAllocate);
  EXPECT_EQ(seen[1].action, RecordedAction::kFreePending);
  EXPECT_EQ(seen[2].action, RecordedAction::kFreeCompleted);
  EXPECT_EQ(seen[2].bytes, 3u << 20);
  EXPECT_EQ(seen[2].generation, block.generation);
  EXPECT_EQ(seen[2].account, root.id());
  EXPECT_EQ(seen[2].stream, b->id());
}

TEST_P(HeapNotesTest, OriginsOfFreesAreNotedToo) {
  Device& device = open_device(DeviceKind::kSim, 0);
  Account root("root", nullptr);
  Heap heap(device, &root.tree_lock(), GetParam());
  Stream& stream = default_stream(device);
  Recording recording(std::uint64_t{1} << 20);
  static std::atomic<std::uint32_t> next{0};
  next = 100;
  const auto former = Recorder::set_origin_hook([]() noexcept { return next.fetch_add(1); });
  // A slot and a block of its own.
  for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{3} << 20}) {
    const Block block = heap.allocate(bytes, 1, stream, root);
    heap.free(block, bytes, root, stream.id(), 0);
  }
  Recorder::set_origin_hook(former);
  std::vector<std::uint32_t> origins;
  for (const RecordedRun& run : recording.stop()) {
    for (const RecordedEvent& event : run.events) {
      const RecordedFields fields = event.unpack();
      if (fields.action == RecordedAction::kAllocate || fields.action == RecordedAction::kFree) {
        origins.push_back(fields.origin);
      }
    }
  }
  EXPECT_EQ(origins, (std::vector<std::uint32_t>{100, 101, 102, 103}));
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutPages, HeapNotesTest, testing::Bool());

TEST(TagsAndEpochs, AreNotedByTheRecorder) {
  Device& device = open_device(DeviceKind::kSim, 1);
  Recording recording(std::uint64_t{1} << 20);
  EXPECT_EQ(set_tag("notes/kv"), "");
  EXPECT_EQ(set_tag(""), "notes/kv");
  const std::uint32_t epoch = begin_epoch(device).epoch;
  std::vector<std::string> tags;
  std::vector<std::uint64_t> epochs;
  for (const RecordedRun& run : recording.stop()) {
    for (const RecordedEvent& event : run.events) {
      const RecordedFields fields = event.unpack();
      if (fields.action == RecordedAction::kTag) tags.push_back(Recorder::text_of(fields.origin));
      if (fields.action != RecordedAction::kEpoch) continue;
      epochs.push_back(fields.bytes);
      EXPECT_EQ(Recorder::heap_name(fields.heap), "sim:1");
    }
  }
  EXPECT_EQ(tags, (std::vector<std::string>{"notes/kv", ""}));
  EXPECT_EQ(epochs, (std::vector<std::uint64_t>{epoch}));
}

}  // namespace
}  // namespace nbx
