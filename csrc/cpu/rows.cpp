#include "cpu/rows.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "core/error.h"
#include "cpu/cast.h"
#include "cpu/stream.h"

namespace nbx::cpu {
namespace {

struct AlignedFree {
  void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
};
struct ScratchSlot {
  std::unique_ptr<std::byte, AlignedFree> bytes;
  std::size_t size = 0;
};
constexpr int kSlots = 8;
thread_local ScratchSlot slots[kSlots];

[[noreturn]] void refuse_dtype(const char* kernel, const char* operand, const TensorView& view,
                               const char* allowed) {
  throw Error(ErrorKind::kType, std::string(kernel) + ": " + operand + " has dtype " +
                                    facts_of(view.dtype).name + ", expected " + allowed +
                                    "; convert it first");
}

}  // namespace

template <class T>
const T* load_row(const std::byte* data, DType dtype, std::int64_t stride, std::int64_t count,
                  T* buffer) {
  if (dtype == kDTypeOf<T> && (stride == 1 || count <= 1)) return reinterpret_cast<const T*>(data);
  loader_for(dtype, kCarrierOf<T>)(data, stride, count, buffer);
  return buffer;
}

template <class T>
void store_row(std::byte* data, DType dtype, std::int64_t stride, std::int64_t count,
               const T* values, bool streams) {
  const bool dense = stride == 1 || count <= 1;
  if (dense && dtype == kDTypeOf<T>) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (count == 0 || reinterpret_cast<const std::byte*>(values) == data) return;
    streams ? stream_bytes(data, values, bytes) : void(std::memcpy(data, values, bytes));
    return;
  }
  const Storer store = storer_for(kCarrierOf<T>, dtype);
  if (!dense || !streams) return store(values, data, stride, count);
  alignas(64) std::byte block[kBlock * sizeof(T)];
  for (std::int64_t i = 0; i < count; i += kBlock) {
    const std::int64_t length = count - i < kBlock ? count - i : kBlock;
    store(values + i, block, 1, length);
    stream_bytes(data + i * itemsize_of(dtype), block,
                 static_cast<std::size_t>(length * itemsize_of(dtype)));
  }
}

template <class T>
T* row_target(std::byte* data, DType dtype, std::int64_t stride, T* buffer, bool streams) noexcept {
  const bool direct = dtype == kDTypeOf<T> && stride == 1 && !streams;
  return direct ? reinterpret_cast<T*>(data) : buffer;
}

template const float* load_row(const std::byte*, DType, std::int64_t, std::int64_t, float*);
template const double* load_row(const std::byte*, DType, std::int64_t, std::int64_t, double*);
template void store_row(std::byte*, DType, std::int64_t, std::int64_t, const float*, bool);
template void store_row(std::byte*, DType, std::int64_t, std::int64_t, const double*, bool);
template float* row_target(std::byte*, DType, std::int64_t, float*, bool) noexcept;
template double* row_target(std::byte*, DType, std::int64_t, double*, bool) noexcept;

std::byte* scratch_bytes(int slot, std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  ScratchSlot& found = slots[slot];
  if (found.size < bytes || found.size == 0) {
    found.bytes.reset();
    found.size = 0;
    const std::size_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
    found.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (found.bytes == nullptr) throw std::bad_alloc();
    found.size = rounded;
  }
  return found.bytes.get();
}

std::byte* row_address(const TensorView& view, std::int64_t row, int inner) noexcept {
  std::int64_t offset = 0;
  for (int axis = view.rank - inner - 1; axis >= 0 && row != 0; --axis) {
    offset += row % view.shape[axis] * view.strides[axis];
    row /= view.shape[axis];
  }
  return view.data + offset * itemsize_of(view.dtype);
}

std::int64_t row_count(const TensorView& view, int inner) noexcept {
  std::int64_t count = 1;
  for (int axis = 0; axis < view.rank - inner; ++axis) count *= view.shape[axis];
  return count;
}

std::int64_t integer_at(const TensorView& view, std::int64_t index) noexcept {
  const std::byte* address = row_address(view, index, 0);
  if (view.dtype == DType::int32) return *reinterpret_cast<const std::int32_t*>(address);
  return *reinterpret_cast<const std::int64_t*>(address);
}

void require_floating(const char* kernel, const char* operand, const TensorView& view) {
  if (!is_floating(view.dtype)) refuse_dtype(kernel, operand, view, "a floating type");
}

void require_index(const char* kernel, const char* operand, const TensorView& view) {
  if (view.dtype != DType::int32 && view.dtype != DType::int64) {
    refuse_dtype(kernel, operand, view, "int32 or int64");
  }
}

}  // namespace nbx::cpu
