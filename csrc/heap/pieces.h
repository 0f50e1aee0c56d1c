// Which pieces of the driver's memory lie under the live blocks of each account.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace nbx {

/// A piece is what the driver takes back as one: a page handle, or a segment.
struct HeapPieces {
  struct Shared {
    DeviceAddress piece;  // its start
    std::uint64_t bytes;
    std::uint32_t account;  // Account::id
  };
  /// Bytes of the pieces that lie under one block and nothing else, by Account::id.
  std::unordered_map<std::uint32_t, std::uint64_t> whole;
  /// The others, at least once for each account with a block in them.
  std::vector<Shared> shared;
};

}  // namespace nbx
