// The inside of a heap: its books, its lock, and the order in which memory is looked for.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/align.h"
#include "heap/front.h"
#include "heap/growth_lock.h"
#include "heap/heap.h"
#include "heap/refusal.h"
#include "heap/reserved.h"
#include "heap/slabs.h"
#include "heap/space.h"

namespace nbx {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kMaximumAlignment = 4 * kKiB;
/// Sizes above this are refused before any arithmetic on them can wrap.
inline constexpr std::uint64_t kMaximumBytes = std::uint64_t{1} << 56;

/// Page of reserved blocks where the device names none.
inline constexpr std::uint64_t kHostPage = 2 * kMiB;

struct HeapRequest {
  std::uint64_t bytes;    // as asked
  std::uint64_t granted;  // whole granules
  std::uint64_t alignment;
  StreamId stream;
  Account& account;
  Lifetime lifetime = Lifetime::kTransient;
  std::uint32_t origin = 0;  // Recorder::origin
};

/// A block that sleeps.
struct Sleeper {
  Account* account = nullptr;
  std::unique_ptr<std::byte[]> contents;  // null: dropped
  bool steady = false;                    // it lay on large handles
  bool moving = true;                     // on its way to sleep or from it
  bool freed = false;                     // while pages were moved: done once they are not
  std::uint64_t requested = 0;            // as whoever freed it said
  std::vector<CaptureId> captures;        // whose graphs may use its addresses yet, once freed
};

struct Heap::State {
  State(Device& opened, ShortLock* shared, bool virtual_memory);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The fast path; the lock is held.
  [[nodiscard]] std::uint32_t home_of(std::uint64_t granted) const noexcept {
    return host && granted >= kMiB ? Space::kSingleHome : Space::kSharedHome;
  }
  /// A block is handed out: counted, and its record says for whom.
  void hand_out(std::uint32_t id, const HeapRequest& request) noexcept {
    Front::mark(space.record(id), request.bytes, request.account, request.origin);
    count_live(request.granted);
  }
  void count_live(std::uint64_t granted) noexcept {
    live += granted;
    ++live_blocks;
    note_live(live);
  }
  /// `live` alone may be below zero while a thread has not told what it handed out.
  [[nodiscard]] static bool is_more(std::uint64_t bytes, std::uint64_t than) noexcept {
    return static_cast<std::int64_t>(bytes) > static_cast<std::int64_t>(than);
  }
  void note_live(std::uint64_t bytes) noexcept {
    if (is_more(bytes, peak_live)) peak_live = bytes;
  }
  [[nodiscard]] Block block_of(std::uint32_t id) const noexcept {
    const BlockRecord& record = space.record(id);
    return Block{record.address, granted_of(record), id, record.generation};
  }
  /// What a live block counts as; a slot may be larger.
  [[nodiscard]] std::uint64_t granted_of(const BlockRecord& record) const noexcept {
    const std::uint64_t granule = space.granule();
    return (record.requested() + granule - 1) & ~(granule - 1);
  }

  // Fronts (front.cpp). The lock is not held:
  /// The calling thread's front, made on first use; null for an account whose tree has another
  /// lock, when the thread is ending, or without memory for one.
  [[nodiscard]] Front* front_for(Account& account) noexcept;
  [[nodiscard]] Front* make_front(Account& account);
  void retire(Front& front) noexcept;
  void close_fronts() noexcept;
  [[nodiscard]] Front* shut_fronts() noexcept;
  void open_fronts_after_fork(bool child, Front* shut) noexcept;
  /// Bytes that threads keep; slots of empty slabs left aside.
  [[nodiscard]] std::uint64_t kept_bytes() const noexcept;
  /// Keeps threads from what is theirs until it ends, so that their slabs are open to all; `drain`
  /// takes back what they keep in their stacks as well: for a search that must see everything.
  class Recall {
   public:
    explicit Recall(State& heap) noexcept;
    ~Recall();
    void drain() const noexcept;
    Recall(const Recall&) = delete;
    Recall& operator=(const Recall&) = delete;

   private:
    State& heap_;
    Front* fronts_;
  };
  // The lock is held:
  /// Segments that go to the driver once the lock is not held.
  struct Surplus {
    // Half a stack, and the block that did not fit.
    static constexpr std::size_t kMost = Front::Stack::kPlaces / 2 + 1;
    DeviceAddress addresses[kMost];
    std::size_t count = 0;
    void add(State& heap, std::uint32_t unused) noexcept;
    void give(State& heap) noexcept;
  };
  [[nodiscard]] std::uint32_t take_kept(Front& front, Front::Set& set,
                                        const HeapRequest& request) noexcept;
  /// While all is recalled, slabs that became empty go back as well. The lock is not held.
  void fold_slabs() noexcept {
    const std::lock_guard<ShortLock> guard(lock);
    if (recalls != 0) slabs.fold();
  }
  void forget(Front& front, Front::Exact& exact, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool keep(Front& front, std::uint32_t id, const BlockUse& use, Surplus* surplus);
  std::uint32_t return_kept(std::uint32_t id, Slabs::Share* share) noexcept;
  void empty(Front& front) noexcept;
  /// Counts what the front's thread has handed out and taken back by itself.
  void settle(Front& front) noexcept;
  [[nodiscard]] std::uint32_t take_quickly(Front* front, Front::Set* set,
                                           const HeapRequest& request) noexcept {
    const auto take = [&] {
      const std::uint32_t id = set != nullptr ? take_kept(*front, *set, request) : kNoBlock;
      if (id != kNoBlock) return id;
      return space.take(home_of(request.granted), request.stream, request.granted,
                        request.alignment);
    };
    const std::uint32_t id = take();
    // Empty slabs of the thread's own are nearer than those that a recall brings.
    return id == kNoBlock && set != nullptr && slabs.fold(set->share) ? take() : id;
  }
  [[nodiscard]] Account* admit(Front* front, const HeapRequest& request, bool* charged) noexcept;
  void hand_out_from(Front* front, std::uint32_t id, const HeapRequest& request,
                     bool charged) noexcept;
  void uncharge(Front& front, const HeapRequest& request, bool charged) noexcept;
  void count_free(Front* front, Account& account, std::uint64_t requested,
                  std::uint64_t granted) noexcept;
  struct Live {
    std::uint64_t bytes, blocks, peak;
  };
  /// With what the fronts have not told yet.
  [[nodiscard]] Live live_now() const noexcept;

  // The slow path (serve.cpp): `growth` is held, the lock is not; driver calls happen here only.
  [[nodiscard]] Reach reach_of(const HeapRequest& request);
  [[nodiscard]] std::uint32_t serve(const HeapRequest& request);
  [[nodiscard]] std::uint32_t serve_parked(const HeapRequest& request, const Reach& reach);
  [[nodiscard]] std::uint32_t serve_reclaimed(const HeapRequest& request, const Reach& reach);
  [[nodiscard]] std::uint32_t search(const HeapRequest& request, const Reach& reach, bool both);
  [[nodiscard]] std::uint32_t search_after_wait(const HeapRequest& request, const Reach& reach);
  [[nodiscard]] std::uint32_t grow(const HeapRequest& request, const Reach& reach, bool exact);
  void poll();
  void wait_for_device();
  bool wait_for_pending();

  // Reclaimers (reclaim.cpp): in order of cost, those of an account above its soft limit first.
  struct KnownReclaimer {
    double cost;
    std::uint64_t number;
    std::shared_ptr<Reclaimer> call;
    AccountHold account;  // none: of the root
    State* heap;          // that knows it
  };
  [[nodiscard]] std::vector<KnownReclaimer> known_reclaimers();
  [[nodiscard]] std::vector<KnownReclaimer> known_reclaimers_of_all();
  static std::uint64_t ask(const KnownReclaimer& known, std::uint64_t bytes) noexcept;
  bool ask_all(std::vector<KnownReclaimer> calls, std::uint64_t bytes,
               const std::function<bool()>& enough);
  /// Asks them until `enough()`; false if it never was.
  bool reclaim(std::uint64_t bytes, const std::function<bool()>& enough);
  /// The same without `growth`, and those of the helpers too.
  bool reclaim_unlocked(std::uint64_t bytes, const std::function<bool()>& enough);
  /// Asks those of the account and below it, as long as it is above its soft limit.
  void relieve(Account& account);
  /// `refused`: the account whose limit refused, null if the device's memory did not suffice.
  [[nodiscard]] RefusalFigures figures(const HeapRequest& request,
                                       const Account* refused = nullptr);
  [[nodiscard]] std::optional<Advice> advice_for(const HeapRequest& request, const Account* refused,
                                                 std::uint64_t driver_free,
                                                 const std::vector<Account*>& accounts) noexcept;
  [[nodiscard]] Error over_budget(const HeapRequest& request, const Account& account);

  // Segments (segments.cpp).
  [[nodiscard]] std::uint32_t grow_segment(const HeapRequest& request, const Reach& reach,
                                           bool exact);
  [[nodiscard]] std::uint64_t generous_growth(const HeapRequest& request, std::uint64_t exact);
  std::uint64_t release_segments(std::uint64_t keep);
  Status give_to_driver(DeviceAddress address) noexcept;
  /// Whether a segment that has just become unused goes back at once: host memory only, where that
  /// is cheap and the process's size is what people watch. The lock is held.
  [[nodiscard]] bool surplus(std::uint32_t unused) const noexcept;

  // Pages (paging.cpp).
  [[nodiscard]] Reach widen(const HeapRequest& request, const Reach& reach);
  [[nodiscard]] bool reserve_range(std::uint64_t bytes);
  [[nodiscard]] std::uint32_t grow_pages(const HeapRequest& request, const Reach& reach);
  [[nodiscard]] bool fill_window(const HeapRequest& request, const Reach& reach, bool scarce,
                                 std::uint32_t* id, FillResult* result);
  [[nodiscard]] FillResult fill_gaps(std::vector<PageRun> gaps, bool steal, Lifetime lifetime);
  FillResult fill(const std::vector<PageRun>& targets, const std::vector<Victim>& victims,
                  Lifetime lifetime);
  void note_filled(const HeapRequest& request, DeviceAddress start, const FillResult& result);
  std::uint64_t release_pages(std::uint64_t keep);

  // Runs of a range that must have memory (supply.cpp).
  [[nodiscard]] Pages& reservable() noexcept { return pages ? *pages : *ranges; }
  using Targets = std::function<std::vector<PageRun>()>;
  /// Puts memory under the runs, or throws the refusal of `request`. Returns the runs: they are
  /// listed anew for each try, with the lock held.
  std::vector<PageRun> supply(const HeapRequest& request, const Targets& targets);
  [[nodiscard]] bool try_fill(const HeapRequest& request, const Targets& targets, bool steal,
                              std::vector<PageRun>* runs);
  /// Whether free pages are moved before the driver is asked for `bytes` more; the lock is held.
  [[nodiscard]] bool steals(std::uint64_t bytes, std::uint64_t more_live) const noexcept {
    const std::uint64_t peak = std::max(peak_live, live_now().bytes + more_live);
    return static_cast<double>(held() + bytes) > (1.0 + options.slack) * static_cast<double>(peak);
  }
  /// Runs `admit` with the lock held, and again after each reclaimer, until it returns null; throws
  /// the error of the account that it returned last.
  void admit(const HeapRequest& request, const std::function<Account*()>& admit);

  // Reserved blocks (reserved.cpp); `growth` is held.
  [[nodiscard]] Reservation* reserve(std::uint64_t capacity, Account& account, Lifetime lifetime);
  void grow(Reservation* block, std::uint64_t to);
  void shrink(Reservation* block, std::uint64_t from);
  void release(Reservation* block);
  /// Adds the granules between two bytes of the block that have memory, or that have none.
  static void list_runs(const Reservation& block, std::uint64_t from, std::uint64_t to, bool mapped,
                        std::vector<PageRun>* runs);

  // Sleep: books (sleep.cpp), contents and pages (naps.cpp); `growth` is held.
  using Blocks = std::vector<std::uint32_t>;
  using Contents = std::vector<std::unique_ptr<std::byte[]>>;
  /// Blocks that go to sleep or wake together.
  struct Nap {
    Blocks blocks;
    std::vector<Reservation*> reserved;
    [[nodiscard]] std::size_t size() const noexcept { return blocks.size() + reserved.size(); }
  };
  struct Span {
    DeviceAddress address;
    std::uint64_t bytes;
    std::unique_ptr<std::byte[]>* contents;
  };
  struct Charge {
    Account* account;
    std::uint64_t bytes;
  };
  [[nodiscard]] Nap doze(Account& tag);
  [[nodiscard]] Nap stir(Account& tag);
  [[nodiscard]] std::vector<Span> spans_of(const Nap& nap);
  [[nodiscard]] std::vector<Charge> charges_of(const Nap& nap);
  std::uint64_t copy_out(const Nap& nap);
  std::uint64_t copy_in(const Nap& nap);
  Status drain_copies(bool* over) noexcept;
  [[nodiscard]] std::uint64_t put_away(const Nap& nap, bool* away);
  [[nodiscard]] bool take_back(const Nap& nap, const std::vector<PageRun>& runs);
  [[nodiscard]] std::vector<PageRun> list_missing(const Nap& nap);  // the lock is held
  [[nodiscard]] Lifetime lifetime_of(const Nap& nap);
  void lay_down(const Nap& nap) noexcept;
  void get_up(const Nap& nap, bool counted, Contents* dropped) noexcept;
  void lie_on(const Nap& nap, const std::vector<PageRun>& runs,
              const std::vector<Charge>& admitted) noexcept;
  void end_moves(const Nap& nap) noexcept;
  void bury() noexcept;
  void count_held() noexcept;
  /// From any thread, without `growth`: true if the block slept. Its pages are looked at later
  /// where another thread moves pages.
  [[nodiscard]] bool free_asleep(const Block& block, std::uint64_t requested, const BlockUse* uses,
                                 std::size_t count) noexcept;

  std::uint64_t release_unused(std::uint64_t keep) {
    if (pages) return release_pages(keep);
    const std::uint64_t before = held();
    if (ranges) device.check(ranges->empty_bank(keep), "page_release");
    release_segments(keep);
    return before - held();
  }
  [[nodiscard]] std::uint64_t held() const noexcept {
    return segment_bytes + (pages ? pages->held_bytes() : 0) + (ranges ? ranges->held_bytes() : 0);
  }
  /// Parked bytes; the lock is held. Blocks on their way to sleep count as live until they are
  /// there, though their pages go one by one.
  [[nodiscard]] std::uint64_t parked() const noexcept {
    const std::uint64_t used =
        live_now().bytes + space.pending_bytes() + space.frozen_bytes() + asleep_held;
    return held() - std::min(held(), used);
  }
  void note_held() noexcept {
    if (held() > peak_mapped) peak_mapped = held();
  }

  Device& device;
  const Primitives& primitives;
  const bool host;  // work is complete on return, so every free block is free for all
  Space space;
  Slabs slabs{space};
  std::atomic<Front*> fronts{nullptr};  // all that were ever made; threads hand them on
  std::uint32_t recalls = 0;            // that run: nothing is kept meanwhile
  Front* shut_for_fork = nullptr;
  std::uint8_t recorded = 0;     // the recorder's number of this heap
  std::unique_ptr<Pages> pages;  // null without virtual memory
  // Of reserved blocks, where the heap itself takes segments; made with the first one.
  std::unique_ptr<Pages> ranges;
  ShortLock own_lock;
  ShortLock& lock;
  GrowthLock growth;
  HeapOptions options;
  std::vector<KnownReclaimer> reclaimers;  // in order of cost
  std::uint64_t next_number = 1;           // of reclaimers and captures
  std::vector<State*> helpers;             // whose reclaimers are asked too
  std::atomic<std::uint64_t> driver_calls{0};
  // Held from the driver outside `pages`; written with the lock, read by whoever grows as well.
  Relaxed<std::uint64_t> segment_bytes;
  std::uint64_t live = 0, live_blocks = 0, peak_live = 0;
  std::uint64_t peak_mapped = 0;
  std::uint64_t created = 0, stolen = 0, remaps = 0, waits = 0;
  std::vector<std::unique_ptr<Reservation>> reservations;  // changed with the lock held
  std::unordered_map<std::uint32_t, Sleeper> sleepers;
  std::atomic<std::uint64_t> sleeping{0};  // blocks; read without the lock
  std::uint64_t asleep = 0, asleep_held = 0, asleep_contents = 0, freed_sleepers = 0;
  std::uint64_t reserved_asleep = 0;  // reserved blocks
};

}  // namespace nbx
