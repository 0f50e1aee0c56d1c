// Storage: counted bytes with a device, a heap and an owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "account/account.h"
#include "core/reference.h"
#include "heap/check.h"
#include "heap/heap.h"
#include "heap/reserved.h"
#include "storage/pinned.h"
#include "stream/stream.h"

namespace nbx {

/// Everything that serves memory on one device: its root account and its heap. One per opened
/// device, made on first use, alive until exit.
struct DeviceMemory {
  explicit DeviceMemory(Device& opened, std::uint32_t number = 1);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Device& device;
  Account root;       // named after the device; its limit is the device's budget
  Account& tensors;   // root / "device": blocks of the heap, one child a tag
  Account& mapped;    // root / "mapped": memory of others used in place (files, NumPy, DLPack)
  Account& pinned;    // root / "pinned": page-locked host memory
  Account& external;  // root / "external": what libraries said they hold, one child a name
  Heap heap;
  const std::unique_ptr<Checker> checker = make_checker(heap, device);  // null: no check mode

  /// Every account, `mapped` included: bytes of the pages (or segments, where the device has no
  /// pages) that hold a live block of the account or below it, and bytes of others as they are
  /// counted. A page that several accounts share counts once for each, and once for their parent.
  [[nodiscard]] std::vector<AccountStatistics> report() const;

  /// Unused memory to the driver until at most `keep` bytes are parked in a heap, and accounts that
  /// nobody needs end. Returns the bytes given back.
  std::uint64_t trim(std::uint64_t keep);

  /// Made on first use: most programs never lock memory.
  [[nodiscard]] PinnedPool& pinned_pool();
  [[nodiscard]] PinnedPool* known_pinned_pool() const noexcept {
    return quick_pool_.load(std::memory_order_acquire);
  }

  /// Counts from 1; another object serves each epoch of a device.
  const std::uint32_t epoch;
  /// A later epoch began: the addresses of this one are void.
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_relaxed); }
  void end() noexcept {
    ended_.store(true, std::memory_order_relaxed);
    note_memory_lost();
  }
  /// A forked child has the books, but not the device: nothing is allocated there any more.
  [[nodiscard]] bool orphaned() const noexcept { return orphaned_; }
  void orphan() noexcept { orphaned_ = !device.properties().integrated_work; }

 private:
  std::atomic<bool> ended_{false};
  bool orphaned_ = false;  // set while the child has one thread
  std::mutex pool_mutex_;
  std::unique_ptr<PinnedPool> pool_;
  std::atomic<PinnedPool*> quick_pool_{nullptr};
};
[[nodiscard]] DeviceMemory& memory_of(Device& device);
/// Every address that the device issued before is void: its storages raise when they are used, and
/// die without harm. Limits and options stay, the accounts start at zero. Returns the new epoch's
/// memory. Throws Error(kUnsupported) for the cpu.
DeviceMemory& begin_epoch(Device& device);
/// Gives back what no live storage of an earlier epoch holds; returns the bytes. A driver that
/// refuses is taken to have died with its epoch.
std::uint64_t trim_ended(Device& device);
/// True if the address lies in page-locked memory of this library's, of any device.
[[nodiscard]] bool is_pinned(DeviceAddress address) noexcept;

/// The calling thread's tag path ("", "kv", "weights/layer.3"); new storages are counted under it.
/// The account is held until the thread sets another tag.
[[nodiscard]] Account& tagged_account(Account& kind);
/// The account below `kind` that a tag path names, made on first use. Throws Error(kValue) for a
/// path with an empty part.
[[nodiscard]] AccountHold account_at(Account& kind, const std::string& path);
/// Sets the calling thread's tag and returns the former one. "" is the untagged account.
std::string set_tag(std::string path);
/// How long what the calling thread allocates is expected to stay; the setter returns the former.
[[nodiscard]] Lifetime thread_lifetime() noexcept;
Lifetime set_thread_lifetime(Lifetime lifetime) noexcept;

/// Reference-counted bytes. The address stays valid until the last reference drops.
class Storage : public Counted<Storage> {
 public:
  using Finalizer = void (*)(void* owner) noexcept;

  /// New memory for the current stream, counted under the thread's tag.
  [[nodiscard]] static Reference<Storage> allocate(DeviceMemory& memory, std::uint64_t bytes);
  /// Host memory that is page-locked for a device, counted there: a storage of the cpu whose copies
  /// to and from the device run at full rate.
  [[nodiscard]] static Reference<Storage> allocate_pinned(DeviceMemory& locker,
                                                          std::uint64_t bytes);
  /// Memory of somebody else, used in place; `finalizer(owner)` runs once, when the last reference
  /// drops; not if this throws. `counted` bytes are charged to the "mapped" account (0 for memory
  /// counted elsewhere).
  [[nodiscard]] static Reference<Storage> borrow(DeviceMemory& memory, DeviceAddress address,
                                                 std::uint64_t bytes, std::uint64_t counted,
                                                 bool writable, void* owner, Finalizer finalizer);

  /// `bytes` of a reserved block from `offset` on, which must be committed, and stay so while the
  /// storage lives. The block lives as long as its storages.
  [[nodiscard]] static Reference<Storage> view(DeviceMemory& memory,
                                               std::shared_ptr<ReservedBlock> block,
                                               std::uint64_t offset, std::uint64_t bytes);

  [[nodiscard]] DeviceMemory& memory() const noexcept { return *memory_; }
  [[nodiscard]] Device& device() const noexcept { return memory_->device; }
  [[nodiscard]] DeviceAddress address() const noexcept { return block_.address; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint32_t block_id() const noexcept { return block_.id; }
  [[nodiscard]] std::uint32_t generation() const noexcept { return block_.generation; }
  [[nodiscard]] bool writable() const noexcept { return writable_; }
  [[nodiscard]] bool borrowed() const noexcept { return finalizer_ != nullptr; }
  [[nodiscard]] bool pinned() const noexcept { return pinned_; }
  [[nodiscard]] Account& account() const noexcept { return *account_; }
  /// Throws Error(kValue) when the memory is of an epoch that ended.
  void require_current() const {
    if (memory_->ended()) [[unlikely]]
      refuse_ended();
  }

  /// The same, and naming the tag while the memory is asleep: nothing may use it then.
  void require_awake() const {
    require_current();
    if (is_asleep()) [[unlikely]]
      refuse_asleep();
  }
  [[nodiscard]] bool is_usable() const noexcept { return !memory_->ended() && !is_asleep(); }
  [[nodiscard]] bool is_asleep() const noexcept {
    return memory_->heap.is_asleep(block_) || (reserved_ != nullptr && reserved_->is_asleep());
  }
  /// Streams and captures whose work may still use it.
  [[nodiscard]] std::size_t use_count() const { return uses().size(); }
  /// The capture that allocated it, if one did.
  [[nodiscard]] StreamId capture() const noexcept { return capture_; }
  /// Work on `stream` uses this memory: a later free waits for it, and so does host access.
  void touch(Stream& stream) noexcept;
  /// The same for what shares a launch: `use` is the stream's, asked once for all of it.
  void touch(Stream& stream, const BlockUse& use) noexcept;
  /// The same for work that others submitted. Throws Error(kDevice) if the driver cannot say which.
  void record_use(Stream& stream);
  /// A capture uses the memory, as if it had recorded work on it; and it uses it no more, after its
  /// newest launch.
  void hold_for(StreamId capture);
  void let_go_of(StreamId capture) noexcept;
  /// In check mode: such work is about to be submitted. Throws Error(kDevice) if it must not be.
  void check_launch(DeviceAddress address, std::uint64_t bytes, const Stream& stream,
                    bool writes) const {
    if (memory_->checker != nullptr) [[unlikely]]
      memory_->checker->check_launch(address, bytes, stream, writes);
  }
  /// In check mode: it was submitted.
  void note_launch(DeviceAddress address, std::uint64_t bytes, const Stream& stream,
                   bool writes) const {
    if (memory_->checker != nullptr) [[unlikely]]
      memory_->checker->note_launch(address, bytes, stream, writes);
  }
  /// Blocks until the last touching work is complete (at once on the cpu). Release the Python lock
  /// first.
  void wait();
  /// False while touching work may still run: callers skip releasing the Python lock when true.
  [[nodiscard]] bool is_idle();

  void destroy() noexcept;  // called by Counted

 private:
  explicit Storage(DeviceMemory& memory) noexcept : memory_(&memory) {}
  ~Storage() = default;
  bool note(const BlockUse& use);
  void note_use(Stream& stream);
  void begin_in(StreamId name);
  void forget_captures() noexcept;
  [[nodiscard]] std::vector<BlockUse> uses() const;
  void finish_borrowed() noexcept;
  void finish_checked() noexcept;
  void finish_view() noexcept;
  [[noreturn]] void refuse_asleep() const;
  [[noreturn]] void refuse_captured() const;
  [[noreturn]] void refuse_ended() const;

  DeviceMemory* memory_;
  Heap* heap_ = nullptr;  // of the block
  Account* account_ = nullptr;
  Block block_;
  std::uint64_t bytes_ = 0;
  std::uint64_t counted_ = 0;
  void* owner_ = nullptr;
  Finalizer finalizer_ = nullptr;
  std::shared_ptr<ReservedBlock> reserved_;
  // Work that touched the memory: the last of one stream inline, of further streams in the list.
  // Names, not Streams: a storage may outlive the stream that used it.
  BlockUse use_;
  std::vector<BlockUse> more_uses_;
  mutable ShortLock uses_lock_;
  std::atomic<bool> used_{false};      // there are uses
  std::atomic<bool> captured_{false};  // by captures from outside, which learn of its end
  StreamId capture_ = kNoStream;
  bool writable_ = true;
  bool pinned_ = false;
};

}  // namespace nbx
