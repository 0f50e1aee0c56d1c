// Messages for people: one function, one sink.
#pragma once

#include <cstdint>
#include <string>

namespace nbx {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

/// Receives every message at or above the level. May be called from any thread, with locks of the
/// caller held: it must not wait for other threads.
using LogSink = void (*)(LogLevel level, const std::string& text) noexcept;

/// Writes one message: to the sink, or to standard error where there is none.
void log(LogLevel level, const std::string& text) noexcept;
[[nodiscard]] bool logs(LogLevel level) noexcept;

/// The least level that is written; NBX_LOG sets it on first use.
[[nodiscard]] LogLevel log_level() noexcept;
void set_log_level(LogLevel level) noexcept;
/// Null goes back to standard error. Returns the former sink.
LogSink set_log_sink(LogSink sink) noexcept;

[[nodiscard]] const char* name_of(LogLevel level) noexcept;
/// Throws Error(kValue) listing the levels.
[[nodiscard]] LogLevel parse_log_level(const std::string& text);

}  // namespace nbx
