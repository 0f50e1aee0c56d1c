#include "account/account.h"

#include <algorithm>

#include "account/recorder.h"
#include "core/error.h"

namespace nbx {

struct Account::PeakScope {
  std::uint64_t number = 0;
  PeakFigures most;
  std::unique_ptr<PeakScope> next;
};

Account::Account(std::string name, Account* parent)
    : name_(std::move(name)),
      parent_(parent),
      root_(parent == nullptr ? this : parent->root_),
      id_(parent == nullptr ? 1 : root_->next_id()) {}

Account::~Account() {
  for (Lease* lease = leases_.load(std::memory_order_relaxed); lease != nullptr;) {
    const std::unique_ptr<Lease> owner(lease);
    lease = lease->next;
  }
}

std::string Account::path() const {
  return parent_ == nullptr ? name_ : parent_->path() + "/" + name_;
}

// ---- counting ------------------------------------------------------------------------------

Account* Account::reserve(std::uint64_t requested, std::uint64_t granted) noexcept {
  Account* refused = nullptr;
  {
    const std::lock_guard<ShortLock> guard(root_->lock_);
    refused = reserve_locked(requested, granted);
    if (refused == nullptr || get(root_->leased_) == 0) return refused;
  }
  without_leases([&] { refused = reserve_locked(requested, granted); });
  return refused;
}

void Account::release(std::uint64_t requested, std::uint64_t granted) noexcept {
  const std::lock_guard<ShortLock> guard(root_->lock_);
  release_locked(requested, granted);
}

Account* Account::recount(std::uint64_t former, std::uint64_t bytes) noexcept {
  const auto change = [&]() -> Account* {
    if (former == 0) return bytes == 0 ? nullptr : reserve_locked(bytes, bytes);
    if (bytes > former) return extend_locked(bytes - former, bytes - former);
    if (bytes != 0) {
      shrink_locked(former - bytes, former - bytes);
    } else {
      release_locked(former, former);
    }
    return nullptr;
  };
  Account* refused = nullptr;
  {
    const std::lock_guard<ShortLock> guard(root_->lock_);
    refused = change();
    if (refused == nullptr || get(root_->leased_) == 0) return refused;
  }
  without_leases([&] { refused = change(); });
  return refused;
}

// ---- limits --------------------------------------------------------------------------------

std::uint64_t Account::set_limit(std::uint64_t bytes) noexcept {
  std::uint64_t former = 0;
  without_leases([&] { former = limit_.exchange(bytes, std::memory_order_relaxed); });
  return former;
}

std::uint64_t Account::set_soft_limit(std::uint64_t bytes) noexcept {
  std::uint64_t former = 0;
  without_leases([&] { former = soft_limit_.exchange(bytes, std::memory_order_relaxed); });
  return former;
}

/// The lock is held: somebody looks once it is not.
void Account::note_crossing() noexcept {
  set(soft_crossings_, get(soft_crossings_) + 1);
  if (crossed_) return;
  crossed_ = true;
  set(root_->crossings_, get(root_->crossings_) + 1);
}

std::vector<AccountHold> Account::take_crossings() {
  std::vector<AccountHold> accounts = root_->subtree();
  const std::lock_guard<ShortLock> guard(root_->lock_);
  accounts.erase(std::remove_if(accounts.begin(), accounts.end(),
                                [](const AccountHold& account) { return !account->crossed_; }),
                 accounts.end());
  for (const AccountHold& account : accounts) account->crossed_ = false;
  set(root_->crossings_, get(root_->crossings_) - accounts.size());
  return accounts;
}

std::uint64_t Account::soft_excess() noexcept {
  std::uint64_t excess = 0;
  without_leases([&] {
    const std::uint64_t held = get(granted_), soft = get(soft_limit_);
    excess = held > soft ? held - soft : 0;
  });
  return excess;
}

// ---- leases --------------------------------------------------------------------------------

Lease& Account::open_lease() {
  {
    const std::lock_guard<ShortLock> guard(root_->lock_);
    for (Lease* known = root_->leases_.load(std::memory_order_relaxed); known != nullptr;
         known = known->next) {
      if (known->owner.get() != nullptr) continue;
      known->owner = &thread_mark;
      known->wanted = Lease::kFirst;
      return *known;
    }
  }
  auto made = std::make_unique<Lease>();
  made->owner = &thread_mark;
  const std::lock_guard<ShortLock> guard(root_->lock_);
  made->next = root_->leases_.load(std::memory_order_relaxed);
  root_->leases_.store(made.get(), std::memory_order_release);
  return *made.release();
}

void Account::fold_locked(Lease& lease) noexcept {
  if (lease.account == nullptr) return;
  for (Account* account = lease.account; account != nullptr; account = account->parent_) {
    account->note_peak(&lease);
    set(account->granted_, get(account->granted_) - lease.left());
    set(account->requested_, get(account->requested_) - lease.requested_left());
    set(account->objects_, get(account->objects_) + static_cast<std::uint64_t>(lease.objects()));
    set(account->leased_, get(account->leased_) - lease.size);
  }
  const std::int64_t most = lease.most_spent_now(), spent = lease.spent_now();
  lease.most_spent = most;
  lease.spent = spent;
  lease.spent_objects += lease.objects();
  lease.start(nullptr, 0, 0);
}

void Account::fold_own_locked() noexcept {
  for (Lease* lease = root_->leases_.load(std::memory_order_relaxed); lease != nullptr;
       lease = lease->next) {
    if (lease->owner == &thread_mark) fold_locked(*lease);
  }
}

/// How large a lease may be: small beside the room up to the nearest limit, so that counting is
/// exact where it matters.
std::uint64_t Account::lease_size(const Lease& lease, std::uint64_t granted) const noexcept {
  if (root_->recalls_ != 0) return 0;
  std::uint64_t room = kUnlimited;
  for (const Account* account = this; account != nullptr; account = account->parent_) {
    const std::uint64_t held = get(account->granted_) + granted;
    for (const std::uint64_t limit : {get(account->limit_), get(account->soft_limit_)}) {
      if (limit >= held) room = std::min(room, limit - held);
    }
  }
  // Half of it is leased at first.
  const std::uint64_t size = std::min(lease.wanted, room / 16) & ~(2 * Lease::kUnit - 1);
  return size < Lease::kLeast ? 0 : size;
}

void Account::grant_locked(Lease& lease, std::uint64_t size) noexcept {
  if (size == 0) return;
  for (Account* account = this; account != nullptr; account = account->parent_) {
    set(account->granted_, get(account->granted_) + size / 2);
    set(account->requested_, get(account->requested_) + size / 2);
    set(account->leased_, get(account->leased_) + size);
  }
  lease.recorded = RecordedEvent::owner(0, id_, 0);
  lease.start(this, size / 2, size);
}

Account* Account::renew_locked(Lease& lease, std::uint64_t requested,
                               std::uint64_t granted) noexcept {
  // The same account again: what it was given was too little.
  const std::uint64_t wanted = lease.account == this ? 2 * lease.wanted : lease.wanted;
  lease.wanted = std::min(std::max(wanted, 4 * granted), Lease::kLargest);
  fold_locked(lease);
  if (Account* refused = refuses(granted)) return refused;
  const std::uint64_t size = lease_size(lease, granted);
  for (Account* account = this; account != nullptr; account = account->parent_) {
    account->add(requested, granted);
    account->note_peak(nullptr);
  }
  grant_locked(lease, size);
  return nullptr;
}

void Account::renew_released_locked(Lease& lease, std::uint64_t requested,
                                    std::uint64_t granted) noexcept {
  fold_locked(lease);
  release_locked(requested, granted);
  grant_locked(lease, lease_size(lease, 0));
}

Lease* Account::begin_recall() noexcept {
  Lease* leases = nullptr;
  {
    const std::lock_guard<ShortLock> guard(root_->lock_);
    ++root_->recalls_;
    leases = root_->leases_.load(std::memory_order_relaxed);
    for (Lease* lease = leases; lease != nullptr; lease = lease->next) lease->gate.close();
  }
  if (leases == nullptr) return leases;
  Gate::barrier();
  for (const Lease* lease = leases; lease != nullptr; lease = lease->next) {
    lease->gate.wait_empty();
  }
  return leases;
}

// ---- peaks ---------------------------------------------------------------------------------

void Account::note_scopes(std::uint64_t requested, std::uint64_t granted,
                          std::uint64_t error) noexcept {
  for (PeakScope* scope = scopes_.get(); scope != nullptr; scope = scope->next.get()) {
    scope->most.requested = std::max(scope->most.requested, requested);
    scope->most.granted = std::max(scope->most.granted, granted);
    scope->most.error = std::max(scope->most.error, error);
  }
}

std::uint64_t Account::begin_peak() {
  auto scope = std::make_unique<PeakScope>();
  std::uint64_t number = 0;
  without_leases([&] {
    number = scope->number = root_->next_scope_++;
    scope->most = PeakFigures{get(requested_), get(granted_), 0};
    scope->next = std::move(scopes_);
    scopes_ = std::move(scope);
  });
  return number;
}

namespace {
[[noreturn]] void refuse_scope(std::uint64_t number) {
  throw Error(ErrorKind::kValue, "peak: scope " + std::to_string(number) +
                                     " does not run on this account: it was ended, or begun on "
                                     "another; begin a new one");
}
}  // namespace

PeakFigures Account::peak(std::uint64_t number) const {
  const PeakScope* found = nullptr;
  PeakFigures most;
  // Only the figures of leases change.
  const_cast<Account*>(this)->without_leases([&] {
    for (found = scopes_.get(); found != nullptr && found->number != number;) {
      found = found->next.get();
    }
    if (found != nullptr) most = found->most;
  });
  if (found == nullptr) refuse_scope(number);
  return most;
}

PeakFigures Account::end_peak(std::uint64_t number) {
  std::unique_ptr<PeakScope> ended;
  without_leases([&] {
    std::unique_ptr<PeakScope>* place = &scopes_;
    while (*place != nullptr && (*place)->number != number) place = &(*place)->next;
    if (*place == nullptr) return;
    ended = std::move(*place);
    *place = std::move(ended->next);
  });
  if (ended == nullptr) refuse_scope(number);
  return ended->most;
}

void Account::reset_peak() {
  std::vector<Account*> accounts;
  const std::lock_guard<std::mutex> structure(root_->structure_);
  collect(this, &accounts);
  without_leases([&] {
    for (Account* account : accounts) {
      set(account->peak_requested_, get(account->requested_));
      set(account->peak_granted_, get(account->granted_));
      set(account->peak_error_, 0);
    }
  });
}

// ---- figures -------------------------------------------------------------------------------

bool Account::contains(const Account& other) const noexcept {
  const Account* account = &other;
  while (account != nullptr && account != this) account = account->parent_;
  return account != nullptr;
}

AccountStatistics Account::figures() const {
  AccountStatistics result{};
  result.requested = get(requested_);
  result.granted = get(granted_);
  result.objects = get(objects_);
  result.limit = get(limit_);
  result.soft_limit = get(soft_limit_);
  result.soft_crossings = get(soft_crossings_);
  result.peak_error = get(peak_error_);
  result.id = id_;
  result.parent = parent_ == nullptr ? 0 : parent_->id_;
  result.asleep = get(asleep_);
  // What the leases below have had at most, if there is one; of several, all that they could.
  std::uint64_t most_requested = result.requested, most_granted = result.granted;
  std::uint32_t leases = 0;
  for (const Lease* lease = root_->leases_.load(std::memory_order_relaxed);
       get(leased_) != 0 && lease != nullptr; lease = lease->next) {
    if (lease->account == nullptr || !contains(*lease->account)) continue;
    result.requested -= lease->requested_left();
    result.granted -= lease->left();
    result.objects += static_cast<std::uint64_t>(lease->objects());
    if (++leases > 1) continue;
    most_requested -= lease->least_requested_left();
    most_granted -= lease->least_left();
  }
  if (leases > 1) {
    most_requested = get(requested_);
    most_granted = get(granted_);
    result.peak_error = std::max(result.peak_error, get(leased_));
  }
  result.peak_requested = std::max(get(peak_requested_), most_requested);
  result.peak_granted = std::max(get(peak_granted_), most_granted);
  return result;
}

std::uint64_t Account::granted() const noexcept {
  const std::lock_guard<ShortLock> guard(root_->lock_);
  return granted_locked();
}

std::uint64_t Account::granted_locked() const noexcept {
  return get(root_->leased_) == 0 ? get(granted_) : figures().granted;
}

AccountStatistics Account::statistics() const {
  AccountStatistics result;
  {
    const std::lock_guard<ShortLock> guard(root_->lock_);
    result = figures();
  }
  result.path = path();
  return result;
}

std::vector<AccountStatistics> Account::report() const {
  std::vector<const Account*> accounts;
  std::vector<AccountStatistics> rows;
  const std::lock_guard<std::mutex> structure(root_->structure_);
  collect(this, &accounts);
  rows.reserve(accounts.size());
  {
    // One moment for all rows: only so do children add up to their parent.
    const std::lock_guard<ShortLock> guard(root_->lock_);
    for (const Account* account : accounts) rows.push_back(account->figures());
  }
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].path = accounts[i]->path();
  return rows;
}

}  // namespace nbx
