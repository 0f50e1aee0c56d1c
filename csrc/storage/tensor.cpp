#include "storage/tensor.h"

#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"
#include "storage/views.h"

namespace nbx {

Layout::Layout(const std::int64_t* shape, const std::int64_t* strides, std::int32_t rank) {
  resize(rank);
  if (rank == 0) return;  // the arrays may be null
  const auto bytes = static_cast<std::size_t>(rank) * sizeof(std::int64_t);
  std::memcpy(this->shape(), shape, bytes);
  std::memcpy(this->strides(), strides, bytes);
}

Layout::Layout(const Layout& other) {
  resize(other.rank_);
  std::memcpy(data(), other.data(), static_cast<std::size_t>(rank_) * 2 * sizeof(std::int64_t));
}

Layout::Layout(Layout&& other) noexcept : rank_(other.rank_) {
  if (rank_ <= kInlineRank) {
    std::memcpy(inline_, other.inline_, static_cast<std::size_t>(rank_) * 2 * sizeof(std::int64_t));
  } else {
    heap_ = other.heap_;
    other.rank_ = 0;
  }
}

Layout& Layout::operator=(Layout other) noexcept {
  if (rank_ > kInlineRank) delete[] heap_;
  rank_ = other.rank_;
  if (rank_ <= kInlineRank) {
    std::memcpy(inline_, other.inline_, static_cast<std::size_t>(rank_) * 2 * sizeof(std::int64_t));
  } else {
    heap_ = other.heap_;
    other.rank_ = 0;
  }
  return *this;
}

Layout::~Layout() {
  if (rank_ > kInlineRank) delete[] heap_;
}

void Layout::resize(std::int32_t rank) {
  if (rank < 0 || rank > kMaximumRank) {
    throw Error(ErrorKind::kValue, "a tensor has at most " + std::to_string(kMaximumRank) +
                                       " axes, got " + std::to_string(rank))
        .with("rank", std::int64_t{rank});
  }
  if (rank_ > kInlineRank) delete[] heap_;
  rank_ = 0;
  if (rank > kInlineRank) heap_ = new std::int64_t[2 * static_cast<std::size_t>(rank)];
  rank_ = rank;
}

void Layout::set_contiguous_strides() noexcept {
  // Unsigned: beside an extent of 0 the others may multiply to anything.
  std::uint64_t step = 1;
  for (std::int32_t i = rank_ - 1; i >= 0; --i) {
    strides()[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape()[i] > 1 ? shape()[i] : 1);
  }
}

std::int64_t Layout::element_count() const { return checked_count(shape(), rank_); }

std::uint64_t bytes_of(DType dtype, std::int64_t count) {
  const auto bits = static_cast<std::uint64_t>(bits_of(dtype));
  const auto elements = static_cast<std::uint64_t>(count);
  std::uint64_t total = 0;
  if (bits < 8) return (elements * bits + 7) / 8;
  if (__builtin_mul_overflow(elements, bits / 8, &total) || total >> 63 != 0) {
    throw Error(ErrorKind::kOverflow, std::to_string(count) + " elements of " +
                                          facts_of(dtype).name + " exceed 2^63 - 1 bytes");
  }
  return total;
}

namespace {

/// A contiguous tensor that has no storage yet; its bytes.
std::uint64_t lay_out(TensorMeta& meta, DType dtype, const std::int64_t* shape, std::int32_t rank) {
  meta.dtype = dtype;
  meta.layout.resize(rank);
  for (std::int32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0) {
      throw Error(ErrorKind::kValue, "shape: extents are 0 or more, got " +
                                         shape_text(shape, rank) + " (axis " + std::to_string(i) +
                                         " is negative)");
    }
    meta.layout.shape()[i] = shape[i];
  }
  const std::uint64_t bytes = bytes_of(dtype, meta.layout.element_count());
  meta.layout.set_contiguous_strides();
  return bytes;
}

}  // namespace

TensorMeta empty_tensor(DeviceMemory& memory, DType dtype, const std::int64_t* shape,
                        std::int32_t rank) {
  TensorMeta meta;
  const std::uint64_t bytes = lay_out(meta, dtype, shape, rank);
  meta.storage = Storage::allocate(memory, bytes);
  meta.data = meta.storage->address();
  return meta;
}

TensorMeta pinned_tensor(DeviceMemory& locker, DType dtype, const std::int64_t* shape,
                         std::int32_t rank) {
  TensorMeta meta;
  const std::uint64_t bytes = lay_out(meta, dtype, shape, rank);
  meta.storage = Storage::allocate_pinned(locker, bytes);
  meta.data = meta.storage->address();
  return meta;
}

}  // namespace nbx
