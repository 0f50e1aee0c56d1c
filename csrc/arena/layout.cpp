#include "arena/layout.h"

#include <algorithm>

#include "core/error.h"

namespace nbx {
namespace {

constexpr std::uint64_t kMaximumTotal = std::uint64_t{1} << 56;

std::uint64_t aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace

std::uint64_t BlockLayout::add(std::string name, std::uint64_t bytes, std::uint64_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMaximumTotal) {
    throw Error(ErrorKind::kValue, "layout: '" + name + "' has alignment " +
                                       std::to_string(alignment) + "; give a power of two");
  }
  const std::uint64_t offset = aligned(end_, alignment);
  if (bytes > kMaximumTotal || offset + bytes > kMaximumTotal) {
    throw Error(ErrorKind::kValue, "layout: '" + name + "' of " + std::to_string(bytes) +
                                       " bytes brings the block past 2**56 bytes");
  }
  entries_.push_back(LayoutEntry{name, offset, bytes});
  if (!by_name_.emplace(name, entries_.size() - 1).second) {
    entries_.pop_back();
    throw Error(ErrorKind::kValue, "layout: '" + name + "' is there already; names differ");
  }
  end_ = offset + bytes;
  alignment_ = std::max(alignment_, alignment);
  return offset;
}

const LayoutEntry& BlockLayout::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return entries_[found->second];
  throw Error(ErrorKind::kValue, "layout: no entry '" + name + "' among the " +
                                     std::to_string(entries_.size()) + " of it");
}

std::uint64_t BlockLayout::total() const noexcept { return aligned(end_, alignment_); }

}  // namespace nbx
