#include "stream/order.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace nbx {
namespace {

struct Known {
  Device* device = nullptr;
  StreamHandle handle = 0;
  std::atomic<bool> retired{false};
};

/// Names are places in chunks that never move, so that a name is read without the lock. Never
/// destroyed: frees of memory after static destructors still name their stream.
class Names {
 public:
  StreamId id(Device& device, StreamHandle handle) {
    const std::lock_guard<std::mutex> guard(mutex_);
    StreamId& known = by_handle_[{&device, handle}];
    if (known != kNoStream) return known;
    if (count_ >= kChunks * kChunk) {
      throw Error(ErrorKind::kDevice, "stream: this process has made " + std::to_string(count_) +
                                          " streams, as many as it can name; use them again");
    }
    auto& chunk = chunks_[count_ / kChunk];
    if (chunk == nullptr) chunk = std::make_unique<Known[]>(kChunk);
    chunk[count_ % kChunk].device = &device;
    chunk[count_ % kChunk].handle = handle;
    return known = static_cast<StreamId>(count_++);
  }
  void retire(StreamId stream) {
    const std::lock_guard<std::mutex> guard(mutex_);
    Known& known = (*this)[stream];
    known.retired.store(true, std::memory_order_relaxed);
    by_handle_.erase({known.device, known.handle});
  }
  Known& operator[](StreamId stream) noexcept { return chunks_[stream / kChunk][stream % kChunk]; }

 private:
  static constexpr std::size_t kChunk = 256;
  static constexpr std::size_t kChunks = 4096;

  std::mutex mutex_;
  std::map<std::pair<Device*, StreamHandle>, StreamId> by_handle_;
  std::array<std::unique_ptr<Known[]>, kChunks> chunks_;
  std::size_t count_ = 1;  // 0 names no stream
};

Names& names() {
  static auto* const instance = std::make_unique<Names>().release();
  return *instance;
}

}  // namespace

StreamId stream_id(Device& device, StreamHandle handle) { return names().id(device, handle); }

void retire_stream(StreamId stream) noexcept { names().retire(stream); }

Ticket submitted_ticket(StreamId stream) {
  const Known& known = names()[stream];
  Ticket ticket = 0;
  known.device->check(
      known.device->primitives().submitted_ticket(known.device->ordinal(), known.handle, &ticket),
      "submitted_ticket");
  return ticket;
}

Ticket completed_ticket(StreamId stream, Ticket newest) {
  const Known& known = names()[stream];
  const Primitives& primitives = known.device->primitives();
  Ticket ticket = 0;
  if (!known.retired.load(std::memory_order_relaxed) &&
      primitives.completed_ticket(known.device->ordinal(), known.handle, &ticket) == kSuccess) {
    return ticket;
  }
  known.device->check(primitives.synchronize(known.device->ordinal()), "synchronize");
  return newest;
}

void wait_for(const BlockUse& use) {
  const Known& known = names()[use.stream];
  const Primitives& primitives = known.device->primitives();
  if (!known.retired.load(std::memory_order_relaxed) &&
      primitives.wait_ticket(known.device->ordinal(), known.handle, use.ticket) == kSuccess) {
    return;
  }
  known.device->check(primitives.synchronize(known.device->ordinal()), "synchronize");
}

bool is_ordered(StreamId later, const BlockUse& use) noexcept {
  return use.ticket == 0 || later == use.stream;
}

bool insert_wait(StreamId later, StreamId earlier) {
  Known& from = names()[earlier];
  Known& to = names()[later];
  if (from.device != to.device || from.retired || to.retired) return false;
  const Primitives& primitives = from.device->primitives();
  EventHandle event = 0;
  if (primitives.event_create == nullptr ||
      primitives.event_create(from.device->ordinal(), false, &event) != kSuccess) {
    return false;
  }
  const bool made =
      primitives.event_record(from.device->ordinal(), event, from.handle) == kSuccess &&
      primitives.stream_wait_event(to.device->ordinal(), to.handle, event) == kSuccess;
  const Status status = primitives.event_destroy(from.device->ordinal(), event);
  if (status != kSuccess) {
    log(LogLevel::kError, std::string("event_destroy: ") + primitives.status_text(status));
  }
  return made;
}

}  // namespace nbx
