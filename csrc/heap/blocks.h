// What a heap holds, block by block: the state that snapshots show.
#pragma once

#include <cstdint>
#include <vector>

#include "heap/records.h"

namespace nbx {

struct BlockView {
  DeviceAddress address = 0;
  std::uint64_t bytes = 0;      // granted
  std::uint64_t requested = 0;  // of a live block, or one that waits for its last uses
  std::uint32_t generation = 0;
  StreamId stream = kNoStream;  // of the newest use
  std::uint32_t account = 0;    // Account::id, of such a block
  std::uint32_t origin = 0;     // Recorder::origin, of such a block
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
/// records at a time, so that others are served in between. What is live from beginning to end is
/// there once, as it is; of blocks that came, went, were cut or joined meanwhile both forms may be
/// there, and of two that overlap the later one in the list is right.
struct HeapBlocks {
  std::vector<BlockView> blocks;
  std::vector<SegmentView> segments;
  std::uint64_t longest_hold = 0;  // of the lock, in nanoseconds
};

}  // namespace nbx
