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

std::unordered_map<std::uint32_t, AccountHold> by_id(Account& tag) {
  std::unordered_map<std::uint32_t, AccountHold> accounts;
  for (const AccountHold& account : tag.subtree()) accounts.emplace(account->id(), account);
  return accounts;
}

}  // namespace

// ---- whom it concerns ----------------------------------------------------------------------

/// From here on every use of the blocks is refused, and every free waits for the end.
Heap::State::Nap Heap::State::doze(Account& tag) {
  const auto accounts = by_id(tag);
  Nap nap;
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
      nap.blocks.push_back(id);
      Sleeper& sleeper = fresh[id];
      sleeper.account = account->second.get();
      sleeper.steady = space.has_large_handle(id);
    }
  }
  for (const auto& block : reservations) {
    const bool busy = block->asleep || block->resizing || block->abandoned;
    if (busy || block->committed == 0 || accounts.count(block->account->id()) == 0) continue;
    nap.reserved.push_back(block.get());
  }
  sleepers.reserve(sleepers.size() + fresh.size());
  sleepers.merge(fresh);
  sleeping.store(sleepers.size(), std::memory_order_relaxed);
  for (const std::uint32_t id : nap.blocks) space.record(id).state = BlockState::kAsleep;
  for (Reservation* block : nap.reserved) {
    block->moving = true;
    block->asleep.store(true, std::memory_order_release);
  }
  note_memory_lost();
  return nap;
}

Heap::State::Nap Heap::State::stir(Account& tag) {
  const auto accounts = by_id(tag);
  Nap nap;
  const std::lock_guard<ShortLock> guard(lock);
  nap.blocks.reserve(sleepers.size());
  nap.reserved.reserve(reservations.size());
  for (const auto& block : reservations) {
    if (!block->asleep || block->moving || accounts.count(block->account->id()) == 0) continue;
    block->moving = true;
    nap.reserved.push_back(block.get());
  }
  for (auto& [id, sleeper] : sleepers) {
    if (sleeper.moving || sleeper.freed || accounts.count(sleeper.account->id()) == 0) continue;
    sleeper.moving = true;
    nap.blocks.push_back(id);
  }
  std::sort(nap.blocks.begin(), nap.blocks.end(), [&](std::uint32_t a, std::uint32_t b) {
    return space.record(a).address < space.record(b).address;
  });
  return nap;
}

std::vector<Heap::State::Charge> Heap::State::charges_of(const Nap& nap) {
  std::vector<Charge> charges;
  charges.reserve(nap.size());
  const std::lock_guard<ShortLock> guard(lock);
  for (const std::uint32_t id : nap.blocks) {
    charges.push_back(Charge{sleepers[id].account, granted_of(space.record(id))});
  }
  for (const Reservation* block : nap.reserved) {
    charges.push_back(Charge{block->account, block->committed});
  }
  return charges;
}

// ---- books ---------------------------------------------------------------------------------

/// The blocks' way to sleep ends.
void Heap::State::lay_down(const Nap& nap) noexcept {
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const std::uint32_t id : nap.blocks) {
      Sleeper& sleeper = sleepers[id];
      const std::uint64_t bytes = granted_of(space.record(id));
      sleeper.moving = false;
      sleeper.account->sleep_locked(bytes);
      live -= bytes;
      --live_blocks;
      asleep += bytes;
      if (sleeper.contents != nullptr) asleep_contents += bytes;
    }
    for (Reservation* block : nap.reserved) {
      const std::uint64_t bytes = block->committed;
      block->moving = false;
      block->account->sleep_locked(bytes);
      live -= bytes;
      asleep += bytes;
      ++reserved_asleep;
      if (block->contents != nullptr) asleep_contents += bytes;
    }
    bury();
  }
  end_moves(nap);
}

/// The blocks are awake. `counted`: they were asleep in the books, and their accounts have admitted
/// them. `dropped` has room for the contents of all, which go without the lock.
void Heap::State::get_up(const Nap& nap, bool counted, Contents* dropped) noexcept {
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const std::uint32_t id : nap.blocks) {
      const auto found = sleepers.find(id);
      Sleeper sleeper = std::move(found->second);
      sleepers.erase(found);
      BlockRecord& record = space.record(id);
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
          static_cast<void>(space.give(id, uses.data(), uses.size()));
          sleeper.account->release_locked(sleeper.requested, bytes);
          live -= bytes;
          --live_blocks;
        } catch (const std::exception& error) {
          log(LogLevel::kError, std::string("free: the block is kept: ") + error.what());
        }
      }
      if (dropped->size() < dropped->capacity()) dropped->push_back(std::move(sleeper.contents));
    }
    for (Reservation* block : nap.reserved) {
      const std::uint64_t bytes = block->committed;
      block->moving = false;
      if (counted) {
        asleep -= bytes;
        --reserved_asleep;
        if (block->contents != nullptr) asleep_contents -= bytes;
        live += bytes;
      }
      if (dropped->size() < dropped->capacity()) dropped->push_back(std::move(block->contents));
      block->contents.reset();
      block->asleep.store(false, std::memory_order_release);
    }
    note_live(live);
    sleeping.store(sleepers.size(), std::memory_order_relaxed);
    count_held();
  }
  end_moves(nap);
}

/// The blocks were to wake and sleep on; memory that was put under them goes again. `admitted`:
/// what their accounts have counted.
void Heap::State::lie_on(const Nap& nap, const std::vector<PageRun>& runs,
                         const std::vector<Charge>& admitted) noexcept {
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
    if (!space.is_reserved(*run.range)) space.stir(run);
  }
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const std::uint32_t id : nap.blocks) sleepers[id].moving = false;
    for (Reservation* block : nap.reserved) block->moving = false;
    for (const Charge& charge : admitted) charge.account->sleep_locked(charge.bytes);
    bury();
  }
  end_moves(nap);
}

/// Reserved blocks whose owners went meanwhile go too.
void Heap::State::end_moves(const Nap& nap) noexcept {
  for (Reservation* block : nap.reserved) {
    if (!block->abandoned) continue;
    try {
      release(block);
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("reserved block: the memory is kept: ") + error.what());
    }
  }
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
  for (const auto& block : reservations) {
    if (!block->asleep || block->moving) continue;
    const std::uint64_t page = block->range->granule();
    for (std::uint64_t i = 0; i < block->committed / page; ++i) {
      if (block->range->mapped(i)) asleep_held += page;
    }
  }
}

bool Heap::State::free_asleep(const Block& block, std::uint64_t requested, const BlockUse* uses,
                              std::size_t count) noexcept {
  if (sleeping.load(std::memory_order_relaxed) == 0) return false;
  const std::unique_lock<GrowthLock> growing(growth, std::try_to_lock);
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

namespace {
/// Admits all of them, or returns the account that refused one; the lock is held.
template <class Charges>
Account* admit_all(const Charges& charges) noexcept {
  for (std::size_t i = 0; i < charges.size(); ++i) {
    Account* refused = charges[i].account->wake_locked(charges[i].bytes);
    if (refused == nullptr) continue;
    while (i-- > 0) charges[i].account->sleep_locked(charges[i].bytes);
    return refused;
  }
  return nullptr;
}
}  // namespace

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
  const GrowthLock::Undivided growing(s.growth);
  SleepReport report;
  State::Nap nap;
  {
    // Nobody frees one of them without the lock meanwhile.
    const State::Recall recall(s);
    recall.drain();
    nap = s.doze(tag);
  }
  if (nap.size() == 0) return report;
  State::Contents dropped;
  bool asleep = false;
  try {
    dropped.reserve(nap.size());
    for (const State::Charge& charge : s.charges_of(nap)) report.bytes += charge.bytes;
    s.wait_for_device();
    s.poll();
    if (keep) report.contents = s.copy_out(nap);
    report.moved = s.put_away(nap, &asleep);
  } catch (...) {
    if (asleep) {
      s.lay_down(nap);
    } else {
      s.get_up(nap, false, &dropped);
    }
    throw;
  }
  report.blocks = nap.size();
  s.lay_down(nap);
  Recorder::note_now(RecordedAction::kSleep, s.recorded, 0, report.bytes, kNoStream, tag.id(), 0);
  return report;
}

SleepReport Heap::wake(Account& tag) {
  const SleepReport report = wake_blocks(tag);
  relieve(tag);
  return report;
}

SleepReport Heap::wake_blocks(Account& tag) {
  State& s = *state_;
  const BlockingScope scope;
  const GrowthLock::Undivided growing(s.growth);
  SleepReport report;
  const State::Nap nap = s.stir(tag);
  if (nap.size() == 0) return report;
  std::vector<PageRun> runs;
  State::Contents dropped;
  std::vector<State::Charge> charges, admitted;
  try {
    dropped.reserve(nap.size());
    charges = s.charges_of(nap);
    for (const State::Charge& charge : charges) report.bytes += charge.bytes;
    const HeapRequest request{report.bytes, report.bytes, 1, kNoStream, tag, s.lifetime_of(nap)};
    s.admit(request, [&] { return admit_all(charges); });
    admitted.swap(charges);
    runs = s.supply(request, [&] { return s.list_missing(nap); });
    report.contents = s.copy_in(nap);
  } catch (...) {
    s.lie_on(nap, runs, admitted);
    throw;
  }
  report.blocks = nap.size();
  {
    const std::lock_guard<ShortLock> guard(s.lock);
    for (const PageRun& run : runs) {
      report.moved += run.count * s.pages->granule();
      if (!s.space.is_reserved(*run.range)) s.space.stir(run);
    }
  }
  s.get_up(nap, true, &dropped);
  Recorder::note_now(RecordedAction::kWake, s.recorded, 0, report.bytes, kNoStream, tag.id(), 0);
  return report;
}

SleepReport Heap::sleeping(Account& tag) const {
  State& s = *state_;
  const auto accounts = by_id(tag);
  SleepReport report;
  const std::lock_guard<ShortLock> guard(s.lock);
  for (const auto& [id, sleeper] : s.sleepers) {
    if (sleeper.moving || sleeper.freed || accounts.count(sleeper.account->id()) == 0) continue;
    const std::uint64_t bytes = s.granted_of(s.space.record(id));
    ++report.blocks;
    report.bytes += bytes;
    if (sleeper.contents != nullptr) report.contents += bytes;
  }
  for (const auto& block : s.reservations) {
    if (!block->asleep || block->moving || accounts.count(block->account->id()) == 0) continue;
    ++report.blocks;
    report.bytes += block->committed;
    if (block->contents != nullptr) report.contents += block->committed;
  }
  return report;
}

bool Heap::is_asleep(const Block& block) const noexcept {
  return state_->sleeping.load(std::memory_order_relaxed) != 0 &&
         state_->space.is_asleep(block.id, block.generation);
}

}  // namespace nbx
