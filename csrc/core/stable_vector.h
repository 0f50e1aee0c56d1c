// A vector whose elements stay where they are.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace nbx {

/// Grows at its end; an element that another thread told of is read without the lock that guards
/// the growth.
template <class T>
class StableVector {
 public:
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::size_t kMost = kChunk * 16384;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T& operator[](std::size_t index) noexcept {
    return chunks_[index / kChunk][index % kChunk];
  }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept {
    return chunks_[index / kChunk][index % kChunk];
  }
  /// Throws std::bad_alloc, as it does beyond kMost elements.
  T& emplace_back() {
    if (size_ == kMost) throw std::bad_alloc();
    auto& chunk = chunks_[size_ / kChunk];
    if (chunk == nullptr) chunk = std::make_unique<T[]>(kChunk);
    return chunk[size_++ % kChunk];
  }

 private:
  std::size_t size_ = 0;
  std::unique_ptr<std::unique_ptr<T[]>[]> chunks_ =
      std::make_unique<std::unique_ptr<T[]>[]>(kMost / kChunk);
};

}  // namespace nbx
