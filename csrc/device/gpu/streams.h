// Streams, tickets and events.
#pragma once

#include <algorithm>

#include "device/gpu/driver.h"

namespace nbx::gpu {

inline constexpr unsigned kNonBlocking = 1;
inline constexpr unsigned kWithoutTiming = 2;
inline constexpr StreamHandle kLegacyStream = 1;     // another name of the default stream
inline constexpr StreamHandle kPerThreadStream = 2;  // another stream on each thread

template <class Api>
inline constinit thread_local StreamState* last_stream = nullptr;

/// The state of a stream; null for one that was given back, and for the one whose meaning changes
/// with the thread.
template <class Api>
StreamState* stream_state(std::int32_t ordinal, StreamHandle handle) {
  StreamState* state = last_stream<Api>;
  if (state == nullptr || state->handle != handle || state->ordinal != ordinal) [[unlikely]] {
    if (handle == kPerThreadStream) return nullptr;
    if (handle == kLegacyStream) handle = 0;
    state = &objects<Api>().streams.at(ordinal, handle);
    last_stream<Api> = state;
  }
  return state->owner.load(std::memory_order_relaxed) == StreamState::kIdle ? nullptr : state;
}

/// Counts the work that the driver took.
inline Status submitted(StreamState* state, int code) noexcept {
  if (code == 0) [[likely]]
    state->submitted.fetch_add(1, std::memory_order_release);
  return code;
}

/// True also where it cannot be told, as while a capture elsewhere forbids the default stream.
template <class Api>
bool is_captured(StreamHandle stream) {
  int capture = 0;
  const int code = Api::is_capturing(raw(stream), &capture);
  if (code != 0) Api::clear_error();
  return code != 0 || capture != 0;
}

template <class Api>
struct Streams {
  // ---- streams ---------------------------------------------------------------------------------

  /// One that was given back and is done with its work, before the driver makes another: the
  /// driver might give out a handle again whose tickets and names are known here.
  static Status stream_create(std::int32_t ordinal, std::int32_t priority, StreamHandle* stream) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    DeviceState& device = *entry.device;
    priority = std::clamp(priority, device.greatest_priority, device.least_priority);
    if (StreamState* const idle = take_idle(&device, priority)) {
      idle->owner.store(StreamState::kOwn, std::memory_order_release);
      *stream = idle->handle;
      return kSuccess;
    }
    void* made = nullptr;
    const int code = Api::stream_create(&made, kNonBlocking, priority);
    if (code != 0) return answered<Api>(code);
    *stream = address_of(made);
    StreamState& state = objects<Api>().streams.at(ordinal, *stream);
    state.priority = priority;
    state.owner.store(StreamState::kOwn, std::memory_order_release);
    return kSuccess;
  }

  static Status stream_destroy(std::int32_t ordinal, StreamHandle stream) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    if (state->owner.load(std::memory_order_relaxed) == StreamState::kOwn) {
      int capture = 0;
      void* graph = nullptr;
      if (Api::is_capturing(raw(stream), &capture) == 0 && capture != 0) {
        // What it recorded is given up.
        if (Api::capture_end(raw(stream), &graph) == 0 && graph != nullptr) {
          static_cast<void>(Api::graph_destroy(graph));
        }
      }
    }
    auto expected = StreamState::kOwn;
    if (!state->owner.compare_exchange_strong(expected, StreamState::kIdle)) {
      return kInvalidHandle;  // another library's, or given back by another thread just now
    }
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    entry.device->idle_streams.push_back(state);
    return kSuccess;
  }

  static Status stream_synchronize(std::int32_t ordinal, StreamHandle stream) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    const Ticket ticket = state->submitted.load(std::memory_order_acquire);
    const int code = Api::stream_synchronize(raw(stream));
    if (code == 0) state->note_completed(ticket);
    return code;
  }

  static Status stream_wait_event(std::int32_t ordinal, StreamHandle stream, EventHandle event) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    const EventState* const mark = objects<Api>().events.find(event);
    if (state == nullptr || mark == nullptr) return kInvalidHandle;
    if (!mark->recorded.load(std::memory_order_acquire)) return kSuccess;
    return submitted(state, Api::stream_wait(raw(stream), mark->event, 0));
  }

  // ---- tickets ---------------------------------------------------------------------------------

  static Status submitted_ticket(std::int32_t ordinal, StreamHandle stream, Ticket* ticket) {
    const auto index = static_cast<std::uint32_t>(ordinal);
    const DeviceState* const device =
        index < kMostDevices ? opened<Api>[index].load(std::memory_order_acquire) : nullptr;
    if (device == nullptr) return kInvalidDevice;
    if (fork_generation() != device->generation) return kForkedChild;
    const StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    *ticket = state->submitted.load(std::memory_order_acquire);
    return kSuccess;
  }

  static Status completed_ticket(std::int32_t ordinal, StreamHandle stream, Ticket* ticket) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    const Status status = poll(state);
    if (status == kSuccess) *ticket = state->completed.load(std::memory_order_acquire);
    return status;
  }

  static Status wait_ticket(std::int32_t ordinal, StreamHandle stream, Ticket ticket) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    if (ticket > state->submitted.load(std::memory_order_acquire)) return kInvalidValue;
    while (state->completed.load(std::memory_order_acquire) < ticket) {
      const Status status = wait_for_mark(state, ticket);
      if (status != kSuccess) return status;
    }
    return kSuccess;
  }

  // ---- events ----------------------------------------------------------------------------------

  static Status event_create(std::int32_t ordinal, bool timing, EventHandle* event) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    void* made = nullptr;
    {
      const std::lock_guard<std::mutex> guard(entry.device->mutex);
      auto& idle = entry.device->idle_events[timing ? 1 : 0];
      if (!idle.empty()) {
        made = idle.back();
        idle.pop_back();
      }
    }
    if (made == nullptr) {
      const int code = Api::event_create(&made, timing ? 0 : kWithoutTiming);
      if (code != 0) return answered<Api>(code);
    }
    EventHandle handle = 0;
    EventState* const state = objects<Api>().events.take(&handle);
    if (state == nullptr) return kAllocationRefused;
    state->ordinal = ordinal;
    state->timing = timing;
    state->event = made;
    state->recorded.store(false, std::memory_order_release);
    *event = handle;
    return kSuccess;
  }

  static Status event_destroy(std::int32_t ordinal, EventHandle event) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const EventState* const state = objects<Api>().events.find(event);
    if (state == nullptr || state->ordinal != ordinal) return kInvalidHandle;
    void* const driver_event = state->event;
    const bool timing = state->timing;
    if (!objects<Api>().events.give(event)) return kInvalidHandle;
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    entry.device->idle_events[timing ? 1 : 0].push_back(driver_event);
    return kSuccess;
  }

  static Status event_record(std::int32_t ordinal, EventHandle event, StreamHandle stream) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    EventState* const state = objects<Api>().events.find(event);
    if (state == nullptr || stream_state<Api>(ordinal, stream) == nullptr) return kInvalidHandle;
    const int code = Api::event_record(state->event, raw(stream));
    if (code == 0) state->recorded.store(true, std::memory_order_release);
    return code;
  }

  static Status event_query(std::int32_t ordinal, EventHandle event, bool* complete) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const EventState* const state = objects<Api>().events.find(event);
    if (state == nullptr) return kInvalidHandle;
    const bool recorded = state->recorded.load(std::memory_order_acquire);
    const int code = recorded ? Api::event_query(state->event) : 0;
    if (code != 0 && code != kNotReady) return answered<Api>(code);
    if (code == kNotReady) Api::clear_error();
    *complete = code == 0;
    return kSuccess;
  }

  static Status event_synchronize(std::int32_t ordinal, EventHandle event) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const EventState* const state = objects<Api>().events.find(event);
    if (state == nullptr) return kInvalidHandle;
    const bool recorded = state->recorded.load(std::memory_order_acquire);
    return recorded ? Api::event_synchronize(state->event) : kSuccess;
  }

  static Status event_elapsed(std::int32_t ordinal, EventHandle start, EventHandle end,
                              double* seconds) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const EventState* const from = objects<Api>().events.find(start);
    const EventState* const to = objects<Api>().events.find(end);
    for (const EventState* state : {from, to}) {
      if (state == nullptr || !state->timing || !state->recorded.load(std::memory_order_acquire)) {
        return kInvalidHandle;
      }
    }
    float milliseconds = 0.0F;
    const int code = Api::event_elapsed(&milliseconds, from->event, to->event);
    if (code == 0) *seconds = static_cast<double>(milliseconds) * 1e-3;
    return answered<Api>(code);
  }

 private:
  static StreamState* take_idle(DeviceState* device, std::int32_t priority) {
    const std::lock_guard<std::mutex> guard(device->mutex);
    auto& idle = device->idle_streams;
    const auto found = std::find_if(idle.begin(), idle.end(), [&](const StreamState* state) {
      return state->priority == priority && Api::stream_query(raw(state->handle)) == 0;
    });
    Api::clear_error();
    if (found == idle.end()) return nullptr;
    StreamState* const state = *found;
    idle.erase(found);
    return state;
  }

  static StreamMark& mark_at(StreamState* state, std::uint32_t place) noexcept {
    return state->marks[(state->first_mark + place) % state->marks.size()];
  }

  /// Notes what is complete of the marks, oldest first. The state's lock is held.
  static int collect(StreamState* state) {
    while (state->mark_count != 0) {
      const StreamMark& oldest = mark_at(state, 0);
      const int code = Api::event_query(oldest.event);
      if (code == kNotReady) Api::clear_error();
      if (code != 0) return code;
      state->note_completed(oldest.ticket);
      if (oldest.waiters != 0) return kNotReady;
      ++state->first_mark;
      --state->mark_count;
    }
    return kSuccess;
  }

  /// Marks what is submitted now, if there is room. The state's lock is held.
  static int add_mark(StreamState* state) {
    if (state->mark_count == state->marks.size()) return kSuccess;
    StreamMark& mark = mark_at(state, state->mark_count);
    if (mark.event == nullptr) {
      const int code = Api::event_create(&mark.event, kWithoutTiming);
      if (code != 0) return answered<Api>(code);
    }
    mark.ticket = state->submitted.load(std::memory_order_acquire);
    const int code = Api::event_record(mark.event, raw(state->handle));
    if (code == 0) ++state->mark_count;
    return code;
  }

  static Ticket newest_mark(StreamState* state) noexcept {
    return state->mark_count == 0 ? state->completed.load(std::memory_order_relaxed)
                                  : mark_at(state, state->mark_count - 1).ticket;
  }

  /// Learns how far the stream is. Under contention what is known must do.
  static Status poll(StreamState* state) {
    if (state->completed.load(std::memory_order_acquire) ==
        state->submitted.load(std::memory_order_acquire)) {
      return kSuccess;
    }
    const std::unique_lock<std::mutex> guard(state->mutex, std::try_to_lock);
    if (!guard.owns_lock()) return kSuccess;
    const Unrestricted<Api> unrestricted(true);
    int code = collect(state);
    if (code != 0 && code != kNotReady) return code;
    if (newest_mark(state) >= state->submitted.load(std::memory_order_acquire) ||
        is_captured<Api>(state->handle)) {
      return kSuccess;
    }
    const bool complete_before = state->mark_count == 0;
    code = add_mark(state);
    if (code != 0 || !complete_before) return code;
    code = collect(state);
    return code == kNotReady ? kSuccess : code;
  }

  /// Waits for the first mark that stands for the ticket, or for the last one if there is room for
  /// none.
  static Status wait_for_mark(StreamState* state, Ticket ticket) {
    std::unique_lock<std::mutex> lock(state->mutex);
    if (const int code = collect(state); code != 0 && code != kNotReady) return code;
    if (state->completed.load(std::memory_order_acquire) >= ticket) return kSuccess;
    if (newest_mark(state) < ticket) {
      if (is_captured<Api>(state->handle)) return kCaptureInvalid;
      if (const int code = add_mark(state); code != 0) return code;
    }
    std::uint32_t place = 0;
    while (place + 1 < state->mark_count && mark_at(state, place).ticket < ticket) ++place;
    StreamMark& mark = mark_at(state, place);
    const Ticket reached = mark.ticket;
    ++mark.waiters;
    lock.unlock();
    const int code = Api::event_synchronize(mark.event);
    lock.lock();
    --mark.waiters;
    if (code == 0) state->note_completed(reached);
    return code;
  }
};

}  // namespace nbx::gpu
