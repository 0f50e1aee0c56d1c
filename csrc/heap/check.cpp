#include "heap/check.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/environment.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "heap/records.h"
#include "stream/callback.h"
#include "stream/fault.h"

namespace nbx {
namespace {

// Patterns that differ from one allocation to the next, so that old contents do not pass for new
// ones; none is zero.
std::uint8_t guard_pattern(std::uint32_t number) noexcept {
  return static_cast<std::uint8_t>(0x50 + number % 15);
}
std::uint8_t fresh_pattern(std::uint32_t number) noexcept {
  return static_cast<std::uint8_t>(0xa0 + number % 15);
}
std::uint8_t freed_pattern(std::uint32_t number) noexcept {
  return static_cast<std::uint8_t>(0xd0 + number % 15);
}

std::string hex(std::uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (; value != 0 || text.empty(); value >>= 4) text.insert(text.begin(), kDigits[value & 15]);
  return "0x" + text;
}

/// All checkers, so that a block of another heap is named as such.
struct Checkers {
  std::mutex mutex;
  std::vector<std::pair<const Checker*, std::string>> known;
};
Checkers& checkers() {
  static auto* const instance = std::make_unique<Checkers>().release();
  return *instance;
}

bool covers(const BlockUse& use, const BlockUse& work) noexcept {
  if (use.stream == work.stream) return use.ticket >= work.ticket;
  return use.ticket != 0 && !is_capture(use.stream) && is_ordered(use.stream, work, use.ticket);
}

}  // namespace

std::unique_ptr<Checker> make_checker(Heap& heap, Device& device) {
  if (!environment_flag("NBX_MEMORY_CHECK")) return nullptr;
  return std::make_unique<Checker>(heap, device);
}

Checker::Checker(Heap& heap, Device& device) : heap_(heap), device_(device) {
  const std::lock_guard<std::mutex> guard(checkers().mutex);
  checkers().known.emplace_back(this, device.name());
}

Checker::~Checker() {
  flush();
  const std::lock_guard<std::mutex> guard(checkers().mutex);
  auto& known = checkers().known;
  known.erase(std::remove_if(known.begin(), known.end(),
                             [&](const auto& other) { return other.first == this; }),
              known.end());
}

// ---- reports -------------------------------------------------------------------------------

void Checker::report(std::string text) noexcept {
  try {
    log(LogLevel::kError, "check: " + text);
    record_fault(device_, Error(ErrorKind::kDevice, "check: " + text));
    const Lock lock(mutex_);
    reports_.push_back(std::move(text));
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("check: a report is lost: ") + error.what());
  }
}

std::vector<std::string> Checker::reports() const {
  const Lock lock(mutex_);
  return reports_;
}

std::string Checker::name_of(const Entry& entry) const {
  return "block " + std::to_string(entry.raw.id) + " of " + std::to_string(entry.bytes) +
         " bytes at " + hex(entry.address) + ", tag '" + entry.tag + "'";
}

// ---- bytes ---------------------------------------------------------------------------------

void Checker::fill(DeviceAddress address, std::uint64_t bytes, std::uint8_t value,
                   StreamHandle stream) {
  if (bytes == 0) return;
  device_.check(device_.primitives().fill(device_.ordinal(), address, value, 1, bytes, stream),
                "fill");
}

std::uint64_t Checker::first_other(DeviceAddress address, std::uint64_t bytes, std::uint8_t value) {
  if (bytes == 0) return 0;
  const auto other = [&](const std::byte* data) {
    return static_cast<std::uint64_t>(
        std::find_if(data, data + bytes, [&](std::byte b) { return b != std::byte{value}; }) -
        data);
  };
  if (device_.host_readable()) return other(reinterpret_cast<const std::byte*>(address));
  std::vector<std::byte> host(bytes);
  const Primitives& table = device_.primitives();
  const BlockingScope scope;
  device_.check(table.copy(device_.ordinal(), reinterpret_cast<DeviceAddress>(host.data()), address,
                           bytes, CopyKind::kDeviceToHost, 0),
                "copy");
  device_.check(table.stream_synchronize(device_.ordinal(), 0), "stream_synchronize");
  return other(host.data());
}

void Checker::arm(Entry* entry, Stream& stream) {
  // What a graph will run must not hold the fills, and a callback makes no driver call.
  if (stream.is_captured() || inside_callback() || device_.primitives().fill == nullptr) return;
  const std::uint8_t guard = guard_pattern(entry->number);
  fill(entry->raw.address, entry->guard, guard, stream.handle());
  fill(entry->address, entry->bytes, fresh_pattern(entry->number), stream.handle());
  const DeviceAddress end = entry->address + entry->bytes;
  fill(end, entry->guard, guard, stream.handle());
  entry->armed = true;
  if (probed_) return;
  // Where memory is only an address there is nothing to look at.
  probed_ = true;
  const BlockingScope scope;
  wait_for(stream.use());
  readable_ = first_other(entry->raw.address, entry->guard, guard) == entry->guard;
}

void Checker::verify_guards(const Entry& entry) {
  if (!entry.armed || !readable_) return;
  const std::uint8_t pattern = guard_pattern(entry.number);
  const std::uint64_t before = first_other(entry.raw.address, entry.guard, pattern);
  if (before != entry.guard) {
    report("a byte before " + name_of(entry) + " was written, at offset -" +
           std::to_string(entry.guard - before));
  }
  const std::uint64_t after = first_other(entry.address + entry.bytes, entry.guard, pattern);
  if (after != entry.guard) {
    report("a byte past the end of " + name_of(entry) + " was written, at offset " +
           std::to_string(entry.bytes + after));
  }
}

void Checker::verify_poison(const Entry& entry) {
  if (!entry.armed || !readable_) return;
  const std::uint64_t at = first_other(entry.address, entry.bytes, freed_pattern(entry.number));
  if (at != entry.bytes) {
    report("freed memory was written: " + name_of(entry) + ", at offset " + std::to_string(at));
  }
}

// ---- allocate and free ---------------------------------------------------------------------

Block Checker::allocate(std::uint64_t bytes, std::uint64_t alignment, Stream& stream,
                        Account& account, Lifetime lifetime) {
  run_late();
  Entry entry;
  entry.bytes = bytes;
  entry.guard = bytes == 0 ? 0 : std::max(kGuard, alignment);
  const std::uint64_t whole = bytes + 2 * entry.guard;
  try {
    entry.raw = heap_.allocate(whole, alignment, stream, account, lifetime);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    flush();
    entry.raw = heap_.allocate(whole, alignment, stream, account, lifetime);
  }
  if (bytes == 0) return entry.raw;
  const Lock lock(mutex_);
  try {
    entry.address = entry.raw.address + entry.guard;
    entry.account = &account;
    entry.tag = account.path();
    entry.number = ++numbers_;
    auto next = live_.upper_bound(entry.address);
    const bool meets_next =
        next != live_.end() && next->second.raw.address < entry.raw.address + whole;
    if (meets_next || (next != live_.begin() &&
                       std::prev(next)->second.raw.address + std::prev(next)->second.raw.granted >
                           entry.raw.address)) {
      report("two live blocks overlap: " + name_of(entry) + " and " +
             name_of(meets_next ? next->second : std::prev(next)->second));
    }
    arm(&entry, stream);
    Block block = entry.raw;
    block.address = entry.address;
    live_.emplace(entry.address, std::move(entry));
    return block;
  } catch (...) {
    heap_.free(entry.raw, whole, account, stream.id(), stream.submitted());
    throw;
  }
}

void Checker::report_wrong_free(const Block& block) {
  const std::string what = "free: block " + std::to_string(block.id) + " at " + hex(block.address);
  const auto freed = [&](const Entry& entry) { return entry.address == block.address; };
  if (std::any_of(quarantine_.begin(), quarantine_.end(), freed) ||
      std::any_of(late_.begin(), late_.end(), freed) || live_.count(block.address) != 0) {
    report(what + " was freed before: a double free");
    return;
  }
  const auto above = live_.upper_bound(block.address);
  if (above != live_.begin()) {
    const Entry& entry = std::prev(above)->second;
    if (block.address < entry.address + entry.bytes) {
      report(what + " is inside " + name_of(entry) + ", at offset " +
             std::to_string(block.address - entry.address) +
             ": an interior pointer; free the block's own address");
      return;
    }
  }
  const std::lock_guard<std::mutex> guard(checkers().mutex);
  for (const auto& [other, name] : checkers().known) {
    if (other == this) continue;
    const Lock lock(other->mutex_, std::try_to_lock);
    if (lock.owns_lock() && other->live_.count(block.address) != 0) {
      report(what + " belongs to another heap, of " + name);
      return;
    }
  }
  report(what + " is no block of " + device_.name() +
         ": it was freed long ago, or the pointer is foreign");
}

void Checker::free(const Block& block, std::uint64_t requested, Account& account,
                   const BlockUse* uses, std::size_t count) noexcept {
  try {
    if (block.id == kNoBlock) {
      heap_.free_after(block, requested, account, uses, count);
      return;
    }
    run_late();
    const Lock lock(mutex_);
    const auto found = live_.find(block.address);
    if (found == live_.end() || found->second.raw.generation != block.generation) {
      report_wrong_free(block);
      return;
    }
    Entry entry = std::move(found->second);
    live_.erase(found);
    entry.uses.assign(uses, uses + count);
    check_uses(entry);
    if (inside_callback()) {
      late_.push_back(std::move(entry));
    } else {
      retire(std::move(entry));
    }
  } catch (const std::exception& error) {
    report(std::string("free: the block is kept: ") + error.what());
  }
}

/// Work that was launched on the block is among its uses, or before one of them.
void Checker::check_uses(const Entry& entry) {
  for (const Access& access : entry.accesses) {
    const bool covered = std::any_of(entry.uses.begin(), entry.uses.end(),
                                     [&](const BlockUse& use) { return covers(use, access.use); });
    if (covered || known_completed(access.use.stream) >= access.use.ticket) continue;
    report("missing record_use: " + name_of(entry) + " is freed while work of stream " +
           std::to_string(access.use.stream) + " uses it; call record_use(tensor, stream) first");
    // Kept until that work is over, which the caller did not ask for.
  }
}

void Checker::retire(Entry entry) {
  const bool captured = std::any_of(entry.uses.begin(), entry.uses.end(),
                                    [](const BlockUse& use) { return is_capture(use.stream); });
  if (captured || heap_.is_asleep(entry.raw)) {
    release(entry);  // the graph will use it again, or it has no memory
    return;
  }
  {
    const BlockingScope scope;
    for (const BlockUse& use : entry.uses) {
      if (use.ticket != 0) wait_for(use);
    }
    for (const Access& access : entry.accesses) wait_for(access.use);
  }
  verify_guards(entry);
  if (entry.armed) {
    fill(entry.address, entry.bytes, freed_pattern(entry.number), 0);
    // Not by the stream's own wait, which raises what was just found.
    const BlockingScope scope;
    wait_for(default_stream(device_).use());
  }
  quarantined_ += entry.bytes;
  quarantine_.push_back(std::move(entry));
  while (quarantined_ > kQuarantineBytes || quarantine_.size() > kQuarantineBlocks) {
    const Entry oldest = std::move(quarantine_.front());
    quarantine_.pop_front();
    quarantined_ -= oldest.bytes;
    verify_poison(oldest);
    release(oldest);
  }
}

void Checker::release(const Entry& entry) noexcept {
  heap_.free_after(entry.raw, entry.bytes + 2 * entry.guard, *entry.account, entry.uses.data(),
                   entry.uses.size());
}

void Checker::run_late() {
  if (inside_callback()) return;
  const Lock lock(mutex_);
  while (!late_.empty()) {
    Entry entry = std::move(late_.back());
    late_.pop_back();
    retire(std::move(entry));
  }
}

void Checker::flush() noexcept {
  try {
    run_late();
    const Lock lock(mutex_);
    while (!quarantine_.empty()) {
      const Entry oldest = std::move(quarantine_.front());
      quarantine_.pop_front();
      quarantined_ -= oldest.bytes;
      try {
        verify_poison(oldest);
      } catch (const std::exception& error) {
        report(std::string("freed memory could not be read: ") + error.what());
      }
      release(oldest);
    }
  } catch (const std::exception& error) {
    report(std::string("flush: ") + error.what());
  }
}

void Checker::verify() {
  run_late();
  const BlockingScope scope;
  synchronize_device(device_);
  const Lock lock(mutex_);
  for (const auto& [address, entry] : live_) {
    if (!heap_.is_asleep(entry.raw)) verify_guards(entry);
  }
  for (const Entry& entry : quarantine_) verify_poison(entry);
}

// ---- launches ------------------------------------------------------------------------------

void Checker::launch(DeviceAddress address, std::uint64_t bytes, Stream& stream, bool writes) {
  if (bytes == 0 || stream.is_captured() || device_.properties().integrated_work) return;
  const DeviceAddress end = address + bytes;
  const Lock lock(mutex_);
  for (const Entry& entry : quarantine_) {
    if (address < entry.address + entry.bytes && entry.address < end) {
      throw Error(ErrorKind::kDevice, "check: use after free: work of stream " +
                                          std::to_string(stream.id()) + " uses " + name_of(entry));
    }
  }
  const auto above = live_.upper_bound(address);
  if (above == live_.begin()) return;
  Entry& entry = std::prev(above)->second;
  if (address >= entry.address + entry.bytes) return;
  auto& accesses = entry.accesses;
  const StreamId own = stream.id();
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                [&](const Access& access) {
                                  return known_completed(access.use.stream) >= access.use.ticket;
                                }),
                 accesses.end());
  for (const Access& access : accesses) {
    if (access.use.stream == own || access.begin >= end || address >= access.end) continue;
    // By order alone: that the other work happened to be over does not make it right.
    if ((!access.writes && !writes) || is_ordered(own, access.use)) continue;
    throw Error(ErrorKind::kDevice,
                "check: " + name_of(entry) + " is " + (writes ? "written" : "read") +
                    " by stream " + std::to_string(own) + ", which does not wait for stream " +
                    std::to_string(access.use.stream) + " that still " +
                    (access.writes ? "writes" : "reads") + " it; call wait_stream first");
  }
  accesses.push_back(Access{BlockUse{own, stream.submitted() + 1}, address, end, writes});
}

}  // namespace nbx
