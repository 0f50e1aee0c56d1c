// What is kept of every stream that work was submitted to, its makers' as well as others'.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/primitives.h"

namespace nbx::gpu {

/// An event that was recorded when `ticket` had been submitted.
struct StreamMark {
  void* event = nullptr;
  Ticket ticket = 0;
  std::uint32_t waiters = 0;  // threads that wait for the event, which is not recorded again then
};

struct alignas(64) StreamState {
  enum Owner : std::uint8_t {
    kForeign,  // another library's
    kOwn,
    kIdle,  // given back, and kept for the next that asks
  };

  StreamHandle handle = 0;
  std::int32_t ordinal = 0;
  std::atomic<Owner> owner{kForeign};
  std::int32_t priority = 0;
  /// Counted once the driver has taken the work: a mark that read it stands for that work.
  std::atomic<Ticket> submitted{0};

  alignas(64) std::atomic<Ticket> completed{0};
  std::mutex mutex;  // of the marks
  std::array<StreamMark, 8> marks;
  std::uint32_t first_mark = 0;
  std::uint32_t mark_count = 0;

  void note_completed(Ticket ticket) noexcept {
    Ticket known = completed.load(std::memory_order_relaxed);
    while (known < ticket &&
           !completed.compare_exchange_weak(known, ticket, std::memory_order_release)) {
    }
  }
};

/// States are found without a lock and stay for ever, so that tickets of a handle never decrease.
class StreamTable {
 public:
  /// The state of the handle, made if there is none.
  [[nodiscard]] StreamState& at(std::int32_t ordinal, StreamHandle handle);

 private:
  struct Places {
    explicit Places(std::size_t count) : mask(count - 1), slots(count) {}
    std::size_t mask;
    std::vector<std::atomic<StreamState*>> slots;
  };

  [[nodiscard]] static std::size_t hash(std::int32_t ordinal, StreamHandle handle) noexcept;
  [[nodiscard]] static StreamState* find(const Places& places, std::int32_t ordinal,
                                         StreamHandle handle) noexcept;
  static void insert(Places* places, StreamState* state) noexcept;

  std::atomic<Places*> places_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Places>> all_places_;  // older ones may still be read
  std::vector<std::unique_ptr<StreamState>> states_;
};

}  // namespace nbx::gpu
