// The heap of one device: blocks cut out of ranges or segments, split and coalesced, best fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "account/account.h"
#include "core/error.h"
#include "device/device.h"
#include "heap/block.h"
#include "pages/pages.h"
#include "stream/stream.h"

namespace nbx {

struct BlockRequest {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
  Lifetime lifetime = Lifetime::kTransient;
};

struct HeapOptions {
  /// Share of the peak of live bytes that may be held beyond it before free pages are moved to
  /// where they are wanted: bytes against remaps.
  double slack = 0.0;
  // When a block that one stream freed may serve another, before its work is known to be over.
  bool reuse_ordered = true;  // the other waits for that work already
  bool reuse_waits = true;    // a wait is made instead of asking the driver for memory
};

struct HeapStatistics {
  std::uint64_t live;     // granted bytes of live blocks
  std::uint64_t parked;   // free bytes, the bank's included
  std::uint64_t pending;  // freed bytes whose ticket is not complete, or that a graph will use
  std::uint64_t mapped;   // bytes held from the driver: live + parked + pending
  std::uint64_t banked;   // of `parked`: pages that lie under no address
  std::uint64_t peak_live;
  std::uint64_t peak_mapped;
  std::uint64_t live_blocks;
  std::uint64_t free_blocks;
  std::uint64_t largest_hole;
  std::uint64_t driver_calls;
  std::uint64_t created_bytes;   // asked of the driver so far
  std::uint64_t stolen_bytes;    // moved from free blocks to where they were wanted
  std::uint64_t remaps;          // allocations that moved pages
  std::uint64_t inserted_waits;  // of one stream for another, to reuse its memory
  std::uint64_t visited;         // free blocks looked at by quick searches
  std::uint64_t asleep;          // granted bytes of sleeping blocks: neither live nor free
  std::uint64_t asleep_held;     // of them: in pages that others keep; of `mapped`
  std::uint64_t asleep_blocks;
  std::uint64_t asleep_contents;  // bytes of host memory that hold their contents
  std::uint64_t kept;             // of `parked`: in the caches of threads
};

/// What `Heap::sleep` or `Heap::wake` moved.
struct SleepReport {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;     // granted bytes of them
  std::uint64_t moved = 0;     // bytes of pages given to the driver, or put under them again
  std::uint64_t contents = 0;  // bytes copied to the host, or back
};

/// Bytes at addresses of their own, which grow and shrink in place (reserved.h).
class ReservedBlock;

/// Frees what it can spare, at least `bytes` if possible; returns the bytes that it freed.
using Reclaimer = std::function<std::uint64_t(std::uint64_t bytes)>;

struct HeapRequest;

struct HeapBlocks;
struct HeapPieces;

class Heap {
 public:
  /// `lock`: the lock of the account tree that most blocks are counted in (Account::tree_lock), so
  /// that one lock serves both; without it the heap has its own. Without `virtual_memory` the heap
  /// takes its memory in segments, as on devices that have none.
  explicit Heap(Device& device, ShortLock* lock = nullptr, bool virtual_memory = true);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// At least `bytes` bytes aligned to `alignment` (a power of two, at most 4 KiB), for use
  /// on `stream`. Zero bytes give a block without memory (address 0, granted 0).
  /// The bytes are admitted by `account` first. Throws Error(kOutOfMemory) with every figure of
  /// design section 4 after the whole refusal pipeline has failed; nothing is held then.
  [[nodiscard]] Block allocate(std::uint64_t bytes, std::uint64_t alignment, Stream& stream,
                               Account& account, Lifetime lifetime = Lifetime::kTransient) {
    Block block;
    const bool is_common = bytes - 1 < kMostSmallBytes && alignment == kTensorAlignment &&
                           lifetime == Lifetime::kTransient;
    if (!is_common || !take_quickly(&block, bytes, stream.id(), account)) [[unlikely]]
      allocate_slowly(&block, bytes, alignment, stream, account, lifetime);
    return block;
  }
  /// All of the blocks, or none and the error of the one that did not fit.
  void allocate_many(const BlockRequest* requests, std::size_t count, Stream& stream,
                     Account& account, Block* blocks);

  /// Gives a block back; reusable on `stream` at once, elsewhere when `ticket` is complete.
  /// From any thread, finalizer or callback; never blocks on the device.
  void free(const Block& block, std::uint64_t requested, Account& account, StreamId stream,
            Ticket ticket) noexcept {
    if (!give_quickly(block, account, stream, ticket)) [[unlikely]]
      free_slowly(block, requested, account, stream, ticket);
  }

  /// The same for a block that work of several streams may still touch; each use needs its ticket.
  void free_after(const Block& block, std::uint64_t requested, Account& account,
                  const BlockUse* uses, std::size_t count) noexcept;
  /// Throws Error(kValue) unless the handle names a live block: it was freed, or is not of this
  /// heap.
  void require_live(const Block& block) const;

  /// The error of bytes that `refused`, an account of this device, did not admit.
  [[nodiscard]] Error over_budget(std::uint64_t bytes, Account& refused) const;

  /// What `stream` allocates and frees from here to `end_capture` belongs to the capture: reused
  /// inside it, and by nobody else until it is released, after `use` if that has a ticket.
  [[nodiscard]] std::uint32_t begin_capture(Stream& stream);
  void end_capture(std::uint32_t capture) noexcept;
  void release_capture(std::uint32_t capture, const BlockUse& use);

  /// Tells the recorder that this heap serves the epoch of this number.
  void note_epoch(std::uint32_t number) const noexcept;

  /// Asked in order of `cost` before a request is refused; those of an `account` that is above its
  /// soft limit come first. They are asked too when that account, or one above it, goes above its
  /// soft limit; one without an account stands for the root. Several threads may call it at once.
  /// The account is held. Returns a number to remove it by.
  std::uint64_t add_reclaimer(double cost, Reclaimer reclaimer, Account* account = nullptr);
  void remove_reclaimer(std::uint64_t number);
  /// Before this heap refuses a request it asks the reclaimers of `helper` too, which outlives it.
  void ask_also(Heap& helper);
  /// Asks the reclaimers of accounts that went above their soft limits, if any account of this tree
  /// did. The caller holds no lock.
  void relieve(Account& account) noexcept;
  /// Counts memory of others in the account: `former` bytes become `bytes`, 0 is no object. Asks
  /// the reclaimers before it throws the refusal, and nothing has changed then.
  void recount(Account& account, std::uint64_t former, std::uint64_t bytes);

  void set_options(const HeapOptions& options);
  [[nodiscard]] HeapOptions options() const;

  /// Takes every lock, so that a child process starts with whole books; afterwards gives them back.
  void before_fork() noexcept;
  /// The same if no thread grows the heap; false, and nothing is held, if one does.
  [[nodiscard]] bool try_before_fork() noexcept;
  void after_fork(bool child) noexcept;

  // ---- sleep: addresses stay, memory goes (sleep.cpp) ------------------------------------------
  /// Puts the blocks of `tag` and of all accounts below it to sleep, reserved ones too: work is
  /// waited for, contents go to the host (or are dropped, unless `keep`), and pages that no waking
  /// block shares go to the driver. The blocks' bytes leave the accounts' granted figures. Blocks
  /// asleep already stay so. When a driver call fails, the blocks are awake again and it throws;
  /// should that need memory that somebody has taken in between, they are asleep, and the error
  /// says so.
  SleepReport sleep(Account& tag, bool keep);
  /// Wakes them: admitted by their accounts, same addresses, same contents if they were kept. All
  /// of them, or it throws and all sleep on.
  SleepReport wake(Account& tag);
  /// The sleeping blocks of `tag` and below.
  [[nodiscard]] SleepReport sleeping(Account& tag) const;
  /// True if the handle names a sleeping block. Takes no lock.
  [[nodiscard]] bool is_asleep(const Block& block) const noexcept;

  /// Takes back what threads keep for themselves, so that it is seen by all and merges.
  void recall();
  /// Free memory back to the driver until at most `keep` parked bytes remain; returns bytes given
  /// back.
  std::uint64_t trim(std::uint64_t keep = 0);
  [[nodiscard]] HeapStatistics statistics() const;
  /// Every block, free ones and gaps too, and every segment (blocks.h).
  [[nodiscard]] HeapBlocks blocks() const;
  /// What each account keeps from going back to the driver (pieces.h); looks at every block, and is
  /// exact while none comes or goes.
  [[nodiscard]] HeapPieces pieces() const;
  void reset_peak();
  /// The live block that holds this address, interior addresses included; false if none does.
  [[nodiscard]] bool find(DeviceAddress address, Block* block) const noexcept;

 private:
  friend class ReservedBlock;
  struct State;
  // From and to the caches of this thread, where that is simple. They make no calls, so that they
  // need no registers of their callers.
  [[nodiscard]] bool take_quickly(Block* block, std::uint64_t bytes, StreamId stream,
                                  Account& account) noexcept;
  [[nodiscard]] bool give_quickly(const Block& block, Account& account, StreamId stream,
                                  Ticket ticket) noexcept;
  void allocate_slowly(Block* block, std::uint64_t bytes, std::uint64_t alignment, Stream& stream,
                       Account& account, Lifetime lifetime);
  void free_slowly(const Block& block, std::uint64_t requested, Account& account, StreamId stream,
                   Ticket ticket) noexcept;
  SleepReport wake_blocks(Account& tag);
  [[nodiscard]] Block allocate_asking(const HeapRequest& request);
  [[nodiscard]] Block allocate_locked(const HeapRequest& request);
  [[nodiscard]] Block allocate_growing(const HeapRequest& request, Account* refused);
  std::unique_ptr<State> state_;
};

}  // namespace nbx
