// The NBX_ variables, read where they are used; the table generates their names and defaults.
#pragma once

#include <cstdint>
#include <string>

namespace nbx {

/// The variable's value, or its default when it is unset or empty. Every getter throws
/// Error(kValue) naming the variable for a value of the wrong form, and for a name that is not in
/// the table.
[[nodiscard]] std::string environment_text(const char* name);
[[nodiscard]] std::int64_t environment_integer(const char* name);
[[nodiscard]] bool environment_flag(const char* name);    // 0 or 1
[[nodiscard]] double environment_real(const char* name);  // a decimal point, whatever the locale
/// Percentages are of `total`.
[[nodiscard]] std::uint64_t environment_bytes(const char* name, std::uint64_t total);

}  // namespace nbx
