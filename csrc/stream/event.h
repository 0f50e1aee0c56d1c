// Events: marks in the order of a stream.
#pragma once

#include <mutex>

#include "device/device.h"
#include "stream/stream.h"

namespace nbx {

class Event {
 public:
  /// With `timing`, two recorded events tell the time between them.
  Event(Device& device, bool timing);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] EventHandle handle() const noexcept { return handle_; }

  /// Marks everything submitted to `stream` so far. Throws Error(kValue) for another device's.
  void record(Stream& stream);
  /// Later work on `stream`, of this device or of another of its kind, runs after the mark.
  void block(Stream& stream);
  /// True if the marked work is done, or nothing was marked.
  [[nodiscard]] bool is_complete();
  void synchronize();  // callers that hold the Python lock release it first
  /// Seconds from this event to `end`. Throws Error(kValue) unless both have timing.
  [[nodiscard]] double seconds_to(const Event& end) const;

 private:
  [[nodiscard]] BlockUse mark() const;

  Device& device_;
  EventHandle handle_ = 0;
  bool timing_;
  // What the mark stands for: an event may be recorded by one thread and waited for by another.
  mutable std::mutex mark_lock_;
  BlockUse mark_;
};

}  // namespace nbx
