// Vendor libraries, opened at run time; nothing links to them.
#pragma once

#include <initializer_list>
#include <string>

namespace nbx {

/// A library that stays open until the process ends: drivers do not survive being closed.
class DynamicLibrary {
 public:
  /// Opens the first of `names` that loads. On failure `loaded()` is false and `reason()` holds the
  /// loader's text for the last name.
  explicit DynamicLibrary(std::initializer_list<const char*> names);

  [[nodiscard]] bool loaded() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Null if the library is not loaded or has no such symbol.
  [[nodiscard]] void* symbol(const char* name) const noexcept;
  template <class Function>
  [[nodiscard]] Function function(const char* name) const noexcept {
    return reinterpret_cast<Function>(symbol(name));
  }

 private:
  void* handle_ = nullptr;
  std::string reason_;
};

}  // namespace nbx
