#include "launch/observer.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace nbx {
namespace {

using Observers = std::vector<std::shared_ptr<LaunchObserver>>;

struct Watch {
  std::mutex mutex;
  std::shared_ptr<const Observers> observers = std::make_shared<Observers>();
};

/// Never destroyed: work is launched until the very end of the process.
Watch& watch() {
  static auto* const instance = std::make_unique<Watch>().release();
  return *instance;
}

}  // namespace

void add_observer(std::shared_ptr<LaunchObserver> observer) {
  Watch& all = watch();
  const std::lock_guard<std::mutex> guard(all.mutex);
  auto next = std::make_shared<Observers>(*all.observers);
  next->push_back(std::move(observer));
  all.observers = std::move(next);
  launches_observed.store(true, std::memory_order_relaxed);
}

void remove_observer(const LaunchObserver* observer) noexcept {
  Watch& all = watch();
  std::shared_ptr<const Observers> former;
  const std::lock_guard<std::mutex> guard(all.mutex);  // given up before `former` goes
  auto next = std::make_shared<Observers>(*all.observers);
  next->erase(std::remove_if(next->begin(), next->end(),
                             [&](const auto& known) { return known.get() == observer; }),
              next->end());
  launches_observed.store(!next->empty(), std::memory_order_relaxed);
  former = std::exchange(all.observers, std::move(next));
}

void note_launch(const LaunchNote& note) noexcept {
  std::shared_ptr<const Observers> observers;
  {
    Watch& all = watch();
    const std::lock_guard<std::mutex> guard(all.mutex);
    observers = all.observers;
  }
  for (const auto& observer : *observers) observer->on_launch(note);
}

}  // namespace nbx
