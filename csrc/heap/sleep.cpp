// Sleep and wake of all blocks of a tag: addresses stay, contents and pages go and come back.
#include <algorithm>
#include <new>
#include <string>

#include "account/recorder.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "heap/state.h"

namespace nbx {
namespace {

std::unordered_map<std::uint32_t, Account*> by_id(Account& tag) {
  std::unordered_map<std::uint32_t, Account*> accounts;
  for (Account* account : tag.subtree()) accounts.emplace(account->id(), account);
  return accounts;
}

}  // namespace

// ---- whom it concerns ----------------------------------------------------------------------

/// From here on every use of the blocks is refused, and every free waits for the end.
Heap::State::Blocks Heap::State::doze(Account& tag) {
  const std::unordered_map<std::uint32_t, Account*> accounts = by_id(tag);
  Blocks blocks;
  std::unordered_map<std::uint32_t, Sleeper> fresh;
  const std::lock_guard<ShortLock> guard(lock);
  for (const Segment& segment : space.segments()) {
    if (segment.pages == nullptr) continue;
    for (std::uint32_t id = segment.first; id != kNoBlock; id = space.record(id).next) {
      const BlockRecord& record = space.record(id);
      if (record.state != BlockState::kLive) continue;
      const auto account = accounts.find(record.account);
      if (account == accounts.end()) continue;
      if (space.is_captured(id)) {
        throw Error(ErrorKind::kValue, "sleep: a captured graph owns blocks of " +
                                           account->second->path() +
                                           "; release the graph, or sleep a tag without them");
      }
      blocks.push_back(id);
      Sleeper& sleeper = fresh[id];
      sleeper.account = account->second;
      sleeper.steady = space.has_large_handle(id);
    }
  }
  sleepers.reserve(sleepers.size() + fresh.size());
  sleepers.merge(fresh);
  sleeping.store(sleepers.size(), std::memory_order_relaxed);
  for (const std::uint32_t id : blocks) space.record(id).state = BlockState::kAsleep;
  return blocks;
}

Heap::State::Blocks Heap::State::stir(Account& tag) {
  const std::unordered_map<std::uint32_t, Account*> accounts = by_id(tag);
  Blocks blocks;
  const std::lock_guard<ShortLock> guard(lock);
  blocks.reserve(sleepers.size());
  for (auto& [id, sleeper] : sleepers) {
    if (sleeper.moving || sleeper.freed || accounts.count(sleeper.account->id()) == 0) continue;
    sleeper.moving = true;
    blocks.push_back(id);
  }
  std::sort(blocks.begin(), blocks.end(), [&](std::uint32_t a, std::uint32_t b) {
    return space.record(a).address < space.record(b).address;
  });
  return blocks;
}

// ---- contents ------------------------------------------------------------------------------

/// Waits for the copies; when the stream cannot be waited for, the device is. `over`: they are.
Status Heap::State::drain_copies(bool* over) noexcept {
  driver_calls.fetch_add(1, std::memory_order_relaxed);
  const Status status = primitives.stream_synchronize(device.ordinal(), 0);
  *over = status == kSuccess || primitives.synchronize(device.ordinal()) == kSuccess;
  return status;
}

std::uint64_t Heap::State::copy_out(const Blocks& blocks) {
  std::uint64_t total = 0;
  Status status = kSuccess;
  bool room = true;
  for (const std::uint32_t id : blocks) {
    // The record is ours: nobody frees or changes a block on its way.
    const BlockRecord& record = space.record(id);
    std::unique_ptr<std::byte[]> contents(new (std::nothrow) std::byte[record.bytes]);
    room = contents != nullptr;
    if (!room) break;
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    status = primitives.copy(device.ordinal(), reinterpret_cast<DeviceAddress>(contents.get()),
                             record.address, record.bytes, CopyKind::kDeviceToHost, 0);
    if (status != kSuccess) break;
    total += record.bytes;
    const std::lock_guard<ShortLock> guard(lock);
    sleepers[id].contents = std::move(contents);
  }
  // Also after a failure: what was queued writes to the contents.
  bool over = true;
  const Status waited = drain_copies(&over);
  if (!over) {
    // They may be written to at any time, so nobody can have that host memory again.
    for (const std::uint32_t id : blocks) static_cast<void>(sleepers[id].contents.release());
  }
  device.check(status, "copy");
  device.check(waited, "stream_synchronize");
  if (room) return total;
  throw Error(ErrorKind::kOutOfMemory,
              "sleep: the host has no memory for the contents; sleep without keeping them, or a "
              "smaller tag at a time");
}

std::uint64_t Heap::State::copy_in(const Blocks& blocks) {
  std::uint64_t total = 0;
  Status status = kSuccess;
  for (const std::uint32_t id : blocks) {
    const BlockRecord& record = space.record(id);
    const std::byte* contents = sleepers[id].contents.get();
    if (contents == nullptr) continue;
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    status =
        primitives.copy(device.ordinal(), record.address, reinterpret_cast<DeviceAddress>(contents),
                        record.bytes, CopyKind::kHostToDevice, 0);
    if (status != kSuccess) break;
    total += record.bytes;
  }
  bool over = true;
  const Status waited = drain_copies(&over);
  device.check(status, "copy");
  device.check(waited, "stream_synchronize");
  return total;
}

// ---- pages ---------------------------------------------------------------------------------

/// Gives the pages under the blocks to the driver and returns their bytes. When that fails it
/// throws; `away` says how the blocks are then.
std::uint64_t Heap::State::put_away(const Blocks& blocks, bool* away) {
  std::vector<PageRun> runs;
  std::vector<std::uint32_t> holes;
  std::uint64_t banked = 0;
  {
    const std::lock_guard<ShortLock> guard(lock);
    space.take_dormant(&runs, &holes);
    banked = pages->banked_bytes();
  }
  std::size_t gone = 0;
  std::uint64_t bytes = 0;
  Status status = kSuccess;
  const char* call = "page_unmap";
  for (const PageRun& run : runs) {
    status = pages->unmap(run);
    if (status != kSuccess) break;
    ++gone;
    bytes += run.count * pages->granule();
  }
  if (status == kSuccess) {
    call = "page_release";
    status = pages->empty_bank(banked);
  }
  runs.resize(gone);
  *away = status == kSuccess || !take_back(blocks, runs);
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const std::uint32_t hole : holes) space.scatter(hole);
  }
  if (status == kSuccess) return bytes;
  try {
    device.check(status, call);
  } catch (const Error& error) {
    if (!*away) throw;
    throw Error(error.kind(), std::string(error.what()) +
                                  "; the memory could not be taken back either, so the blocks are "
                                  "asleep: wake them");
  }
  return 0;
}

/// Undoes the first half of a sleep, from the bank; false if that is not possible.
bool Heap::State::take_back(const Blocks& blocks, const std::vector<PageRun>& runs) {
  try {
    if (!runs.empty() && pages->fill(runs, {}, Lifetime::kTransient).status != kSuccess) {
      return false;
    }
    copy_in(blocks);
    return true;
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("sleep: ") + error.what());
    return false;
  }
}

// ---- books ---------------------------------------------------------------------------------

/// The blocks' way to sleep ends.
void Heap::State::lay_down(const Blocks& blocks) noexcept {
  const std::lock_guard<ShortLock> guard(lock);
  for (const std::uint32_t id : blocks) {
    Sleeper& sleeper = sleepers[id];
    const std::uint64_t bytes = granted_of(space.record(id));
    sleeper.moving = false;
    sleeper.account->sleep_locked(bytes);
    live -= bytes;
    --live_blocks;
    asleep += bytes;
    if (sleeper.contents != nullptr) asleep_contents += bytes;
  }
  bury();
}

/// The blocks are awake. `counted`: they were asleep in the books, and their accounts have admitted
/// them.
void Heap::State::get_up(const Blocks& blocks, bool counted, Contents* dropped) noexcept {
  const std::lock_guard<ShortLock> guard(lock);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto found = sleepers.find(blocks[i]);
    Sleeper sleeper = std::move(found->second);
    sleepers.erase(found);
    BlockRecord& record = space.record(blocks[i]);
    const std::uint64_t bytes = granted_of(record);
    record.state = BlockState::kLive;
    if (counted) {
      asleep -= bytes;
      if (sleeper.contents != nullptr) asleep_contents -= bytes;
      live += bytes;
      ++live_blocks;
    }
    if (sleeper.freed) {
      --freed_sleepers;
      try {
        // All work on it was waited for.
        record.ticket = 0;
        std::vector<BlockUse> uses;
        for (const CaptureId capture : sleeper.captures) uses.push_back(BlockUse{capture, 0});
        static_cast<void>(space.give(blocks[i], uses.data(), uses.size()));
        sleeper.account->release_locked(sleeper.requested, bytes);
        live -= bytes;
        --live_blocks;
      } catch (const std::exception& error) {
        log(LogLevel::kError, std::string("free: the block is kept: ") + error.what());
      }
    }
    (*dropped)[i] = std::move(sleeper.contents);
  }
  note_live(live);
  sleeping.store(sleepers.size(), std::memory_order_relaxed);
  count_held();
}

/// The blocks were to wake and sleep on; memory that was put under them goes again.
void Heap::State::lie_on(const Blocks& blocks, const std::vector<PageRun>& runs,
                         bool admitted) noexcept {
  for (const PageRun& run : runs) {
    Status status = kSuccess;
    try {
      status = pages->unmap(run);
      if (status == kSuccess) continue;
      log(LogLevel::kError, std::string("page_unmap: ") + primitives.status_text(status));
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("wake: ") + error.what());
    }
    const std::lock_guard<ShortLock> guard(lock);
    space.stir(run);
  }
  const std::lock_guard<ShortLock> guard(lock);
  for (const std::uint32_t id : blocks) {
    Sleeper& sleeper = sleepers[id];
    sleeper.moving = false;
    if (admitted) sleeper.account->sleep_locked(granted_of(space.record(id)));
  }
  bury();
}

/// Ends what was freed in its sleep; the lock is held.
void Heap::State::bury() noexcept {
  for (auto entry = sleepers.begin(); freed_sleepers != 0 && entry != sleepers.end();) {
    const std::uint32_t id = entry->first;
    Sleeper& sleeper = entry->second;
    const bool captured =
        std::any_of(sleeper.captures.begin(), sleeper.captures.end(),
                    [&](CaptureId capture) { return space.has_capture(capture); });
    if (!sleeper.freed || sleeper.moving || captured) {
      ++entry;
      continue;
    }
    const std::uint64_t bytes = granted_of(space.record(id));
    try {
      space.drop_asleep(id);
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("free: the block sleeps on: ") + error.what());
      ++entry;
      continue;
    }
    --freed_sleepers;
    asleep -= bytes;
    if (sleeper.contents != nullptr) asleep_contents -= bytes;
    sleeper.account->release_asleep_locked(sleeper.requested, bytes);
    entry = sleepers.erase(entry);
  }
  sleeping.store(sleepers.size(), std::memory_order_relaxed);
  count_held();
}

void Heap::State::count_held() noexcept {
  asleep_held = 0;
  for (const auto& [id, sleeper] : sleepers) {
    if (!sleeper.moving) asleep_held += space.mapped_bytes(id);
  }
}

bool Heap::State::free_asleep(const Block& block, std::uint64_t requested, const BlockUse* uses,
                              std::size_t count) noexcept {
  if (sleeping.load(std::memory_order_relaxed) == 0) return false;
  const std::unique_lock<std::recursive_mutex> growing(growth, std::try_to_lock);
  const std::lock_guard<ShortLock> guard(lock);
  if (!space.is_asleep(block.id, block.generation)) return false;
  Sleeper& sleeper = sleepers[block.id];
  if (sleeper.freed) return false;
  try {
    // Work is complete, but what a graph used it will use again.
    for (std::size_t i = 0; i < count; ++i) {
      if (is_capture(uses[i].stream)) sleeper.captures.push_back(uses[i].stream);
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("free: the block sleeps on: ") + error.what());
    return true;
  }
  sleeper.freed = true;
  sleeper.requested = requested;
  ++freed_sleepers;
  if (growing.owns_lock()) bury();
  return true;
}

/// Admits all of them, or returns the account that refused one; the lock is held.
Account* Heap::State::admit_all(const Blocks& blocks) noexcept {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Account* refused =
        sleepers[blocks[i]].account->wake_locked(granted_of(space.record(blocks[i])));
    if (refused == nullptr) continue;
    while (i-- > 0) sleepers[blocks[i]].account->sleep_locked(granted_of(space.record(blocks[i])));
    return refused;
  }
  return nullptr;
}

// ---- the two transactions ------------------------------------------------------------------

SleepReport Heap::sleep(Account& tag, bool keep) {
  State& s = *state_;
  if (s.pages == nullptr || &tag.tree_lock() != &s.lock) {
    throw Error(ErrorKind::kUnsupported,
                "sleep: " + s.device.name() +
                    " has no virtual memory, so that memory cannot go while addresses stay; free "
                    "the tensors instead");
  }
  const BlockingScope scope;
  const std::lock_guard<std::recursive_mutex> growing(s.growth);
  SleepReport report;
  State::Blocks blocks;
  {
    // Nobody frees one of them without the lock meanwhile.
    const State::Recall recall(s);
    blocks = s.doze(tag);
  }
  if (blocks.empty()) return report;
  State::Contents dropped(blocks.size());
  bool asleep = false;
  try {
    s.driver_calls.fetch_add(1, std::memory_order_relaxed);
    s.device.check(s.primitives.synchronize(s.device.ordinal()), "synchronize");
    s.poll();
    if (keep) report.contents = s.copy_out(blocks);
    report.moved = s.put_away(blocks, &asleep);
  } catch (...) {
    if (asleep) {
      s.lay_down(blocks);
    } else {
      s.get_up(blocks, false, &dropped);
    }
    throw;
  }
  report.blocks = blocks.size();
  for (const std::uint32_t id : blocks) report.bytes += s.granted_of(s.space.record(id));
  s.lay_down(blocks);
  Recorder::note_now(RecordedAction::kSleep, s.recorded, 0, report.bytes, kNoStream, tag.id(), 0);
  return report;
}

SleepReport Heap::wake(Account& tag) {
  State& s = *state_;
  const BlockingScope scope;
  const std::lock_guard<std::recursive_mutex> growing(s.growth);
  SleepReport report;
  const State::Blocks blocks = s.stir(tag);
  if (blocks.empty()) return report;
  std::vector<PageRun> runs;
  State::Contents dropped;
  bool admitted = false;
  try {
    dropped.resize(blocks.size());
    bool steady = false;
    for (const std::uint32_t id : blocks) {
      report.bytes += s.granted_of(s.space.record(id));
      steady = steady || s.sleepers[id].steady;
    }
    const HeapRequest request{
        report.bytes, report.bytes, 1,
        kNoStream,    tag,          steady ? Lifetime::kSteady : Lifetime::kTransient};
    s.admit(request, [&] { return s.admit_all(blocks); });
    admitted = true;
    runs = s.supply(request, [&] {
      std::vector<PageRun> missing;
      for (const std::uint32_t id : blocks) s.space.list_missing(id, &missing);
      std::uint64_t dormant = 0;
      for (const PageRun& run : missing) dormant += s.space.dormant_count(run);
      s.space.ensure_scatter(dormant);
      return missing;
    });
    report.contents = s.copy_in(blocks);
  } catch (...) {
    s.lie_on(blocks, runs, admitted);
    throw;
  }
  report.blocks = blocks.size();
  {
    const std::lock_guard<ShortLock> guard(s.lock);
    for (const PageRun& run : runs) {
      report.moved += run.count * s.pages->granule();
      s.space.stir(run);
    }
  }
  s.get_up(blocks, true, &dropped);
  Recorder::note_now(RecordedAction::kWake, s.recorded, 0, report.bytes, kNoStream, tag.id(), 0);
  return report;
}

SleepReport Heap::sleeping(Account& tag) const {
  State& s = *state_;
  const std::unordered_map<std::uint32_t, Account*> accounts = by_id(tag);
  SleepReport report;
  const std::lock_guard<ShortLock> guard(s.lock);
  for (const auto& [id, sleeper] : s.sleepers) {
    if (sleeper.moving || sleeper.freed || accounts.count(sleeper.account->id()) == 0) continue;
    const std::uint64_t bytes = s.granted_of(s.space.record(id));
    ++report.blocks;
    report.bytes += bytes;
    if (sleeper.contents != nullptr) report.contents += bytes;
  }
  return report;
}

bool Heap::is_asleep(const Block& block) const noexcept {
  return state_->sleeping.load(std::memory_order_relaxed) != 0 &&
         state_->space.is_asleep(block.id, block.generation);
}

}  // namespace nbx
