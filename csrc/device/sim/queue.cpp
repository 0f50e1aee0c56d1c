// Streams, events and the running of queued work.
#include <algorithm>
#include <limits>
#include <utility>

#include "device/sim/world.h"

namespace nbx::sim {
namespace {

constinit thread_local int work_depth = 0;

}  // namespace

bool inside_work() noexcept { return work_depth != 0; }

// ---- running work
// --------------------------------------------------------------------------------

std::shared_ptr<SimStream> World::stream(std::int32_t ordinal, StreamHandle handle) {
  auto& streams = device(ordinal).streams;
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

Status World::submit(const std::shared_ptr<SimStream>& stream, std::shared_ptr<Action> action,
                     double seconds, std::vector<Mark> waits) {
  if (stream->capture != nullptr) {
    // Order of submission is one of the orders that the captured streams allow.
    stream->newest = next_handle++;
    stream->capture->nodes->push_back(Node{stream->newest, std::move(action)});
    stream->capture->seconds += seconds;
    return kSuccess;
  }
  double start = std::max(now, stream->end);
  for (const Mark& mark : waits) start = std::max(start, mark.finish);
  Work work;
  work.action = std::move(action);
  work.waits = std::move(waits);
  work.ticket = stream->submitted + 1;
  work.finish = start + seconds;
  stream->queue.push_back(std::move(work));
  ++stream->submitted;
  stream->end = start + seconds;
  return kSuccess;
}

/// The stream whose head must run next for `stream` to advance. Every step leads to work that was
/// submitted earlier, so there is an end and no cycle.
std::shared_ptr<SimStream> World::runnable(std::shared_ptr<SimStream> stream) const {
  for (;;) {
    if (stream->busy || stream->queue.empty()) return stream;
    const auto& waits = stream->queue.front().waits;
    const auto blocked = std::find_if(waits.begin(), waits.end(), [](const Mark& mark) {
      return mark.stream->completed < mark.ticket;
    });
    if (blocked == waits.end()) return stream;
    stream = blocked->stream;
  }
}

void World::run_head(Lock& lock, SimStream& stream) {
  stream.busy = true;
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.action != nullptr) {
    ++work_depth;
    work.action->run(*this, lock);
    // What the work held is released before the work counts as done, and without the lock: the
    // owner's clean-up may call the device.
    lock.unlock();
    work.action.reset();
    lock.lock();
    --work_depth;
  }
  stream.completed = work.ticket;
  stream.completed_at = work.finish;
  stream.busy = false;
  changed.notify_all();
}

Status World::drain(Lock& lock, const std::shared_ptr<SimStream>& stream, Ticket ticket) {
  while (stream->completed < ticket) {
    const std::shared_ptr<SimStream> next = runnable(stream);
    if (!next->busy) {
      run_head(lock, *next);
    } else if (inside_work()) {
      return kNotPermitted;
    } else {
      changed.wait(lock);
    }
  }
  now = std::max(now, stream->completed_at);
  return device(stream->ordinal).sticky;
}

void World::poll(Lock& lock, const std::shared_ptr<SimStream>& stream, double due) {
  while (!stream->queue.empty() && stream->queue.front().finish <= due) {
    const std::shared_ptr<SimStream> next = runnable(stream);
    if (next->busy) return;
    run_head(lock, *next);
  }
}

Status World::drain_device(Lock& lock, std::int32_t ordinal) {
  // A copy: streams may be made and destroyed while work runs.
  std::vector<std::shared_ptr<SimStream>> streams = device(ordinal).closing;
  for (const auto& [handle, stream] : device(ordinal).streams) streams.push_back(stream);
  for (const auto& stream : streams) {
    if (stream->capture != nullptr) return kCaptureInvalid;
    const Status status = drain(lock, stream, stream->submitted);
    if (status == kNotPermitted) return status;
  }
  auto& closing = device(ordinal).closing;
  closing.erase(std::remove_if(closing.begin(), closing.end(),
                               [](const auto& s) { return s->completed == s->submitted; }),
                closing.end());
  return device(ordinal).sticky;
}

// ---- entries
// ---------------------------------------------------------------------------------------

namespace {

/// An entry that works on a stream.
class StreamEntry : public Entry {
 public:
  StreamEntry(std::int32_t ordinal, Primitive primitive, double cost, StreamHandle handle)
      : Entry(ordinal, primitive, cost) {
    if (status != kSuccess) return;
    stream = world().stream(ordinal, handle);
    if (stream == nullptr) status = kInvalidHandle;
  }
  std::shared_ptr<SimStream> stream;
};

/// An entry that works on an event.
class EventEntry : public Entry {
 public:
  EventEntry(std::int32_t ordinal, Primitive primitive, double cost, EventHandle handle)
      : Entry(ordinal, primitive, cost) {
    if (status != kSuccess) return;
    const auto found = world().events.find(handle);
    if (found == world().events.end()) {
      status = kInvalidHandle;
    } else {
      event = &found->second;
    }
  }
  SimEvent* event = nullptr;
};

Status synchronize(std::int32_t ordinal) {
  Entry entry(ordinal, Primitive::k_synchronize, kQueryCost);
  if (entry.status != kSuccess) return entry.status;
  return entry.world().drain_device(entry.lock(), ordinal);
}

Status stream_create(std::int32_t ordinal, std::int32_t /*priority*/, StreamHandle* handle) {
  const Entry entry(ordinal, Primitive::k_stream_create, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  auto stream = std::make_shared<SimStream>();
  stream->ordinal = ordinal;
  stream->handle = entry.world().next_handle++;
  *handle = stream->handle;
  entry.device().streams.emplace(stream->handle, std::move(stream));
  return kSuccess;
}

/// As on a card, the work that is left still runs: when the device is synchronised, or when work
/// that waits for it runs.
Status stream_destroy(std::int32_t ordinal, StreamHandle handle) {
  std::shared_ptr<Graph> abandoned;  // dropped after the lock
  const StreamEntry entry(ordinal, Primitive::k_stream_destroy, kTrivialCost, handle);
  if (entry.status != kSuccess) return entry.status;
  if (handle == 0) return kInvalidHandle;
  if (entry.stream->capture != nullptr) {
    if (entry.stream->capture->origin != entry.stream) return kCaptureInvalid;
    abandoned = entry.stream->capture;
    for (const auto& joined : abandoned->streams) joined->capture = nullptr;
  }
  entry.device().streams.erase(handle);
  auto& closing = entry.device().closing;
  closing.erase(std::remove_if(closing.begin(), closing.end(),
                               [](const auto& s) { return s->completed == s->submitted; }),
                closing.end());
  if (entry.stream->completed != entry.stream->submitted) closing.push_back(entry.stream);
  return kSuccess;
}

Status stream_synchronize(std::int32_t ordinal, StreamHandle handle) {
  StreamEntry entry(ordinal, Primitive::k_stream_synchronize, kQueryCost, handle);
  if (entry.status != kSuccess) return entry.status;
  if (entry.stream->capture != nullptr) return kCaptureInvalid;
  return entry.world().drain(entry.lock(), entry.stream, entry.stream->submitted);
}

Status submitted_ticket(std::int32_t ordinal, StreamHandle handle, Ticket* ticket) {
  const StreamEntry entry(ordinal, Primitive::k_submitted_ticket, 0.0, handle);
  if (entry.status == kSuccess) *ticket = entry.stream->submitted;
  return entry.status;
}

Status completed_ticket(std::int32_t ordinal, StreamHandle handle, Ticket* ticket) {
  StreamEntry entry(ordinal, Primitive::k_completed_ticket, kQueryCost, handle);
  if (entry.status != kSuccess) return entry.status;
  entry.world().poll(entry.lock(), entry.stream, entry.world().now);
  *ticket = entry.stream->completed;
  return kSuccess;
}

Status wait_ticket(std::int32_t ordinal, StreamHandle handle, Ticket ticket) {
  StreamEntry entry(ordinal, Primitive::k_wait_ticket, kQueryCost, handle);
  if (entry.status != kSuccess) return entry.status;
  if (ticket > entry.stream->submitted) return kInvalidValue;
  return entry.world().drain(entry.lock(), entry.stream, ticket);
}

Status event_create(std::int32_t ordinal, bool timing, EventHandle* event) {
  const Entry entry(ordinal, Primitive::k_event_create, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  *event = entry.world().next_handle++;
  entry.world().events[*event].timing = timing;
  return kSuccess;
}

Status event_destroy(std::int32_t ordinal, EventHandle event) {
  const Entry entry(ordinal, Primitive::k_event_destroy, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  return entry.world().events.erase(event) == 1 ? kSuccess : kInvalidHandle;
}

Status event_record(std::int32_t ordinal, EventHandle handle, StreamHandle stream_handle) {
  const EventEntry entry(ordinal, Primitive::k_event_record, kRecordCost, handle);
  if (entry.status != kSuccess) return entry.status;
  const auto stream = entry.world().stream(ordinal, stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  SimEvent& event = *entry.event;
  event.recorded = true;
  event.in_capture = stream->capture != nullptr;
  event.graph = stream->capture;
  event.mark = Mark{stream, stream->submitted, std::max(entry.world().now, stream->end)};
  return kSuccess;
}

Status stream_wait_event(std::int32_t ordinal, StreamHandle handle, EventHandle event_handle) {
  const StreamEntry entry(ordinal, Primitive::k_stream_wait_event, kWaitCost, handle);
  if (entry.status != kSuccess) return entry.status;
  const auto found = entry.world().events.find(event_handle);
  if (found == entry.world().events.end()) return kInvalidHandle;
  const SimEvent& event = found->second;
  if (!event.recorded) return kSuccess;
  if (!event.in_capture) {
    if (entry.stream->capture != nullptr) return kCaptureInvalid;
    return entry.world().submit(entry.stream, nullptr, 0.0, {event.mark});
  }
  // A stream that waits for a captured event joins the capture.
  const std::shared_ptr<Graph> graph = event.graph.lock();
  if (graph == nullptr || graph->origin->capture != graph) return kCaptureInvalid;
  entry.stream->newest = 0;
  if (entry.stream->capture == graph) return kSuccess;
  if (entry.stream->capture != nullptr) return kCaptureInvalid;
  entry.stream->capture = graph;
  graph->streams.push_back(entry.stream);
  return kSuccess;
}

Status event_query(std::int32_t ordinal, EventHandle handle, bool* complete) {
  EventEntry entry(ordinal, Primitive::k_event_query, kQueryCost, handle);
  if (entry.status != kSuccess) return entry.status;
  if (entry.event->in_capture) return kCaptureInvalid;
  const Mark mark = entry.event->mark;  // the event may be gone when the lock was given up
  if (mark.stream != nullptr && entry.world().now >= mark.finish) {
    entry.world().poll(entry.lock(), mark.stream, mark.finish);
  }
  *complete = mark.stream == nullptr || mark.stream->completed >= mark.ticket;
  return kSuccess;
}

Status event_synchronize(std::int32_t ordinal, EventHandle handle) {
  EventEntry entry(ordinal, Primitive::k_event_synchronize, kQueryCost, handle);
  if (entry.status != kSuccess) return entry.status;
  if (entry.event->in_capture) return kCaptureInvalid;
  const Mark mark = entry.event->mark;
  return mark.stream == nullptr ? kSuccess
                                : entry.world().drain(entry.lock(), mark.stream, mark.ticket);
}

Status event_elapsed(std::int32_t ordinal, EventHandle start, EventHandle end, double* seconds) {
  const EventEntry entry(ordinal, Primitive::k_event_elapsed, kTrivialCost, start);
  if (entry.status != kSuccess) return entry.status;
  const auto found = entry.world().events.find(end);
  if (found == entry.world().events.end()) return kInvalidHandle;
  for (const SimEvent* event : {entry.event, &found->second}) {
    if (!event->recorded || !event->timing || event->in_capture) return kInvalidHandle;
    if (event->mark.stream->completed < event->mark.ticket) return kNotReady;
  }
  *seconds = found->second.mark.finish - entry.event->mark.finish;
  return kSuccess;
}

}  // namespace

void set_queue_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(synchronize)
  NBX_SET(stream_create)
  NBX_SET(stream_destroy)
  NBX_SET(stream_synchronize)
  NBX_SET(stream_wait_event)
  NBX_SET(submitted_ticket)
  NBX_SET(completed_ticket)
  NBX_SET(wait_ticket)
  NBX_SET(event_create)
  NBX_SET(event_destroy)
  NBX_SET(event_record)
  NBX_SET(event_query)
  NBX_SET(event_synchronize)
  NBX_SET(event_elapsed)
#undef NBX_SET
}

}  // namespace nbx::sim
