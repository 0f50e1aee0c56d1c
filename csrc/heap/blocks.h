// What a heap holds, block by block: the state that snapshots show.
#pragma once

#include <cstdint>
#include <vector>

#include "heap/records.h"

namespace nbx {

struct BlockView {
  DeviceAddress address = 0;
  std::uint64_t bytes = 0;      // granted
  std::uint64_t requested = 0;  // of a live block
  std::uint32_t generation = 0;
  StreamId stream = kNoStream;  // of the newest use
  std::uint32_t account = 0;    // Account::id, of a live block
  std::uint32_t origin = 0;     // Recorder::origin, of a live block
  std::uint32_t segment = 0;    // place in `segments`
  std::uint32_t state = 0;      // BlockState
};

struct SegmentView {
  DeviceAddress address = 0;
  std::uint64_t bytes = 0;        // addresses; 0: the place is unused
  std::uint64_t has_gaps = 0;     // 1: a range whose pages come and go
  std::uint64_t single_home = 0;  // 1: made for one large block
};

/// Blocks in no order; slots of a slab come besides it. The heap's lock is taken for a thousand
/// records at a time, so that blocks which were cut or joined meanwhile may overlap.
struct HeapBlocks {
  std::vector<BlockView> blocks;
  std::vector<SegmentView> segments;
};

}  // namespace nbx
