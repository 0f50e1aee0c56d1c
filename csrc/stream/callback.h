// Whether this thread runs work of a stream: a driver's callback, which may neither wait for the
// driver nor call it.
#pragma once

namespace nbx {

inline constinit thread_local int callback_depth = 0;

[[nodiscard]] inline bool inside_callback() noexcept { return callback_depth != 0; }

/// Around host work that a stream runs, and around the clean-up of its payload.
class CallbackScope {
 public:
  CallbackScope() noexcept { ++callback_depth; }
  ~CallbackScope() { --callback_depth; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
};

}  // namespace nbx
