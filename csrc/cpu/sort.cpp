// sort:sort and sort:topk over the last axis. Equal elements keep their order; NaN counts as
// greatest.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cpu/cast.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/target.h"

namespace nbx::cpu {
namespace {

// Every element type maps to an unsigned key of the same order, so that one sort serves all.
struct Entry {
  std::uint64_t key;
  std::int64_t index;

  bool operator<(const Entry& other) const noexcept {
    return key != other.key ? key < other.key : index < other.index;
  }
};

constexpr std::uint64_t kSign = std::uint64_t{1} << 63;

std::uint64_t key_of(std::uint8_t value) noexcept { return value != 0 ? 1 : 0; }
std::uint64_t key_of(std::uint64_t value) noexcept { return value; }
std::uint64_t key_of(std::int64_t value) noexcept {
  return static_cast<std::uint64_t>(value) ^ kSign;
}
std::uint64_t key_of(double value) noexcept {
  if (value != value) return ~std::uint64_t{0};
  const auto bits = std::bit_cast<std::uint64_t>(value + 0.0);  // -0 becomes 0
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
std::uint64_t key_of(float value) noexcept { return key_of(static_cast<double>(value)); }

template <class T>
void fill_entries(const T* values, std::int64_t count, bool descending, Entry* entries) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t key = key_of(values[i]);
    entries[i] = {descending ? ~key : key, i};
  }
}

template <class T>
void gather(const T* values, const Entry* entries, std::int64_t count, T* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = values[entries[i].index];
}

/// Few of many are found by insertion.
constexpr std::int64_t kMostInserted = 64;
constexpr std::int64_t kChunk = 64;

/// Where the next whole chunk begins that may hold something that comes before `bound`.
template <class T>
NBX_TARGET_CLONES std::int64_t next_chunk(const T* values, std::int64_t begin, std::int64_t count,
                                          T bound, bool descending) {
  for (; begin + kChunk <= count; begin += kChunk) {
    int found = 0;
    if (descending) {
      for (std::int64_t i = 0; i < kChunk; ++i) found |= values[begin + i] <= bound ? 0 : 1;
    } else {
      for (std::int64_t i = 0; i < kChunk; ++i) found |= values[begin + i] >= bound ? 0 : 1;
    }
    if (found != 0) break;
  }
  return begin;
}

/// The first `kept` entries in order; equal ones keep their order, so that one that comes later has
/// to be strictly better.
template <class T>
void insert_best(const T* values, std::int64_t count, std::int64_t kept, bool descending,
                 Entry* best) {
  fill_entries(values, kept, descending, best);
  std::sort(best, best + kept);
  for (std::int64_t i = kept; i < count;) {
    i = next_chunk(values, i, count, values[best[kept - 1].index], descending);
    for (const std::int64_t end = std::min(count, i + kChunk); i < end; ++i) {
      const std::uint64_t key = key_of(values[i]);
      const Entry entry{descending ? ~key : key, i};
      if (!(entry < best[kept - 1])) continue;
      Entry* place = std::upper_bound(best, best + kept, entry);
      std::move_backward(place, best + kept - 1, best + kept);
      *place = entry;
    }
  }
}

struct Job {
  const TensorView& values;
  const TensorView& indices;
  const TensorView& in;
  std::int64_t kept;  // of every row
  bool descending;
};

template <class T>
void sort_rows(const Job& job) {
  const int last = job.in.rank - 1;
  const std::int64_t width = job.in.shape[last];
  const Loader load = loader_for(job.in.dtype, kCarrierOf<T>);
  const Storer save = storer_for(kCarrierOf<T>, job.values.dtype);
  const Storer save_index = storer_for(Carrier::kInt64, job.indices.dtype);
  parallel_for(
      row_count(job.in), rows_per_piece(width * 16), [&](std::int64_t begin, std::int64_t end) {
        T* buffer = scratch<T>(0, width);
        T* out = scratch<T>(1, job.kept);
        Entry* entries = scratch<Entry>(2, width);
        std::int64_t* order = scratch<std::int64_t>(3, job.kept);
        for (std::int64_t r = begin; r < end; ++r) {
          const std::byte* address = row_address(job.in, r);
          const bool direct = job.in.strides[last] == 1 &&
                              job.in.dtype == storage_of(kCarrierOf<T>) &&
                              job.in.dtype != DType::bool_;
          if (!direct) load(address, job.in.strides[last], width, buffer);
          const T* row = direct ? reinterpret_cast<const T*>(address) : buffer;
          if (job.kept > 0 && job.kept <= kMostInserted && job.kept < width) {
            insert_best(row, width, job.kept, job.descending, entries);
          } else {
            fill_entries(row, width, job.descending, entries);
            if (job.kept < width) {
              std::nth_element(entries, entries + job.kept, entries + width);
            }
            std::sort(entries, entries + job.kept);
          }
          gather(row, entries, job.kept, out);
          for (std::int64_t i = 0; i < job.kept; ++i) order[i] = entries[i].index;
          save(out, row_address(job.values, r), job.values.strides[last], job.kept);
          save_index(order, row_address(job.indices, r), job.indices.strides[last], job.kept);
        }
      });
}

void run(const char* name, const Job& job) {
  if (is_complex(job.in.dtype) || itemsize_of(job.in.dtype) == 0) {
    throw Error(ErrorKind::kType, std::string(name) + ": in has dtype " +
                                      facts_of(job.in.dtype).name +
                                      ", which has no order; expected a real type");
  }
  switch (natural_carrier(job.in.dtype)) {
    case Carrier::kBool:
      return sort_rows<std::uint8_t>(job);
    case Carrier::kUint64:
      return sort_rows<std::uint64_t>(job);
    case Carrier::kInt64:
      return sort_rows<std::int64_t>(job);
    case Carrier::kFloat32:
      return sort_rows<float>(job);
    default:
      return sort_rows<double>(job);
  }
}

// Scalars are [descending, stable]; the order is always stable.
void sort(const KernelCall& call) {
  const TensorView* t = call.tensors;
  run("sort:sort", {t[0], t[1], t[2], t[2].shape[t[2].rank - 1], call.scalars[0].integer != 0});
}

// Scalars are [k, largest, sorted]; the result is always sorted.
void topk(const KernelCall& call) {
  const TensorView* t = call.tensors;
  const std::int64_t k = call.scalars[0].integer;
  const std::int64_t width = t[2].shape[t[2].rank - 1];
  if (k < 0 || k > width) {
    throw Error(ErrorKind::kValue, "sort:topk: k must be from 0 to the last extent " +
                                       std::to_string(width) + ", got " + std::to_string(k));
  }
  run("sort:topk", {t[0], t[1], t[2], k, call.scalars[1].integer != 0});
}

const HostKernelRegistration register_sort{"sort:sort", &sort};
const HostKernelRegistration register_topk{"sort:topk", &topk};

}  // namespace
}  // namespace nbx::cpu
