#include "stream/names.h"

#include <pthread.h>

#include <string>

#include "core/error.h"
#include "core/log.h"
#include "device/host_status.h"
#include "stream/fault.h"

namespace nbx {

// ---- what a stream waits for ---------------------------------------------------------------

Seen::Seen(std::uint32_t places) : places_(places), entries_(std::make_unique<Entry[]>(places)) {}

Ticket Seen::find(StreamId stream, Ticket by) const noexcept {
  for (std::uint32_t i = place_of(stream), step = 0; step < places_; ++step) {
    const Entry& entry = entries_[i];
    const StreamId found = entry.stream.load(std::memory_order_acquire);
    if (found == kNoStream) return 0;
    if (found == stream) {
      // In this order, and written in the other: a newer ticket never comes with an older wait.
      const Ticket ticket = entry.ticket.load(std::memory_order_acquire);
      return entry.since.load(std::memory_order_acquire) <= by ? ticket : 0;
    }
    i = (i + 1) & (places_ - 1);
  }
  return 0;
}

bool Seen::learn(StreamId stream, Ticket ticket, Ticket since) noexcept {
  for (std::uint32_t i = place_of(stream), step = 0; step < places_; ++step) {
    Entry& entry = entries_[i];
    const StreamId found = entry.stream.load(std::memory_order_relaxed);
    if (found == stream || (found == kNoStream && count_ < places_ / 2)) {
      if (entry.ticket.load(std::memory_order_relaxed) >= ticket) return true;
      entry.since.store(since, std::memory_order_release);
      entry.ticket.store(ticket, std::memory_order_release);
      if (found == stream) return true;
      ++count_;
      entry.stream.store(stream, std::memory_order_release);
      return true;
    }
    if (found == kNoStream) return false;
    i = (i + 1) & (places_ - 1);
  }
  return false;
}

// ---- names ---------------------------------------------------------------------------------

Names& names() {
  static auto* const instance = std::make_unique<Names>().release();
  return *instance;
}

StreamId Names::add(Device& device, StreamHandle handle, StreamId bits) {
  if (count_ >= kChunks * kChunk) {
    throw Error(ErrorKind::kDevice, "stream: this process has made " + std::to_string(count_) +
                                        " streams, as many as it can name; use them again");
  }
  std::atomic<KnownStream*>& chunk = chunks_[count_ / kChunk];
  if (chunk.load(std::memory_order_relaxed) == nullptr) {
    chunk.store(std::make_unique<KnownStream[]>(kChunk).release(), std::memory_order_release);
  }
  const auto id = static_cast<StreamId>(count_) | bits;
  KnownStream& known = (*this)[id];
  known.device = &device;
  known.handle = handle;
  known.name.store(id, std::memory_order_relaxed);
  ++count_;
  return id;
}

StreamId Names::id(Device& device, StreamHandle handle) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = by_handle_.find({&device, handle});
  if (found != by_handle_.end()) return found->second;
  const auto [place, made] = by_handle_.emplace(std::pair(&device, handle), kNoStream);
  try {
    place->second = add(device, handle, 0);
  } catch (...) {
    by_handle_.erase(place);
    throw;
  }
  return place->second;
}

std::vector<StreamId> Names::of(const Device& device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::vector<StreamId> streams;
  for (const auto& [key, stream] : by_handle_) {
    if (key.first == &device) streams.push_back(stream);
  }
  return streams;
}

StreamId Names::new_capture(StreamId stream) {
  const std::lock_guard<std::mutex> guard(mutex_);
  KnownStream& known = (*this)[stream];
  if (is_capture(stream) || known.name.load(std::memory_order_relaxed) != stream) {
    throw Error(ErrorKind::kValue,
                "capture: the stream is captured already; end that capture "
                "before another begins");
  }
  const StreamId capture = add(*known.device, known.handle, kCaptureBit);
  (*this)[capture].captured.push_back(stream);
  known.name.store(capture, std::memory_order_release);
  return capture;
}

// ---- events --------------------------------------------------------------------------------

namespace {

constexpr std::size_t kSpareEvents = 64;

struct EventPools {
  std::mutex mutex;
  std::map<const Device*, std::vector<EventHandle>> spare;
};

EventPools& event_pools() {
  static auto* const instance = std::make_unique<EventPools>().release();
  return *instance;
}

// Locks are held across a fork, so that the child's books are whole. Registered before anything
// that calls this floor under a lock of its own, which must be taken first.
void prepare_fork() {
  names().mutex().lock();
  event_pools().mutex.lock();
  fault_lock();
}
void forked() {
  fault_unlock();
  event_pools().mutex.unlock();
  names().mutex().unlock();
}
[[maybe_unused]] const int registered = pthread_atfork(prepare_fork, forked, forked);

}  // namespace

PooledEvent::PooledEvent(Device& device) noexcept : device_(device) {
  const Primitives& table = device.primitives();
  if (table.event_create == nullptr) return;
  {
    EventPools& pools = event_pools();
    const std::lock_guard<std::mutex> guard(pools.mutex);
    const auto found = pools.spare.find(&device);
    if (found != pools.spare.end() && !found->second.empty()) {
      handle_ = found->second.back();
      found->second.pop_back();
      return;
    }
  }
  if (table.event_create(device.ordinal(), false, &handle_) != kSuccess) handle_ = 0;
}

PooledEvent::~PooledEvent() {
  if (handle_ == 0) return;
  try {
    EventPools& pools = event_pools();
    const std::lock_guard<std::mutex> guard(pools.mutex);
    std::vector<EventHandle>& spare = pools.spare[&device_];
    if (spare.size() < kSpareEvents) {
      spare.push_back(handle_);
      return;
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("event: ") + error.what());
  }
  const Primitives& table = device_.primitives();
  const Status status = table.event_destroy(device_.ordinal(), handle_);
  if (status != kSuccess && status != kForkedChild) {
    log(LogLevel::kError, std::string("event_destroy: ") + table.status_text(status));
  }
}

}  // namespace nbx
