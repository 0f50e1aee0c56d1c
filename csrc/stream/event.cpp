#include "stream/event.h"

#include "core/error.h"
#include "core/log.h"
#include "device/host_status.h"
#include "stream/fault.h"

namespace nbx {

Event::Event(Device& device, bool timing) : device_(device), timing_(timing) {
  device.require(Primitive::k_event_create);
  device.check(device.primitives().event_create(device.ordinal(), timing, &handle_),
               "event_create");
}

Event::~Event() {
  const Primitives& table = device_.primitives();
  const Status status = table.event_destroy(device_.ordinal(), handle_);
  if (status != kSuccess && status != kForkedChild) {
    log(LogLevel::kError, std::string("event_destroy: ") + table.status_text(status));
  }
}

void Event::record(Stream& stream) {
  if (&stream.device() != &device_) {
    throw Error(ErrorKind::kValue, "record: the event is of " + device_.name() +
                                       " and the stream of " + stream.device().name() +
                                       "; make the event for the stream's device");
  }
  // Read before the mark is made: what it stands for at least.
  const BlockUse mark = stream.use();
  device_.check(device_.primitives().event_record(device_.ordinal(), handle_, stream.handle()),
                "event_record");
  const std::lock_guard<std::mutex> guard(mark_lock_);
  mark_ = mark;
}

BlockUse Event::mark() const {
  const std::lock_guard<std::mutex> guard(mark_lock_);
  return mark_;
}

void Event::block(Stream& stream) {
  Device& other = stream.device();
  if (other.kind() != device_.kind()) {
    // Different drivers cannot wait for each other's events; the host does.
    synchronize();
    return;
  }
  const BlockUse mark = this->mark();
  other.check(other.primitives().stream_wait_event(other.ordinal(), stream.handle(), handle_),
              "stream_wait_event");
  stream.note_wait(mark);
}

bool Event::is_complete() {
  const BlockUse mark = this->mark();
  bool complete = false;
  device_.check(device_.primitives().event_query(device_.ordinal(), handle_, &complete),
                "event_query");
  if (complete && mark.ticket != 0) note_completed(mark);
  return complete;
}

void Event::synchronize() {
  const BlockUse mark = this->mark();
  device_.check(device_.primitives().event_synchronize(device_.ordinal(), handle_),
                "event_synchronize");
  if (mark.ticket != 0) note_waited(mark);
  raise_fault(device_);
}

double Event::seconds_to(const Event& end) const {
  if (&end.device_ != &device_ || !timing_ || !end.timing_) {
    throw Error(ErrorKind::kValue,
                "elapsed: both events must be made with timing=True for one "
                "device, got " +
                    device_.name() + " and " + end.device_.name());
  }
  double seconds = 0.0;
  device_.check(
      device_.primitives().event_elapsed(device_.ordinal(), handle_, end.handle_, &seconds),
      "event_elapsed");
  return seconds;
}

}  // namespace nbx
