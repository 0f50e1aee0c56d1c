// Check mode: blocks with guards around them and poison in them, and a record of who uses what.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "heap/heap.h"

namespace nbx {

/// Stands between the callers of one heap and the heap. Slow: frees wait for the work that uses the
/// block. What it finds is logged and kept, and raised by the next wait for the device, or thrown
/// where the caller can still be stopped. Freed blocks rest in a quarantine before others get them.
class Checker {
 public:
  static constexpr std::uint64_t kGuard = 256;  // bytes before and after each block
  static constexpr std::uint64_t kQuarantineBytes = std::uint64_t{64} << 20;
  static constexpr std::size_t kQuarantineBlocks = 256;

  Checker(Heap& heap, Device& device);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  /// As the heap does it; the block starts after its guard.
  [[nodiscard]] Block allocate(std::uint64_t bytes, std::uint64_t alignment, Stream& stream,
                               Account& account, Lifetime lifetime = Lifetime::kTransient);
  /// From any thread, finalizer or callback; inside a callback the checks are made later.
  void free(const Block& block, std::uint64_t requested, Account& account, const BlockUse* uses,
            std::size_t count) noexcept;

  /// Work that uses these bytes is about to be submitted. Throws Error(kDevice) if they were freed,
  /// or if work of another stream that this one does not wait for writes them, or reads what this
  /// work writes.
  void check_launch(DeviceAddress address, std::uint64_t bytes, const Stream& stream, bool writes);
  /// It was submitted.
  void note_launch(DeviceAddress address, std::uint64_t bytes, const Stream& stream, bool writes);

  /// A new epoch began: what uses addresses of this one, or frees them elsewhere, is named.
  void end_epoch(std::uint32_t epoch) noexcept { ended_.store(epoch, std::memory_order_release); }

  /// Looks at the guards of every live block and at the poison of every freed one.
  void verify();
  /// Gives all freed blocks to the heap, each verified first.
  void flush() noexcept;
  /// What was found so far, oldest first.
  [[nodiscard]] std::vector<std::string> reports() const;

 private:
  struct Access {
    BlockUse use;
    DeviceAddress begin, end;
    bool writes;
  };
  struct Entry {
    Block raw;  // as the heap gave it
    DeviceAddress address = 0;
    std::uint64_t bytes = 0, guard = 0;
    Account* account = nullptr;
    std::string tag;
    std::uint32_t number = 0;  // of the allocation; chooses the patterns
    bool armed = false;        // guards and poison are there to look at
    BlockUse arming;           // ... once this is over
    std::vector<Access> accesses;
    std::vector<BlockUse> uses;
  };
  using Lock = std::unique_lock<std::recursive_mutex>;

  void report(std::string text) noexcept;
  /// What the bytes of a block show at every look, and is told once.
  void report_damage(std::vector<std::string> found) noexcept;
  [[nodiscard]] std::string name_of(const Entry& entry) const;
  void arm(Entry* entry, Stream& stream);
  void fill(DeviceAddress address, std::uint64_t bytes, std::uint8_t value, StreamHandle stream);
  /// Offset of the first byte that is not `value`, `bytes` if all are.
  [[nodiscard]] std::uint64_t first_other(DeviceAddress address, std::uint64_t bytes,
                                          std::uint8_t value);
  using Entries = std::list<Entry>;
  [[nodiscard]] std::vector<std::string> damage_of_guards(const Entry& entry);
  [[nodiscard]] std::vector<std::string> damage_of_poison(const Entry& entry);
  [[nodiscard]] Entry* live_at(DeviceAddress address) noexcept;
  void check_uses(const Entry& entry);
  void report_overlap(const Entry& entry);
  void report_wrong_free(const Block& block);
  /// The checker of an ended epoch of this device that knows the address; null if none does.
  [[nodiscard]] const Checker* ended_holder(DeviceAddress address) const;
  [[noreturn]] void refuse_stale(const Checker& former, const Stream& stream) const;
  [[nodiscard]] bool holds(const Entry& entry, bool live) const;
  void retire(Entries::iterator entry);
  void release_oldest(std::uint64_t bytes, std::size_t blocks) noexcept;
  void release(const Entry& entry) noexcept;
  void run_late();

  Heap& heap_;
  Device& device_;
  std::atomic<std::uint32_t> ended_{0};  // the number of the epoch; 0: it lasts
  // Never held across a wait, which may be for host work that frees.
  mutable std::recursive_mutex mutex_;
  std::map<DeviceAddress, Entry> live_;
  Entries late_;        // freed, to be looked at
  Entries busy_;        // a thread looks at them, without the mutex
  Entries quarantine_;  // oldest first
  std::uint64_t quarantined_ = 0;
  std::uint32_t numbers_ = 0;
  std::atomic<bool> probed_{false}, readable_{false};
  std::vector<std::string> reports_;
};

/// One for the heap if NBX_MEMORY_CHECK is set, else null.
[[nodiscard]] std::unique_ptr<Checker> make_checker(Heap& heap, Device& device);

}  // namespace nbx
