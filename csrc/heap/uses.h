// Work that may still touch memory: a stream and a ticket of it.
#pragma once

#include "device/device.h"

namespace nbx {

/// Work of a stream, up to a ticket. Holds the stream's handle, so it may outlive the stream.
struct BlockUse {
  StreamHandle stream = 0;
  Ticket ticket = 0;
};

/// The newest complete ticket of a stream. A stream that the driver no longer knows may have left
/// work behind: the whole device is waited for then, and `newest` is the answer.
[[nodiscard]] Ticket completed_ticket(Device& device, StreamHandle stream, Ticket newest);
/// Blocks until the work is complete.
void wait_for(Device& device, const BlockUse& use);

}  // namespace nbx
