// Waits inside the core, and what a language runtime must do around them.
#pragma once

namespace nbx {

/// `enter` runs before a wait and its result goes to `leave` after it. The bindings let go of the
/// Python lock there, so that work which needs it can finish.
struct BlockingHooks {
  void* (*enter)() noexcept;
  void (*leave)(void* state) noexcept;
};
/// Process-wide; set once, before the first wait.
void set_blocking_hooks(const BlockingHooks& hooks) noexcept;

/// Surrounds a wait, or the taking of a lock that others hold while they wait.
class BlockingScope {
 public:
  BlockingScope() noexcept;
  ~BlockingScope();
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

 private:
  BlockingHooks hooks_;
  void* state_;
};

}  // namespace nbx
