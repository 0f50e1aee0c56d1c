#include "core/environment.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <locale>
#include <sstream>

#include "core/bytes.h"
#include "core/environment_table.h"
#include "core/error.h"

namespace nbx {
namespace {

struct Variable {
  const char* name;
  const char* fallback;
};
constexpr Variable kVariables[] = {
#define NBX_VARIABLE(name, type, fallback, description) {#name, fallback},
    NBX_ENVIRONMENT(NBX_VARIABLE)
#undef NBX_VARIABLE
};

[[noreturn]] void refuse(const char* name, const std::string& value, const char* expected) {
  throw Error(ErrorKind::kValue, std::string(name) + ": expected " + expected + ", got '" + value +
                                     "'; correct it or unset it");
}

}  // namespace

std::string environment_text(const char* name) {
  for (const Variable& variable : kVariables) {
    if (std::strcmp(variable.name, name) != 0) continue;
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : variable.fallback;
  }
  throw Error(ErrorKind::kValue, std::string(name) + ": no such variable");
}

std::int64_t environment_integer(const char* name) {
  const std::string text = environment_text(name);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end) refuse(name, text, "an integer");
  return value;
}

bool environment_flag(const char* name) {
  const std::string text = environment_text(name);
  if (text != "0" && text != "1") refuse(name, text, "0 or 1");
  return text == "1";
}

double environment_real(const char* name) {
  const std::string text = environment_text(name);
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  double value = 0.0;
  if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof()) {
    refuse(name, text, "a number");
  }
  return value;
}

std::uint64_t environment_bytes(const char* name, std::uint64_t total) {
  try {
    return parse_bytes(environment_text(name), total);
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(name) + ": " + error.what());
  }
}

}  // namespace nbx
