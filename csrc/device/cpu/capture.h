// Captures of the host's streams: the work of a stream as a list of actions, run at each launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "device/primitives.h"

namespace nbx::cpu {

/// Captures that are open now. While there are none, work looks nothing up.
inline constinit std::atomic<std::uint32_t> open_captures{0};

using Action = std::function<void()>;

[[nodiscard]] bool is_captured(StreamHandle stream);
/// Adds the action to the stream's capture; false if there is none.
[[nodiscard]] bool add_action(StreamHandle stream, Action action);

/// Records what `make()` returns if the stream is captured.
template <class Make>
[[nodiscard]] bool recorded(StreamHandle stream, const Make& make) {
  if (open_captures.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  return is_captured(stream) && add_action(stream, make());
}

/// The event marks work of the stream's capture, if it is captured, and no other capture's.
void mark_captured(EventHandle event, StreamHandle stream);
/// A stream that waits for a captured event joins the capture.
void join_captured(StreamHandle stream, EventHandle event);
/// Abandons the capture that the stream began.
void drop_captured(StreamHandle stream);

void set_capture_entries(Primitives* table);

}  // namespace nbx::cpu
