// One count of every byte: a tree of accounts (device -> kind -> tags), with limits and peaks.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "account/lease.h"
#include "account/lock.h"

namespace nbx {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// Figures of one account, its descendants included. Bytes unless the name says otherwise.
struct AccountStatistics {
  std::string path;         // "sim:0/device/weights/layer.3"; the root is the device's name
  std::uint64_t requested;  // what callers asked for
  std::uint64_t granted;    // what blocks hold: requested rounded to the heap's granule
  std::uint64_t peak_requested;
  std::uint64_t peak_granted;
  std::uint64_t objects;  // live storages
  std::uint64_t limit;    // kUnlimited if none
  std::uint64_t soft_limit;
  std::uint64_t asleep;          // of sleeping blocks: requested, but not granted until they wake
  std::uint64_t soft_crossings;  // how often allocations went from below the soft limit to above
  std::uint64_t peak_error;      // the peaks may be too high by this: what other threads had leased
  std::uint64_t mapped;          // what its blocks keep from the driver; only in a device's report
  std::uint32_t id;              // Account::id
  std::uint32_t parent;          // of the account above; 0 for the root
};

/// The most that an account held since some moment; the figure may be too high by `error`.
struct PeakFigures {
  std::uint64_t requested = 0;
  std::uint64_t granted = 0;
  std::uint64_t error = 0;
};

class AccountHold;

/// Lives until a `prune` finds that nobody needs it: it counts no object, has no limit, no peak
/// scope, no child, and no hold. So a reference to it is good while one of these is there.
class Account {
 public:
  Account(std::string name, Account* parent);
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  [[nodiscard]] Account* parent() const noexcept { return parent_; }
  [[nodiscard]] const Account& root() const noexcept { return *root_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Its number in the tree, from 1 for the root on. Of an account that was pruned it is not given
  /// again before `kPrunedNames` others were.
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] std::string path() const;
  /// The child of this name, created on first use; names hold no '/' and are not empty. For an
  /// account that stays in use: nothing keeps it from a `prune`.
  [[nodiscard]] Account& child(const std::string& name);

  // ---- accounts that come and go (tree.cpp) ----------------------------------------------------
  static constexpr std::size_t kPrunedNames = std::size_t{1} << 14;
  void hold() const noexcept { holds_.fetch_add(1, std::memory_order_relaxed); }
  void drop() const noexcept { holds_.fetch_sub(1, std::memory_order_release); }
  /// The account that these names lead to, made on first use. Accounts that are in the way of
  /// many new ones are pruned first. `version`: for `hold_again`.
  [[nodiscard]] AccountHold descend(const std::vector<std::string>& names,
                                    std::uint64_t* version = nullptr);
  /// Holds an account of this tree that was held at `version`; false if it may be gone.
  [[nodiscard]] bool hold_again(const Account* account, std::uint64_t version) const noexcept;
  /// Ends the accounts below this one that nobody needs; returns how many.
  std::size_t prune();
  /// (id, path) of pruned accounts, the newest last.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::string>> pruned() const;
  /// This account and its descendants.
  [[nodiscard]] std::vector<AccountHold> subtree();

  /// Adds to this account and all above it, or to none: returns the account whose limit refused,
  /// null when admitted. What threads have leased is taken back before anything is refused. Called
  /// before any driver work; never throws.
  [[nodiscard]] Account* reserve(std::uint64_t requested, std::uint64_t granted) noexcept;
  void release(std::uint64_t requested, std::uint64_t granted) noexcept;

  /// Sets the limit on granted bytes and returns the former one. A limit below what is held is
  /// accepted: nothing is freed, and nothing more is admitted until it fits.
  std::uint64_t set_limit(std::uint64_t bytes) noexcept;
  std::uint64_t set_soft_limit(std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t limit() const noexcept {
    return limit_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t soft_limit() const noexcept {
    return soft_limit_.load(std::memory_order_relaxed);
  }
  /// Takes the tree's lock, as the figures of leases are added.
  [[nodiscard]] std::uint64_t granted() const noexcept;

  /// Changes what one object counts as, `former` bytes so far; 0 bytes are no object. The account
  /// that refused, and nothing has changed then, or null.
  [[nodiscard]] Account* recount(std::uint64_t former, std::uint64_t bytes) noexcept;

  /// True while an account of the tree has gone above its soft limit and nobody has looked at it.
  [[nodiscard]] bool has_crossings() const noexcept { return get(root_->crossings_) != 0; }
  /// Those accounts, which count as looked at from here on. Throws std::bad_alloc.
  [[nodiscard]] std::vector<AccountHold> take_crossings();
  /// Bytes above the soft limit; takes all leases back, so that it is exact.
  [[nodiscard]] std::uint64_t soft_excess() noexcept;

  /// The lock of the figures of this account's tree, and the same changes for a caller that holds
  /// it: a heap that shares it pays for one lock instead of two.
  [[nodiscard]] ShortLock& tree_lock() const noexcept { return root_->lock_; }
  [[nodiscard]] Account* reserve_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    if (get(root_->leased_) != 0) [[unlikely]]
      fold_own_locked();
    if (Account* refused = refuses(granted)) [[unlikely]]
      return refused;
    for (Account* account = this; account != nullptr; account = account->parent_) {
      account->add(requested, granted);
      account->note_peak(nullptr);
    }
    return nullptr;
  }
  void release_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    if (get(root_->leased_) != 0) [[unlikely]]
      fold_own_locked();
    for (Account* account = this; account != nullptr; account = account->parent_) {
      if (get(account->leased_) != 0) account->note_peak(nullptr);
      set(account->requested_, get(account->requested_) - requested);
      set(account->granted_, get(account->granted_) - granted);
      set(account->objects_, get(account->objects_) - 1);
    }
  }

  [[nodiscard]] std::uint64_t granted_locked() const noexcept;

  // ---- with the tree's lock held, and no new object: what is held comes, goes or sleeps --------
  [[nodiscard]] Account* extend_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    Account* refused = reserve_locked(requested, granted);
    if (refused != nullptr) return refused;
    for (Account* account = this; account != nullptr; account = account->parent_) {
      set(account->objects_, get(account->objects_) - 1);
    }
    return nullptr;
  }
  void shrink_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    if (get(root_->leased_) != 0) [[unlikely]]
      fold_own_locked();
    for (Account* account = this; account != nullptr; account = account->parent_) {
      if (get(account->leased_) != 0) account->note_peak(nullptr);
      set(account->requested_, get(account->requested_) - requested);
      set(account->granted_, get(account->granted_) - granted);
    }
  }
  /// The budget of a sleeping block's bytes is free for others.
  void sleep_locked(std::uint64_t granted) noexcept {
    shrink_locked(0, granted);
    add_asleep(granted);
  }
  /// Admits them again: the account that refused, or null.
  [[nodiscard]] Account* wake_locked(std::uint64_t granted) noexcept {
    Account* refused = extend_locked(0, granted);
    if (refused == nullptr) add_asleep(-granted);
    return refused;
  }
  /// A sleeping block is freed.
  void release_asleep_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    add_asleep(-granted);
    release_locked(requested, 0);
  }

  // ---- leases: bytes counted ahead for one thread
  // ------------------------------------------------
  /// A lease for the calling thread, to be renewed; lives as long as the tree. Throws
  /// std::bad_alloc.
  [[nodiscard]] Lease& open_lease();
  /// The lease is another's from here on. The lock is held, and the lease is folded.
  static void close_lease(Lease& lease) noexcept { lease.owner = nullptr; }
  /// For the owner of `lease`, with the lock held: counts an object here, exactly, and leases what
  /// is likely to be asked for next. Returns the account that refused, or null.
  [[nodiscard]] Account* renew_locked(Lease& lease, std::uint64_t requested,
                                      std::uint64_t granted) noexcept;
  /// The same for an object that is given back.
  void renew_released_locked(Lease& lease, std::uint64_t requested, std::uint64_t granted) noexcept;
  /// What was used is counted, the rest is free for others. With the lock held, and by the owner or
  /// while it is kept out.
  static void fold_locked(Lease& lease) noexcept;
  /// Takes all leases of the tree back, and gives none until `admit`, which is called with the
  /// lock held, has returned.
  template <class Admit>
  void without_leases(const Admit& admit) noexcept {
    Lease* const leases = root_->begin_recall();
    {
      const std::lock_guard<ShortLock> guard(root_->lock_);
      for (Lease* lease = leases; lease != nullptr; lease = lease->next) fold_locked(*lease);
      admit();
      --root_->recalls_;
      for (Lease* lease = leases; lease != nullptr; lease = lease->next) lease->gate.open();
    }
  }
  [[nodiscard]] bool has_leases() const noexcept { return get(root_->leased_) != 0; }

  // ---- peaks of a stretch of time
  // ----------------------------------------------------------------
  /// Starts to note the most that this account holds. Scopes may nest and overlap.
  [[nodiscard]] std::uint64_t begin_peak();
  /// The most since `begin_peak`; throws Error(kValue) for a scope that does not run.
  [[nodiscard]] PeakFigures peak(std::uint64_t scope) const;
  PeakFigures end_peak(std::uint64_t scope);

  /// Holds the list of children still while the process forks.
  void before_fork() noexcept { root_->structure_.lock(); }
  /// In the child no recall that another thread had begun goes on.
  void after_fork(bool child = false) noexcept {
    if (child) root_->recalls_ = 0;
    root_->structure_.unlock();
  }

  void reset_peak();  // of this account and its descendants
  [[nodiscard]] AccountStatistics statistics() const;
  /// This account and its descendants, depth first, children in order of creation.
  [[nodiscard]] std::vector<AccountStatistics> report() const;

 private:
  using Counter = std::atomic<std::uint64_t>;
  struct PeakScope;
  static constexpr std::size_t kFewChildren = 128;  // are not looked through for what may go

  [[nodiscard]] static std::uint64_t get(const Counter& counter) noexcept {
    return counter.load(std::memory_order_relaxed);
  }
  static void set(Counter& counter, std::uint64_t value) noexcept {
    counter.store(value, std::memory_order_relaxed);
  }
  /// The first account from here up that has no room for `granted`.
  [[nodiscard]] Account* refuses(std::uint64_t granted) noexcept {
    for (Account* account = this; account != nullptr; account = account->parent_) {
      const std::uint64_t limit = get(account->limit_);
      const std::uint64_t held = get(account->granted_);
      // Nothing more is admitted above a limit that was set below what is held; zero bytes are.
      if (granted > (limit > held ? limit - held : 0)) [[unlikely]]
        return account;
    }
    return nullptr;
  }
  void add(std::uint64_t requested, std::uint64_t granted) noexcept {
    const std::uint64_t held = get(granted_), soft = get(soft_limit_);
    set(requested_, get(requested_) + requested);
    set(granted_, held + granted);
    set(objects_, get(objects_) + 1);
    if (held <= soft && held + granted > soft) [[unlikely]]
      note_crossing();
  }
  /// What is held now may be a peak. `own`: the lease whose use is known; what others have leased
  /// is taken for used.
  void note_peak(const Lease* own) noexcept {
    const std::uint64_t leased = get(leased_);
    const bool exact = leased == (own == nullptr ? 0 : own->size);
    const bool known = own != nullptr && exact;
    const std::uint64_t held_requested =
        get(requested_) - (known ? own->least_requested_left() : 0);
    const std::uint64_t held_granted = get(granted_) - (known ? own->least_left() : 0);
    if (held_requested > get(peak_requested_)) set(peak_requested_, held_requested);
    if (held_granted > get(peak_granted_)) set(peak_granted_, held_granted);
    if (!exact && leased > get(peak_error_)) set(peak_error_, leased);
    if (scopes_ != nullptr) [[unlikely]]
      note_scopes(held_requested, held_granted, exact ? 0 : leased);
  }
  void add_asleep(std::uint64_t bytes) noexcept {
    for (Account* account = this; account != nullptr; account = account->parent_) {
      set(account->asleep_, get(account->asleep_) + bytes);
    }
  }
  void note_scopes(std::uint64_t requested, std::uint64_t granted, std::uint64_t error) noexcept;
  void note_crossing() noexcept;
  void fold_own_locked() noexcept;
  void grant_locked(Lease& lease, std::uint64_t size) noexcept;
  [[nodiscard]] std::uint64_t lease_size(const Lease& lease, std::uint64_t granted) const noexcept;
  [[nodiscard]] Lease* begin_recall() noexcept;
  [[nodiscard]] bool contains(const Account& other) const noexcept;
  template <class Node>
  static void collect(Node* account, std::vector<Node*>* accounts) {
    accounts->push_back(account);
    for (const auto& below : account->children_) collect<Node>(below.get(), accounts);
  }
  [[nodiscard]] AccountStatistics figures() const;  // with the tree's lock held; no path
  // With `structure_` held.
  [[nodiscard]] Account& open(const std::string& name);
  [[nodiscard]] std::uint32_t next_id();
  std::size_t prune_structure();
  void sweep(std::vector<std::unique_ptr<Account>>* gone) noexcept;
  [[nodiscard]] bool is_needed() const noexcept;

  std::string name_;
  Account* parent_;
  Account* root_;
  std::uint32_t id_;
  ShortLock lock_;        // the root's guards the figures of the whole tree
  std::mutex structure_;  // the root's guards what follows
  std::vector<std::unique_ptr<Account>> children_;  // in order of creation
  std::unordered_map<std::string_view, Account*> by_name_;
  std::size_t prune_at_ = kFewChildren;
  // Of the root: numbers given out, and of accounts that are gone.
  std::uint32_t ids_ = 1;
  std::uint64_t version_ = 0;  // goes up when accounts end
  std::deque<std::pair<std::uint32_t, std::string>> pruned_;

  mutable std::atomic<std::uint32_t> holds_{0};
  // Written under the lock only; atomic so that single figures can be read without it.
  Counter requested_{0}, granted_{0}, peak_requested_{0}, peak_granted_{0};
  Counter objects_{0}, asleep_{0}, limit_{kUnlimited}, soft_limit_{kUnlimited};
  Counter leased_{0};  // by leases of this account and below; the figures above hold their rest
  Counter soft_crossings_{0}, peak_error_{0};
  bool crossed_ = false;  // since somebody looked
  std::unique_ptr<PeakScope> scopes_;
  // Of the root: how many accounts have crossed, all leases, which are used again, and how many
  // recalls run.
  Counter crossings_{0};
  std::atomic<Lease*> leases_{nullptr};
  std::uint32_t recalls_ = 0;
  std::uint64_t next_scope_ = 1;
};

/// Keeps an account alive.
class AccountHold {
 public:
  AccountHold() = default;
  /// Something keeps the account while this is made.
  explicit AccountHold(Account& account) noexcept : account_(&account) { account.hold(); }
  AccountHold(const AccountHold& other) noexcept : account_(other.account_) {
    if (account_ != nullptr) account_->hold();
  }
  AccountHold(AccountHold&& other) noexcept : account_(std::exchange(other.account_, nullptr)) {}
  AccountHold& operator=(AccountHold other) noexcept {
    std::swap(account_, other.account_);
    return *this;
  }
  ~AccountHold() {
    if (account_ != nullptr) account_->drop();
  }

  [[nodiscard]] Account* get() const noexcept { return account_; }
  [[nodiscard]] Account& operator*() const noexcept { return *account_; }
  [[nodiscard]] Account* operator->() const noexcept { return account_; }

 private:
  Account* account_ = nullptr;
};

}  // namespace nbx
