// Reference counting inside the object: one word, one owner type.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace nbx {

/// Base of objects that count their owners. Derived provides `void destroy() noexcept`.
template <class Derived>
class Counted {
 public:
  Counted() = default;
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  void retain() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) static_cast<Derived*>(this)->destroy();
  }
  [[nodiscard]] std::uint32_t owners() const noexcept {
    return count_.load(std::memory_order_relaxed);
  }

 protected:
  ~Counted() = default;

 private:
  std::atomic<std::uint32_t> count_{1};
};

/// Owns one reference to a Counted object.
template <class T>
class Reference {
 public:
  Reference() noexcept = default;
  /// Takes over a reference that the caller holds.
  [[nodiscard]] static Reference adopt(T* object) noexcept {
    Reference reference;
    reference.object_ = object;
    return reference;
  }
  /// Adds a reference of its own.
  [[nodiscard]] static Reference share(T* object) noexcept {
    if (object != nullptr) object->retain();
    return adopt(object);
  }
  Reference(const Reference& other) noexcept : object_(other.object_) {
    if (object_ != nullptr) object_->retain();
  }
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() {
    if (object_ != nullptr) object_->release();
  }

  [[nodiscard]] T* get() const noexcept { return object_; }
  [[nodiscard]] T* detach() noexcept { return std::exchange(object_, nullptr); }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

}  // namespace nbx
