// The names of streams and what is known under each: shared by the files of this floor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "stream/order.h"

namespace nbx {

/// What one stream waits for: the newest ticket of each other stream. Read without a lock; written
/// under that of the names. Tables that were outgrown stay until the stream is gone.
class Seen {
 public:
  explicit Seen(std::uint32_t places);

  /// The newest ticket of `stream` that was waited for by ticket `by`; 0 if none was.
  [[nodiscard]] Ticket find(StreamId stream, Ticket by) const noexcept;
  /// False if the table is full.
  bool learn(StreamId stream, Ticket ticket, Ticket since) noexcept;
  template <class Function>
  void for_each(Function&& function) const {
    for (std::uint32_t i = 0; i < places_; ++i) {
      const StreamId stream = entries_[i].stream.load(std::memory_order_acquire);
      if (stream == kNoStream) continue;
      function(stream, entries_[i].ticket.load(std::memory_order_acquire),
               entries_[i].since.load(std::memory_order_acquire));
    }
  }
  [[nodiscard]] std::uint32_t places() const noexcept { return places_; }

 private:
  struct Entry {
    std::atomic<StreamId> stream{kNoStream};
    std::atomic<Ticket> ticket{0};
    std::atomic<Ticket> since{0};  // the waiting stream's ticket that covers the wait
  };
  [[nodiscard]] std::uint32_t place_of(StreamId stream) const noexcept {
    return (stream * 2654435761u) & (places_ - 1);
  }

  std::uint32_t places_;  // a power of two
  std::uint32_t count_ = 0;
  std::unique_ptr<Entry[]> entries_;
};

struct KnownStream {
  Device* device = nullptr;
  StreamHandle handle = 0;
  std::atomic<StreamId> name{kNoStream};  // its own, or that of its capture
  std::atomic<bool> retired{false};
  std::atomic<Ticket> completed{0};
  std::atomic<Ticket> newest{0};  // that was submitted when one of its Streams asked last
  std::atomic<const Seen*> seen{nullptr};
  // Guarded by the lock of the names.
  std::vector<std::unique_ptr<Seen>> tables;  // the last one is `seen`
  Ticket final_ticket = 0;                    // of a retired stream
  EventHandle final_event = 0;                // after its last work; 0 once that is complete
  BlockUse replay;                            // of a capture
  std::vector<StreamId> captured;             // of a capture: streams that belong to it
};

/// Names are places in chunks that never move, so that a name is read without the lock. Never
/// destroyed: frees of memory after static destructors still name their stream.
class Names {
 public:
  [[nodiscard]] StreamId id(Device& device, StreamHandle handle);
  [[nodiscard]] StreamId new_capture(StreamId stream);
  /// Streams of the device that are not gone.
  [[nodiscard]] std::vector<StreamId> of(const Device& device);
  void forget_handle(const KnownStream& known) { by_handle_.erase({known.device, known.handle}); }
  [[nodiscard]] KnownStream& operator[](StreamId stream) noexcept {
    const StreamId place = stream & ~kCaptureBit;
    return chunks_[place / kChunk].load(std::memory_order_acquire)[place % kChunk];
  }
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

 private:
  static constexpr std::size_t kChunk = 256;
  static constexpr std::size_t kChunks = std::size_t{1} << 18;

  StreamId add(Device& device, StreamHandle handle, StreamId bits);

  std::mutex mutex_;  // never held across a driver call
  std::map<std::pair<Device*, StreamHandle>, StreamId> by_handle_;
  std::unique_ptr<std::atomic<KnownStream*>[]> chunks_ =
      std::make_unique<std::atomic<KnownStream*>[]>(kChunks);
  std::size_t count_ = 1;  // 0 names no stream
};

[[nodiscard]] Names& names();

/// Marks for waits, one set a device: making one takes a driver's lock, and some are slow at it.
/// A wait refers to the mark at the time of the call, so that an event is free right after.
class PooledEvent {
 public:
  /// Without one (`handle` 0) if the driver refuses or has none.
  explicit PooledEvent(Device& device) noexcept;
  PooledEvent(Device& device, EventHandle taken) noexcept : device_(device), handle_(taken) {}
  ~PooledEvent();
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  [[nodiscard]] EventHandle handle() const noexcept { return handle_; }
  EventHandle detach() noexcept { return std::exchange(handle_, 0); }

 private:
  Device& device_;
  EventHandle handle_ = 0;
};

}  // namespace nbx
