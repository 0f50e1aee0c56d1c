// Bytes of an account that one thread may hand out without asking, and how it used them.
#pragma once

#include <cstdint>

#include "account/gate.h"
#include "core/relaxed.h"

namespace nbx {

class Account;

/// What a tree counts for a thread that counts by itself. The fields belong to the owner while it
/// is inside the gate, and to the tree's lock once the owner is kept out or holds that lock itself;
/// others read them at any time, which is exact while the owner rests.
struct Lease {
  static constexpr std::uint64_t kLargest = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kFirst = std::uint64_t{128} << 10;
  static_assert(kLargest <= std::uint64_t{1} << 29);  // sums in half a word stay above zero
  static constexpr std::uint64_t kLeast = std::uint64_t{4} << 10;  // less is not worth it

  Gate gate;
  Relaxed<const void*> owner;  // a mark of the owner's thread; null: unused
  Lease* next = nullptr;       // of the tree
  Account* account = nullptr;  // null: nothing is leased
  std::uint64_t size = 0;      // the most that `left` may be
  std::uint64_t wanted = kFirst;
  // Counted in the account already and not handed out, and the least of it so far: granted bytes in
  // the upper half, requested ones in the lower.
  Relaxed<std::uint64_t> rest;
  Relaxed<std::uint32_t> least_left, least_requested_left;
  Relaxed<std::int64_t> objects;  // handed out and not counted yet; negative: taken back
  std::uint64_t first = 0;        // of `left`
  // Granted bytes and objects over all leases since the heap counted them, and the most of them.
  Relaxed<std::int64_t> spent, most_spent, spent_objects;

  [[nodiscard]] std::uint64_t left() const noexcept { return rest >> 32; }
  [[nodiscard]] std::uint64_t requested_left() const noexcept {
    return static_cast<std::uint32_t>(rest);
  }

  /// Counts an object of the leased account; false if the lease does not cover it. Both sizes are
  /// at most kLargest.
  [[nodiscard]] bool charge(std::uint64_t requested, std::uint64_t granted) noexcept {
    const std::uint64_t now = rest - pack(granted, requested);
    if ((now & kBelowZero) != 0) return false;
    rest = now;
    if (now >> 32 < least_left) least_left = static_cast<std::uint32_t>(now >> 32);
    const auto requested_now = static_cast<std::uint32_t>(now);
    if (requested_now < least_requested_left) least_requested_left = requested_now;
    objects += 1;
    return true;
  }
  /// The opposite; false if too much would gather here.
  [[nodiscard]] bool refund(std::uint64_t requested, std::uint64_t granted) noexcept {
    const std::uint64_t now = rest + pack(granted, requested);
    if (((pack(size, size) - now) & kBelowZero) != 0) return false;
    rest = now;
    objects -= 1;
    return true;
  }
  void start(std::uint64_t bytes) noexcept {
    first = bytes;
    rest = pack(bytes, bytes);
    least_left = least_requested_left = static_cast<std::uint32_t>(bytes);
    objects = 0;
  }

  [[nodiscard]] std::int64_t spent_now() const noexcept {
    return spent + static_cast<std::int64_t>(first - left());
  }
  [[nodiscard]] std::int64_t most_spent_now() const noexcept {
    const std::int64_t most = spent + static_cast<std::int64_t>(first - least_left);
    return most > most_spent ? most : most_spent.get();
  }
  [[nodiscard]] std::int64_t objects_now() const noexcept { return spent_objects + objects; }

 private:
  static constexpr std::uint64_t kBelowZero = 0x8000000080000000U;
  [[nodiscard]] static std::uint64_t pack(std::uint64_t granted, std::uint64_t requested) noexcept {
    return granted << 32 | requested;
  }
};

/// Its address tells threads apart.
inline constinit thread_local char thread_mark = 0;

}  // namespace nbx
