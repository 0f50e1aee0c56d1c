#include "core/bytes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <limits>

#include "core/error.h"

namespace nbx {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr Wide kLargest = static_cast<Wide>(std::numeric_limits<std::int64_t>::max());
constexpr int kFractionDigits = 9;

struct Unit {
  const char* name;
  std::uint64_t bytes;
};
constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", std::uint64_t{1} << 10},
    Unit{"kb", 1000},
    Unit{"kib", std::uint64_t{1} << 10},
    Unit{"m", std::uint64_t{1} << 20},
    Unit{"mb", std::uint64_t{1000} * 1000},
    Unit{"mib", std::uint64_t{1} << 20},
    Unit{"g", std::uint64_t{1} << 30},
    Unit{"gb", std::uint64_t{1000} * 1000 * 1000},
    Unit{"gib", std::uint64_t{1} << 30},
    Unit{"t", std::uint64_t{1} << 40},
    Unit{"tb", std::uint64_t{1000} * 1000 * 1000 * 1000},
    Unit{"tib", std::uint64_t{1} << 40},
};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorKind::kValue, "size: " + why + ", got '" + text +
                                     "'; write a number of bytes, a number with a unit such as "
                                     "\"2 GiB\" or \"500 MB\", or a percentage such as \"80%\"");
}

/// A decimal number as whole part and billionths, so that no size is rounded on the way.
struct Decimal {
  Wide whole = 0;
  Wide billionths = 0;
};

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

Decimal read_decimal(const std::string& text, std::size_t* at) {
  Decimal number;
  bool any = false;
  for (; *at < text.size() && (is_digit(text[*at]) || text[*at] == '_'); ++*at) {
    if (text[*at] == '_') continue;
    any = true;
    number.whole = number.whole * 10 + static_cast<Wide>(text[*at] - '0');
    if (number.whole > kLargest) {
      throw Error(ErrorKind::kOverflow, "size: '" + text + "' exceeds 2^63 - 1 bytes");
    }
  }
  if (*at < text.size() && text[*at] == '.') {
    Wide weight = 100'000'000;
    int digits = 0;
    for (++*at; *at < text.size() && is_digit(text[*at]); ++*at, weight /= 10) {
      any = true;
      if (++digits > kFractionDigits) refuse(text, "more than 9 decimals");
      number.billionths += weight * static_cast<Wide>(text[*at] - '0');
    }
  }
  if (!any) refuse(text, "expected a number at least 0");
  return number;
}

std::uint64_t scale(const Decimal& number, Wide factor, Wide divisor, const std::string& text) {
  // Both products stay far below 2^127: whole and factor are below 2^63.
  const Wide billionths = number.whole * factor / divisor;
  const Wide rest = number.whole * factor % divisor;
  const Wide bytes =
      billionths + (rest * 1'000'000'000 + number.billionths * factor) / (divisor * 1'000'000'000);
  if (bytes > kLargest) {
    throw Error(ErrorKind::kOverflow, "size: '" + text + "' exceeds 2^63 - 1 bytes");
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

std::uint64_t parse_bytes(const std::string& text, std::uint64_t total) {
  std::size_t at = 0;
  const auto skip_spaces = [&] {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) ++at;
  };
  skip_spaces();
  const Decimal number = read_decimal(text, &at);
  skip_spaces();
  std::string unit;
  for (; at < text.size(); ++at) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(text[at])));
  }
  while (!unit.empty() && std::isspace(static_cast<unsigned char>(unit.back())) != 0) {
    unit.pop_back();
  }
  if (unit == "%") {
    if (number.whole > 100 || (number.whole == 100 && number.billionths != 0)) {
      refuse(text, "a percentage above 100");
    }
    return scale(number, total, 100, text);
  }
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(),
                                   [&](const Unit& known) { return unit == known.name; });
  if (found == kUnits.end()) refuse(text, "unknown unit '" + unit + "'");
  return scale(number, found->bytes, 1, text);
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  // 1023.995 would print as 1024.00 of the smaller unit.
  while (value >= 1023.995 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> buffer{};
  static_cast<void>(std::snprintf(buffer.data(), buffer.size(), "%.2f", value));
  std::string text = buffer.data();
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text + " " + kNames[unit];
}

}  // namespace nbx
