#include "storage/late.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "account/lock.h"
#include "core/log.h"
#include "stream/callback.h"

namespace nbx {
namespace {

/// Never destroyed: storages may die after static destructors have run.
struct Late {
  ShortLock lock;
  std::vector<LateOwner> owners;  // late_owner_count of them, and those that are being looked at
};

Late& late() {
  static auto* const instance = std::make_unique<Late>().release();
  return *instance;
}

void finish(const LateOwner& owner) noexcept {
  if (owner.counted != 0) owner.account->release(owner.counted, owner.counted);
  owner.finalizer(owner.owner);
}

bool is_over(const BlockUse& use) {
  const BlockUse work = resolved(use);
  return work.ticket == 0 || completed_ticket(work.stream, work.ticket) >= work.ticket;
}

}  // namespace

void finish_owner(LateOwner owner) noexcept {
  if (owner.uses.empty()) {
    finish(owner);
    return;
  }
  try {
    const std::lock_guard<ShortLock> guard(late().lock);
    late().owners.push_back(std::move(owner));
    late_owner_count.fetch_add(1, std::memory_order_release);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("storage: the borrowed memory is kept: ") + error.what());
  }
}

void finish_late_owners() noexcept {
  if (inside_callback()) return;
  Late& all = late();
  std::vector<LateOwner> owners;
  {
    const std::lock_guard<ShortLock> guard(all.lock);
    owners.swap(all.owners);
  }
  for (LateOwner& owner : owners) {
    bool over = false;
    try {
      over = std::all_of(owner.uses.begin(), owner.uses.end(), is_over);
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("storage: ") + error.what());
    }
    late_owner_count.fetch_sub(1, std::memory_order_release);
    if (over) owner.uses.clear();
    finish_owner(std::move(owner));
  }
}

}  // namespace nbx
