// Streams of a device: order, tickets, waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "stream/order.h"

namespace nbx {

/// An ordered queue of work. Stream 0 of a device is its default stream and always exists. Several
/// objects may name one stream; those that do not own it leave it alone when they go.
class Stream {
 public:
  Stream(Device& device, StreamHandle handle, bool owned);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] StreamHandle handle() const noexcept { return handle_; }
  /// The name that its work goes under: its own, or while it is captured that of the capture.
  [[nodiscard]] StreamId id() const noexcept { return name_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_captured() const noexcept { return is_capture(id()); }

  /// The ticket of the newest work submitted; 0 on devices whose work is complete on return.
  [[nodiscard]] Ticket submitted() const;
  /// All work submitted so far; of a captured stream what the capture recorded, which has no
  /// ticket.
  [[nodiscard]] BlockUse use() const;
  /// How many of the submissions that were there when somebody asked last, of this object or
  /// another of the stream, are not known to be complete. Asks nobody.
  [[nodiscard]] Ticket known_pending() const noexcept {
    const Ticket completed = completed_.load(std::memory_order_relaxed);
    const Ticket newest = newest_.load(std::memory_order_relaxed);
    return newest > completed ? newest - completed : 0;
  }
  /// The newest ticket known to be complete; polls the device only if the cached one is older than
  /// `wanted`.
  [[nodiscard]] bool is_complete(Ticket wanted);
  /// Blocks until `ticket` is complete. Callers that hold the Python lock release it first.
  void wait(Ticket ticket);
  void synchronize();
  /// Later work on this stream runs after everything submitted to `other` so far.
  void wait_stream(Stream& other);
  /// A wait for the mark of another stream was submitted here: its order is known from now on.
  void note_wait(const BlockUse& mark) noexcept;

 private:
  Device& device_;
  StreamHandle handle_;
  StreamId own_;
  const std::atomic<StreamId>& name_;
  const std::atomic<Ticket>& completed_;
  std::atomic<Ticket>& newest_;
  bool owned_;
};

/// The default stream of a device, and the calling thread's current stream on it.
[[nodiscard]] Stream& default_stream(Device& device);
[[nodiscard]] Stream& current_stream(Device& device);
/// Sets the calling thread's current stream on the stream's device; returns the former one.
Stream& set_current_stream(Stream& stream);
/// A stream of its own. A smaller number is a higher priority, where the device has any.
[[nodiscard]] std::shared_ptr<Stream> create_stream(Device& device, std::int32_t priority);

}  // namespace nbx
