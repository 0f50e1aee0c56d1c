#include "device/primitives.h"

#include <cstring>
#include <string>

#include "core/error.h"

namespace nbx {

bool supports(const Primitives& primitives, Primitive primitive) noexcept {
  switch (primitive) {
#define NBX_CASE(name, result, parameters) \
  case Primitive::k_##name:                \
    return primitives.name != nullptr;
    NBX_PRIMITIVES(NBX_CASE)
#undef NBX_CASE
  }
  return false;
}

const char* name_of(Primitive primitive) noexcept {
  switch (primitive) {
#define NBX_CASE(name, result, parameters) \
  case Primitive::k_##name:                \
    return #name;
    NBX_PRIMITIVES(NBX_CASE)
#undef NBX_CASE
  }
  return "unknown";
}

Primitive primitive_named(const char* name) {
#define NBX_CASE(entry, result, parameters) \
  if (std::strcmp(name, #entry) == 0) return Primitive::k_##entry;
  NBX_PRIMITIVES(NBX_CASE)
#undef NBX_CASE
  std::string known;
#define NBX_CASE(entry, result, parameters) known += " " #entry;
  NBX_PRIMITIVES(NBX_CASE)
#undef NBX_CASE
  throw Error(ErrorKind::kValue,
              std::string("primitive: unknown name '") + name + "'; known are" + known);
}

}  // namespace nbx
