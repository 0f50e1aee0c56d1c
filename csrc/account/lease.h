// Bytes of an account that one thread may hand out without asking, and how it used them.
#pragma once

#include <cstdint>

#include "account/gate.h"
#include "core/align.h"
#include "core/inline.h"
#include "core/relaxed.h"

namespace nbx {

class Account;

/// What a tree counts for a thread that counts by itself. The fields belong to the owner while it
/// is inside the gate, and to the tree's lock once the owner is kept out or holds that lock itself;
/// others read them at any time, which is exact while the owner rests.
struct alignas(kApart) Lease {
  static constexpr std::uint64_t kLargest = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kFirst = std::uint64_t{128} << 10;
  static constexpr std::uint64_t kLeast = std::uint64_t{4} << 10;  // less is not worth it
  static constexpr std::uint64_t kUnit = 64;  // granted sizes are multiples, and not 0
  static constexpr std::uint64_t kNoObjects = std::uint64_t{1} << 19;  // in a Sum

  Gate gate;  // open for `account`
  // What is counted in the account already and not handed out is `least`, the least it has been so
  // far, and `slack` more; at most `limit` more. A Sum each.
  Relaxed<std::uint64_t> slack{Sum::of(0, 0, kNoObjects)};
  std::uint64_t limit = 0;
  std::uint64_t recorded = 0;  // the account's part of an event (RecordedEvent::owner)
  Relaxed<std::uint64_t> least;
  Account* account = nullptr;  // null: nothing is leased
  std::uint64_t size = 0;      // the most that `left` may be
  std::uint64_t wanted = kFirst;
  std::uint64_t first = 0;  // of `left`
  // Granted bytes and objects over all leases since the heap counted them, and the most of them.
  Relaxed<std::int64_t> spent, most_spent, spent_objects;
  Relaxed<const void*> owner;  // a mark of the owner's thread; null: unused
  Lease* next = nullptr;       // of the tree

  [[nodiscard]] std::uint64_t least_left() const noexcept { return Sum::granted(least); }
  [[nodiscard]] std::uint64_t least_requested_left() const noexcept {
    return Sum::requested(least);
  }
  [[nodiscard]] std::uint64_t left() const noexcept { return Sum::granted(least + slack); }
  [[nodiscard]] std::uint64_t requested_left() const noexcept {
    return Sum::requested(least + slack);
  }
  /// Handed out and not counted yet; negative: taken back.
  [[nodiscard]] std::int64_t objects() const noexcept { return -Sum::objects(slack); }

  /// Counts an object of the leased account; false if the lease does not cover it. Both sizes are
  /// at most kLargest.
  [[nodiscard]] bool charge(std::uint64_t requested, std::uint64_t granted) noexcept {
    const std::uint64_t now = least + slack - Sum::of(granted, requested, 1);
    if ((now & Sum::kBelowZero) != 0) return false;
    set(Sum::least(now, least), now);
    return true;
  }
  /// The same; false as well if less is left then than ever.
  [[nodiscard]] NBX_INLINE bool charge_quickly(std::uint64_t requested,
                                               std::uint64_t granted) noexcept {
    const std::uint64_t now = slack - Sum::of(granted, requested, 1);
    if ((now & Sum::kBelowZero) != 0) [[unlikely]]
      return false;
    slack = now;
    return true;
  }
  /// The opposite; false if too much would gather here.
  [[nodiscard]] NBX_INLINE bool refund(std::uint64_t requested, std::uint64_t granted) noexcept {
    const std::uint64_t now = slack + Sum::of(granted, requested, 1);
    if (((limit - now) & Sum::kBelowZero) != 0) [[unlikely]]
      return false;
    slack = now;
    return true;
  }
  /// Leases at most `most` bytes of the account, and `bytes` at first, multiples of kUnit.
  void start(Account* leased, std::uint64_t bytes, std::uint64_t most) noexcept {
    account = leased;
    gate.set_key(leased);
    first = bytes;
    size = most;
    set(Sum::of(bytes, bytes, 0), Sum::of(bytes, bytes, kNoObjects));
  }

  [[nodiscard]] std::int64_t spent_now() const noexcept {
    return spent + static_cast<std::int64_t>(first - left());
  }
  [[nodiscard]] std::int64_t most_spent_now() const noexcept {
    const std::int64_t latest = spent + static_cast<std::int64_t>(first - least_left());
    return latest > most_spent ? latest : most_spent.get();
  }
  [[nodiscard]] std::int64_t objects_now() const noexcept { return spent_objects + objects(); }

 private:
  void set(std::uint64_t lower, std::uint64_t now) noexcept {
    least = lower;
    slack = now - lower;
    limit = Sum::of(size, size, Sum::kObjects) - lower;
  }

  /// Granted units (18 bits), objects (20), requested bytes (24, lowest) in one word, added and
  /// compared at once: above each of the sizes lies a bit that is set when it falls below zero.
  /// Objects that come and go within a lease have a unit each, so that they are fewer than 2^18.
  struct Sum {
    static constexpr int kGrantedAt = 45, kObjectsAt = 25;
    static constexpr std::uint64_t kBelowZero = std::uint64_t{1} << 63 | std::uint64_t{1} << 24;
    static constexpr std::uint64_t kObjects = (std::uint64_t{1} << (kGrantedAt - kObjectsAt)) - 1;
    static constexpr std::uint64_t kRequested = (std::uint64_t{1} << (kObjectsAt - 1)) - 1;
    static_assert(2 * kNoObjects == kObjects + 1);
    static_assert(2 * kLargest / kUnit <= std::uint64_t{1} << (63 - kGrantedAt));
    static_assert(2 * kLargest <= kRequested + 1);

    [[nodiscard]] static std::uint64_t of(std::uint64_t granted, std::uint64_t requested,
                                          std::uint64_t objects) noexcept {
      return (granted << (kGrantedAt - 6)) + (objects << kObjectsAt) + requested;
    }
    [[nodiscard]] static std::uint64_t granted(std::uint64_t sum) noexcept {
      return sum >> kGrantedAt << 6;
    }
    [[nodiscard]] static std::uint64_t requested(std::uint64_t sum) noexcept {
      return sum & kRequested;
    }
    [[nodiscard]] static std::int64_t objects(std::uint64_t sum) noexcept {
      return static_cast<std::int64_t>(sum >> kObjectsAt & kObjects) -
             static_cast<std::int64_t>(kNoObjects);
    }
    /// The lesser of each size, without objects.
    [[nodiscard]] static std::uint64_t least(std::uint64_t sum, std::uint64_t other) noexcept {
      const auto lesser = [](std::uint64_t a, std::uint64_t b) { return a < b ? a : b; };
      return of(lesser(granted(sum), granted(other)), lesser(requested(sum), requested(other)), 0);
    }
  };
  static_assert(kUnit == std::uint64_t{1} << 6);
};

/// Its address tells threads apart.
inline constinit thread_local char thread_mark = 0;

}  // namespace nbx
