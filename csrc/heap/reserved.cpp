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

PageRange* Heap::State::reserve_block(std::uint64_t capacity, Account& account) {
  if (!pages && !ranges) {
    if (!Pages::has_primitives(device)) {
      throw Error(ErrorKind::kUnsupported,
                  "reserve: " + device.name() +
                      " has no virtual memory, so that memory cannot grow in place; allocate "
                      "the whole, or copy into a larger tensor");
    }
    ranges = std::make_unique<Pages>(device, kHostPage);
  }
  PageRange* range = reservable().reserve(capacity);
  if (range == nullptr) {
    throw Error(ErrorKind::kDevice, "reserve: " + device.name() + " has no " +
                                        format_bytes(capacity) +
                                        " of addresses left; ask for fewer");
  }
  const std::lock_guard<ShortLock> guard(lock);
  // One object without bytes: no limit refuses that.
  static_cast<void>(account.reserve_locked(0, 0));
  return range;
}

void Heap::State::grow_block(PageRange* range, std::uint64_t from, std::uint64_t to,
                             Account& account, Lifetime lifetime) {
  const std::uint64_t more = to - from;
  const HeapRequest request{more, more, 1, kNoStream, account, lifetime};
  admit(request, [&] { return account.extend_locked(more, more); });
  try {
    const std::uint64_t page = range->granule();
    static_cast<void>(supply(
        request, [&] { return std::vector<PageRun>{PageRun{range, from / page, more / page}}; }));
  } catch (...) {
    const std::lock_guard<ShortLock> guard(lock);
    account.shrink_locked(more, more);
    throw;
  }
  const std::lock_guard<ShortLock> guard(lock);
  live += more;
  peak_live = std::max(peak_live, live);
}

void Heap::State::shrink_block(PageRange* range, std::uint64_t from, std::uint64_t to,
                               Account& account) {
  const std::uint64_t page = range->granule();
  device.check(reservable().unmap(PageRun{range, to / page, (from - to) / page}), "page_unmap");
  const std::lock_guard<ShortLock> guard(lock);
  live -= from - to;
  account.shrink_locked(from - to, from - to);
}

void Heap::State::release_block(PageRange* range, Account& account) {
  const Status status = reservable().release(range);
  {
    const std::lock_guard<ShortLock> guard(lock);
    account.release_locked(0, 0);
  }
  device.check(status, "range_release");
}

// ---- the block -----------------------------------------------------------------------------

ReservedBlock::ReservedBlock(Heap& heap, std::uint64_t capacity, Account& account,
                             Lifetime lifetime)
    : heap_(heap), account_(account), lifetime_(lifetime), fork_(fork_generation()) {
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
  const std::lock_guard<std::recursive_mutex> growing(s.growth);
  s.reserved_blocks.reserve(s.reserved_blocks.size() + 1);
  range_ = s.reserve_block(capacity, account);
  const std::lock_guard<ShortLock> guard(s.lock);
  s.reserved_blocks.push_back(this);
}

ReservedBlock::~ReservedBlock() {
  // A child process has the parent's books but not its memory.
  if (fork_ != fork_generation()) return;
  try {
    const BlockingScope scope;
    Heap::State& s = *heap_.state_;
    const std::lock_guard<std::recursive_mutex> growing(s.growth);
    {
      const std::lock_guard<ShortLock> guard(s.lock);
      s.reserved_blocks.erase(std::find(s.reserved_blocks.begin(), s.reserved_blocks.end(), this));
    }
    wait_for_uses();
    if (committed() != 0) s.shrink_block(range_, committed(), 0, account_);
    s.release_block(range_, account_);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("reserved block: the memory is kept: ") + error.what());
  }
}

std::uint64_t ReservedBlock::commit(std::uint64_t bytes) {
  if (bytes > capacity()) {
    throw Error(ErrorKind::kValue, "commit: " + std::to_string(bytes) +
                                       " bytes are more than the " + std::to_string(capacity()) +
                                       " that were reserved; reserve a larger block");
  }
  if (bytes <= committed()) return committed();
  grow(bytes);
  heap_.relieve(account_);
  return committed();
}

void ReservedBlock::grow(std::uint64_t bytes) {
  Heap::State& s = *heap_.state_;
  const BlockingScope scope;
  const std::lock_guard<std::recursive_mutex> growing(s.growth);
  // A reclaimer that runs inside may shrink or grow this block: until nothing is missing.
  while (bytes > committed()) {
    const std::uint64_t from = committed();
    const std::uint64_t to = round_up(bytes, granule());
    s.grow_block(range_, from, to, account_, lifetime_);
    committed_.store(to, std::memory_order_release);
  }
}

std::uint64_t ReservedBlock::decommit(std::uint64_t keep) {
  Heap::State& s = *heap_.state_;
  const BlockingScope scope;
  const std::lock_guard<std::recursive_mutex> growing(s.growth);
  const std::uint64_t before = committed();
  std::uint64_t last = round_up(std::min(keep, before), granule());
  // A large page is one piece of memory.
  while (last < before && (*range_)[last / granule()].place != 0) last += granule();
  {
    // Whoever opens a view from here on finds the bytes gone.
    const std::lock_guard<ShortLock> guard(lock_);
    check_views(keep);
    committed_.store(last, std::memory_order_release);
  }
  if (last == before) return last;
  try {
    wait_for_uses();
    s.shrink_block(range_, before, last, account_);
  } catch (...) {
    committed_.store(before, std::memory_order_release);
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
      if (work.ticket != 0) wait_for(work);
    }
  } catch (...) {
    close_view(0, ~std::uint64_t{0}, uses.data() + done, uses.size() - done);
    throw;
  }
}

}  // namespace nbx
