// What is known of the order of streams: which work is complete, and which streams wait for which.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/device.h"

namespace nbx {

/// Names a stream for as long as the process lives, unlike its handle, which a driver may hand out
/// again once the stream is destroyed.
using StreamId = std::uint32_t;
inline constexpr StreamId kNoStream = 0;

/// Work of a stream, up to a ticket. May outlive the stream. Of a capture: all that it recorded.
struct BlockUse {
  StreamId stream = kNoStream;
  Ticket ticket = 0;
};

inline constexpr Ticket kAnyTicket = ~Ticket{0};

/// The name of a stream that the driver knows by this handle, whoever made it; on first use new.
[[nodiscard]] StreamId stream_id(Device& device, StreamHandle handle);
/// Where to read under which name the stream's work goes now: its own, or that of its capture.
[[nodiscard]] const std::atomic<StreamId>& current_name(StreamId stream) noexcept;
/// The stream's driver destroys it next: its name stays valid for the work that it leaves behind,
/// which an event tells the end of, and the handle may be given to another stream.
void retire_stream(StreamId stream) noexcept;

/// The ticket of the newest work submitted to the stream, waits included; asks the driver.
[[nodiscard]] Ticket submitted_ticket(StreamId stream);
/// The newest ticket of the stream that is known to be complete. Calls no driver, takes no lock.
[[nodiscard]] Ticket known_completed(StreamId stream) noexcept;
/// Where that is read, and where the newest ticket that a Stream was told of is kept.
[[nodiscard]] const std::atomic<Ticket>& completed_of(StreamId stream) noexcept;
[[nodiscard]] std::atomic<Ticket>& newest_of(StreamId stream) noexcept;
/// Somebody has seen the work complete.
void note_completed(const BlockUse& use) noexcept;
/// The same after a wait, and for what the stream had waited for by then.
void note_waited(const BlockUse& use) noexcept;
/// Waits for all work of the device, and notes it.
void synchronize_device(Device& device);
/// The newest ticket of the stream that is complete; asks the driver unless it is known that
/// `newest` is. A stream of others that the driver no longer knows may have left work behind: the
/// whole device is waited for then, and `newest` is the answer.
[[nodiscard]] Ticket completed_ticket(StreamId stream, Ticket newest);
/// Blocks until the work is complete.
void wait_for(const BlockUse& use);

/// True if work submitted to `later` from now on runs after `use`: that is complete, or `later`
/// waits for it, itself or through other streams, by waits up to its ticket `by`. Calls no driver
/// and takes no lock.
[[nodiscard]] bool is_ordered(StreamId later, const BlockUse& use, Ticket by = kAnyTicket) noexcept;
/// A wait of `later` for the work `mark` has been given to the driver. With it `later` waits for
/// what the other stream waited for when the mark was made.
void note_wait(StreamId later, const BlockUse& mark) noexcept;
/// Makes it so: work submitted to `later` from now on runs after what `earlier` has been given so
/// far, so that no waits ever form a ring. False if the driver refuses, or one of them is captured
/// or gone.
[[nodiscard]] bool insert_wait(StreamId later, StreamId earlier);

// ---- captures ------------------------------------------------------------------------------

/// While a stream is captured its work goes under a name of the capture, as it runs whenever the
/// graph is launched and not by the stream's tickets.
inline constexpr StreamId kCaptureBit = StreamId{1} << 31;
[[nodiscard]] constexpr bool is_capture(StreamId stream) noexcept {
  return (stream & kCaptureBit) != 0;
}
/// Throws Error(kValue) if the stream is captured already.
[[nodiscard]] StreamId begin_stream_capture(StreamId stream);
/// Another stream waits for captured work, and belongs to the capture from then on.
void join_stream_capture(StreamId stream, StreamId capture) noexcept;
void end_stream_capture(StreamId capture) noexcept;
/// The graph was launched: what the capture used is used until then.
void note_replay(StreamId capture, const BlockUse& launch) noexcept;
/// Of a capture the newest launch of its graph, nothing if there was none; else the use itself.
[[nodiscard]] BlockUse resolved(const BlockUse& use) noexcept;
/// True until the capture ends: what it recorded has never run.
[[nodiscard]] bool is_open_capture(StreamId capture) noexcept;
/// Nothing launches the graph any more: the work of its capture is its last launch.
void retire_capture(StreamId capture) noexcept;
/// True once that is over: a use of the capture means nothing any more.
[[nodiscard]] bool is_spent_capture(StreamId capture) noexcept;

/// Grows whenever memory that a graph may use has gone, fallen asleep, or become void.
inline constinit std::atomic<std::uint64_t> graph_memory_generation{1};
inline void note_memory_lost() noexcept {
  graph_memory_generation.fetch_add(1, std::memory_order_release);
}

}  // namespace nbx
