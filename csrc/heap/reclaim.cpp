// Memory that the program gives up: asked for before a refusal, and above soft limits.
#include <algorithm>
#include <string>

#include "core/log.h"
#include "heap/blocking.h"
#include "heap/state.h"

namespace nbx {
namespace {

/// The heaps that this thread asks for memory, innermost first: what a reclaimer allocates asks
/// the same heap no more.
struct Asking {
  explicit Asking(const void* asked) noexcept : heap(asked), outer(innermost) { innermost = this; }
  ~Asking() { innermost = outer; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  [[nodiscard]] static bool runs(const void* heap) noexcept {
    const Asking* asking = innermost;
    while (asking != nullptr && asking->heap != heap) asking = asking->outer;
    return asking != nullptr;
  }

  const void* const heap;
  const Asking* const outer;
  static constinit thread_local const Asking* innermost;
};
constinit thread_local const Asking* Asking::innermost = nullptr;

bool is_below(const Account* account, const Account* above) noexcept {
  while (account != nullptr && account != above) account = account->parent();
  return account != nullptr;
}

}  // namespace

std::vector<Heap::State::KnownReclaimer> Heap::State::known_reclaimers() {
  const std::lock_guard<ShortLock> guard(lock);
  return reclaimers;
}

std::vector<Heap::State::KnownReclaimer> Heap::State::known_reclaimers_of_all() {
  std::vector<KnownReclaimer> all = known_reclaimers();
  for (State* helper : helpers) {
    if (Asking::runs(helper)) continue;
    const std::vector<KnownReclaimer> more = helper->known_reclaimers();
    all.insert(all.end(), more.begin(), more.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.cost < b.cost; });
  return all;
}

/// What it says that it freed; an error in it must not hide the refusal that called it.
std::uint64_t Heap::State::ask(const KnownReclaimer& known, std::uint64_t bytes) noexcept {
  try {
    return (*known.call)(bytes);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("reclaimer: ") + error.what());
    return 0;
  }
}

bool Heap::State::ask_all(std::vector<KnownReclaimer> calls, std::uint64_t bytes,
                          const std::function<bool()>& enough) {
  std::stable_partition(calls.begin(), calls.end(), [](const KnownReclaimer& known) {
    const Account* account = known.account.get();
    return account != nullptr && account->granted() > account->soft_limit();
  });
  const Asking here(this);
  return std::any_of(calls.begin(), calls.end(), [&](KnownReclaimer& known) {
    const Asking there(known.heap);
    std::uint64_t freed = 0;
    {
      const GrowthLock::Pause pause(growth);
      freed = ask(known, bytes);
      known.call.reset();  // the last to hold one may run code of the program
    }
    if (freed == 0) return false;
    try {
      return enough();
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("reclaimer: ") + error.what());
      return false;
    }
  });
}

bool Heap::State::reclaim(std::uint64_t bytes, const std::function<bool()>& enough) {
  if (Asking::runs(this)) return false;
  const GrowthLock::Asking asking(growth);
  if (!asking.may()) return false;
  // Another thread may have asked them while this one stood behind it.
  return (asking.waited() && enough()) || ask_all(known_reclaimers(), bytes, enough);
}

bool Heap::State::reclaim_unlocked(std::uint64_t bytes, const std::function<bool()>& enough) {
  if (Asking::runs(this)) return false;
  const BlockingScope scope;
  return ask_all(known_reclaimers_of_all(), bytes, enough);
}

Block Heap::allocate_asking(const HeapRequest& request) {
  State& s = *state_;
  if (s.helpers.empty()) return allocate_locked(request);
  const AccountHold held(request.account);  // reclaimers may set another tag
  Block block;
  std::optional<Error> refused;
  const auto served = [&] {
    try {
      block = allocate_locked(request);
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kOutOfMemory) throw;
      refused = error;
      return false;
    }
  };
  if (served() || s.reclaim_unlocked(request.granted, served)) return block;
  throw Error(*refused);
}

void Heap::recount(Account& account, std::uint64_t former, std::uint64_t bytes) {
  const AccountHold held(account);  // reclaimers may set another tag
  const std::uint64_t more = bytes > former ? bytes - former : 0;
  Account* refused = account.recount(former, bytes);
  const auto admitted = [&] {
    refused = account.recount(former, bytes);
    return refused == nullptr;
  };
  if (refused != nullptr && !state_->reclaim_unlocked(more, admitted)) {
    throw over_budget(more, *refused);
  }
  relieve(account);
}

// ---- soft limits ---------------------------------------------------------------------------

void Heap::State::relieve(Account& account) {
  std::uint64_t excess = account.soft_excess();
  if (excess == 0) return;
  // One without an account stands for the whole tree of its heap.
  const bool whole = account.parent() == nullptr;
  for (const KnownReclaimer& known : known_reclaimers_of_all()) {
    const bool concerned = known.account.get() != nullptr
                               ? is_below(known.account.get(), &account)
                               : whole && &known.heap->lock == &account.tree_lock();
    if (!concerned) continue;
    const Asking there(known.heap);
    if (ask(known, excess) == 0) continue;
    excess = account.soft_excess();
    if (excess == 0) return;
  }
}

void Heap::relieve(Account& account) noexcept {
  if (!account.has_crossings() || Asking::runs(state_.get())) return;
  try {
    const BlockingScope scope;
    const Asking here(state_.get());
    for (const AccountHold& crossed : account.take_crossings()) state_->relieve(*crossed);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("soft limit: nobody was asked: ") + error.what());
  }
}

}  // namespace nbx
