// One count of every byte: a tree of accounts (device -> kind -> tags), with limits and peaks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
  std::uint64_t asleep;  // of sleeping blocks: requested, but not granted until they wake
};

class Account {
 public:
  Account(std::string name, Account* parent);
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  [[nodiscard]] Account* parent() const noexcept { return parent_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Its number in the tree, from 1 for the root on.
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] std::string path() const;
  /// The child of this name, created on first use; names hold no '/' and are not empty.
  [[nodiscard]] Account& child(const std::string& name);

  /// Adds to this account and all above it, or to none: returns the account whose limit refused,
  /// null when admitted. Called before any driver work; never throws.
  [[nodiscard]] Account* reserve(std::uint64_t requested, std::uint64_t granted) noexcept;
  void release(std::uint64_t requested, std::uint64_t granted) noexcept;

  /// Sets the limit on granted bytes and returns the former one. A limit below what is held is
  /// accepted: nothing is freed, and nothing more is admitted until it fits.
  std::uint64_t set_limit(std::uint64_t bytes) noexcept;
  std::uint64_t set_soft_limit(std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t limit() const noexcept {
    return limit_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t granted() const noexcept {
    return granted_.load(std::memory_order_relaxed);
  }

  /// The lock of the figures of this account's tree, and the same changes for a caller that holds
  /// it: a heap that shares it pays for one lock instead of two.
  [[nodiscard]] ShortLock& tree_lock() const noexcept { return root_->lock_; }
  [[nodiscard]] Account* reserve_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    for (Account* account = this; account != nullptr; account = account->parent_) {
      const std::uint64_t limit = get(account->limit_);
      const std::uint64_t held = get(account->granted_);
      // Nothing more is admitted above a limit that was set below what is held; zero bytes are.
      if (granted > (limit > held ? limit - held : 0)) [[unlikely]]
        return account;
    }
    for (Account* account = this; account != nullptr; account = account->parent_) {
      account->add(requested, granted);
    }
    return nullptr;
  }
  void release_locked(std::uint64_t requested, std::uint64_t granted) noexcept {
    for (Account* account = this; account != nullptr; account = account->parent_) {
      set(account->requested_, get(account->requested_) - requested);
      set(account->granted_, get(account->granted_) - granted);
      set(account->objects_, get(account->objects_) - 1);
    }
  }

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
    for (Account* account = this; account != nullptr; account = account->parent_) {
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

  /// This account and its descendants.
  [[nodiscard]] std::vector<Account*> subtree();

  /// Holds the list of children still while the process forks.
  void before_fork() noexcept { root_->structure_.lock(); }
  void after_fork() noexcept { root_->structure_.unlock(); }

  void reset_peak();  // of this account and its descendants
  [[nodiscard]] AccountStatistics statistics() const;
  /// This account and its descendants, depth first, children in order of creation.
  [[nodiscard]] std::vector<AccountStatistics> report() const;

 private:
  using Counter = std::atomic<std::uint64_t>;
  [[nodiscard]] static std::uint64_t get(const Counter& counter) noexcept {
    return counter.load(std::memory_order_relaxed);
  }
  static void set(Counter& counter, std::uint64_t value) noexcept {
    counter.store(value, std::memory_order_relaxed);
  }
  void add(std::uint64_t requested, std::uint64_t granted) noexcept {
    const std::uint64_t held_requested = get(requested_) + requested;
    const std::uint64_t held_granted = get(granted_) + granted;
    set(requested_, held_requested);
    set(granted_, held_granted);
    set(objects_, get(objects_) + 1);
    if (held_requested > get(peak_requested_)) set(peak_requested_, held_requested);
    if (held_granted > get(peak_granted_)) set(peak_granted_, held_granted);
  }
  void add_asleep(std::uint64_t bytes) noexcept {
    for (Account* account = this; account != nullptr; account = account->parent_) {
      set(account->asleep_, get(account->asleep_) + bytes);
    }
  }
  template <class Node>
  static void collect(Node* account, std::vector<Node*>* accounts);
  [[nodiscard]] AccountStatistics figures() const;  // with the tree's lock held; no path

  std::string name_;
  Account* parent_;
  Account* root_;
  std::uint32_t id_;
  std::uint32_t ids_ = 1;  // the root's: given out so far
  ShortLock lock_;         // the root's guards the figures of the whole tree
  std::mutex structure_;   // the root's guards the lists of children
  std::vector<std::unique_ptr<Account>> children_;
  // Written under the lock only; atomic so that single figures can be read without it.
  Counter requested_{0}, granted_{0}, peak_requested_{0}, peak_granted_{0};
  Counter objects_{0}, asleep_{0}, limit_{kUnlimited}, soft_limit_{kUnlimited};
};

}  // namespace nbx
