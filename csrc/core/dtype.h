// Element types: codes, widths and kinds, from the one table.
#pragma once

#include <cstdint>

#include "core/dtype_table.h"

namespace nbx {

enum class DType : std::uint8_t {
#define NBX_ENUMERATE(name, bits, kind) name,
  NBX_DTYPES(NBX_ENUMERATE)
#undef NBX_ENUMERATE
};

struct DTypeFacts {
  const char* name;
  std::uint16_t bits;
  char kind;
};

inline constexpr DTypeFacts kDTypeFacts[] = {
#define NBX_FACTS(name, bits, kind) {#name, bits, kind},
    NBX_DTYPES(NBX_FACTS)
#undef NBX_FACTS
};
inline constexpr int kDTypeCount = static_cast<int>(sizeof(kDTypeFacts) / sizeof(DTypeFacts));

[[nodiscard]] constexpr const DTypeFacts& facts_of(DType dtype) noexcept {
  return kDTypeFacts[static_cast<int>(dtype)];
}
[[nodiscard]] constexpr int bits_of(DType dtype) noexcept { return facts_of(dtype).bits; }
/// Bytes of one element; 0 for packed types narrower than a byte.
[[nodiscard]] constexpr int itemsize_of(DType dtype) noexcept { return facts_of(dtype).bits / 8; }
[[nodiscard]] constexpr bool is_floating(DType dtype) noexcept {
  return facts_of(dtype).kind == 'f';
}
[[nodiscard]] constexpr bool is_complex(DType dtype) noexcept {
  return facts_of(dtype).kind == 'c';
}
[[nodiscard]] constexpr bool is_integer(DType dtype) noexcept {
  return facts_of(dtype).kind == 'i' || facts_of(dtype).kind == 'u';
}

}  // namespace nbx
