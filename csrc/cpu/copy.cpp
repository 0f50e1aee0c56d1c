#include "cpu/copy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cpu/cast.h"
#include "cpu/elementwise_walk.h"
#include "cpu/pool.h"
#include "cpu/stream.h"
#include "launch/kernel.h"

namespace nbx::cpu {
namespace {

/// Bytes and elements below which a second thread costs more than it brings.
constexpr std::int64_t kCopyGrainBytes = 1 << 18;
constexpr std::int64_t kConvertGrain = 1 << 15;
constexpr std::int64_t kTile = 32;

template <int kBytes>
struct Unit {
  std::byte bytes[kBytes];
};

template <class T>
void copy_run(std::byte* target, std::int64_t target_stride, const std::byte* source,
              std::int64_t source_stride, std::int64_t count) {
  auto* to = reinterpret_cast<T*>(target);
  const auto* from = reinterpret_cast<const T*>(source);
  if (target_stride == 1 && source_stride == 1) {
    std::memmove(target, source, static_cast<std::size_t>(count) * sizeof(T));
  } else if (source_stride == 0) {
    const T value = *from;
    for (std::int64_t i = 0; i < count; ++i) to[i * target_stride] = value;
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * target_stride] = from[i * source_stride];
  }
}

template <class T>
void copy_runs(const Loop& loop, const TensorView* operands) {
  const auto grain = kCopyGrainBytes / static_cast<std::int64_t>(sizeof(T));
  const bool streams = outgrows_cache(operands[0]) && loop.inner_stride(0) == 1 &&
                       loop.inner_stride(1) == 1 && operands[0].data != operands[1].data;
  for_element_ranges(loop.count, grain, [&](std::int64_t begin, std::int64_t end) {
    Cursor target(loop, 0, operands[0], begin);
    Cursor source(loop, 1, operands[1], begin);
    for (std::int64_t left = end - begin; left > 0;) {
      const std::int64_t length = std::min(left, target.run());
      if (streams) {
        stream_bytes(target.address(), source.address(),
                     static_cast<std::size_t>(length) * sizeof(T));
      } else {
        copy_run<T>(target.address(), target.stride(), source.address(), source.stride(), length);
      }
      target.advance(length);
      source.advance(length);
      left -= length;
    }
    if (streams) stream_fence();
  });
}

/// The axis along which the source is contiguous while the target is so along the innermost; -1
/// if the layouts are not each other's transposes.
std::int32_t transposed_axis(const Loop& loop) {
  if (loop.inner_stride(0) != 1 || loop.inner_stride(1) == 1 || loop.inner() < 4) return -1;
  for (std::int32_t i = loop.rank - 2; i >= 0; --i) {
    if (loop.strides[1][i] == 1 && loop.shape[i] >= 4) return i;
  }
  return -1;
}

/// One tile of a transposition: read along the source's lines, written along the target's, in
/// pieces that stay in the first cache.
template <class T>
void copy_tile(T* target, std::int64_t target_row, const T* source, std::int64_t source_column,
               std::int64_t rows, std::int64_t columns) {
  T tile[kTile][kTile];
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) tile[i][j] = source[i + j * source_column];
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(static_cast<void*>(target + i * target_row), tile[i],
                static_cast<std::size_t>(columns) * sizeof(T));
  }
}

/// Rows run along `axis`, columns along the innermost axis; the other axes select a matrix.
template <class T>
void copy_transposed(const Loop& loop, const TensorView* operands, std::int32_t axis) {
  const std::int64_t rows = loop.shape[axis];
  const std::int64_t columns = loop.inner();
  const std::int64_t row_tiles = (rows + kTile - 1) / kTile;
  const std::int64_t strips = loop.count / (rows * columns) * row_tiles;
  const auto strip_bytes = kTile * columns * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t grain = std::max<std::int64_t>(1, kCopyGrainBytes / strip_bytes);
  parallel_for(strips, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t strip = begin; strip < end; ++strip) {
      const std::int64_t row = strip % row_tiles * kTile;
      std::int64_t left = strip / row_tiles;
      std::int64_t to = row * loop.strides[0][axis];
      std::int64_t from = row;
      for (std::int32_t i = loop.rank - 2; i >= 0; --i) {
        if (i == axis) continue;
        to += left % loop.shape[i] * loop.strides[0][i];
        from += left % loop.shape[i] * loop.strides[1][i];
        left /= loop.shape[i];
      }
      for (std::int64_t column = 0; column < columns; column += kTile) {
        copy_tile<T>(operands[0].as<T>() + to + column, loop.strides[0][axis],
                     operands[1].as<T>() + from + column * loop.inner_stride(1),
                     loop.inner_stride(1), std::min(kTile, rows - row),
                     std::min(kTile, columns - column));
      }
    }
  });
}

template <int kBytes>
void copy_units(const Loop& loop, const TensorView* operands) {
  const std::int32_t axis = transposed_axis(loop);
  if (axis >= 0) return copy_transposed<Unit<kBytes>>(loop, operands, axis);
  copy_runs<Unit<kBytes>>(loop, operands);
}

void copy_bytes(const Loop& loop, const TensorView* operands, int itemsize) {
  switch (itemsize) {
    case 1:
      return copy_units<1>(loop, operands);
    case 2:
      return copy_units<2>(loop, operands);
    case 4:
      return copy_units<4>(loop, operands);
    case 8:
      return copy_units<8>(loop, operands);
    default:
      return copy_units<16>(loop, operands);
  }
}

/// Conversion of one run, at most kBlock elements, through the source's natural carrier.
struct Conversion {
  Conversion(DType to, DType from)
      : carrier(natural_carrier(from)),
        load(loader_for(from, carrier)),
        store(storer_for(carrier, to)),
        loads_in_place(storage_of(carrier) == from && from != DType::bool_),
        stores_in_place(storage_of(carrier) == to) {}

  void run(std::byte* target, std::int64_t target_stride, const std::byte* source,
           std::int64_t source_stride, std::int64_t count, std::byte* buffer) const {
    if (loads_in_place && source_stride == 1) {
      store(source, target, target_stride, count);
    } else if (stores_in_place && target_stride == 1) {
      load(source, source_stride, count, target);
    } else {
      load(source, source_stride, count, buffer);
      store(buffer, target, target_stride, count);
    }
  }

  Carrier carrier;
  Loader load;
  Storer store;
  bool loads_in_place;
  bool stores_in_place;
};

void convert_strided(const Loop& loop, const TensorView* operands) {
  const Conversion conversion(operands[0].dtype, operands[1].dtype);
  const bool streams = outgrows_cache(operands[0]) && loop.inner_stride(0) == 1;
  const int itemsize = itemsize_of(operands[0].dtype);
  for_element_ranges(loop.count, kConvertGrain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::byte buffer[kBlock * 16];
    alignas(64) std::byte converted[kBlock * 16];
    Cursor target(loop, 0, operands[0], begin);
    Cursor source(loop, 1, operands[1], begin);
    for (std::int64_t left = end - begin; left > 0;) {
      const std::int64_t length = std::min({left, target.run(), kBlock});
      std::byte* to = streams ? converted : target.address();
      conversion.run(to, target.stride(), source.address(), source.stride(), length, buffer);
      if (streams) {
        stream_bytes(target.address(), to, static_cast<std::size_t>(length * itemsize));
      }
      target.advance(length);
      source.advance(length);
      left -= length;
    }
    if (streams) stream_fence();
  });
}

/// One operand is packed, so both are walked in row-major order; the blocks begin on whole bytes.
void convert_packed(const TensorView& target, const TensorView& source) {
  const bool target_packed = bits_of(target.dtype) < 8;
  const TensorView& other = target_packed ? source : target;
  const TensorView& packed = target_packed ? target : source;
  const Carrier carrier = natural_carrier(source.dtype);
  const Loader load = loader_for(source.dtype, carrier);
  const Storer store = storer_for(carrier, target.dtype);
  const int carrier_bytes = itemsize_of(storage_of(carrier));
  Loop loop;
  plan_loop(&other, 1, AxisOrder::kRowMajor, loop);
  for_element_ranges(loop.count, kConvertGrain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::byte buffer[kBlock * 16];
    Cursor cursor(loop, 0, other, begin);
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t length = std::min(kBlock, end - at);
      std::byte* address = element_address(packed.data, packed.dtype, at);
      if (!target_packed) load(address, 1, length, buffer);
      cursor.for_runs(
          length, [&](std::byte* run, std::int64_t stride, std::int64_t count, std::int64_t done) {
            std::byte* block = buffer + done * carrier_bytes;
            target_packed ? load(run, stride, count, block) : store(block, run, stride, count);
          });
      if (target_packed) store(buffer, address, 1, length);
    }
  });
}

void copy_packed(const TensorView& target, const TensorView& source) {
  for (const TensorView* view : {&target, &source}) {
    if (bits_of(view->dtype) < 8 && !is_contiguous(*view)) {
      throw Error(ErrorKind::kValue, std::string("copy: ") + facts_of(view->dtype).name +
                                         " is packed and must be contiguous; got a strided view");
    }
  }
  if (target.dtype != source.dtype) return convert_packed(target, source);
  const std::int64_t bytes = (target.element_count() * bits_of(target.dtype) + 7) / 8;
  std::memmove(target.data, source.data, static_cast<std::size_t>(bytes));
}

/// Same bits, same meaning: a conversion would only copy them.
bool same_bits(DType first, DType second) {
  return first == second ||
         (is_integer(first) && is_integer(second) && bits_of(first) == bits_of(second));
}

void copy_kernel(const KernelCall& call) {
  require_operands(call, "copy:strided", 2, 0);
  copy_strided(call.tensors[0], call.tensors[1]);
}
const HostKernelRegistration registration{"copy:strided", &copy_kernel};

}  // namespace

void copy_strided(const TensorView& target, const TensorView& source) {
  if (target.element_count() == 0) return;
  if (bits_of(target.dtype) < 8 || bits_of(source.dtype) < 8) return copy_packed(target, source);
  const TensorView operands[] = {target, source};
  Loop loop;
  plan_loop(operands, 2, AxisOrder::kMemory, loop);
  if (same_bits(target.dtype, source.dtype)) {
    return copy_bytes(loop, operands, itemsize_of(target.dtype));
  }
  convert_strided(loop, operands);
}

}  // namespace nbx::cpu
