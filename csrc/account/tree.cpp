// Accounts that come and go: a program may name a tag for every request it serves.
#include <algorithm>

#include "account/account.h"
#include "core/error.h"

namespace nbx {

// ---- making --------------------------------------------------------------------------------

/// Numbers are used again, as events have few bits for them; late, so that what was recorded of an
/// account that is gone still has its name.
std::uint32_t Account::next_id() {
  if (pruned_.size() < kPrunedNames) return ++ids_;
  const std::uint32_t id = pruned_.front().first;
  pruned_.pop_front();
  return id;
}

Account& Account::open(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) {
    throw Error(ErrorKind::kValue, "account: the name '" + name +
                                       "' is empty or holds a '/'; give one part of a path");
  }
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return *known->second;
  children_.reserve(children_.size() + 1);
  auto made = std::make_unique<Account>(name, this);
  by_name_.emplace(made->name_, made.get());
  children_.push_back(std::move(made));
  return *children_.back();
}

Account& Account::child(const std::string& name) {
  const std::lock_guard<std::mutex> guard(root_->structure_);
  return open(name);
}

AccountHold Account::descend(const std::vector<std::string>& names, std::uint64_t* version) {
  const std::lock_guard<std::mutex> guard(root_->structure_);
  AccountHold at(*this);
  for (const std::string& name : names) {
    // What was made on the way is held, so that it stays.
    if (at->children_.size() >= at->prune_at_ && at->by_name_.count(name) == 0) {
      at->prune_structure();
      at->prune_at_ = std::max(kFewChildren, 2 * at->children_.size());
    }
    at = AccountHold(at->open(name));
  }
  if (version != nullptr) *version = root_->version_;
  return at;
}

bool Account::hold_again(const Account* account, std::uint64_t version) const noexcept {
  const std::lock_guard<std::mutex> guard(root_->structure_);
  if (root_->version_ != version) return false;
  account->hold();
  return true;
}

std::vector<AccountHold> Account::subtree() {
  std::vector<Account*> accounts;
  std::vector<AccountHold> held;
  const std::lock_guard<std::mutex> structure(root_->structure_);
  collect(this, &accounts);
  held.reserve(accounts.size());
  for (Account* account : accounts) held.emplace_back(*account);
  return held;
}

// ---- ending --------------------------------------------------------------------------------

/// The lock is held, and no lease is out.
bool Account::is_needed() const noexcept {
  return holds_.load(std::memory_order_acquire) != 0 || get(objects_) != 0 ||
         get(limit_) != kUnlimited || get(soft_limit_) != kUnlimited || scopes_ != nullptr ||
         crossed_ || !children_.empty() ||
         (get(requested_) | get(granted_) | get(asleep_) | get(leased_)) != 0;
}

/// Children first; `gone` has room for all.
void Account::sweep(std::vector<std::unique_ptr<Account>>* gone) noexcept {
  for (auto& below : children_) {
    below->sweep(gone);
    if (below->is_needed()) continue;
    by_name_.erase(below->name_);
    gone->push_back(std::move(below));
  }
  children_.erase(std::remove(children_.begin(), children_.end(), nullptr), children_.end());
}

std::size_t Account::prune_structure() {
  std::vector<Account*> accounts;
  std::vector<std::unique_ptr<Account>> gone;
  collect(this, &accounts);
  gone.reserve(accounts.size());
  // Nobody has a lease of an account that ends, and every count is exact.
  without_leases([&] { sweep(&gone); });
  if (!gone.empty()) ++root_->version_;
  for (const auto& account : gone) root_->pruned_.emplace_back(account->id_, account->path());
  return gone.size();
}

std::size_t Account::prune() {
  const std::lock_guard<std::mutex> guard(root_->structure_);
  return prune_structure();
}

std::vector<std::pair<std::uint32_t, std::string>> Account::pruned() const {
  const std::lock_guard<std::mutex> guard(root_->structure_);
  return {root_->pruned_.begin(), root_->pruned_.end()};
}

}  // namespace nbx
