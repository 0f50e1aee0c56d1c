#include "heap/reserved.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "core/bytes.h"
#include "core/log.h"
#include "core/process.h"
#include "heap/blocking.h"
#include "heap/state.h"

namespace nbx {

// ---- what it needs of the heap -------------------------------------------------------------

Reservation* Heap::State::reserve(std::uint64_t capacity, Account& account, Lifetime lifetime) {
  if (!pages && !ranges) {
    if (!Pages::has_primitives(device)) {
      throw Error(ErrorKind::kUnsupported,
                  "reserve: " + device.name() +
                      " has no virtual memory, so that memory cannot grow in place; allocate "
                      "the whole, or copy into a larger tensor");
    }
    ranges = std::make_unique<Pages>(device, kHostPage);
  }
  auto made = std::make_unique<Reservation>();
  made->account = &account;
  made->lifetime = lifetime;
  {
    const std::lock_guard<ShortLock> guard(lock);
    reservations.reserve(reservations.size() + 1);
  }
  made->range = reservable().reserve(capacity);
  if (made->range == nullptr) {
    throw Error(ErrorKind::kDevice, "reserve: " + device.name() + " has no " +
                                        format_bytes(capacity) +
                                        " of addresses left; ask for fewer");
  }
  const std::lock_guard<ShortLock> guard(lock);
  // One object without bytes: no limit refuses that.
  static_cast<void>(account.reserve_locked(0, 0));
  reservations.push_back(std::move(made));
  return reservations.back().get();
}

/// Does nothing if a reclaimer that was asked has changed the block.
void Heap::State::grow(Reservation* block, std::uint64_t to) {
  const std::uint64_t from = block->committed, more = to - from;
  Account& account = *block->account;
  const HeapRequest request{more, more, 1, kNoStream, account, block->lifetime};
  admit(request, [&] { return account.extend_locked(more, more); });
  std::vector<PageRun> filled;
  try {
    filled = supply(request, [&] {
      std::vector<PageRun> missing;
      list_runs(*block, from, to, false, &missing);
      return missing;
    });
    if (block->committed != from) {
      for (const PageRun& run : filled) device.check(reservable().unmap(run), "page_unmap");
    }
  } catch (...) {
    const std::lock_guard<ShortLock> guard(lock);
    account.shrink_locked(more, more);
    throw;
  }
  const std::lock_guard<ShortLock> guard(lock);
  if (block->committed != from) {
    account.shrink_locked(more, more);
    return;
  }
  live += more;
  note_live(live);
  block->committed.store(to, std::memory_order_release);
}

/// To what `committed` says already, so that nobody looks at what goes.
void Heap::State::shrink(Reservation* block, std::uint64_t from) {
  const std::uint64_t page = block->range->granule(), to = block->committed, less = from - to;
  device.check(reservable().unmap(PageRun{block->range, to / page, less / page}), "page_unmap");
  const std::lock_guard<ShortLock> guard(lock);
  live -= less;
  block->account->shrink_locked(less, less);
}

void Heap::State::list_runs(const Reservation& block, std::uint64_t from, std::uint64_t to,
                            bool mapped, std::vector<PageRun>* runs) {
  const std::uint64_t page = block.range->granule(), end = to / page;
  for (std::uint64_t first = from / page; first < end; ++first) {
    std::uint64_t last = first;
    while (last < end && block.range->mapped(last) == mapped) ++last;
    if (last == first) continue;
    runs->push_back(PageRun{block.range, first, last - first});
    first = last;
  }
}

void Heap::State::release(Reservation* block) {
  std::vector<PageRun> runs;
  list_runs(*block, 0, block->committed, true, &runs);
  for (const PageRun& run : runs) device.check(reservable().unmap(run), "page_unmap");
  const Status status = reservable().release(block->range);
  std::unique_ptr<Reservation> gone;
  {
    const std::lock_guard<ShortLock> guard(lock);
    const std::uint64_t bytes = block->committed;
    if (block->asleep) {
      asleep -= bytes;
      --reserved_asleep;
      if (block->contents != nullptr) asleep_contents -= bytes;
      block->account->release_asleep_locked(bytes, bytes);
    } else {
      live -= bytes;
      block->account->release_locked(bytes, bytes);
    }
    const auto found = std::find_if(reservations.begin(), reservations.end(),
                                    [&](const auto& known) { return known.get() == block; });
    gone = std::move(*found);
    reservations.erase(found);
    count_held();
  }
  device.check(status, "range_release");
}

// ---- the block -----------------------------------------------------------------------------

namespace {
/// It neither sleeps nor is let go while it changes its size.
struct Resizing {
  explicit Resizing(Reservation* block) noexcept : held(*block), before(held.resizing) {
    held.resizing = true;
  }
  ~Resizing() { held.resizing = before; }
  Resizing(const Resizing&) = delete;
  Resizing& operator=(const Resizing&) = delete;
  Reservation& held;
  const bool before;
};
}  // namespace

ReservedBlock::ReservedBlock(Heap& heap, std::uint64_t capacity, Account& account,
                             Lifetime lifetime)
    : heap_(heap), fork_(fork_generation()) {
  if (capacity == 0 || capacity > kMaximumBytes) {
    throw Error(ErrorKind::kValue, "reserve: max_bytes is " + std::to_string(capacity) +
                                       "; give 1 up to " + std::to_string(kMaximumBytes));
  }
  Heap::State& s = *heap_.state_;
  if (&account.tree_lock() != &s.lock) {
    throw Error(ErrorKind::kValue, "reserve: the account " + account.path() +
                                       " is not of the tree of " + s.device.name() +
                                       "; give one of its accounts");
  }
  const BlockingScope scope;
  const GrowthLock::Undivided growing(s.growth);
  held_ = s.reserve(capacity, account, lifetime);
  range_ = held_->range;
}

ReservedBlock::~ReservedBlock() {
  // A child process has the parent's books but not its memory.
  if (fork_ != fork_generation()) return;
  try {
    const BlockingScope scope;
    Heap::State& s = *heap_.state_;
    const GrowthLock::Undivided growing(s.growth);
    held_->abandoned = true;
    // Whoever moves it ends it; all work was waited for.
    if (held_->moving) return;
    wait_for_uses();
    s.release(held_);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("reserved block: the memory is kept: ") + error.what());
  }
}

void ReservedBlock::require_awake(const char* action) const {
  if (!is_asleep()) return;
  throw Error(ErrorKind::kValue, std::string(action) + ": the reserved block of " +
                                     account().path() +
                                     " is asleep; call nbx.memory.wake() for its tag first");
}

std::uint64_t ReservedBlock::commit(std::uint64_t bytes) {
  if (bytes > capacity()) {
    throw Error(ErrorKind::kValue, "commit: " + std::to_string(bytes) +
                                       " bytes are more than the " + std::to_string(capacity()) +
                                       " that were reserved; reserve a larger block");
  }
  if (bytes <= committed()) return committed();
  grow(bytes);
  heap_.relieve(account());
  return committed();
}

void ReservedBlock::grow(std::uint64_t bytes) {
  Heap::State& s = *heap_.state_;
  const BlockingScope scope;
  const GrowthLock::Undivided growing(s.growth);
  require_awake("commit");
  const Resizing resizing(held_);
  // A reclaimer that runs inside may shrink or grow this block: until nothing is missing.
  while (bytes > committed()) s.grow(held_, round_up(bytes, granule()));
}

std::uint64_t ReservedBlock::decommit(std::uint64_t keep) {
  Heap::State& s = *heap_.state_;
  const BlockingScope scope;
  const GrowthLock::Undivided growing(s.growth);
  const std::uint64_t before = committed();
  std::uint64_t last = round_up(std::min(keep, before), granule());
  // A large page is one piece of memory.
  while (last < before && (*range_)[last / granule()].place != 0) last += granule();
  if (last == before && keep >= before) return last;
  require_awake("decommit");
  const Resizing resizing(held_);
  {
    // Whoever opens a view from here on finds the bytes gone.
    const std::lock_guard<ShortLock> guard(lock_);
    check_views(keep);
    held_->committed.store(last, std::memory_order_release);
  }
  if (last == before) return last;
  try {
    wait_for_uses();
    s.shrink(held_, before);
  } catch (...) {
    held_->committed.store(before, std::memory_order_release);
    throw;
  }
  return last;
}

// ---- views ---------------------------------------------------------------------------------

std::uint64_t ReservedBlock::views() const noexcept {
  const std::lock_guard<ShortLock> guard(lock_);
  return views_.size();
}

void ReservedBlock::check_views(std::uint64_t keep) const {
  for (const View& view : views_) {
    if (view.bytes == 0 || view.offset + view.bytes <= keep) continue;
    throw Error(
        ErrorKind::kValue,
        "decommit: a tensor of the reserved block uses bytes " + std::to_string(view.offset) +
            " to " + std::to_string(view.offset + view.bytes) + "; drop it, or keep at least " +
            std::to_string(view.offset + view.bytes) + " bytes instead of " + std::to_string(keep));
  }
}

void ReservedBlock::open_view(std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard<ShortLock> guard(lock_);
  const std::uint64_t held = committed();
  if (offset > held || bytes > held - offset) {
    throw Error(ErrorKind::kValue, "tensor: bytes " + std::to_string(offset) + " to " +
                                       std::to_string(offset + bytes) +
                                       " of the reserved block are not committed, " +
                                       std::to_string(held) + " are; commit more first");
  }
  views_.push_back(View{offset, bytes});
}

void ReservedBlock::close_view(std::uint64_t offset, std::uint64_t bytes, const BlockUse* uses,
                               std::size_t count) noexcept {
  const std::lock_guard<ShortLock> guard(lock_);
  const auto view = std::find_if(views_.begin(), views_.end(), [&](const View& known) {
    return known.offset == offset && known.bytes == bytes;
  });
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (uses[i].stream == kNoStream) continue;
      const auto known = std::find_if(uses_.begin(), uses_.end(), [&](const BlockUse& other) {
        return other.stream == uses[i].stream;
      });
      if (known == uses_.end()) {
        uses_.push_back(uses[i]);
      } else {
        known->ticket = std::max(known->ticket, uses[i].ticket);
      }
    }
    if (view != views_.end()) views_.erase(view);
  } catch (const std::exception& error) {
    // The view stays in the list: its bytes are never given away.
    log(LogLevel::kError, std::string("reserved block: the memory is kept: ") + error.what());
  }
}

void ReservedBlock::wait_for_uses() {
  std::vector<BlockUse> uses;
  {
    const std::lock_guard<ShortLock> guard(lock_);
    uses.swap(uses_);
  }
  std::size_t done = 0;
  try {
    for (; done < uses.size(); ++done) {
      const BlockUse work = resolved(uses[done]);
      if (work.ticket == 0) continue;
      const GrowthLock::Pause pause(heap_.state_->growth);
      wait_for(work);
    }
  } catch (...) {
    close_view(0, ~std::uint64_t{0}, uses.data() + done, uses.size() - done);
    throw;
  }
}

}  // namespace nbx
