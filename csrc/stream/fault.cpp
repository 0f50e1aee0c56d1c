#include "stream/fault.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace nbx {
namespace {

struct Faults {
  std::mutex mutex;
  std::map<const Device*, Error> first;
  std::atomic<int> count{0};
};

Faults& faults() {
  static Faults table;
  return table;
}

}  // namespace

void record_fault(Device& device, Error error) noexcept {
  Faults& table = faults();
  const std::lock_guard lock(table.mutex);
  if (table.first.try_emplace(&device, std::move(error)).second) {
    table.count.fetch_add(1, std::memory_order_release);
  }
}

void raise_fault(Device& device) {
  Faults& table = faults();
  if (table.count.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(table.mutex);
  const auto found = table.first.find(&device);
  if (found == table.first.end()) return;
  Error error(found->second.kind(), device.name() + ": " + found->second.what());
  for (const auto& [name, value] : found->second.figures()) error.with(name, value);
  table.first.erase(found);
  table.count.fetch_sub(1, std::memory_order_release);
  throw error;
}

void fault_lock() noexcept { faults().mutex.lock(); }
void fault_unlock() noexcept { faults().mutex.unlock(); }

}  // namespace nbx
