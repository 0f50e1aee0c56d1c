// What names a block that a heap has handed out.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace nbx {

// What blocks are multiples of: a cache line on the host; what vector loads and copies of every
// device like elsewhere.
inline constexpr std::uint32_t kHostGranuleBits = 6;
inline constexpr std::uint32_t kDeviceGranuleBits = 8;
/// Every tensor of every device starts at a multiple: whole cache lines on the host, and what
/// vector loads want elsewhere.
inline constexpr std::uint64_t kTensorAlignment = 64;
/// Blocks of up to so many bytes come from slabs, and are cached by every thread.
inline constexpr std::uint64_t kMostSmallBytes = std::uint64_t{64} << 10;

/// A granted block. `generation` tells a reused block from the one that was freed: every address
/// of an older generation is void.
struct Block {
  DeviceAddress address = 0;
  std::uint64_t granted = 0;  // bytes
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
};

}  // namespace nbx
