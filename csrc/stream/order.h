// What is known of the order of streams: which work is complete, and which streams wait for which.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace nbx {

/// Names a stream for as long as the process lives, unlike its handle, which a driver may hand out
/// again once the stream is destroyed.
using StreamId = std::uint32_t;
inline constexpr StreamId kNoStream = 0;

/// Work of a stream, up to a ticket. May outlive the stream.
struct BlockUse {
  StreamId stream = kNoStream;
  Ticket ticket = 0;
};

/// The name of a stream that the driver knows by this handle; made on first use.
[[nodiscard]] StreamId stream_id(Device& device, StreamHandle handle);
/// The stream's driver destroys it next: its name stays valid for the work that it leaves behind,
/// and the handle may be given to another stream.
void retire_stream(StreamId stream) noexcept;

/// The ticket of the newest work submitted to the stream, waits included; asks the driver.
[[nodiscard]] Ticket submitted_ticket(StreamId stream);
/// The newest ticket of the stream that is complete; asks the driver. A stream that the driver no
/// longer knows may have left work behind: the whole device is waited for then, and `newest` is the
/// answer.
[[nodiscard]] Ticket completed_ticket(StreamId stream, Ticket newest);
/// Blocks until the work is complete.
void wait_for(const BlockUse& use);

/// True if work submitted to `later` from now on runs after `use`, by waits that were made already.
/// Calls no driver and takes no lock.
[[nodiscard]] bool is_ordered(StreamId later, const BlockUse& use) noexcept;
/// Makes it so: work submitted to `later` from now on runs after what `earlier` has been given so
/// far. False if the driver refuses, as while one of them is captured.
[[nodiscard]] bool insert_wait(StreamId later, StreamId earlier);

}  // namespace nbx
