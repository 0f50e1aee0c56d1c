#include "device/gpu/stream_table.h"

namespace nbx::gpu {

std::size_t StreamTable::hash(std::int32_t ordinal, StreamHandle handle) noexcept {
  const std::uint64_t mixed = (handle ^ static_cast<std::uint64_t>(ordinal)) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(mixed >> 32);
}

StreamState* StreamTable::find(const Places& places, std::int32_t ordinal,
                               StreamHandle handle) noexcept {
  for (std::size_t i = hash(ordinal, handle);; ++i) {
    StreamState* const state = places.slots[i & places.mask].load(std::memory_order_acquire);
    if (state == nullptr || (state->handle == handle && state->ordinal == ordinal)) return state;
  }
}

void StreamTable::insert(Places* places, StreamState* state) noexcept {
  std::size_t i = hash(state->ordinal, state->handle);
  while (places->slots[i & places->mask].load(std::memory_order_relaxed) != nullptr) ++i;
  places->slots[i & places->mask].store(state, std::memory_order_release);
}

StreamState& StreamTable::at(std::int32_t ordinal, StreamHandle handle) {
  if (const Places* places = places_.load(std::memory_order_acquire)) {
    if (StreamState* const known = find(*places, ordinal, handle)) return *known;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  Places* places = places_.load(std::memory_order_relaxed);
  if (places != nullptr) {
    if (StreamState* const known = find(*places, ordinal, handle)) return *known;
  }
  states_.push_back(std::make_unique<StreamState>());
  StreamState& state = *states_.back();
  state.ordinal = ordinal;
  state.handle = handle;
  if (places == nullptr || 2 * states_.size() > places->slots.size()) {
    all_places_.push_back(
        std::make_unique<Places>(places == nullptr ? 64 : 2 * places->slots.size()));
    places = all_places_.back().get();
    for (const auto& known : states_) insert(places, known.get());
    places_.store(places, std::memory_order_release);
  } else {
    insert(places, &state);
  }
  return state;
}

}  // namespace nbx::gpu
