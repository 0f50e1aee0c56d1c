#include "arena/slab.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace nbx {
namespace {

constexpr std::uint32_t kCarveBits = 8;
static_assert(kCarveAlignment == std::uint64_t{1} << kCarveBits);

}  // namespace

// ---- replay slab ---------------------------------------------------------------------------

ReplaySlab::ReplaySlab(std::string name, Heap& heap, Account& account, Stream& stream,
                       std::uint64_t capacity)
    : Carver("replay slab '" + std::move(name) + "'", heap, account, stream, capacity),
      bins_(kCarveBits) {
  records_.ensure(1);
  const std::uint32_t all = records_.acquire();
  BlockRecord& record = records_[all];
  record.address = base();
  record.bytes = this->capacity();
  record.state = BlockState::kFree;
  record.previous = record.next = kNoBlock;
  bins_.insert(records_, all);
}

std::uint64_t ReplaySlab::shortfall() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return shortfall_;
}
std::uint64_t ReplaySlab::holes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return bins_.count();
}
std::uint64_t ReplaySlab::largest_hole() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return bins_.empty() ? 0 : bins_.largest(records_);
}

void ReplaySlab::retire() {
  bool empty = false;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    falls_through_ = true;
    empty = live_.empty();
  }
  if (empty) close();
}

bool ReplaySlab::take(std::uint64_t bytes, std::uint64_t /*origin*/, Carving* carving) {
  const std::uint64_t padded = carve_bytes(bytes);
  std::uint32_t id = kNoBlock;
  if (!falls_through_ && padded <= capacity()) {
    records_.ensure(1);
    id = bins_.find(records_, padded);
    if (id == kNoBlock) {
      id = bins_.find_any(records_, padded, kCarveAlignment,
                          [](const BlockRecord&) { return true; });
    }
  }
  if (id == kNoBlock) {
    shortfall_ += bytes;
    return false;
  }
  live_.emplace(records_[id].address, id);  // before anything changes: it may throw
  bins_.remove(records_, id);
  if (records_[id].bytes > padded) split(id, padded);
  records_[id].state = BlockState::kLive;
  carving->address = records_[id].address;
  count_used(padded);
  return true;
}

/// Keeps the first `bytes` and makes the rest a hole.
void ReplaySlab::split(std::uint32_t id, std::uint64_t bytes) noexcept {
  const std::uint32_t rest = records_.acquire();
  BlockRecord& left = records_[id];
  BlockRecord& right = records_[rest];
  right.address = left.address + bytes;
  right.bytes = left.bytes - bytes;
  right.state = BlockState::kFree;
  right.previous = id;
  right.next = left.next;
  if (left.next != kNoBlock) records_[left.next].previous = rest;
  left.next = rest;
  left.bytes = bytes;
  bins_.insert(records_, rest);
}

void ReplaySlab::absorb(std::uint32_t left, std::uint32_t right) noexcept {
  records_[left].bytes += records_[right].bytes;
  records_[left].next = records_[right].next;
  if (records_[left].next != kNoBlock) records_[records_[left].next].previous = left;
  records_.release(right);
}

bool ReplaySlab::put(DeviceAddress address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  std::uint32_t id = found->second;
  live_.erase(found);
  used_ -= records_[id].bytes;
  const std::uint32_t next = records_[id].next;
  if (next != kNoBlock && records_[next].state == BlockState::kFree) {
    bins_.remove(records_, next);
    absorb(id, next);
  }
  const std::uint32_t previous = records_[id].previous;
  if (previous != kNoBlock && records_[previous].state == BlockState::kFree) {
    bins_.remove(records_, previous);
    absorb(previous, id);
    id = previous;
  }
  records_[id].state = BlockState::kFree;
  bins_.insert(records_, id);
  if (falls_through_ && live_.empty()) end();
  return true;
}

void ReplaySlab::put_tensor(const Carving& carving) noexcept {
  if (carving.address != 0) static_cast<void>(put(carving.address));
}

bool ReplaySlab::was_carved(DeviceAddress /*address*/) const { return false; }

// ---- step slab -----------------------------------------------------------------------------

StepSlab::StepSlab(std::string name, Heap& heap, Account& account, Stream& stream,
                   std::uint64_t capacity)
    : Carver("step slab '" + std::move(name) + "'", heap, account, stream, capacity) {}

std::uint64_t StepSlab::capacity_for(std::uint64_t total) {
  constexpr std::uint64_t kRoom = std::uint64_t{64} << 20;
  if (total > std::uint64_t{1} << 55) {
    throw Error(ErrorKind::kValue,
                "step slab: a step of " + std::to_string(total) + " bytes; give at most 2**55");
  }
  return carve_bytes(total + total / 4 + kRoom);
}

bool StepSlab::reset() {
  const std::lock_guard<std::mutex> guard(lock_);
  require_open("reset");
  const bool same = steps_ != 0 && difference_ < 0 && sizes_.size() == former_.size();
  former_.swap(sizes_);
  sizes_.clear();
  starts_.clear();
  difference_ = -1;
  highest_ = std::max(highest_, used_);
  used_ = 0;
  ++generation_;
  ++steps_;
  return same;
}

std::uint64_t StepSlab::shortfall() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return shortfall_;
}
std::vector<std::uint64_t> StepSlab::carve_sizes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return sizes_;
}
std::vector<std::uint64_t> StepSlab::former_sizes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return former_;
}
std::int64_t StepSlab::first_difference() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return difference_;
}

bool StepSlab::take(std::uint64_t bytes, std::uint64_t /*origin*/, Carving* carving) {
  const std::size_t ordinal = sizes_.size();
  sizes_.push_back(bytes);
  if (steps_ != 0 && difference_ < 0 && (ordinal >= former_.size() || former_[ordinal] != bytes)) {
    difference_ = static_cast<std::int64_t>(ordinal);
  }
  const std::uint64_t padded = carve_bytes(bytes);
  if (padded > capacity() - used_) {
    shortfall_ += bytes;
    return false;
  }
  carving->address = base() + used_;
  starts_.push_back(carving->address);
  count_used(padded);
  return true;
}

/// Absorbed: the step's memory is recycled as a whole.
bool StepSlab::put(DeviceAddress address) {
  return std::binary_search(starts_.begin(), starts_.end(), address);
}

void StepSlab::put_tensor(const Carving& /*carving*/) noexcept {}

bool StepSlab::was_carved(DeviceAddress address) const { return address - base() < highest_; }

// ---- planned slab --------------------------------------------------------------------------

namespace {

std::uint64_t planned_capacity(const std::vector<PlannedKey>& keys,
                               const std::vector<std::uint64_t>& offsets) {
  if (keys.size() != offsets.size()) {
    throw Error(ErrorKind::kValue, "planned slab: " + std::to_string(offsets.size()) +
                                       " offsets for " + std::to_string(keys.size()) +
                                       " keys; give one a key");
  }
  std::uint64_t capacity = kCarveAlignment;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    if (offsets[k] % kCarveAlignment != 0 || offsets[k] > std::uint64_t{1} << 55 ||
        keys[k].bytes > std::uint64_t{1} << 55) {
      throw Error(ErrorKind::kValue, "planned slab: key " + std::to_string(k) + " of " +
                                         std::to_string(keys[k].bytes) + " bytes at offset " +
                                         std::to_string(offsets[k]) +
                                         "; give offsets that are multiples of 256, below 2**55: "
                                         "plan with alignment=256");
    }
    capacity = std::max(capacity, offsets[k] + carve_bytes(keys[k].bytes));
  }
  return capacity;
}

}  // namespace

PlannedSlab::PlannedSlab(std::string name, Heap& heap, Account& account, Stream& stream,
                         const std::vector<PlannedKey>& keys,
                         const std::vector<std::uint64_t>& offsets)
    : Carver("planned slab '" + std::move(name) + "'", heap, account, stream,
             planned_capacity(keys, offsets)) {
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const Key key{keys[k].origin, keys[k].ordinal};
    if (!places_.emplace(key, Place{keys[k].bytes, offsets[k]}).second) {
      throw Error(ErrorKind::kValue, title() + ": key " + std::to_string(k) +
                                         " has the origin and ordinal of an earlier one");
    }
  }
}

void PlannedSlab::begin_step() {
  const std::lock_guard<std::mutex> guard(lock_);
  require_open("begin_step");
  ordinals_.clear();
}

std::uint64_t PlannedSlab::hits() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return hits_;
}
std::uint64_t PlannedSlab::misses() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return misses_;
}
std::uint64_t PlannedSlab::conflicts() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return conflicts_;
}

bool PlannedSlab::take(std::uint64_t bytes, std::uint64_t origin, Carving* carving) {
  const auto found = places_.find(Key{origin, ordinals_[origin]++});
  if (found == places_.end() || found->second.bytes != bytes) {
    ++misses_;
    return false;
  }
  const std::uint64_t offset = found->second.offset;
  const std::uint64_t padded = carve_bytes(bytes);
  const auto above = in_use_.lower_bound(offset);
  const bool over = above != in_use_.end() && above->first < offset + padded;
  const bool under =
      above != in_use_.begin() && std::prev(above)->first + std::prev(above)->second > offset;
  if (over || under) {
    ++conflicts_;
    return false;
  }
  in_use_.emplace_hint(above, offset, padded);
  carving->address = base() + offset;
  count_used(padded);
  ++hits_;
  return true;
}

bool PlannedSlab::put(DeviceAddress address) {
  const auto found = in_use_.find(address - base());
  if (found == in_use_.end()) return false;
  used_ -= found->second;
  in_use_.erase(found);
  return true;
}

void PlannedSlab::put_tensor(const Carving& carving) noexcept {
  if (carving.address != 0) static_cast<void>(put(carving.address));
}

bool PlannedSlab::was_carved(DeviceAddress /*address*/) const { return false; }

}  // namespace nbx
