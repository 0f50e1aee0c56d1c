// Layout: where named tensors lie in one block.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace nbx {

struct LayoutEntry {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Entries one after the other, each at a multiple of its alignment.
class BlockLayout {
 public:
  /// The offset of the entry. Throws Error(kValue) for a name that is taken, an alignment that is
  /// not a power of two, and a total past 2**56 bytes.
  std::uint64_t add(std::string name, std::uint64_t bytes, std::uint64_t alignment);
  /// Throws Error(kValue) for a name that it does not have.
  [[nodiscard]] const LayoutEntry& find(const std::string& name) const;
  [[nodiscard]] const std::vector<LayoutEntry>& entries() const noexcept { return entries_; }
  /// Bytes of the whole block: the end of the last entry, rounded up to the largest alignment, so
  /// that blocks of one layout can follow each other.
  [[nodiscard]] std::uint64_t total() const noexcept;
  [[nodiscard]] std::uint64_t alignment() const noexcept { return alignment_; }

 private:
  std::vector<LayoutEntry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::uint64_t end_ = 0;
  std::uint64_t alignment_ = 1;
};

}  // namespace nbx
