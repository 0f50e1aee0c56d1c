#include "heap/pieces.h"

#include <algorithm>
#include <mutex>

#include "heap/blocking.h"
#include "heap/state.h"

namespace nbx {
namespace {

constexpr std::uint32_t kAtOnce = 1024;  // records under one hold of the lock

/// Blocks that follow each other often lie in one piece.
void share(DeviceAddress piece, std::uint64_t bytes, std::uint32_t account, HeapPieces* pieces) {
  if (!pieces->shared.empty()) {
    const HeapPieces::Shared& last = pieces->shared.back();
    if (last.piece == piece && last.account == account) return;
  }
  pieces->shared.push_back({piece, bytes, account});
}

void list_pages(const PageRange& range, DeviceAddress address, std::uint64_t bytes,
                std::uint32_t account, HeapPieces* pieces) {
  const DeviceAddress end = address + bytes;
  while (address < end) {
    const std::uint64_t index = range.index_of(address);
    const PageRange::Cell& cell = range[index];
    const std::uint64_t first = index - cell.place;
    const std::uint64_t count = std::max(cell.granules, std::uint32_t{1});
    const DeviceAddress start = range.address_of(first), next = range.address_of(first + count);
    if (start >= end - bytes && next <= end) {
      pieces->whole[account] += next - start;
    } else {
      share(start, next - start, account, pieces);
    }
    address = next;
  }
}

}  // namespace

HeapPieces Heap::pieces() const {
  State& s = *state_;
  const BlockingScope scope;
  // Pages move under `growth` only.
  const std::lock_guard<GrowthLock> growing(s.growth);
  HeapPieces result;
  const std::uint32_t end = s.space.records().size();
  for (std::uint32_t first = kNoBlock + 1; first < end; first += kAtOnce) {
    const std::lock_guard<ShortLock> guard(s.lock);
    for (std::uint32_t id = first; id < std::min(end, first + kAtOnce); ++id) {
      const BlockRecord& record = s.space.record(id);
      if (record.state != BlockState::kLive) continue;
      const Segment& segment = s.space.segments()[record.segment];
      if (segment.pages != nullptr) {
        list_pages(*segment.pages, record.address, record.bytes, record.account, &result);
      } else {
        share(segment.base, segment.driver_bytes, record.account, &result);
      }
    }
  }
  const std::lock_guard<ShortLock> guard(s.lock);
  for (const auto& block : s.reservations) {
    if (!block->asleep) result.whole[block->account->id()] += block->committed;
  }
  return result;
}

}  // namespace nbx
