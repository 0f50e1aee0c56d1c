#include "cpu/cast.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "cpu/target.h"
#include "cpu/widen.h"

namespace nbx::cpu {
namespace {

template <DType dtype>
struct StorageType;
#define NBX_STORAGE(name, ...)      \
  template <>                       \
  struct StorageType<DType::name> { \
    using type = __VA_ARGS__;       \
  };
// A bool byte other than 0 or 1 may come from a reinterpreted buffer, so it is read as a number.
NBX_STORAGE(bool_, bool)
NBX_STORAGE(int8, std::int8_t)
NBX_STORAGE(int16, std::int16_t)
NBX_STORAGE(int32, std::int32_t)
NBX_STORAGE(int64, std::int64_t)
NBX_STORAGE(uint8, std::uint8_t)
NBX_STORAGE(uint16, std::uint16_t)
NBX_STORAGE(uint32, std::uint32_t)
NBX_STORAGE(uint64, std::uint64_t)
NBX_STORAGE(float16, Float16)
NBX_STORAGE(bfloat16, BFloat16)
NBX_STORAGE(float32, float)
NBX_STORAGE(float64, double)
NBX_STORAGE(float8_e4m3fn, Float8E4m3fn)
NBX_STORAGE(float8_e5m2, Float8E5m2)
NBX_STORAGE(complex64, std::complex<float>)
NBX_STORAGE(complex128, std::complex<double>)
NBX_STORAGE(int4, Int4Pair)
#undef NBX_STORAGE

template <class T>
inline constexpr bool kIsNarrow = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16> ||
                                  std::is_same_v<T, Float8E4m3fn> || std::is_same_v<T, Float8E5m2>;
template <class T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

template <class To, class From>
NBX_INLINE To truncate_to(From value) {
  // Clamped while still a float, so that the conversion itself is always defined.
  constexpr auto kLeast = static_cast<From>(std::numeric_limits<To>::min());
  constexpr int kDropped =
      std::max(0, std::numeric_limits<To>::digits - std::numeric_limits<From>::digits);
  constexpr auto kGreatest =
      static_cast<From>(std::numeric_limits<To>::max() >> kDropped << kDropped);
  const From number = value == value ? value : From{0};
  const From clamped = std::min(std::max(number, kLeast), kGreatest);
  // Saturated values past the greatest float below the limit take the limit itself.
  return number > kGreatest ? std::numeric_limits<To>::max() : static_cast<To>(clamped);
}

template <class Integer>
NBX_INLINE double sticky_double(Integer value) {
  // A double holds 53 bits; the last one remembers whether any was dropped, so that the rounding
  // to a narrower type is the only one.
  const bool negative = value < 0;
  auto magnitude = static_cast<std::uint64_t>(value);
  magnitude = negative ? std::uint64_t{0} - magnitude : magnitude;
  const std::uint64_t kept = magnitude & ~std::uint64_t{0x7ff};
  const std::uint64_t sticky = kept | (kept != magnitude ? std::uint64_t{0x800} : 0);
  const auto result = static_cast<double>(magnitude >> 53 != 0 ? sticky : magnitude);
  return negative ? -result : result;
}

template <class To, class From>
NBX_INLINE To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsNarrow<From>) {
    return convert<To>(to_float(value));
  } else if constexpr (kIsComplex<From> && std::is_same_v<To, bool>) {
    return value.real() != 0 || value.imag() != 0;
  } else if constexpr (kIsComplex<From> && kIsComplex<To>) {
    return To(static_cast<typename To::value_type>(value.real()),
              static_cast<typename To::value_type>(value.imag()));
  } else if constexpr (kIsComplex<From>) {
    return convert<To>(value.real());
  } else if constexpr (kIsComplex<To>) {
    return To(convert<typename To::value_type>(value), 0);
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (kIsNarrow<To>) {
    if constexpr (std::is_same_v<From, float>) {
      return from_float<To>(value);
    } else if constexpr (std::is_same_v<From, double>) {
      return from_double<To>(value);
    } else {
      return from_double<To>(sticky_double(value));
    }
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return truncate_to<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class E, class C, bool is_bool_carrier>
NBX_INLINE C load_element(const std::byte* source, std::int64_t index) {
  if constexpr (std::is_same_v<E, bool>) {
    const bool value = reinterpret_cast<const std::uint8_t*>(source)[index] != 0;
    return convert<C>(static_cast<std::uint8_t>(value));
  } else if constexpr (is_bool_carrier) {
    return static_cast<C>(convert<bool>(reinterpret_cast<const E*>(source)[index]));
  } else {
    return convert<C>(reinterpret_cast<const E*>(source)[index]);
  }
}

/// The pairs that models spend their time on are compiled for every instruction set.
template <class E, class C>
inline constexpr bool kIsHot =
    (std::is_same_v<C, float> &&
     (kIsNarrow<E> || std::is_floating_point_v<E> || (std::is_integral_v<E> && sizeof(E) != 2))) ||
    (std::is_same_v<C, std::uint8_t> && std::is_same_v<E, float>);

template <class E, class C, bool is_bool>
NBX_TARGET_CLONES void load_dense(const std::byte* source, std::int64_t count, C* block) {
  for (std::int64_t i = 0; i < count; ++i) block[i] = load_element<E, C, is_bool>(source, i);
}

// Half precision has instructions of its own, which the compilers do not find in the loops above.
template <int kWidth>
NBX_INLINE void halves_to_floats_body(const Float16* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    typename Vector<kWidth>::F vector;
    widen<kWidth>(vector, from + i);
    store(to + i, vector);
  }
  for (; i < count; ++i) to[i] = to_float(from[i]);
}
NBX_VECTORISED(halves_to_floats, (const Float16* from, float* to, std::int64_t count),
               (from, to, count))

template <int kWidth>
NBX_INLINE void floats_to_halves_body(const float* from, Float16* to, std::int64_t count) {
  std::int64_t i = 0;
#if NBX_X86 && !defined(__clang__)
  if constexpr (kWidth > 4) {
    for (; i + kWidth <= count; i += kWidth) {
      typename Vector<kWidth>::F vector;
      load(vector, from + i);
      auto& halves = *reinterpret_cast<char (*)[kWidth * 2]>(to + i);
      __asm__("vcvtps2ph $0, %1, %0" : "=m"(halves) : "x"(vector));
    }
  }
#endif
  for (; i < count; ++i) to[i] = from_float<Float16>(from[i]);
}
NBX_VECTORISED(floats_to_halves, (const float* from, Float16* to, std::int64_t count),
               (from, to, count))

template <class E, class C, bool is_bool>
void load_block(const std::byte* source, std::int64_t stride, std::int64_t count, void* block) {
  auto* target = static_cast<C*>(block);
  if constexpr (std::is_same_v<E, Float16> && std::is_same_v<C, float>) {
    if (stride == 1) return halves_to_floats(reinterpret_cast<const E*>(source), target, count);
  } else if constexpr (kIsHot<E, C>) {
    if (stride == 1) return load_dense<E, C, is_bool>(source, count, target);
  }
  if (stride == 0) {
    std::fill_n(target, count, load_element<E, C, is_bool>(source, 0));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    target[i] = load_element<E, C, is_bool>(source, i * stride);
  }
}

template <class E, class C>
NBX_INLINE void store_element(C value, std::byte* target, std::int64_t index) {
  reinterpret_cast<E*>(target)[index] = convert<E>(value);
}

template <class E, class C>
NBX_TARGET_CLONES void store_dense(const C* block, std::byte* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) store_element<E>(block[i], target, i);
}

template <class E, class C>
void store_block(const void* block, std::byte* target, std::int64_t stride, std::int64_t count) {
  const auto* source = static_cast<const C*>(block);
  if constexpr (std::is_same_v<E, Float16> && std::is_same_v<C, float>) {
    if (stride == 1) return floats_to_halves(source, reinterpret_cast<E*>(target), count);
  } else if constexpr (kIsHot<E, C>) {
    if (stride == 1) return store_dense<E>(source, target, count);
  }
  for (std::int64_t i = 0; i < count; ++i) store_element<E>(source[i], target, i * stride);
}

template <class C, bool is_bool>
void load_int4(const std::byte* source, std::int64_t /*stride*/, std::int64_t count, void* block) {
  auto* target = static_cast<C*>(block);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(source);
  for (std::int64_t i = 0; i < count; ++i) {
    const int nibble = (bytes[i / 2] >> (i % 2 * 4)) & 0xf;
    const auto value = static_cast<std::int8_t>(nibble - (nibble & 8) * 2);
    if constexpr (is_bool) {
      target[i] = static_cast<C>(value != 0);
    } else {
      target[i] = convert<C>(value);
    }
  }
}

template <class C>
std::uint8_t nibble_of(C value) {
  if constexpr (kIsComplex<C>) {
    return nibble_of(value.real());
  } else if constexpr (std::is_floating_point_v<C>) {
    const auto wide = truncate_to<std::int8_t>(value);
    return static_cast<std::uint8_t>(std::clamp<int>(wide, -8, 7) & 0xf);
  } else {
    return static_cast<std::uint8_t>(value & 0xf);
  }
}

template <class C>
void store_int4(const void* block, std::byte* target, std::int64_t /*stride*/, std::int64_t count) {
  const auto* source = static_cast<const C*>(block);
  auto* bytes = reinterpret_cast<std::uint8_t*>(target);
  for (std::int64_t i = 0; i + 1 < count; i += 2) {
    bytes[i / 2] =
        static_cast<std::uint8_t>(nibble_of(source[i]) | (nibble_of(source[i + 1]) << 4));
  }
  // The last byte of an odd count keeps nothing in its high half.
  if (count % 2 != 0) bytes[count / 2] = nibble_of(source[count - 1]);
}

template <DType dtype, class C, bool is_bool>
constexpr Loader pick_loader() {
  if constexpr (dtype == DType::int4) {
    return &load_int4<C, is_bool>;
  } else {
    return &load_block<typename StorageType<dtype>::type, C, is_bool>;
  }
}

template <DType dtype, class C>
constexpr Storer pick_storer() {
  if constexpr (dtype == DType::int4) {
    return &store_int4<C>;
  } else {
    return &store_block<typename StorageType<dtype>::type, C>;
  }
}

using LoaderRow = std::array<Loader, kCarrierCount>;
using StorerRow = std::array<Storer, kCarrierCount>;

template <DType dtype>
constexpr LoaderRow loader_row() {
  return {
#define NBX_PICK(name, type, stored) pick_loader<dtype, type, Carrier::name == Carrier::kBool>(),
      NBX_CARRIERS(NBX_PICK)
#undef NBX_PICK
  };
}

template <DType dtype>
constexpr StorerRow storer_row() {
  return {
#define NBX_PICK(name, type, stored) pick_storer<dtype, type>(),
      NBX_CARRIERS(NBX_PICK)
#undef NBX_PICK
  };
}

constexpr LoaderRow kLoaders[] = {
#define NBX_ROW(name, bits, kind) loader_row<DType::name>(),
    NBX_DTYPES(NBX_ROW)
#undef NBX_ROW
};
constexpr StorerRow kStorers[] = {
#define NBX_ROW(name, bits, kind) storer_row<DType::name>(),
    NBX_DTYPES(NBX_ROW)
#undef NBX_ROW
};

}  // namespace

Loader loader_for(DType from, Carrier to) noexcept {
  return kLoaders[static_cast<int>(from)][static_cast<std::size_t>(to)];
}

Storer storer_for(Carrier from, DType to) noexcept {
  return kStorers[static_cast<int>(to)][static_cast<std::size_t>(from)];
}

Carrier natural_carrier(DType dtype) noexcept {
  switch (dtype) {
    case DType::bool_:
      return Carrier::kBool;
    case DType::uint64:
      return Carrier::kUint64;
    case DType::float64:
      return Carrier::kFloat64;
    case DType::complex64:
      return Carrier::kComplex64;
    case DType::complex128:
      return Carrier::kComplex128;
    default:
      return is_floating(dtype) ? Carrier::kFloat32 : Carrier::kInt64;
  }
}

DType storage_of(Carrier carrier) noexcept {
  constexpr DType kStorage[] = {
#define NBX_STORED(name, type, dtype) DType::dtype,
      NBX_CARRIERS(NBX_STORED)
#undef NBX_STORED
  };
  return kStorage[static_cast<int>(carrier)];
}

Carrier carrier_of(DType op_dtype, const char* kernel) {
  const Carrier carrier = natural_carrier(op_dtype);
  if (storage_of(carrier) != op_dtype) {
    throw Error(ErrorKind::kType,
                std::string(kernel) + ": op_dtype is " + facts_of(op_dtype).name +
                    "; expected bool, int64, uint64, float32, float64, complex64 or complex128");
  }
  return carrier;
}

template <class T>
T scalar_as(const Scalar& scalar) noexcept {
  if (scalar.kind == ScalarKind::kComplex) {
    return convert<T>(std::complex<double>(scalar.real, scalar.imaginary));
  }
  if (scalar.kind == ScalarKind::kReal) return convert<T>(scalar.real);
  if (scalar.is_unsigned) return convert<T>(static_cast<std::uint64_t>(scalar.integer));
  return convert<T>(scalar.integer);
}

template std::int64_t scalar_as<std::int64_t>(const Scalar&) noexcept;
template std::uint64_t scalar_as<std::uint64_t>(const Scalar&) noexcept;
template float scalar_as<float>(const Scalar&) noexcept;
template double scalar_as<double>(const Scalar&) noexcept;
template std::complex<float> scalar_as<std::complex<float>>(const Scalar&) noexcept;
template std::complex<double> scalar_as<std::complex<double>>(const Scalar&) noexcept;
template <>
std::uint8_t scalar_as<std::uint8_t>(const Scalar& scalar) noexcept {
  return scalar_as<std::complex<double>>(scalar) != 0.0 ? 1 : 0;
}

void scalar_to(const Scalar& scalar, Carrier carrier, void* target) noexcept {
  switch (carrier) {
#define NBX_CASE(name, type, dtype)                        \
  case Carrier::name:                                      \
    *static_cast<type*>(target) = scalar_as<type>(scalar); \
    return;
    NBX_CARRIERS(NBX_CASE)
#undef NBX_CASE
  }
}

DType op_dtype_of(const KernelCall& call, const char* kernel) {
  const std::int64_t code = call.scalar_count == 0 ? -1 : call.scalars[0].integer;
  if (code < 0 || code >= kDTypeCount) {
    throw Error(ErrorKind::kValue, std::string(kernel) + ": op_dtype is " + std::to_string(code) +
                                       "; expected a dtype code from 0 to " +
                                       std::to_string(kDTypeCount - 1));
  }
  return static_cast<DType>(code);
}

void require_operands(const KernelCall& call, const char* kernel, std::size_t tensors,
                      std::size_t scalars) {
  if (call.tensor_count != tensors || call.scalar_count < scalars) {
    throw Error(ErrorKind::kValue, std::string(kernel) + ": got " +
                                       std::to_string(call.tensor_count) + " tensors and " +
                                       std::to_string(call.scalar_count) + " scalars; expected " +
                                       std::to_string(tensors) + " tensors and at least " +
                                       std::to_string(scalars) + " scalars");
  }
}

}  // namespace nbx::cpu
