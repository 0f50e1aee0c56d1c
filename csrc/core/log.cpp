#include "core/log.h"

#include <array>
#include <atomic>
#include <cstdio>

#include "core/environment.h"
#include "core/error.h"

namespace nbx {
namespace {

constexpr std::array kNames = {"debug", "info", "warning", "error", "off"};
constexpr int kUnread = -1;

std::atomic<int> least{kUnread};
std::atomic<LogSink> current_sink{nullptr};

void write(LogLevel level, const std::string& text) noexcept {
  const LogSink sink = current_sink.load(std::memory_order_acquire);
  if (sink != nullptr) {
    sink(level, text);
  } else {
    static_cast<void>(std::fprintf(stderr, "nbxtensor: %s: %s\n", name_of(level), text.c_str()));
  }
}

/// A malformed NBX_LOG must not keep messages back: it is reported and warnings are shown.
LogLevel read_level() noexcept {
  try {
    return parse_log_level(environment_text("NBX_LOG"));
  } catch (const std::exception& error) {
    write(LogLevel::kWarning, std::string("NBX_LOG: ") + error.what());
    return LogLevel::kWarning;
  }
}

}  // namespace

const char* name_of(LogLevel level) noexcept { return kNames[static_cast<std::size_t>(level)]; }

LogLevel parse_log_level(const std::string& text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<LogLevel>(i);
  }
  throw Error(ErrorKind::kValue,
              "log level: expected debug, info, warning, error or off, got '" + text + "'");
}

LogLevel log_level() noexcept {
  int level = least.load(std::memory_order_relaxed);
  if (level == kUnread) {
    const int read = static_cast<int>(read_level());
    if (least.compare_exchange_strong(level, read, std::memory_order_relaxed)) level = read;
  }
  return static_cast<LogLevel>(level);
}

void set_log_level(LogLevel level) noexcept {
  least.store(static_cast<int>(level), std::memory_order_relaxed);
}

LogSink set_log_sink(LogSink sink) noexcept {
  return current_sink.exchange(sink, std::memory_order_acq_rel);
}

bool logs(LogLevel level) noexcept { return level >= log_level() && level != LogLevel::kOff; }

void log(LogLevel level, const std::string& text) noexcept {
  if (logs(level)) write(level, text);
}

}  // namespace nbx
