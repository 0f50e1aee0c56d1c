#include "account/account.h"

#include "core/error.h"

namespace nbx {
Account::Account(std::string name, Account* parent)
    : name_(std::move(name)),
      parent_(parent),
      root_(parent == nullptr ? this : parent->root_),
      id_(parent == nullptr ? 1 : ++root_->ids_) {}

std::string Account::path() const {
  return parent_ == nullptr ? name_ : parent_->path() + "/" + name_;
}

Account& Account::child(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) {
    throw Error(ErrorKind::kValue, "account: the name '" + name +
                                       "' is empty or holds a '/'; give one part of a path");
  }
  const std::lock_guard<std::mutex> guard(root_->structure_);
  for (const auto& known : children_) {
    if (known->name_ == name) return *known;
  }
  children_.push_back(std::make_unique<Account>(name, this));
  return *children_.back();
}

Account* Account::reserve(std::uint64_t requested, std::uint64_t granted) noexcept {
  const std::lock_guard<ShortLock> guard(root_->lock_);
  return reserve_locked(requested, granted);
}

void Account::release(std::uint64_t requested, std::uint64_t granted) noexcept {
  const std::lock_guard<ShortLock> guard(root_->lock_);
  release_locked(requested, granted);
}

std::uint64_t Account::set_limit(std::uint64_t bytes) noexcept {
  const std::lock_guard<ShortLock> guard(root_->lock_);
  return limit_.exchange(bytes, std::memory_order_relaxed);
}

std::uint64_t Account::set_soft_limit(std::uint64_t bytes) noexcept {
  const std::lock_guard<ShortLock> guard(root_->lock_);
  return soft_limit_.exchange(bytes, std::memory_order_relaxed);
}

template <class Node>
void Account::collect(Node* account, std::vector<Node*>* accounts) {
  accounts->push_back(account);
  for (const auto& below : account->children_) collect<Node>(below.get(), accounts);
}

std::vector<Account*> Account::subtree() {
  std::vector<Account*> accounts;
  const std::lock_guard<std::mutex> structure(root_->structure_);
  collect(this, &accounts);
  return accounts;
}

AccountStatistics Account::figures() const {
  return AccountStatistics{std::string(),        get(requested_),    get(granted_),
                           get(peak_requested_), get(peak_granted_), get(objects_),
                           get(limit_),          get(soft_limit_),   get(asleep_)};
}

void Account::reset_peak() {
  std::vector<Account*> accounts;
  const std::lock_guard<std::mutex> structure(root_->structure_);
  collect(this, &accounts);
  const std::lock_guard<ShortLock> guard(root_->lock_);
  for (Account* account : accounts) {
    set(account->peak_requested_, get(account->requested_));
    set(account->peak_granted_, get(account->granted_));
  }
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
