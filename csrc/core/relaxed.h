// A value that one thread writes while others may read it, without any order between them.
#pragma once

#include <atomic>

namespace nbx {

/// Reads and writes are plain moves on every machine; copies copy the value.
template <class T>
class Relaxed {
 public:
  constexpr Relaxed() noexcept = default;
  constexpr Relaxed(T value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  Relaxed(const Relaxed& other) noexcept : value_(other.get()) {}
  Relaxed& operator=(const Relaxed& other) noexcept { return *this = other.get(); }
  Relaxed& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  [[nodiscard]] T get() const noexcept { return value_.load(std::memory_order_relaxed); }
  operator T() const noexcept { return get(); }  // NOLINT(google-explicit-constructor)
  /// For the one writer: not an atomic addition.
  Relaxed& operator+=(T value) noexcept { return *this = static_cast<T>(get() + value); }
  Relaxed& operator-=(T value) noexcept { return *this = static_cast<T>(get() - value); }

 private:
  std::atomic<T> value_{};
};

}  // namespace nbx
