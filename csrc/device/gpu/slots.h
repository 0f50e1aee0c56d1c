// Objects behind handles that are never used twice: a handle that was given back names nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace nbx::gpu {

/// Objects stay where they are and are used again; `find` takes no lock.
template <class T>
class Slots {
 public:
  /// Null if the handle names nothing.
  [[nodiscard]] T* find(std::uint64_t handle) noexcept {
    const auto index = static_cast<std::uint32_t>(handle) - 1;
    if (index / kChunk >= kChunks) return nullptr;
    Slot* const chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot& slot = chunk[index % kChunk];
    // Odd while in use.
    const auto turn = static_cast<std::uint32_t>(handle >> 32);
    return slot.turn.load(std::memory_order_acquire) == turn && turn % 2 == 1 ? &slot.value
                                                                              : nullptr;
  }

  /// Any object, with what its former use left in it. Null if there are too many.
  [[nodiscard]] T* take(std::uint64_t* handle) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (free_.empty() && !grow()) return nullptr;
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = chunks_[index / kChunk].load(std::memory_order_relaxed)[index % kChunk];
    const std::uint32_t turn = slot.turn.fetch_add(1, std::memory_order_acq_rel) + 1;
    *handle = std::uint64_t{turn} << 32 | (index + 1);
    return &slot.value;
  }

  /// False if the handle names nothing: one of two threads that give back the same one.
  bool give(std::uint64_t handle) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (find(handle) == nullptr) return false;
    const auto index = static_cast<std::uint32_t>(handle) - 1;
    free_.push_back(index);
    chunks_[index / kChunk].load(std::memory_order_relaxed)[index % kChunk].turn.fetch_add(
        1, std::memory_order_acq_rel);
    return true;
  }

 private:
  static constexpr std::uint32_t kChunk = 256;
  static constexpr std::uint32_t kChunks = 4096;
  struct Slot {
    std::atomic<std::uint32_t> turn{0};
    T value{};
  };

  bool grow() {
    if (used_ == kChunks) return false;
    free_.reserve(std::size_t{kChunk} * (used_ + 1));
    chunks_[used_].store(std::make_unique<Slot[]>(kChunk).release(), std::memory_order_release);
    for (std::uint32_t i = kChunk; i-- > 0;) free_.push_back(used_ * kChunk + i);
    ++used_;
    return true;
  }

  std::array<std::atomic<Slot*>, kChunks> chunks_{};
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
};

}  // namespace nbx::gpu
