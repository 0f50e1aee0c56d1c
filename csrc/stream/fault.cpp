#include "stream/fault.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace nbx {
namespace {

constexpr std::size_t kMaximumSites = 1 << 15;
constexpr int kIndexBits = 48;

struct Site {
  std::string op;
  std::string what;
};

struct Faults {
  std::mutex mutex;
  std::map<const Device*, Error> first;
  std::atomic<int> count{0};
  // Of the devices whose kernels have reported a site: words that the device writes.
  std::map<const Device*, volatile std::int64_t*> words;
  std::atomic<int> word_count{0};
  std::vector<Site> sites;
};

Faults& faults() {
  static Faults table;
  return table;
}

/// The error that kernels of the device have left, as one of queued work.
void collect_word(Faults& table, const Device& device) {
  const auto found = table.words.find(&device);
  if (found == table.words.end() || found->second == nullptr || *found->second == 0) return;
  const std::int64_t word = *found->second;
  *found->second = 0;
  // The index is signed: its sign bit is the topmost of its bits.
  const auto shifted = static_cast<std::uint64_t>(word) << (64 - kIndexBits);
  const std::int64_t index = static_cast<std::int64_t>(shifted) >> (64 - kIndexBits);
  const auto number = static_cast<std::size_t>(static_cast<std::uint64_t>(word) >> kIndexBits);
  if (number >= table.sites.size()) return;
  const Site& site = table.sites[number];
  Error error(ErrorKind::kIndex, site.op + ": index " + std::to_string(index) +
                                     " is out of bounds for " + site.what);
  if (table.first.try_emplace(&device, std::move(error)).second) {
    table.count.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace

FaultSite fault_site(Device& device, const std::string& op, const std::string& what) {
  Faults& table = faults();
  const std::lock_guard lock(table.mutex);
  volatile std::int64_t*& word = table.words[&device];
  const Primitives& primitives = device.primitives();
  if (word == nullptr) {
    if (!supports(primitives, Primitive::k_host_allocate) ||
        !supports(primitives, Primitive::k_device_address)) {
      table.words.erase(&device);
      return {0, 0};
    }
    void* memory = nullptr;
    device.check(primitives.host_allocate(device.ordinal(), 64, &memory), "host_allocate");
    word = static_cast<volatile std::int64_t*>(memory);
    *word = 0;
    table.word_count.fetch_add(1, std::memory_order_release);
  }
  DeviceAddress address = 0;
  device.check(primitives.device_address(
                   device.ordinal(), const_cast<const std::int64_t*>(word), &address),
               "device_address");
  if (table.sites.empty()) table.sites.push_back({});  // a word of 0 is no fault
  if (table.sites.size() < kMaximumSites) table.sites.push_back({op, what});
  return {address, static_cast<std::int32_t>(table.sites.size() - 1)};
}

void record_fault(Device& device, Error error) noexcept {
  Faults& table = faults();
  const std::lock_guard lock(table.mutex);
  if (table.first.try_emplace(&device, std::move(error)).second) {
    table.count.fetch_add(1, std::memory_order_release);
  }
}

void raise_fault(Device& device) {
  Faults& table = faults();
  if (table.count.load(std::memory_order_acquire) == 0 &&
      table.word_count.load(std::memory_order_acquire) == 0) {
    return;
  }
  const std::lock_guard lock(table.mutex);
  collect_word(table, device);
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
