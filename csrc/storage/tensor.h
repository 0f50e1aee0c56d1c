// Tensor metadata: a strided window into a storage. Copying one is copying metadata.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/tensor_view.h"
#include "storage/storage.h"

namespace nbx {

inline constexpr std::int32_t kInlineRank = 8;
inline constexpr std::int32_t kMaximumRank = 64;

/// Shape and strides, inline to rank 8. Strides count elements.
class Layout {
 public:
  Layout() noexcept = default;
  Layout(const std::int64_t* shape, const std::int64_t* strides, std::int32_t rank);
  Layout(const Layout& other);
  Layout(Layout&& other) noexcept;
  Layout& operator=(Layout other) noexcept;
  ~Layout();

  /// Room for `rank` axes, contents undefined. Throws Error(kValue) above kMaximumRank.
  void resize(std::int32_t rank);
  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t* shape() noexcept { return data(); }
  [[nodiscard]] std::int64_t* strides() noexcept { return data() + rank_; }
  [[nodiscard]] const std::int64_t* shape() const noexcept { return data(); }
  [[nodiscard]] const std::int64_t* strides() const noexcept { return data() + rank_; }
  /// Fills the strides of a row-major tensor without gaps.
  void set_contiguous_strides() noexcept;
  [[nodiscard]] bool contiguous() const noexcept {
    return is_contiguous(shape(), strides(), rank_);
  }
  /// Product of the shape. Throws Error(kOverflow) naming the shape past 2^63 - 1.
  [[nodiscard]] std::int64_t element_count() const;

 private:
  [[nodiscard]] std::int64_t* data() noexcept { return rank_ <= kInlineRank ? inline_ : heap_; }
  [[nodiscard]] const std::int64_t* data() const noexcept {
    return rank_ <= kInlineRank ? inline_ : heap_;
  }
  std::int32_t rank_ = 0;
  union {
    std::int64_t inline_[2 * kInlineRank];
    std::int64_t* heap_;
  };
};

struct TensorMeta {
  Reference<Storage> storage;
  DeviceAddress data = 0;  // of element (0, ..., 0)
  DType dtype{};
  bool conjugate = false;  // reserved for lazily conjugated complex views
  Layout layout;

  [[nodiscard]] Device& device() const noexcept { return storage->device(); }
  [[nodiscard]] TensorView view() const noexcept {
    return TensorView{reinterpret_cast<std::byte*>(data), layout.shape(), layout.strides(),
                      layout.rank(), dtype};
  }
};

/// Bytes that `count` elements of `dtype` fill (packed types round up). Throws Error(kOverflow).
[[nodiscard]] std::uint64_t bytes_of(DType dtype, std::int64_t count);

/// A contiguous tensor of undefined contents on the current stream of the device.
/// Throws Error(kValue) for a negative extent, Error(kOverflow), Error(kOutOfMemory).
[[nodiscard]] TensorMeta empty_tensor(DeviceMemory& memory, DType dtype, const std::int64_t* shape,
                                      std::int32_t rank);
/// The same on the cpu, in memory that is page-locked for the device of `locker`.
[[nodiscard]] TensorMeta pinned_tensor(DeviceMemory& locker, DType dtype, const std::int64_t* shape,
                                       std::int32_t rank);

}  // namespace nbx
