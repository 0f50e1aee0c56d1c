// What the tests of sleep share: tags one in another, and blocks that know whose they are.
#pragma once

#include <cstdint>

#include "sim_heap.h"
#include "stream/stream.h"

namespace nbx::testing {

class Sleepers : public SimHeap {
 protected:
  struct Held {
    Block block;
    std::uint64_t bytes = 0;
    Account* account = nullptr;
    std::uint32_t pattern = 0;
  };

  Account& weights = root.child("weights");
  Account& layer = weights.child("layer.1");
  Account& kv = root.child("kv");
  Stream stream{device, 0, false};

  Held take(std::uint64_t bytes, Account& account, Lifetime lifetime = Lifetime::kTransient) {
    return Held{heap.allocate(bytes, 64, stream, account, lifetime), bytes, &account, 0};
  }
  void give(const Held& held) {
    heap.free(held.block, held.bytes, *held.account, stream.id(), stream.submitted());
  }
};

}  // namespace nbx::testing
