#include "stream/order.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "stream/callback.h"
#include "stream/names.h"

namespace nbx {
namespace {

constexpr std::uint32_t kFirstPlaces = 8;

/// Notes in the table of `known`, in a larger one if that is full. The lock is held.
void learn(KnownStream* known, StreamId stream, Ticket ticket, Ticket since) {
  Seen* table = known->tables.empty() ? nullptr : known->tables.back().get();
  if (table != nullptr && table->learn(stream, ticket, since)) return;
  std::uint32_t needed = 2;
  if (table != nullptr) {
    // What is complete needs no order any more.
    table->for_each([&](StreamId other, Ticket seen, Ticket) {
      if (known_completed(other) < seen) needed += 2;
    });
  }
  std::uint32_t places = kFirstPlaces;
  while (places < 2 * needed) places *= 2;
  auto larger = std::make_unique<Seen>(places);
  if (table != nullptr) {
    table->for_each([&](StreamId other, Ticket seen, Ticket by) {
      if (known_completed(other) < seen) larger->learn(other, seen, by);
    });
  }
  larger->learn(stream, ticket, since);
  known->tables.push_back(std::move(larger));
  known->seen.store(known->tables.back().get(), std::memory_order_release);
}

/// Whether the last work of a retired stream is complete. Its event is taken out meanwhile: one
/// thread asks, the others believe what is known.
bool poll_retired(KnownStream& known, StreamId stream, bool wait) {
  EventHandle event = 0;
  Ticket final_ticket = 0;
  {
    const std::lock_guard<std::mutex> guard(names().mutex());
    final_ticket = known.final_ticket;
    event = std::exchange(known.final_event, 0);
  }
  if (event == 0) return known.completed.load(std::memory_order_acquire) >= final_ticket;
  const Primitives& table = known.device->primitives();
  bool complete = false;
  Status status = kSuccess;
  if (wait) {
    status = table.event_synchronize(known.device->ordinal(), event);
    complete = status == kSuccess;
  } else {
    status = table.event_query(known.device->ordinal(), event, &complete);
  }
  if (status == kSuccess && complete) {
    const PooledEvent back(*known.device, event);
    note_completed(BlockUse{stream, final_ticket});
    return true;
  }
  {
    const std::lock_guard<std::mutex> guard(names().mutex());
    known.final_event = event;
  }
  known.device->check(status, wait ? "event_synchronize" : "event_query");
  return false;
}

}  // namespace

StreamId stream_id(Device& device, StreamHandle handle) { return names().id(device, handle); }

const std::atomic<StreamId>& current_name(StreamId stream) noexcept { return names()[stream].name; }

// ---- streams that go -----------------------------------------------------------------------

void retire_stream(StreamId stream) noexcept {
  KnownStream& known = names()[stream];
  const Primitives& table = known.device->primitives();
  const std::int32_t ordinal = known.device->ordinal();
  Ticket submitted = 0;
  Ticket completed = 0;
  EventHandle event = 0;
  const bool asked = table.submitted_ticket != nullptr && table.completed_ticket != nullptr &&
                     table.submitted_ticket(ordinal, known.handle, &submitted) == kSuccess &&
                     table.completed_ticket(ordinal, known.handle, &completed) == kSuccess;
  if (asked) note_completed(BlockUse{stream, completed});
  if (asked && completed < submitted && known.name.load(std::memory_order_acquire) == stream) {
    PooledEvent mark(*known.device);
    if (mark.handle() != 0 &&
        table.event_record(ordinal, mark.handle(), known.handle) == kSuccess) {
      event = mark.detach();
    }
  }
  const std::lock_guard<std::mutex> guard(names().mutex());
  known.final_ticket = asked ? submitted : kAnyTicket;
  known.final_event = event;
  known.retired.store(true, std::memory_order_release);
  names().forget_handle(known);
  // Nothing is submitted to it any more that its waits could order.
  known.seen.store(nullptr, std::memory_order_release);
  known.tables.clear();
}

// ---- complete work -------------------------------------------------------------------------

Ticket submitted_ticket(StreamId stream) {
  const KnownStream& known = names()[stream];
  Ticket ticket = 0;
  known.device->check(
      known.device->primitives().submitted_ticket(known.device->ordinal(), known.handle, &ticket),
      "submitted_ticket");
  return ticket;
}

const std::atomic<Ticket>& completed_of(StreamId stream) noexcept {
  return names()[stream].completed;
}

std::atomic<Ticket>& newest_of(StreamId stream) noexcept { return names()[stream].newest; }

Ticket known_completed(StreamId stream) noexcept {
  return names()[stream].completed.load(std::memory_order_acquire);
}

void note_completed(const BlockUse& use) noexcept {
  std::atomic<Ticket>& completed = names()[use.stream].completed;
  Ticket known = completed.load(std::memory_order_relaxed);
  while (known < use.ticket &&
         !completed.compare_exchange_weak(known, use.ticket, std::memory_order_release)) {
  }
}

void note_waited(const BlockUse& use) noexcept {
  note_completed(use);
  const std::lock_guard<std::mutex> guard(names().mutex());
  const Seen* seen = names()[use.stream].seen.load(std::memory_order_acquire);
  if (seen == nullptr) return;
  seen->for_each([&](StreamId stream, Ticket ticket, Ticket by) {
    if (by <= use.ticket) note_completed(BlockUse{stream, ticket});
  });
}

void synchronize_device(Device& device) {
  const Primitives& primitives = device.primitives();
  std::vector<BlockUse> work;
  if (!device.properties().integrated_work && primitives.submitted_ticket != nullptr) {
    for (const StreamId stream : names().of(device)) {
      Ticket ticket = 0;
      if (primitives.submitted_ticket(device.ordinal(), names()[stream].handle, &ticket) ==
          kSuccess) {
        work.push_back(BlockUse{stream, ticket});
      }
    }
  }
  device.check(primitives.synchronize(device.ordinal()), "synchronize");
  for (const BlockUse& use : work) note_completed(use);
}

Ticket completed_ticket(StreamId stream, Ticket newest) {
  KnownStream& known = names()[stream];
  const Ticket cached = known.completed.load(std::memory_order_acquire);
  if (cached >= newest) return cached;
  const Primitives& primitives = known.device->primitives();
  if (known.retired.load(std::memory_order_acquire)) {
    if (poll_retired(known, stream, false)) return std::max(newest, known_completed(stream));
    const std::lock_guard<std::mutex> guard(names().mutex());
    if (known.final_event != 0) return known_completed(stream);
  } else {
    Ticket ticket = 0;
    if (primitives.completed_ticket(known.device->ordinal(), known.handle, &ticket) == kSuccess) {
      note_completed(BlockUse{stream, ticket});
      return ticket;
    }
  }
  // A callback may not wait for the device.
  if (inside_callback()) return known_completed(stream);
  known.device->check(primitives.synchronize(known.device->ordinal()), "synchronize");
  note_completed(BlockUse{stream, newest});
  return newest;
}

void wait_for(const BlockUse& use) {
  KnownStream& known = names()[use.stream];
  if (known.completed.load(std::memory_order_acquire) >= use.ticket) return;
  const Primitives& primitives = known.device->primitives();
  const bool retired = known.retired.load(std::memory_order_acquire);
  if (retired && poll_retired(known, use.stream, true)) return;
  if (retired ||
      primitives.wait_ticket(known.device->ordinal(), known.handle, use.ticket) != kSuccess) {
    known.device->check(primitives.synchronize(known.device->ordinal()), "synchronize");
  }
  note_waited(use);
}

// ---- waits ---------------------------------------------------------------------------------

bool is_ordered(StreamId later, const BlockUse& use, Ticket by) noexcept {
  if (use.ticket == 0 || later == use.stream) return true;
  if (known_completed(use.stream) >= use.ticket) return true;
  const Seen* seen = names()[later].seen.load(std::memory_order_acquire);
  return seen != nullptr && seen->find(use.stream, by) >= use.ticket;
}

void note_wait(StreamId later, const BlockUse& mark) noexcept {
  if (mark.ticket == 0 || mark.stream == later || is_capture(later) || is_capture(mark.stream)) {
    return;
  }
  try {
    // The wait is work of `later`, at this ticket or before it.
    const Ticket since = submitted_ticket(later);
    Names& all = names();
    const std::lock_guard<std::mutex> guard(all.mutex());
    KnownStream& to = all[later];
    learn(&to, mark.stream, mark.ticket, since);
    const Seen* others = all[mark.stream].seen.load(std::memory_order_acquire);
    if (others == nullptr) return;
    others->for_each([&](StreamId stream, Ticket ticket, Ticket by) {
      if (by <= mark.ticket && stream != later && known_completed(stream) < ticket) {
        learn(&to, stream, ticket, since);
      }
    });
  } catch (const std::exception& error) {
    // Nothing depends on knowing: the memory is reused later, by another policy.
    log(LogLevel::kWarning, std::string("wait: its order is not known: ") + error.what());
  }
}

bool insert_wait(StreamId later, StreamId earlier) {
  if (is_capture(later) || is_capture(earlier)) return false;
  KnownStream& from = names()[earlier];
  KnownStream& to = names()[later];
  const bool usable = from.device == to.device && !from.retired && !to.retired &&
                      from.name.load(std::memory_order_acquire) == earlier &&
                      to.name.load(std::memory_order_acquire) == later;
  if (!usable) return false;
  const Primitives& primitives = from.device->primitives();
  const PooledEvent event(*from.device);
  if (event.handle() == 0) return false;
  const BlockUse mark{earlier, submitted_ticket(earlier)};
  const std::int32_t ordinal = from.device->ordinal();
  const bool made = primitives.event_record(ordinal, event.handle(), from.handle) == kSuccess &&
                    primitives.stream_wait_event(ordinal, to.handle, event.handle()) == kSuccess;
  if (made) note_wait(later, mark);
  return made;
}

// ---- captures ------------------------------------------------------------------------------

StreamId begin_stream_capture(StreamId stream) { return names().new_capture(stream); }

void join_stream_capture(StreamId stream, StreamId capture) noexcept {
  try {
    Names& all = names();
    const std::lock_guard<std::mutex> guard(all.mutex());
    if (all[stream].name.load(std::memory_order_relaxed) == capture) return;
    all[capture].captured.push_back(stream);
    all[stream].name.store(capture, std::memory_order_release);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("capture: a stream is left out: ") + error.what());
  }
}

void end_stream_capture(StreamId capture) noexcept {
  Names& all = names();
  const std::lock_guard<std::mutex> guard(all.mutex());
  for (const StreamId stream : all[capture].captured) {
    all[stream].name.store(stream, std::memory_order_release);
  }
  all[capture].captured.clear();
}

void note_replay(StreamId capture, const BlockUse& launch) noexcept {
  const std::lock_guard<std::mutex> guard(names().mutex());
  names()[capture].replay = launch;
}

BlockUse resolved(const BlockUse& use) noexcept {
  if (!is_capture(use.stream)) return use;
  const std::lock_guard<std::mutex> guard(names().mutex());
  return names()[use.stream].replay;
}

bool is_open_capture(StreamId capture) noexcept {
  const std::lock_guard<std::mutex> guard(names().mutex());
  return !names()[capture].captured.empty();
}

void retire_capture(StreamId capture) noexcept {
  names()[capture].retired.store(true, std::memory_order_release);
}

bool is_spent_capture(StreamId capture) noexcept {
  if (!names()[capture].retired.load(std::memory_order_acquire)) return false;
  const BlockUse last = resolved(BlockUse{capture, 0});
  return known_completed(last.stream) >= last.ticket;
}

}  // namespace nbx
