// embedding:dense: rows of a table, chosen by id.
#include "cpu/embedding.h"

#include <cstring>

#include "core/error.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace nbx::cpu {

std::int64_t checked_id(const char* kernel, const TensorView& ids, std::int64_t index,
                        std::int64_t rows) {
  const std::int64_t id = integer_at(ids, index);
  if (id < 0 || id >= rows) {
    throw Error(ErrorKind::kIndex, std::string(kernel) + ": ids[" + std::to_string(index) +
                                       "] (flattened) is " + std::to_string(id) +
                                       ", the table has rows 0 to " + std::to_string(rows - 1))
        .with("index", id)
        .with("rows", rows);
  }
  return id;
}

namespace {

void copy_same(std::byte* to, std::int64_t to_stride, const std::byte* from,
               std::int64_t from_stride, std::int64_t count, std::int64_t itemsize) {
  if ((to_stride == 1 && from_stride == 1) || count == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count * itemsize));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride * itemsize, from + i * from_stride * itemsize,
                static_cast<std::size_t>(itemsize));
  }
}

void embedding(const KernelCall& call) {
  const TensorView& out = call.tensors[0];
  const TensorView& ids = call.tensors[1];
  const TensorView& table = call.tensors[2];
  require_index("embedding:dense", "ids", ids);
  const bool same = out.dtype == table.dtype;
  if (!same || itemsize_of(out.dtype) == 0) {
    require_floating("embedding:dense", "out", out);
    require_floating("embedding:dense", "table", table);
  }
  const std::int64_t width = table.shape[1];
  const std::int64_t count = ids.element_count();
  const std::int64_t size = itemsize_of(table.dtype);
  const std::int64_t to_stride = out.strides[out.rank - 1];
  const std::int64_t from_stride = table.strides[1];
  for (std::int64_t i = 0; i < count; ++i) {
    (void)checked_id("embedding:dense", ids, i, table.shape[0]);
  }
  if (width == 0) return;
  parallel_for(count, rows_per_piece(width), [&](std::int64_t begin, std::int64_t end) {
    float* buffer = scratch<float>(0, width);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::byte* from = table.data + integer_at(ids, i) * table.strides[0] * size;
      std::byte* to = row_address(out, i);
      if (same) {
        copy_same(to, to_stride, from, from_stride, width, size);
      } else {
        const float* row = load_row(from, table.dtype, from_stride, width, buffer);
        store_row(to, out.dtype, to_stride, width, row);
      }
    }
  });
}

const HostKernelRegistration register_embedding{"embedding:dense", &embedding};

}  // namespace
}  // namespace nbx::cpu
