// The recorder: what the allocator did, as 32-byte events in one ring a thread.
//
// A ring has one writer, its thread, which takes no lock, makes no system call and runs no atomic
// read-modify-write. Old events are overwritten, counted, and never waited for. A Recording takes
// a copy of each half of a ring before it is overwritten, so that it misses nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/align.h"
#include "core/inline.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#include "core/clock.h"
#endif

// ThreadSanitizer knows no fences.
#if defined(__SANITIZE_THREAD__)
#define NBX_RECORDER_FENCE() static_cast<void>(0)
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NBX_RECORDER_FENCE() static_cast<void>(0)
#endif
#endif
#if !defined(NBX_RECORDER_FENCE)
#define NBX_RECORDER_FENCE() std::atomic_thread_fence(std::memory_order_release)
#endif

#if defined(__linux__)
// One move instead of a call; a library loaded late has room for a few such pointers.
#define NBX_RECORDER_TLS [[gnu::tls_model("initial-exec")]]
#else
#define NBX_RECORDER_TLS
#endif

namespace nbx {

enum class RecordedAction : std::uint8_t {
  kThread = 1,     // bytes: the number of the thread whose events follow; address: 16 * the former
  kAllocate,       // a block was handed out
  kFree,           // a block was given back, reusable on its stream
  kFreePending,    // a block was given back while work of several streams may touch it
  kFreeCompleted,  // ... and that work is done; stream: whose was the last
  kMap,            // bytes were taken from the driver, or from the page bank
  kUnmap,          // bytes were given back
  kSteal,          // free pages were moved to `address`
  kRefuse,         // a request of `bytes` was refused
  kTag,            // the thread's tag is the text `origin` from here on, none if 0
  kMark,           // a point in time; origin: a text
  kAnnotate,       // a text (origin) about the live block at `address`
  kEpoch,          // every address issued before is void; bytes: the number of the epoch
  kSleep,          // the bytes of `account` left the device
  kWake,           // ... and came back
};

/// What one event says, unpacked. Numbers too large for their field are stored as its largest
/// value, which means "one of the later ones"; an address is a multiple of 16.
struct RecordedFields {
  std::uint64_t ticks = 0;  // of Recorder::ticks
  RecordedAction action = RecordedAction::kMark;
  std::uint8_t heap = 0;         // Recorder::open_heap
  std::uint64_t address = 0;     // 56 bits
  std::uint64_t bytes = 0;       // requested; 44 bits
  std::uint32_t stream = 0;      // 20 bits
  std::uint32_t account = 0;     // Account::id; 20 bits
  std::uint32_t generation = 0;  // of the block, its low 24 bits
  std::uint32_t origin = 0;      // a call stack or a text; 20 bits, 0: unknown
};

/// Four words:
///   0: ticks
///   1: heap (8) | address / 16 (52) | action (4, lowest)
///   2: bytes (44) | stream (20, lowest)
///   3: generation (24) | account (20) | origin (20, lowest)
struct RecordedEvent {
  static constexpr std::uint64_t kSmallMax = (std::uint64_t{1} << 20) - 1;
  static constexpr std::uint64_t kBytesMax = (std::uint64_t{1} << 44) - 1;
  static constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << 24) - 1;
  static constexpr std::uint64_t kAddressMask = (std::uint64_t{1} << 56) - 16;

  static constexpr int kBytesAt = 20, kGenerationAt = 40;

  std::uint64_t words[4];

  [[nodiscard]] static RecordedEvent pack(const RecordedFields& fields) noexcept {
    return RecordedEvent{{fields.ticks, place(fields.address, fields.heap, fields.action),
                          extent(fields.bytes, fields.stream),
                          owner(fields.generation, fields.account, fields.origin)}};
  }
  [[nodiscard]] RecordedFields unpack() const noexcept {
    RecordedFields fields;
    fields.ticks = words[0];
    fields.action = static_cast<RecordedAction>(words[1] & 0xf);
    fields.heap = static_cast<std::uint8_t>(words[1] >> 56);
    fields.address = words[1] & kAddressMask;
    fields.bytes = words[2] >> 20;
    fields.stream = static_cast<std::uint32_t>(words[2] & kSmallMax);
    fields.generation = static_cast<std::uint32_t>(words[3] >> 40);
    fields.account = static_cast<std::uint32_t>(words[3] >> 20 & kSmallMax);
    fields.origin = static_cast<std::uint32_t>(words[3] & kSmallMax);
    return fields;
  }

  [[nodiscard]] static std::uint64_t place(std::uint64_t address, std::uint8_t heap,
                                           RecordedAction action) noexcept {
    return (address & kAddressMask) | std::uint64_t{heap} << 56 |
           static_cast<std::uint64_t>(action);
  }
  [[nodiscard]] static std::uint64_t extent(std::uint64_t bytes, std::uint64_t stream) noexcept {
    return least(bytes, kBytesMax) << kBytesAt | least(stream, kSmallMax);
  }
  [[nodiscard]] static std::uint64_t owner(std::uint64_t generation, std::uint64_t account,
                                           std::uint64_t origin) noexcept {
    return generation << kGenerationAt | least(account, kSmallMax) << 20 | least(origin, kSmallMax);
  }

 private:
  [[nodiscard]] static std::uint64_t least(std::uint64_t value, std::uint64_t most) noexcept {
    return value < most ? value : most;
  }
};
static_assert(sizeof(RecordedEvent) == 32);
static_assert(8 + 52 + 4 == 64 && 44 + 20 == 64 && 24 + 20 + 20 == 64);

/// Events of one thread, oldest first.
struct RecordedRun {
  std::uint64_t thread = 0;  // threads are numbered in order of their first event, from 1
  std::uint64_t lost = 0;    // events of this thread, just before these, that were overwritten
  std::vector<RecordedEvent> events;
};

/// Two readings of both clocks: ticks become nanoseconds on the line through them.
struct RecorderClock {
  std::uint64_t first_ticks, first_nanoseconds, last_ticks, last_nanoseconds;
  std::uint64_t wall_nanoseconds;  // since 1970, at the last reading
};

class Recorder {
 public:
  /// Notes one event of the calling thread. Its time is that of an earlier event, at most
  /// kTimeEvery before; across threads the generation of a block tells what came first.
  static void note(RecordedAction action, std::uint8_t heap, std::uint64_t address,
                   std::uint64_t bytes, std::uint32_t stream, std::uint32_t account,
                   std::uint32_t generation, std::uint32_t origin = 0) noexcept {
    static_cast<void>(note_packed(RecordedEvent::place(address, heap, action),
                                  RecordedEvent::extent(bytes, stream),
                                  RecordedEvent::owner(generation, account, origin)));
  }
  /// The same for words that are packed already. Returns true, so that a caller that does so too
  /// can end with it.
  NBX_INLINE static bool note_packed(std::uint64_t place, std::uint64_t extent,
                                     std::uint64_t owner) noexcept {
    return !enabled() || write_packed(place, extent, owner);
  }
  /// The same for who has asked whether the recorder is on.
  NBX_INLINE static bool write_packed(std::uint64_t place, std::uint64_t extent,
                                      std::uint64_t owner) noexcept {
    Ring* const ring = ring_;
    if (ring == nullptr) [[unlikely]]
      return note_first(place, extent, owner);
    return ring->write(place, extent, owner);
  }
  /// The same with the present time, 7 to 20 ns more: for what is slow anyway, such as calls of the
  /// driver.
  static void note_now(RecordedAction action, std::uint8_t heap, std::uint64_t address,
                       std::uint64_t bytes, std::uint32_t stream, std::uint32_t account,
                       std::uint32_t generation, std::uint32_t origin = 0) noexcept {
    if (Ring* ring = ring_; ring != nullptr) ring->now = ticks();
    note(action, heap, address, bytes, stream, account, generation, origin);
  }
  [[nodiscard]] static bool enabled() noexcept { return enabled_.load(std::memory_order_relaxed); }

  /// The calling thread's stack as a number for `note`, 0 unless origins are captured. May take
  /// microseconds and memory then: call it before the heap's lock is taken.
  [[nodiscard]] static std::uint32_t origin() noexcept {
    const OriginHook hook = origin_hook_.load(std::memory_order_relaxed);
    return hook == nullptr ? 0 : hook();
  }
  [[nodiscard]] static bool captures_origins() noexcept {
    return origin_hook_.load(std::memory_order_relaxed) != nullptr;
  }
  using OriginHook = std::uint32_t (*)() noexcept;
  /// Null captures nothing; returns the former hook.
  static OriginHook set_origin_hook(OriginHook hook) noexcept {
    return origin_hook_.exchange(hook, std::memory_order_relaxed);
  }

  /// A number for events of one heap, and its name at export: "cuda:0". Numbers of closed heaps
  /// are given again as late as possible; when all 254 are open the answer is 255, "others".
  [[nodiscard]] static std::uint8_t open_heap(const std::string& name);
  static void close_heap(std::uint8_t heap) noexcept;
  [[nodiscard]] static std::string heap_name(std::uint8_t heap);

  /// A number for a text, the same for the same text; 0 when a million texts are known.
  [[nodiscard]] static std::uint32_t intern(const std::string& text);
  [[nodiscard]] static std::string text_of(std::uint32_t number);

  /// Events that rings opened from here on hold, rounded up to a power of two of at least
  /// kSmallestRing; 0 turns the recorder off. Returns the former number. The first is
  /// NBX_MEMORY_EVENTS.
  static std::uint64_t set_events_per_thread(std::uint64_t events);
  [[nodiscard]] static std::uint64_t events_per_thread();

  /// What the rings hold now, of ended threads too; writers go on meanwhile. Throws std::bad_alloc.
  [[nodiscard]] static std::vector<RecordedRun> read();
  [[nodiscard]] static RecorderClock clock() noexcept;

  [[nodiscard]] static std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return clock_nanoseconds();
#endif
  }

  static constexpr std::uint64_t kTimeEvery = 16;      // events that share a reading of the clock
  static constexpr std::uint64_t kSmallestRing = 64;   // events
  static constexpr std::uint32_t kMostEndedRings = 8;  // kept for threads that ended

 private:
  friend class Recording;
  struct Leaver;

  struct alignas(kApart) Ring {
    std::uint64_t now = 0;
    std::uint64_t mask = 0, half_mask = 0;
    std::unique_ptr<std::atomic<std::uint64_t>[]> words;
    std::atomic<std::uint64_t> end{0};  // events that are written; the next one may be half done
    std::atomic<std::uint64_t> thread{0};
    std::atomic<std::uint64_t> ended{0};  // when its thread ended, counted; 0: it runs
    std::uint32_t number = 0;
    Ring* next = nullptr;

    NBX_INLINE bool write(std::uint64_t place, std::uint64_t extent, std::uint64_t owner) noexcept {
      const std::uint64_t index = end.load(std::memory_order_relaxed);
      NBX_RECORDER_FENCE();  // whoever reads one of the words below sees this `end`, or a later one
      std::atomic<std::uint64_t>* slot = &words[(index & mask) * 4];
      slot[0].store(now, std::memory_order_relaxed);
      slot[1].store(place, std::memory_order_relaxed);
      slot[2].store(extent, std::memory_order_relaxed);
      slot[3].store(owner, std::memory_order_relaxed);
      end.store(index + 1, std::memory_order_release);
      if (((index + 1) & (kTimeEvery - 1)) == 0) [[unlikely]]
        return tick(*this, index + 1);
      return true;
    }
    /// Appends the events from `from` on that are still there; returns the index of the first.
    std::uint64_t copy(std::uint64_t from, std::vector<RecordedEvent>* events) const;
  };

  [[nodiscard]] static Ring* open_ring() noexcept;
  [[nodiscard]] static Ring* take_ended_ring() noexcept;
  __attribute__((noinline)) static bool note_first(std::uint64_t place, std::uint64_t extent,
                                                   std::uint64_t owner) noexcept;
  /// After kTimeEvery events: the time, and at half a ring what `turn` does.
  __attribute__((noinline)) static bool tick(Ring& ring, std::uint64_t index) noexcept;
  static void turn(const Ring& ring, std::uint64_t index) noexcept;
  [[nodiscard]] static Ring* rings() noexcept;  // newest first; rings are never destroyed

  inline static constinit std::atomic<bool> enabled_{true};
  inline static constinit std::atomic<OriginHook> origin_hook_{nullptr};
  NBX_RECORDER_TLS inline static constinit thread_local Ring* ring_ = nullptr;
};

/// Every event from construction to `stop`, however many. At most kMost run at a time.
class Recording {
 public:
  static constexpr std::size_t kMost = 4;

  /// At most `limit` events are held between calls of `take`; those beyond it are lost, and
  /// counted. Throws Error(kValue) when kMost recordings run, or when the recorder is off.
  explicit Recording(std::uint64_t limit);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// What filled up since the last call; one caller at a time. Throws std::bad_alloc.
  [[nodiscard]] std::vector<RecordedRun> take();
  /// Ends it and returns the rest; nothing when it has ended.
  [[nodiscard]] std::vector<RecordedRun> stop();
  [[nodiscard]] bool running() const noexcept { return slot_ < kMost; }
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }

 private:
  friend class Recorder;
  struct Chunk;
  struct Slot;
  struct Position {
    std::uint64_t next = 0;    // index of the first event that was not taken
    std::uint64_t thread = 0;  // whose events come next
  };

  [[nodiscard]] static Slot* slots() noexcept;
  [[nodiscard]] std::vector<std::unique_ptr<Chunk>> pop();
  [[nodiscard]] Position& position_of(const Recorder::Ring& ring);
  void append(const Recorder::Ring& ring, std::uint64_t first,
              const std::vector<RecordedEvent>& events, std::vector<RecordedRun>* runs);

  std::size_t slot_ = kMost;
  std::uint64_t session_ = 0;
  std::uint64_t lost_ = 0;
  std::vector<Position> positions_;  // by the ring's number
};

}  // namespace nbx
