#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/dynamic_library.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/log.h"

namespace nbx {
namespace {

/// Sets a variable and puts the former value back.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* former = std::getenv(name);
    had_ = former != nullptr;
    if (had_) former_ = former;
    setenv(name, value, 1);
  }
  ~Variable() { had_ ? setenv(name_, former_.c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool had_;
  std::string former_;
};

TEST(Environment, ReadsAtUse) {
  {
    const Variable set("NBX_NUM_THREADS", "7");
    EXPECT_EQ(environment_integer("NBX_NUM_THREADS"), 7);
  }
  const Variable set("NBX_NUM_THREADS", "");
  EXPECT_EQ(environment_integer("NBX_NUM_THREADS"), 0) << "empty means the default";
}

TEST(Environment, BytesAndPercentages) {
  const Variable set("NBX_MEMORY_BUDGET", "25%");
  EXPECT_EQ(environment_bytes("NBX_MEMORY_BUDGET", 400), 100u);
}

TEST(Environment, RefusesWithTheName) {
  const Variable set("NBX_NUM_THREADS", "many");
  try {
    static_cast<void>(environment_integer("NBX_NUM_THREADS"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kValue);
    EXPECT_NE(std::string(error.what()).find("NBX_NUM_THREADS: expected an integer, got 'many'"),
              std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(environment_text("NBX_NOTHING")), Error);
  EXPECT_THROW(static_cast<void>(environment_flag("NBX_NUM_THREADS")), Error);
}

std::vector<std::string>* received = nullptr;

TEST(Log, SendsWhatTheLevelLetsThrough) {
  std::vector<std::string> messages;
  received = &messages;
  const LogSink former = set_log_sink([](LogLevel level, const std::string& text) noexcept {
    received->push_back(std::string(name_of(level)) + " " + text);
  });
  const LogLevel level = log_level();
  set_log_level(LogLevel::kWarning);
  log(LogLevel::kInfo, "quiet");
  log(LogLevel::kError, "loud");
  set_log_level(LogLevel::kOff);
  log(LogLevel::kError, "silent");
  set_log_level(level);
  set_log_sink(former);
  EXPECT_EQ(messages, std::vector<std::string>{"error loud"});
  EXPECT_THROW(static_cast<void>(parse_log_level("loud")), Error);
}

TEST(DynamicLibrary, SaysWhyNothingLoaded) {
  const DynamicLibrary library{"libnbx-does-not-exist.so.1"};
  EXPECT_FALSE(library.loaded());
  EXPECT_NE(library.reason().find("libnbx-does-not-exist"), std::string::npos);
  EXPECT_EQ(library.symbol("anything"), nullptr);
}

}  // namespace
}  // namespace nbx
