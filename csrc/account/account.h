// One count of every byte: a tree of accounts (device -> kind -> tags), with limits and peaks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace nbx {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// Figures of one account, its descendants included. Bytes unless the name says otherwise.
struct AccountStatistics {
  std::string path;              // "sim:0/device/weights/layer.3"; the root is the device's name
  std::uint64_t requested;       // what callers asked for
  std::uint64_t granted;         // what blocks hold: requested rounded to the heap's granule
  std::uint64_t peak_requested;
  std::uint64_t peak_granted;
  std::uint64_t objects;         // live storages
  std::uint64_t limit;           // kUnlimited if none
  std::uint64_t soft_limit;
};

class Account {
 public:
  Account(std::string name, Account* parent);
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  [[nodiscard]] Account* parent() const noexcept { return parent_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
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
  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t granted() const noexcept {
    return granted_.load(std::memory_order_relaxed);
  }

  void reset_peak() noexcept;  // of this account and its descendants
  [[nodiscard]] AccountStatistics statistics() const;
  /// This account and its descendants, depth first, children in order of creation.
  [[nodiscard]] std::vector<AccountStatistics> report() const;

 private:
  friend class AccountTreeLock;
  std::string name_;
  Account* parent_;
  std::vector<std::unique_ptr<Account>> children_;
  std::atomic<std::uint64_t> requested_{0}, granted_{0}, peak_requested_{0}, peak_granted_{0};
  std::atomic<std::uint64_t> objects_{0}, limit_{kUnlimited}, soft_limit_{kUnlimited};
};

}  // namespace nbx
