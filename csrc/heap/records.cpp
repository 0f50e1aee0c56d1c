#include "heap/records.h"

namespace nbx {

RecordTable::RecordTable() {
  grow();
  // Id 0 means "no block": it is taken out of the table for good.
  static_cast<void>(acquire());
}

void RecordTable::grow() {
  chunks_.push_back(std::make_unique<BlockRecord[]>(kChunk));
  const auto first = static_cast<std::uint32_t>((chunks_.size() - 1) * kChunk);
  for (std::uint32_t i = kChunk; i-- > 0;) {
    (*this)[first + i].bin_next = unused_;
    unused_ = first + i;
  }
  unused_count_ += kChunk;
}

}  // namespace nbx
