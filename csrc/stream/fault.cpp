#include "stream/fault.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace nbx {
namespace {

constexpr std::size_t kMaximumSites = 1 << 15;
constexpr std::size_t kMaximumDevices = 64;  // that report wrong indices
constexpr int kIndexBits = 48;

struct Site {
  std::string op;
  std::string what;
};

struct Faults {
  std::mutex mutex;
  std::map<const Device*, Error> first;  // fault_count of them
  // Of the devices whose kernels have reported a site: words that the device writes.
  std::map<const Device*, volatile std::int64_t*> words;
  std::vector<Site> sites;
};

// What every launch looks at: the number of kept errors, and the words, read without the lock.
constinit std::atomic<int> fault_count{0};
constinit std::array<std::atomic<volatile std::int64_t*>, kMaximumDevices> listed{};
constinit std::atomic<std::size_t> listed_count{0};

Faults& faults() {
  static Faults table;
  return table;
}

/// Whether a kernel of any device has left something.
bool any_word() noexcept {
  const std::size_t count = listed_count.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    if (*listed[i].load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
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
  Error error(ErrorKind::kIndex,
              site.op + ": index " + std::to_string(index) + " is out of bounds for " + site.what);
  if (table.first.try_emplace(&device, std::move(error)).second) {
    fault_count.fetch_add(1, std::memory_order_release);
  }
}

[[gnu::cold]] void raise_kept(Device& device) {
  Faults& table = faults();
  const std::lock_guard lock(table.mutex);
  collect_word(table, device);
  const auto found = table.first.find(&device);
  if (found == table.first.end()) return;
  Error error(found->second.kind(), device.name() + ": " + found->second.what());
  for (const auto& [name, value] : found->second.figures()) error.with(name, value);
  table.first.erase(found);
  fault_count.fetch_sub(1, std::memory_order_release);
  throw error;
}

}  // namespace

FaultSite fault_site(Device& device, const std::string& op, const std::string& what) {
  Faults& table = faults();
  const std::lock_guard lock(table.mutex);
  volatile std::int64_t*& word = table.words[&device];
  const Primitives& primitives = device.primitives();
  if (word == nullptr) {
    const std::size_t count = listed_count.load(std::memory_order_relaxed);
    if (count == kMaximumDevices || !supports(primitives, Primitive::k_host_allocate) ||
        !supports(primitives, Primitive::k_device_address)) {
      table.words.erase(&device);
      return {0, 0};
    }
    void* memory = nullptr;
    device.check(primitives.host_allocate(device.ordinal(), 64, &memory), "host_allocate");
    word = static_cast<volatile std::int64_t*>(memory);
    *word = 0;
    listed[count].store(word, std::memory_order_relaxed);
    listed_count.store(count + 1, std::memory_order_release);
  }
  DeviceAddress address = 0;
  device.check(
      primitives.device_address(device.ordinal(), const_cast<const std::int64_t*>(word), &address),
      "device_address");
  if (table.sites.empty()) table.sites.push_back({});  // a word of 0 is no fault
  if (table.sites.size() < kMaximumSites) table.sites.push_back({op, what});
  return {address, static_cast<std::int32_t>(table.sites.size() - 1)};
}

void record_fault(Device& device, Error error) noexcept {
  Faults& table = faults();
  const std::lock_guard lock(table.mutex);
  if (table.first.try_emplace(&device, std::move(error)).second) {
    fault_count.fetch_add(1, std::memory_order_release);
  }
}

void raise_fault(Device& device) {
  if (fault_count.load(std::memory_order_acquire) != 0 || any_word()) [[unlikely]]
    raise_kept(device);
}

void fault_lock() noexcept { faults().mutex.lock(); }
void fault_unlock() noexcept { faults().mutex.unlock(); }

}  // namespace nbx
