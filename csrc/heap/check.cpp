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

void Checker::report_damage(std::vector<std::string> found) noexcept {
  for (std::string& text : found) {
    {
      const Lock lock(mutex_);
      if (std::find(reports_.begin(), reports_.end(), text) != reports_.end()) continue;
    }
    report(std::move(text));
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
  entry->arming = stream.use();
  if (probed_.exchange(true)) return;
  // Where memory is only an address there is nothing to look at.
  const BlockingScope scope;
  wait_for(stream.use());
  readable_ = first_other(entry->raw.address, entry->guard, guard) == entry->guard;
}

std::vector<std::string> Checker::damage_of_guards(const Entry& entry) {
  std::vector<std::string> found;
  if (!entry.armed || !readable_) return found;
  const std::uint8_t pattern = guard_pattern(entry.number);
  const std::uint64_t before = first_other(entry.raw.address, entry.guard, pattern);
  if (before != entry.guard) {
    found.push_back("a byte before " + name_of(entry) + " was written, at offset -" +
                    std::to_string(entry.guard - before));
  }
  const std::uint64_t after = first_other(entry.address + entry.bytes, entry.guard, pattern);
  if (after != entry.guard) {
    found.push_back("a byte past the end of " + name_of(entry) + " was written, at offset " +
                    std::to_string(entry.bytes + after));
  }
  return found;
}

std::vector<std::string> Checker::damage_of_poison(const Entry& entry) {
  if (!entry.armed || !readable_) return {};
  const std::uint64_t at = first_other(entry.address, entry.bytes, freed_pattern(entry.number));
  if (at == entry.bytes) return {};
  return {"freed memory was written: " + name_of(entry) + ", at offset " + std::to_string(at)};
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
  try {
    entry.address = entry.raw.address + entry.guard;
    entry.account = &account;
    entry.tag = account.path();
    {
      const Lock lock(mutex_);
      entry.number = ++numbers_;
      report_overlap(entry);
      live_.insert_or_assign(entry.address, entry);
    }
    arm(&entry, stream);
    const Lock lock(mutex_);
    const auto found = live_.find(entry.address);
    if (found != live_.end() && found->second.number == entry.number) {
      found->second.armed = entry.armed;
      found->second.arming = entry.arming;
    }
  } catch (...) {
    {
      const Lock lock(mutex_);
      const auto found = live_.find(entry.address);
      if (found != live_.end() && found->second.number == entry.number) live_.erase(found);
    }
    heap_.free(entry.raw, whole, account, stream.id(), stream.submitted());
    throw;
  }
  Block block = entry.raw;
  block.address = entry.address;
  return block;
}

void Checker::report_overlap(const Entry& entry) {
  const Entry* other = nullptr;
  const auto next = live_.upper_bound(entry.address);
  const DeviceAddress end = entry.address + entry.bytes + entry.guard;
  if (next != live_.end() && next->second.raw.address < end) other = &next->second;
  if (next != live_.begin()) {
    const Entry& before = std::prev(next)->second;
    if (before.raw.address + before.raw.granted > entry.raw.address) other = &before;
  }
  if (other == nullptr) return;
  report("two live blocks overlap: " + name_of(entry) + " and " + name_of(*other));
}

void Checker::report_wrong_free(const Block& block) {
  const std::string what = "free: block " + std::to_string(block.id) + " at " + hex(block.address);
  const auto freed = [&](const Entries& entries) {
    return std::any_of(entries.begin(), entries.end(),
                       [&](const Entry& entry) { return entry.address == block.address; });
  };
  if (freed(quarantine_) || freed(busy_) || freed(late_) || live_.count(block.address) != 0) {
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
  if (const Checker* former = ended_holder(block.address)) {
    report(what + " is of epoch " + std::to_string(former->ended_) + " of " + device_.name() +
           ", which ended: a stale handle");
    return;
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

const Checker* Checker::ended_holder(DeviceAddress address) const {
  const std::lock_guard<std::mutex> guard(checkers().mutex);
  for (const auto& [other, name] : checkers().known) {
    if (other == this || &other->device_ != &device_ || other->ended_ == 0) continue;
    const Lock lock(other->mutex_, std::try_to_lock);
    if (!lock.owns_lock()) continue;
    const auto above = other->live_.upper_bound(address);
    if (above == other->live_.begin()) continue;
    const Entry& entry = std::prev(above)->second;
    if (address < entry.address + entry.bytes) return other;
  }
  return nullptr;
}

void Checker::free(const Block& block, std::uint64_t requested, Account& account,
                   const BlockUse* uses, std::size_t count) noexcept {
  try {
    if (block.id == kNoBlock) {
      heap_.free_after(block, requested, account, uses, count);
      return;
    }
    {
      const Lock lock(mutex_);
      const auto found = live_.find(block.address);
      if (found == live_.end() || found->second.raw.generation != block.generation) {
        report_wrong_free(block);
        return;
      }
      Entries freed;
      freed.push_back(found->second);
      freed.back().uses.assign(uses, uses + count);
      live_.erase(found);
      check_uses(freed.back());
      late_.splice(late_.end(), freed);
    }
    run_late();
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

/// Takes an entry of `busy_` to where it belongs next.
void Checker::retire(Entries::iterator place) {
  Entry& entry = *place;
  const bool captured = std::any_of(entry.uses.begin(), entry.uses.end(),
                                    [](const BlockUse& use) { return is_capture(use.stream); });
  Entries gone;
  if (captured || heap_.is_asleep(entry.raw)) {
    {
      const Lock lock(mutex_);
      gone.splice(gone.end(), busy_, place);
    }
    release(entry);  // the graph will use it again, or it has no memory
    return;
  }
  try {
    {
      const BlockingScope scope;
      if (entry.arming.ticket != 0) wait_for(entry.arming);
      for (const BlockUse& use : entry.uses) {
        if (use.ticket != 0) wait_for(use);
      }
      for (const Access& access : entry.accesses) wait_for(access.use);
    }
    report_damage(damage_of_guards(entry));
    if (entry.armed) {
      fill(entry.address, entry.bytes, freed_pattern(entry.number), 0);
      // Not by the stream's own wait, which raises what was just found.
      const BlockingScope scope;
      wait_for(default_stream(device_).use());
    }
  } catch (...) {
    const Lock lock(mutex_);
    gone.splice(gone.end(), busy_, place);
    throw;
  }
  {
    const Lock lock(mutex_);
    quarantined_ += entry.bytes;
    quarantine_.splice(quarantine_.end(), busy_, place);
  }
  release_oldest(kQuarantineBytes, kQuarantineBlocks);
}

/// Gives freed blocks to the heap, each verified first, until no more than this is left.
void Checker::release_oldest(std::uint64_t bytes, std::size_t blocks) noexcept {
  while (true) {
    Entries::iterator place;
    {
      const Lock lock(mutex_);
      if (quarantine_.empty() || (quarantined_ <= bytes && quarantine_.size() <= blocks)) return;
      place = quarantine_.begin();
      busy_.splice(busy_.end(), quarantine_, place);
      quarantined_ -= place->bytes;
    }
    try {
      report_damage(damage_of_poison(*place));
    } catch (const std::exception& error) {
      report(std::string("freed memory could not be read: ") + error.what());
    }
    Entries oldest;
    {
      const Lock lock(mutex_);
      oldest.splice(oldest.end(), busy_, place);
    }
    // Nobody has the addresses before they are out of the lists.
    release(oldest.front());
  }
}

void Checker::release(const Entry& entry) noexcept {
  heap_.free_after(entry.raw, entry.bytes + 2 * entry.guard, *entry.account, entry.uses.data(),
                   entry.uses.size());
}

void Checker::run_late() {
  if (inside_callback()) return;
  while (true) {
    Entries::iterator place;
    {
      const Lock lock(mutex_);
      if (late_.empty()) return;
      place = late_.begin();
      busy_.splice(busy_.end(), late_, place);
    }
    retire(place);
  }
}

void Checker::flush() noexcept {
  try {
    run_late();
  } catch (const std::exception& error) {
    report(std::string("flush: ") + error.what());
  }
  if (!inside_callback()) release_oldest(0, 0);
}

/// Whether the block is where it was: live, or in the quarantine.
bool Checker::holds(const Entry& entry, bool live) const {
  const Lock lock(mutex_);
  const auto same = [&](const Entry& other) { return other.number == entry.number; };
  if (!live) return std::any_of(quarantine_.begin(), quarantine_.end(), same);
  const auto found = live_.find(entry.address);
  return found != live_.end() && same(found->second) && !heap_.is_asleep(entry.raw);
}

void Checker::verify() {
  run_late();
  // Copies: others allocate and free meanwhile, and their blocks are looked at when they are freed.
  std::vector<Entry> entries;
  std::size_t live = 0;
  {
    const Lock lock(mutex_);
    for (const auto& [address, entry] : live_) entries.push_back(entry);
    live = entries.size();
    entries.insert(entries.end(), quarantine_.begin(), quarantine_.end());
  }
  {
    // Only now: the guards of all of them are queued, if not written.
    const BlockingScope scope;
    synchronize_device(device_);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!holds(entries[i], i < live)) continue;
    try {
      auto found = i < live ? damage_of_guards(entries[i]) : damage_of_poison(entries[i]);
      if (found.empty() || !holds(entries[i], i < live)) continue;
      report_damage(std::move(found));
    } catch (const Error&) {
      if (holds(entries[i], i < live)) throw;
    }
  }
}

// ---- launches ------------------------------------------------------------------------------

void Checker::refuse_stale(const Checker& former, const Stream& stream) const {
  throw Error(ErrorKind::kDevice, "check: stale epoch: work of stream " +
                                      std::to_string(stream.id()) + " uses memory of epoch " +
                                      std::to_string(former.ended_) + " of " + device_.name() +
                                      ", which ended when a new one began; build tables of "
                                      "addresses again from the new tensors");
}

void Checker::check_launch(DeviceAddress address, std::uint64_t bytes, const Stream& stream,
                           bool writes) {
  if (bytes == 0 || stream.is_captured() || device_.properties().integrated_work) return;
  const DeviceAddress end = address + bytes;
  const Lock lock(mutex_);
  if (ended_ != 0) refuse_stale(*this, stream);
  for (const Entries* freed : {&quarantine_, &busy_, &late_}) {
    for (const Entry& entry : *freed) {
      if (address >= entry.address + entry.bytes || entry.address >= end) continue;
      throw Error(ErrorKind::kDevice, "check: use after free: work of stream " +
                                          std::to_string(stream.id()) + " uses " + name_of(entry));
    }
  }
  Entry* const entry = live_at(address);
  if (entry == nullptr) {
    if (const Checker* former = ended_holder(address)) refuse_stale(*former, stream);
    return;
  }
  const StreamId own = stream.id();
  for (const Access& access : entry->accesses) {
    if (access.use.stream == own || access.begin >= end || address >= access.end) continue;
    // By order alone: that the other work happened to be over does not make it right.
    if ((!access.writes && !writes) || is_ordered(own, access.use)) continue;
    throw Error(ErrorKind::kDevice,
                "check: " + name_of(*entry) + " is " + (writes ? "written" : "read") +
                    " by stream " + std::to_string(own) + ", which does not wait for stream " +
                    std::to_string(access.use.stream) + " that still " +
                    (access.writes ? "writes" : "reads") + " it; call wait_stream first");
  }
}

void Checker::note_launch(DeviceAddress address, std::uint64_t bytes, const Stream& stream,
                          bool writes) {
  if (bytes == 0 || stream.is_captured() || device_.properties().integrated_work) return;
  const BlockUse use = stream.use();
  const Lock lock(mutex_);
  Entry* const entry = live_at(address);
  if (entry == nullptr) return;
  auto& accesses = entry->accesses;
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                [](const Access& access) {
                                  return known_completed(access.use.stream) >= access.use.ticket;
                                }),
                 accesses.end());
  accesses.push_back(Access{use, address, address + bytes, writes});
}

/// The live block that holds the address; the mutex is held.
Checker::Entry* Checker::live_at(DeviceAddress address) noexcept {
  const auto above = live_.upper_bound(address);
  if (above == live_.begin()) return nullptr;
  Entry& entry = std::prev(above)->second;
  return address < entry.address + entry.bytes ? &entry : nullptr;
}

}  // namespace nbx
