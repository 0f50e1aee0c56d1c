#include "stream/stream.h"

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/log.h"
#include "device/host_status.h"
#include "stream/fault.h"
#include "stream/names.h"

namespace nbx {
namespace {

constexpr std::size_t kQuickOrdinals = 16;
using Key = std::pair<DeviceKind, std::int32_t>;

Key key_of(const Device& device) noexcept { return {device.kind(), device.ordinal()}; }

/// Never destroyed: frees of memory after static destructors still name their stream.
struct Defaults {
  std::mutex mutex;
  std::map<Key, std::unique_ptr<Stream>> streams;
  std::atomic<Stream*> quick[kDeviceKindCount][kQuickOrdinals] = {};
};

Defaults& defaults() {
  static auto* const instance = std::make_unique<Defaults>().release();
  return *instance;
}

/// The thread's current streams; null before the first use is the default stream.
constinit thread_local Stream* current[kDeviceKindCount][kQuickOrdinals] = {};
thread_local std::map<Key, Stream*> further_current;

bool is_quick(const Device& device) noexcept {
  return static_cast<std::size_t>(device.ordinal()) < kQuickOrdinals;
}

Stream*& current_slot(const Device& device) {
  if (!is_quick(device)) return further_current[key_of(device)];
  return current[static_cast<std::size_t>(device.kind())]
                [static_cast<std::size_t>(device.ordinal())];
}

}  // namespace

Stream::Stream(Device& device, StreamHandle handle, bool owned)
    : device_(device),
      handle_(handle),
      own_(stream_id(device, handle)),
      name_(current_name(own_)),
      completed_(completed_of(own_)),
      newest_(newest_of(own_)),
      owned_(owned) {}

Stream::~Stream() {
  Stream*& slot = current_slot(device_);
  if (slot == this) slot = nullptr;
  if (!owned_) return;
  retire_stream(own_);
  const Primitives& table = device_.primitives();
  const Status status = table.stream_destroy(device_.ordinal(), handle_);
  if (status != kSuccess && status != kForkedChild) {
    log(LogLevel::kError, std::string("stream_destroy: ") + table.status_text(status));
  }
}

Ticket Stream::submitted() const {
  if (device_.properties().integrated_work) return 0;
  Ticket ticket = 0;
  device_.check(device_.primitives().submitted_ticket(device_.ordinal(), handle_, &ticket),
                "submitted_ticket");
  newest_.store(ticket, std::memory_order_relaxed);
  return ticket;
}

BlockUse Stream::use() const {
  const StreamId name = id();
  return BlockUse{name, is_capture(name) ? 0 : submitted()};
}

bool Stream::is_complete(Ticket wanted) {
  if (known_completed(own_) >= wanted) return true;
  Ticket ticket = 0;
  device_.check(device_.primitives().completed_ticket(device_.ordinal(), handle_, &ticket),
                "completed_ticket");
  note_completed(BlockUse{own_, ticket});
  return ticket >= wanted;
}

void Stream::wait(Ticket ticket) {
  if (known_completed(own_) < ticket) {
    device_.check(device_.primitives().wait_ticket(device_.ordinal(), handle_, ticket),
                  "wait_ticket");
    note_waited(BlockUse{own_, ticket});
  }
  raise_fault(device_);
}

void Stream::synchronize() {
  if (!device_.properties().integrated_work) {
    const Ticket submitted = this->submitted();
    device_.check(device_.primitives().stream_synchronize(device_.ordinal(), handle_),
                  "stream_synchronize");
    note_waited(BlockUse{own_, submitted});
  }
  raise_fault(device_);
}

void Stream::wait_stream(Stream& other) {
  if (own_ == other.own_) return;
  if (other.device_.properties().integrated_work && !other.is_captured()) return;
  if (other.device_.kind() != device_.kind()) {
    // Different drivers cannot wait for each other's events; the host does.
    other.synchronize();
    return;
  }
  other.device_.require(Primitive::k_event_create);
  const PooledEvent event(other.device_);
  if (event.handle() == 0) {
    throw Error(ErrorKind::kDevice, "wait_stream: " + other.device_.name() +
                                        " refused to make an event; synchronize the stream");
  }
  const BlockUse mark = other.use();
  const Primitives& from = other.device_.primitives();
  other.device_.check(from.event_record(other.device_.ordinal(), event.handle(), other.handle_),
                      "event_record");
  device_.check(device_.primitives().stream_wait_event(device_.ordinal(), handle_, event.handle()),
                "stream_wait_event");
  note_wait(mark);
}

void Stream::note_wait(const BlockUse& mark) noexcept {
  if (is_capture(mark.stream)) {
    join_stream_capture(own_, mark.stream);
  } else if (mark.ticket != 0) {
    nbx::note_wait(id(), mark);
  }
}

Stream& default_stream(Device& device) {
  Defaults& all = defaults();
  std::atomic<Stream*>* slot = is_quick(device)
                                   ? &all.quick[static_cast<std::size_t>(device.kind())]
                                               [static_cast<std::size_t>(device.ordinal())]
                                   : nullptr;
  if (slot != nullptr) {
    if (Stream* known = slot->load(std::memory_order_acquire)) return *known;
  }
  const std::lock_guard<std::mutex> guard(all.mutex);
  std::unique_ptr<Stream>& stream = all.streams[key_of(device)];
  if (stream == nullptr) stream = std::make_unique<Stream>(device, StreamHandle{0}, false);
  if (slot != nullptr) slot->store(stream.get(), std::memory_order_release);
  return *stream;
}

Stream& current_stream(Device& device) {
  Stream*& stream = current_slot(device);
  if (stream == nullptr) [[unlikely]]
    stream = &default_stream(device);
  return *stream;
}

Stream& set_current_stream(Stream& stream) {
  Stream& former = current_stream(stream.device());
  current_slot(stream.device()) = &stream;
  return former;
}

std::shared_ptr<Stream> create_stream(Device& device, std::int32_t priority) {
  device.require(Primitive::k_stream_create);
  StreamHandle handle = 0;
  device.check(device.primitives().stream_create(device.ordinal(), priority, &handle),
               "stream_create");
  return std::make_shared<Stream>(device, handle, true);
}

}  // namespace nbx
