// The one exception type of the core. Bindings turn it into the Python class of its kind, with the
// figures as attributes.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace nbx {

enum class ErrorKind : std::uint8_t {
  kValue,        // ValueError
  kType,         // TypeError
  kIndex,        // IndexError
  kOverflow,     // OverflowError
  kBuffer,       // BufferError
  kIo,           // OSError
  kDevice,       // nbxtensor.DeviceError
  kUnsupported,  // nbxtensor.UnsupportedError
  kOutOfMemory,  // nbxtensor.OutOfMemoryError, also a MemoryError
};

using FigureTable = std::vector<std::pair<std::string, std::int64_t>>;  // a dict in Python
using Figure = std::variant<std::int64_t, double, std::string, FigureTable>;

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  /// Adds one named figure (bytes, seconds, counts); an attribute of the Python exception.
  Error& with(std::string name, Figure value) {
    figures_.emplace_back(std::move(name), std::move(value));
    return *this;
  }

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }
  [[nodiscard]] const std::vector<std::pair<std::string, Figure>>& figures() const noexcept {
    return figures_;
  }

 private:
  ErrorKind kind_;
  std::string message_;
  std::vector<std::pair<std::string, Figure>> figures_;
};

}  // namespace nbx
