#include "arena/arena.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "heap/blocking.h"

namespace nbx {
namespace {

constexpr std::uint8_t kGuardByte = 0xFD;
constexpr std::uint64_t kGuardBytes = kCarveAlignment;

/// From the first byte behind a carving on: its padding, and 256 bytes more.
std::uint64_t guard_bytes(std::uint64_t bytes) { return carve_bytes(bytes) - bytes + kGuardBytes; }

}  // namespace

Arena::Arena(std::string name, Heap& heap, Account& account, Stream& stream, std::uint64_t capacity,
             bool guarded)
    : Carver("arena '" + std::move(name) + "'", heap, account, stream, capacity),
      guarded_(guarded) {
  if (!guarded) return;
  device().require(Primitive::k_fill);
  device().require(Primitive::k_copy);
}

Carving Arena::allocate(std::uint64_t bytes, Stream& stream) {
  Carving carving;
  if (!carve(bytes, stream, &carving)) {
    throw Error(ErrorKind::kValue, title() + ": alloc of " + std::to_string(bytes) +
                                       " bytes with " + std::to_string(used()) + " of " +
                                       std::to_string(capacity()) +
                                       " used; reset it between uses, or make it larger")
        .with("requested", static_cast<std::int64_t>(std::min(bytes, std::uint64_t{1} << 62)))
        .with("used", static_cast<std::int64_t>(used()))
        .with("capacity", static_cast<std::int64_t>(capacity()));
  }
  if (guarded_ && bytes != 0) {
    const std::lock_guard<std::mutex> guard(lock_);
    stream_ = stream.handle();
    write_guard(carving.address, bytes);
  }
  return carving;
}

bool Arena::take(std::uint64_t bytes, std::uint64_t /*origin*/, Carving* carving) {
  const std::uint64_t padded = carve_bytes(bytes) + (guarded_ ? kGuardBytes : 0);
  if (padded > capacity() - used_) return false;
  carving->address = base() + used_;
  carvings_.push_back(*carving);
  count_used(padded);
  return true;
}

/// One carving is not recycled alone.
bool Arena::put(DeviceAddress address) {
  return std::binary_search(
      carvings_.begin(), carvings_.end(), Carving{address, 0, 0, 0},
      [](const Carving& a, const Carving& b) { return a.address < b.address; });
}

void Arena::put_tensor(const Carving& /*carving*/) noexcept {}

bool Arena::was_carved(DeviceAddress address) const { return address - base() < highest_; }

void Arena::reset() {
  check_guards();
  const std::lock_guard<std::mutex> guard(lock_);
  require_open("reset");
  highest_ = std::max(highest_, used_);
  carvings_.clear();
  used_ = 0;
  ++generation_;
}

Resolved Arena::resolve(DeviceAddress address) const {
  const std::lock_guard<std::mutex> guard(lock_);
  if (contains(address)) {
    const auto later =
        std::upper_bound(carvings_.begin(), carvings_.end(), address,
                         [](DeviceAddress a, const Carving& c) { return a < c.address; });
    if (later != carvings_.begin()) {
      const Carving& found = *(later - 1);
      if (address - found.address < found.bytes) {
        return Resolved{found.address, found.bytes, address - found.address, found.generation};
      }
    }
    if (address - base() >= used_ && was_carved(address)) {
      throw Error(ErrorKind::kValue, title() + ": address " + std::to_string(address) +
                                         " was carved before reset " + std::to_string(generation_) +
                                         ", which made it void; carve it again");
    }
  }
  throw Error(ErrorKind::kValue, title() + ": no carving holds address " + std::to_string(address) +
                                     "; it has [" + std::to_string(base()) + ", " +
                                     std::to_string(base() + used_) + ")");
}

void Arena::write_guard(DeviceAddress address, std::uint64_t bytes) {
  device().check(device().primitives().fill(device().ordinal(), address + bytes, kGuardByte, 1,
                                            guard_bytes(bytes), stream_),
                 "fill");
}

/// Without the lock: a wait may run code that wants it.
void Arena::check_guards() {
  if (!guarded_) return;
  std::vector<Carving> carvings;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    carvings = carvings_;
  }
  const BlockingScope scope;
  device().check(device().primitives().synchronize(device().ordinal()), "synchronize");
  for (const Carving& carving : carvings) {
    std::array<std::uint8_t, 2 * kGuardBytes> read{};
    const std::uint64_t count = guard_bytes(carving.bytes);
    device().check(device().primitives().copy(
                       device().ordinal(),
                       static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(read.data())),
                       carving.address + carving.bytes, count, CopyKind::kDeviceToHost, stream_),
                   "copy");
    device().check(device().primitives().synchronize(device().ordinal()), "synchronize");
    const std::uint8_t* const begin = read.data();
    const std::uint8_t* const end = begin + count;
    const auto* const wrong =
        std::find_if(begin, end, [](std::uint8_t byte) { return byte != kGuardByte; });
    if (wrong == end) continue;
    // It is written anew, so that the next look tells new damage from old.
    write_guard(carving.address, carving.bytes);
    throw Error(ErrorKind::kValue, title() + ": carving " + std::to_string(carving.number) +
                                       " of " + std::to_string(carving.bytes) +
                                       " bytes at offset " +
                                       std::to_string(carving.address - base()) +
                                       " was written past its end, from byte " +
                                       std::to_string(wrong - begin) + " behind its end on");
  }
}

void Arena::verify() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    require_open("verify");
  }
  check_guards();
}

void Arena::before_close() { check_guards(); }

}  // namespace nbx
