#include "account/recorder.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <unordered_map>

#include "core/clock.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/log.h"

namespace nbx {
namespace {

constexpr std::uint64_t kDefaultEvents = 16384;
constexpr std::uint64_t kMostEvents = std::uint64_t{1} << 30;
constexpr std::uint8_t kOtherHeap = 255;

/// Guards the names below; taken by no path that holds a lock of a heap.
std::mutex& names_mutex() {
  static std::mutex mutex;
  static const int registered = pthread_atfork(
      [] { names_mutex().lock(); }, [] { names_mutex().unlock(); }, [] { names_mutex().unlock(); });
  if (registered != 0) log(LogLevel::kError, "recorder: fork could not be watched");
  return mutex;
}

struct Names {
  std::string heaps[kOtherHeap];  // by number; 0 names none
  std::deque<std::uint8_t> closed;
  std::uint8_t heap_count = 1;
  std::unordered_map<std::string, std::uint32_t> numbers;
  std::deque<std::string> texts;
};
Names& names() {
  static auto* const instance = std::make_unique<Names>().release();
  return *instance;
}

struct ClockReading {
  std::uint64_t ticks, nanoseconds;
};
ClockReading read_clocks() noexcept { return {Recorder::ticks(), clock_nanoseconds()}; }
const ClockReading kFirstReading = read_clocks();

std::uint64_t ring_events(std::uint64_t events) noexcept {
  std::uint64_t rounded = Recorder::kSmallestRing;
  while (rounded < events) rounded *= 2;
  return rounded;
}

std::uint64_t initial_events() noexcept {
  try {
    const std::int64_t events = environment_integer("NBX_MEMORY_EVENTS");
    if (events >= 0 && static_cast<std::uint64_t>(events) <= kMostEvents) {
      return static_cast<std::uint64_t>(events);
    }
    log(LogLevel::kError, "NBX_MEMORY_EVENTS: got " + std::to_string(events) +
                              "; allowed are 0 .. " + std::to_string(kMostEvents) +
                              ". The recorder holds " + std::to_string(kDefaultEvents) +
                              " events a thread.");
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
  return kDefaultEvents;
}

std::atomic<std::uint64_t>& ring_size() noexcept {
  static std::atomic<std::uint64_t> events{initial_events()};
  return events;
}

std::atomic<std::uint64_t> thread_count{0}, ended_count{0};
std::atomic<std::uint64_t> late_events{0};  // noted by threads whose rings had ended
std::atomic<void*> newest_ring{nullptr};
constinit thread_local bool thread_left = false;

}  // namespace

/// Marks the ring of a thread that ends.
struct Recorder::Leaver {
  Ring* ring = nullptr;
  ~Leaver() {
    if (ring == nullptr) return;
    ring_ = nullptr;
    thread_left = true;
    ring->ended.store(ended_count.fetch_add(1, std::memory_order_relaxed) + 1,
                      std::memory_order_release);
  }
};

Recorder::Ring* Recorder::rings() noexcept {
  return static_cast<Ring*>(newest_ring.load(std::memory_order_acquire));
}

Recorder::Ring* Recorder::take_ended_ring() noexcept {
  const std::uint64_t size = ring_events(ring_size().load(std::memory_order_relaxed));
  Ring* oldest = nullptr;
  std::uint64_t oldest_end = 0;
  std::uint32_t count = 0;
  for (Ring* ring = rings(); ring != nullptr; ring = ring->next) {
    const std::uint64_t ended = ring->ended.load(std::memory_order_acquire);
    if (ended == 0) continue;
    ++count;
    if (ring->mask + 1 == size && (oldest == nullptr || ended < oldest_end)) {
      oldest = ring;
      oldest_end = ended;
    }
  }
  if (count < kMostEndedRings || oldest == nullptr) return nullptr;
  const bool taken =
      oldest->ended.compare_exchange_strong(oldest_end, 0, std::memory_order_acq_rel);
  return taken ? oldest : nullptr;
}

Recorder::Ring* Recorder::open_ring() noexcept {
  const std::uint64_t events = ring_size().load(std::memory_order_relaxed);
  if (events == 0) {
    enabled_.store(false, std::memory_order_relaxed);
    return nullptr;
  }
  if (thread_left) {
    late_events.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  Ring* ring = take_ended_ring();
  if (ring == nullptr) {
    const std::uint64_t size = ring_events(events);
    auto made = std::unique_ptr<Ring>(new (std::nothrow) Ring());
    if (made != nullptr) made->words.reset(new (std::nothrow) std::atomic<std::uint64_t>[size * 4]);
    if (made == nullptr || made->words == nullptr) return nullptr;
    made->mask = size - 1;
    made->half_mask = size / 2 - 1;
    ring = made.release();
    void* newest = newest_ring.load(std::memory_order_acquire);
    do {
      ring->next = static_cast<Ring*>(newest);
      ring->number = ring->next == nullptr ? 0 : ring->next->number + 1;
    } while (!newest_ring.compare_exchange_weak(newest, ring, std::memory_order_acq_rel));
  }
  const std::uint64_t former = ring->thread.load(std::memory_order_relaxed);
  const std::uint64_t thread = thread_count.fetch_add(1, std::memory_order_relaxed) + 1;
  static thread_local Leaver leaver;
  leaver.ring = ring;
  ring_ = ring;
  ring->thread.store(thread, std::memory_order_release);
  note_now(RecordedAction::kThread, 0, former * 16, thread, 0, 0, 0);
  return ring;
}

std::uint64_t Recorder::Ring::copy(std::uint64_t from, std::vector<RecordedEvent>* events) const {
  const std::uint64_t size = mask + 1;
  const std::uint64_t last = end.load(std::memory_order_acquire);
  std::uint64_t first = std::max(from, last > size ? last - size : 0);
  if (first >= last) return last;
  const std::size_t base = events->size();
  events->resize(base + static_cast<std::size_t>(last - first));
  for (std::uint64_t index = first; index < last; ++index) {
    RecordedEvent& event = (*events)[base + static_cast<std::size_t>(index - first)];
    for (std::uint64_t word = 0; word < 4; ++word) {
      event.words[word] = words[(index & mask) * 4 + word].load(std::memory_order_acquire);
    }
  }
  // What the writer overwrote meanwhile is mixed, and so may be the place of its next event.
  const std::uint64_t now_last = end.load(std::memory_order_relaxed);
  const std::uint64_t least = now_last >= size ? now_last - size + 1 : 0;
  const std::uint64_t whole = std::min(last, std::max(first, least));
  events->erase(events->begin() + static_cast<std::ptrdiff_t>(base),
                events->begin() + static_cast<std::ptrdiff_t>(base + (whole - first)));
  return whole;
}

// ---- recordings --------------------------------------------------------------------------------

struct Recording::Chunk {
  const Recorder::Ring* ring = nullptr;
  std::uint64_t first = 0;
  std::uint64_t session = 0;
  std::vector<RecordedEvent> events;
  Chunk* next = nullptr;
};

/// Where writers leave copies for one recording; never destroyed.
struct Recording::Slot {
  std::atomic<std::uint64_t> session{0};  // 0: unused
  std::atomic<std::uint64_t> held{0}, limit{0};
  std::atomic<Chunk*> chunks{nullptr};
};

namespace {
constexpr std::uint64_t kReserved = ~std::uint64_t{0};  // a session that is being set up
std::atomic<std::uint64_t> session_count{0};
/// Recordings that run or are being set up; writers look at the slots only if there are any.
std::atomic<std::uint32_t> recordings{0};
}  // namespace

Recording::Slot* Recording::slots() noexcept {
  static Slot all[kMost];
  return all;
}

bool Recorder::note_first(std::uint64_t place, std::uint64_t extent, std::uint64_t owner) noexcept {
  Ring* const ring = open_ring();
  return ring == nullptr || ring->write(place, extent, owner);
}

bool Recorder::tick(Ring& ring, std::uint64_t index) noexcept {
  ring.now = ticks();
  if ((index & ring.half_mask) == 0) turn(ring, index);
  return true;
}

/// Half a ring is full: whoever records takes a copy before the writer comes round again.
void Recorder::turn(const Ring& ring, std::uint64_t index) noexcept {
  const std::uint64_t half = ring.half_mask + 1;
  if (index < half || recordings.load(std::memory_order_acquire) == 0) return;
  for (std::size_t i = 0; i < Recording::kMost; ++i) {
    Recording::Slot& slot = Recording::slots()[i];
    const std::uint64_t session = slot.session.load(std::memory_order_acquire);
    if (session == 0 || session == kReserved) continue;
    const std::uint64_t held = slot.held.fetch_add(half, std::memory_order_relaxed);
    if (held + half > slot.limit.load(std::memory_order_relaxed)) {
      slot.held.fetch_sub(half, std::memory_order_relaxed);
      continue;  // the gap in the indices is counted when it is taken
    }
    try {
      auto chunk = std::make_unique<Recording::Chunk>();
      chunk->ring = &ring;
      chunk->session = session;
      chunk->events.reserve(half);
      chunk->first = ring.copy(index - half, &chunk->events);
      Recording::Chunk* newest = slot.chunks.load(std::memory_order_relaxed);
      do {
        chunk->next = newest;
      } while (!slot.chunks.compare_exchange_weak(newest, chunk.get(), std::memory_order_acq_rel));
      static_cast<void>(chunk.release());
    } catch (const std::bad_alloc&) {
      slot.held.fetch_sub(half, std::memory_order_relaxed);
    }
  }
}

Recording::Recording(std::uint64_t limit) {
  if (!Recorder::enabled() || Recorder::events_per_thread() == 0) {
    throw Error(ErrorKind::kValue,
                "record: the recorder is off; set NBX_MEMORY_EVENTS to a number of events above 0, "
                "or call memory.set_events");
  }
  session_ = session_count.fetch_add(1, std::memory_order_relaxed) + 1;
  recordings.fetch_add(1, std::memory_order_acq_rel);
  for (std::size_t i = 0; i < kMost && slot_ == kMost; ++i) {
    std::uint64_t unused = 0;
    if (slots()[i].session.compare_exchange_strong(unused, kReserved, std::memory_order_acq_rel)) {
      slot_ = i;
      slots()[i].limit.store(limit, std::memory_order_relaxed);
      slots()[i].session.store(session_, std::memory_order_release);
    }
  }
  if (slot_ == kMost) {
    recordings.fetch_sub(1, std::memory_order_acq_rel);
    throw Error(ErrorKind::kValue, "record: " + std::to_string(kMost) +
                                       " recordings run already; end one of them first");
  }
  for (const Recorder::Ring* ring = Recorder::rings(); ring != nullptr; ring = ring->next) {
    Position& position = position_of(*ring);
    position.thread = ring->thread.load(std::memory_order_acquire);
    position.next = ring->end.load(std::memory_order_acquire);
  }
}

Recording::~Recording() {
  if (!running()) return;
  slots()[slot_].session.store(0, std::memory_order_release);
  recordings.fetch_sub(1, std::memory_order_acq_rel);
  static_cast<void>(pop());
}

Recording::Position& Recording::position_of(const Recorder::Ring& ring) {
  if (positions_.size() <= ring.number) positions_.resize(ring.number + 1);
  return positions_[ring.number];
}

std::vector<std::unique_ptr<Recording::Chunk>> Recording::pop() {
  std::vector<std::unique_ptr<Chunk>> chunks;
  std::uint64_t events = 0;
  Chunk* next = slots()[slot_].chunks.exchange(nullptr, std::memory_order_acq_rel);
  while (next != nullptr) {
    std::unique_ptr<Chunk> chunk(next);
    next = chunk->next;
    events += chunk->ring->half_mask + 1;
    // A writer may have been late for the recording that had the slot before.
    if (chunk->session == session_) chunks.push_back(std::move(chunk));
  }
  slots()[slot_].held.fetch_sub(events, std::memory_order_relaxed);
  std::sort(chunks.begin(), chunks.end(), [](const auto& one, const auto& other) {
    return one->ring->number != other->ring->number ? one->ring->number < other->ring->number
                                                    : one->first < other->first;
  });
  return chunks;
}

namespace {

/// Cuts events where they change threads, and leaves the marks of that out.
void cut(const std::vector<RecordedEvent>& events, std::size_t from, std::uint64_t lost,
         std::uint64_t* thread, std::vector<RecordedRun>* runs) {
  RecordedRun run{*thread, lost, {}};
  for (std::size_t i = from; i < events.size(); ++i) {
    const RecordedFields fields = events[i].unpack();
    if (fields.action != RecordedAction::kThread) {
      run.events.push_back(events[i]);
      continue;
    }
    if (!run.events.empty()) {
      run.thread = fields.address / 16;
      runs->push_back(std::move(run));
      run = RecordedRun{0, 0, {}};
    }
    run.thread = *thread = fields.bytes;
  }
  if (!run.events.empty() || run.lost != 0) runs->push_back(std::move(run));
}

}  // namespace

void Recording::append(const Recorder::Ring& ring, std::uint64_t first,
                       const std::vector<RecordedEvent>& events, std::vector<RecordedRun>* runs) {
  Position& position = position_of(ring);
  const std::uint64_t end = first + events.size();
  if (end <= position.next) return;
  const std::uint64_t lost = first > position.next ? first - position.next : 0;
  const std::uint64_t known = first > position.next ? 0 : position.next - first;
  lost_ += lost;
  cut(events, static_cast<std::size_t>(known), lost, &position.thread, runs);
  position.next = end;
}

std::vector<RecordedRun> Recording::take() {
  std::vector<RecordedRun> runs;
  if (!running()) return runs;
  for (const auto& chunk : pop()) append(*chunk->ring, chunk->first, chunk->events, &runs);
  return runs;
}

std::vector<RecordedRun> Recording::stop() {
  std::vector<RecordedRun> runs;
  if (!running()) return runs;
  // The rings first: all that left them by then is in a chunk.
  struct Rest {
    const Recorder::Ring* ring;
    std::uint64_t first;
    std::vector<RecordedEvent> events;
  };
  std::vector<Rest> rests;
  for (const Recorder::Ring* ring = Recorder::rings(); ring != nullptr; ring = ring->next) {
    Rest rest{ring, 0, {}};
    rest.first = ring->copy(0, &rest.events);
    rests.push_back(std::move(rest));
  }
  runs = take();
  slots()[slot_].session.store(0, std::memory_order_release);
  recordings.fetch_sub(1, std::memory_order_acq_rel);
  for (const Rest& rest : rests) append(*rest.ring, rest.first, rest.events, &runs);
  static_cast<void>(pop());
  slot_ = kMost;
  return runs;
}

// ---- reading
// -------------------------------------------------------------------------------------

std::vector<RecordedRun> Recorder::read() {
  std::vector<RecordedRun> runs;
  for (const Ring* ring = rings(); ring != nullptr; ring = ring->next) {
    std::uint64_t thread = ring->thread.load(std::memory_order_acquire);
    std::vector<RecordedEvent> events;
    const std::uint64_t lost = ring->copy(0, &events);
    cut(events, 0, lost, &thread, &runs);
  }
  const std::uint64_t late = late_events.load(std::memory_order_relaxed);
  if (late != 0) runs.push_back(RecordedRun{0, late, {}});
  return runs;
}

RecorderClock Recorder::clock() noexcept {
  const ClockReading last = read_clocks();
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return {kFirstReading.ticks, kFirstReading.nanoseconds, last.ticks, last.nanoseconds,
          static_cast<std::uint64_t>(
              std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count())};
}

std::uint64_t Recorder::events_per_thread() { return ring_size().load(std::memory_order_relaxed); }

std::uint64_t Recorder::set_events_per_thread(std::uint64_t events) {
  if (events > kMostEvents) {
    throw Error(ErrorKind::kValue, "set_events: got " + std::to_string(events) + "; give 0 .. " +
                                       std::to_string(kMostEvents));
  }
  const std::uint64_t former = ring_size().exchange(events, std::memory_order_relaxed);
  enabled_.store(events != 0, std::memory_order_relaxed);
  return former;
}

// ---- names
// ---------------------------------------------------------------------------------------

std::uint8_t Recorder::open_heap(const std::string& name) {
  const std::lock_guard<std::mutex> guard(names_mutex());
  Names& known = names();
  std::uint8_t heap = kOtherHeap;
  if (known.heap_count < kOtherHeap) {
    heap = known.heap_count++;
  } else if (!known.closed.empty()) {
    heap = known.closed.front();
    known.closed.pop_front();
  } else {
    return kOtherHeap;
  }
  known.heaps[heap] = name;
  return heap;
}

void Recorder::close_heap(std::uint8_t heap) noexcept {
  if (heap == 0 || heap == kOtherHeap) return;
  try {
    const std::lock_guard<std::mutex> guard(names_mutex());
    names().closed.push_back(heap);
  } catch (const std::exception&) {
    log(LogLevel::kError, "recorder: a heap's number is lost");  // no memory for the list
  }
}

std::string Recorder::heap_name(std::uint8_t heap) {
  if (heap == kOtherHeap) return "others";
  const std::lock_guard<std::mutex> guard(names_mutex());
  return names().heaps[heap];
}

std::uint32_t Recorder::intern(const std::string& text) {
  const std::lock_guard<std::mutex> guard(names_mutex());
  Names& known = names();
  const auto found = known.numbers.find(text);
  if (found != known.numbers.end()) return found->second;
  if (known.texts.size() >= RecordedEvent::kSmallMax - 1) return 0;
  known.texts.push_back(text);
  const auto number = static_cast<std::uint32_t>(known.texts.size());
  known.numbers.emplace(text, number);
  return number;
}

std::string Recorder::text_of(std::uint32_t number) {
  const std::lock_guard<std::mutex> guard(names_mutex());
  const Names& known = names();
  return number == 0 || number > known.texts.size() ? std::string() : known.texts[number - 1];
}

}  // namespace nbx
