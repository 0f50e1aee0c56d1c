// Who watches launches. Costs one relaxed load a launch while nobody does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "stream/stream.h"

namespace nbx {

/// Blocks of a launch along each axis.
struct Grid {
  std::uint64_t x = 1;
  std::uint64_t y = 1;
  std::uint64_t z = 1;

  [[nodiscard]] bool empty() const noexcept { return x == 0 || y == 0 || z == 0; }
};

struct LaunchNote {
  const std::string& kernel;
  Grid grid;
  const Stream& stream;
  std::uint64_t nanoseconds;  // of the driver's call on the host
};

class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  /// On the thread that launched, after the driver took the work.
  virtual void on_launch(const LaunchNote& note) noexcept = 0;
};

/// Watches until it is removed; the same object may be added once.
void add_observer(std::shared_ptr<LaunchObserver> observer);
void remove_observer(const LaunchObserver* observer) noexcept;

inline constinit std::atomic<bool> launches_observed{false};
void note_launch(const LaunchNote& note) noexcept;

}  // namespace nbx
