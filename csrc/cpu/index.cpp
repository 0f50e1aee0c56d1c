#include "cpu/index.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "cpu/pool.h"
#include "launch/kernel.h"

namespace nbx::cpu {
namespace {

constexpr std::int32_t kRank = 64;
/// Bytes below which cutting a copy over threads costs more than it saves.
constexpr std::int64_t kGrainBytes = 64 * 1024;

/// Walks the axes [first, rank) of a few layouts of one shape in row-major order.
template <int kCount>
class Odometer {
 public:
  Odometer(const std::int64_t* shape, std::int32_t rank,
           const std::int64_t* const (&strides)[kCount]) noexcept
      : shape_(shape), rank_(rank) {
    for (int k = 0; k < kCount; ++k) strides_[k] = strides[k];
  }

  void seek(std::int64_t position) noexcept {
    for (int k = 0; k < kCount; ++k) offsets[k] = 0;
    for (std::int32_t i = rank_ - 1; i >= 0; --i) {
      // Position 0 also holds for empty shapes, which have no remainder.
      index_[i] = position == 0 ? 0 : position % shape_[i];
      position = position == 0 ? 0 : position / shape_[i];
      for (int k = 0; k < kCount; ++k) offsets[k] += index_[i] * strides_[k][i];
    }
  }

  void next() noexcept {
    for (std::int32_t i = rank_ - 1; i >= 0; --i) {
      for (int k = 0; k < kCount; ++k) offsets[k] += strides_[k][i];
      if (++index_[i] < shape_[i]) return;
      for (int k = 0; k < kCount; ++k) offsets[k] -= strides_[k][i] * shape_[i];
      index_[i] = 0;
    }
  }

  [[nodiscard]] const std::int64_t* index() const noexcept { return index_; }
  std::int64_t offsets[kCount] = {};

 private:
  const std::int64_t* shape_;
  std::int32_t rank_;
  const std::int64_t* strides_[kCount];
  std::int64_t index_[kRank] = {};
};

/// The trailing axes that move together for each index: merged where both sides allow.
struct Row {
  std::int64_t shape[kRank];
  std::int64_t to[kRank];
  std::int64_t from[kRank];
  std::int32_t rank = 0;
  std::int64_t count = 1;

  Row(const TensorView& destination, std::int32_t to_first, const TensorView& source,
      std::int32_t from_first) {
    const std::int32_t axes = destination.rank - to_first;
    for (std::int32_t i = 0; i < axes; ++i) {
      const std::int64_t extent = destination.shape[to_first + i];
      count *= extent;
      if (extent == 1) continue;
      const std::int64_t to_stride = destination.strides[to_first + i];
      const std::int64_t from_stride = source.strides[from_first + i];
      if (rank > 0 && to[rank - 1] == to_stride * extent &&
          from[rank - 1] == from_stride * extent) {
        shape[rank - 1] *= extent;
        to[rank - 1] = to_stride;
        from[rank - 1] = from_stride;
      } else {
        shape[rank] = extent;
        to[rank] = to_stride;
        from[rank++] = from_stride;
      }
    }
  }

  [[nodiscard]] bool dense() const noexcept {
    return rank == 0 || (rank == 1 && to[0] == 1 && from[0] == 1);
  }
};

template <int kBytes>
struct Element {
  unsigned char bytes[kBytes];
};

template <int kBytes>
void copy_row(const Row& row, std::byte* destination, const std::byte* source) noexcept {
  if (row.dense()) {
    if (row.count == 1) {
      std::memcpy(destination, source, kBytes);
    } else {
      std::memcpy(destination, source, static_cast<std::size_t>(row.count * kBytes));
    }
    return;
  }
  using Item = Element<kBytes>;
  const std::int32_t outer = row.rank - 1;
  const std::int64_t inner = row.shape[outer];
  const std::int64_t to = row.to[outer];
  const std::int64_t from = row.from[outer];
  Odometer<2> walk(row.shape, outer, {row.to, row.from});
  walk.seek(0);
  for (std::int64_t left = row.count / inner; left > 0; --left, walk.next()) {
    auto* out = reinterpret_cast<Item*>(destination) + walk.offsets[0];
    const auto* in = reinterpret_cast<const Item*>(source) + walk.offsets[1];
    for (std::int64_t i = 0; i < inner; ++i) out[i * to] = in[i * from];
  }
}

/// Checks all indices and returns, for each position of B..., the element offset they name.
std::vector<std::int64_t> offsets_of(const KernelCall& call, const TensorView& indexed) {
  const auto axes = static_cast<std::int32_t>(call.scalars[0].integer);
  const TensorView& shape_of = call.tensors[2];
  const std::int64_t count = shape_of.element_count();
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(count), 0);
  for (std::int32_t k = 0; k < axes; ++k) {
    const TensorView& indices = call.tensors[2 + k];
    const std::int64_t extent = indexed.shape[k];
    const std::int64_t stride = indexed.strides[k];
    parallel_for(count, 16384, [&](std::int64_t begin, std::int64_t end) {
      Odometer<1> walk(indices.shape, indices.rank, {indices.strides});
      walk.seek(begin);
      for (std::int64_t i = begin; i < end; ++i, walk.next()) {
        const std::int64_t value = indices.as<std::int64_t>()[walk.offsets[0]];
        const std::int64_t index = value < 0 ? value + extent : value;
        if (index < 0 || index >= extent) {
          const std::int64_t axis = call.scalars[1 + k].integer;
          throw Error(ErrorKind::kIndex, "index " + std::to_string(value) +
                                             " is out of bounds for axis " + std::to_string(axis) +
                                             " with size " + std::to_string(extent))
              .with("index", value)
              .with("axis", axis)
              .with("size", extent);
        }
        offsets[static_cast<std::size_t>(i)] += index * stride;
      }
    });
  }
  return offsets;
}

template <int kBytes>
void take_rows(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& in = call.tensors[1];
  const TensorView& indices = call.tensors[2];
  const auto axes = static_cast<std::int32_t>(call.scalars[0].integer);
  const std::vector<std::int64_t> offsets = offsets_of(call, in);
  const Row row(out, indices.rank, in, axes);
  if (row.count == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainBytes / (row.count * kBytes));
  parallel_for(indices.element_count(), grain, [&](std::int64_t begin, std::int64_t end) {
    Odometer<1> walk(indices.shape, indices.rank, {out.strides});
    walk.seek(begin);
    for (std::int64_t i = begin; i < end; ++i, walk.next()) {
      copy_row<kBytes>(row, out.data + walk.offsets[0] * kBytes,
                       in.data + offsets[static_cast<std::size_t>(i)] * kBytes);
    }
  });
}

template <int kBytes>
void put_rows(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& values = call.tensors[1];
  const TensorView& indices = call.tensors[2];
  const auto axes = static_cast<std::int32_t>(call.scalars[0].integer);
  const std::vector<std::int64_t> offsets = offsets_of(call, out);
  const Row row(out, axes, values, indices.rank);
  if (row.count == 0) return;
  // One thread: the last of several values for one place must win.
  Odometer<1> walk(indices.shape, indices.rank, {values.strides});
  walk.seek(0);
  for (const std::int64_t offset : offsets) {
    copy_row<kBytes>(row, out.data + offset * kBytes, values.data + walk.offsets[0] * kBytes);
    walk.next();
  }
}

void by_width(const char* name, const KernelCall& call, const HostKernel (&kernels)[5]) {
  const DType dtype = call.tensors[0].dtype;
  if (call.tensors[1].dtype != dtype) {
    throw Error(ErrorKind::kType, std::string(name) + ": both tensors have one dtype, got " +
                                      facts_of(dtype).name + " and " +
                                      facts_of(call.tensors[1].dtype).name);
  }
  switch (itemsize_of(dtype)) {
    case 1:
      return kernels[0](call);
    case 2:
      return kernels[1](call);
    case 4:
      return kernels[2](call);
    case 8:
      return kernels[3](call);
    case 16:
      return kernels[4](call);
    default:
      throw Error(ErrorKind::kType, std::string(name) + ": packed " + facts_of(dtype).name +
                                        " has no element addresses; convert to int8 first");
  }
}

void take(const KernelCall& call) {
  by_width("take", call,
           {&take_rows<1>, &take_rows<2>, &take_rows<4>, &take_rows<8>, &take_rows<16>});
}

void put(const KernelCall& call) {
  by_width("put", call, {&put_rows<1>, &put_rows<2>, &put_rows<4>, &put_rows<8>, &put_rows<16>});
}

/// True if the element at this offset is not zero; the sign bit of a float does not count.
bool is_set(const TensorView& view, std::int64_t offset) noexcept {
  const int size = itemsize_of(view.dtype);
  const std::byte* at = view.data + offset * size;
  const bool has_sign = is_floating(view.dtype) || is_complex(view.dtype);
  const int part = is_complex(view.dtype) ? size / 2 : size;
  for (int start = 0; start < size; start += part) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, at + start, static_cast<std::size_t>(part));
    if (has_sign) bits &= ~(std::uint64_t{1} << (8 * part - 1));
    if (bits != 0) return true;
  }
  return false;
}

template <class Found>
void for_each_set(const TensorView& view, const Found& found) {
  if (itemsize_of(view.dtype) == 0) {
    throw Error(ErrorKind::kType, std::string("nonzero: packed ") + facts_of(view.dtype).name +
                                      " is not supported; convert to int8 first");
  }
  Odometer<1> walk(view.shape, view.rank, {view.strides});
  walk.seek(0);
  for (std::int64_t left = view.element_count(); left > 0; --left, walk.next()) {
    if (is_set(view, walk.offsets[0])) found(walk.index());
  }
}

void nonzero(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& in = call.tensors[1];
  std::int64_t found = 0;
  for_each_set(in, [&](const std::int64_t* index) {
    if (found < out.shape[1]) {
      for (std::int32_t i = 0; i < in.rank; ++i) {
        out.as<std::int64_t>()[i * out.strides[0] + found * out.strides[1]] = index[i];
      }
    }
    ++found;
  });
  if (found != out.shape[1]) {
    throw Error(ErrorKind::kValue, "nonzero: the output has room for " +
                                       std::to_string(out.shape[1]) + " elements, found " +
                                       std::to_string(found));
  }
}

const HostKernelRegistration kTake{"index:take", &take};
const HostKernelRegistration kPut{"index:put", &put};
const HostKernelRegistration kNonzero{"index:nonzero", &nonzero};

}  // namespace

std::int64_t count_nonzero(const TensorView& view) {
  std::int64_t count = 0;
  for_each_set(view, [&](const std::int64_t*) { ++count; });
  return count;
}

}  // namespace nbx::cpu
