// How much of the driver's memory each account keeps.
#include <algorithm>
#include <unordered_map>

#include "heap/pieces.h"
#include "storage/storage.h"

namespace nbx {
namespace {

/// Adds bytes to accounts and to all above them.
class Tree {
 public:
  explicit Tree(std::vector<AccountStatistics>* rows) : rows_(*rows), seen_(rows->size(), 0) {
    for (std::size_t i = 0; i < rows_.size(); ++i) places_.emplace(rows_[i].id, i);
    for (const AccountStatistics& row : rows_) above_.push_back(place_of(row.parent));
  }

  void add(std::uint32_t account, std::uint64_t bytes) {
    for (std::size_t at = place_of(account); at != kNone; at = above_[at]) {
      rows_[at].mapped += bytes;
    }
  }
  /// Each piece once an account, however many blocks of it lie there.
  void add_shared(std::vector<HeapPieces::Shared> shared) {
    std::sort(shared.begin(), shared.end(),
              [](const auto& a, const auto& b) { return a.piece < b.piece; });
    for (std::size_t i = 0; i < shared.size(); ++i) {
      if (i == 0 || shared[i].piece != shared[i - 1].piece) ++piece_;
      std::size_t at = place_of(shared[i].account);
      for (; at != kNone && seen_[at] != piece_; at = above_[at]) {
        seen_[at] = piece_;
        rows_[at].mapped += shared[i].bytes;
      }
    }
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  [[nodiscard]] std::size_t place_of(std::uint32_t account) const {
    const auto found = places_.find(account);
    return found == places_.end() ? kNone : found->second;
  }

  std::vector<AccountStatistics>& rows_;
  std::vector<std::uint64_t> seen_;  // by row: the last piece that it counts
  std::uint64_t piece_ = 0;
  std::unordered_map<std::uint32_t, std::size_t> places_;
  std::vector<std::size_t> above_;
};

}  // namespace

std::vector<AccountStatistics> DeviceMemory::report() const {
  std::vector<HeapPieces> heaps;
  heaps.push_back(heap.pieces());
  if (const PinnedPool* pool = known_pinned_pool()) heaps.push_back(pool->heap().pieces());
  std::vector<AccountStatistics> rows = root.report();
  Tree tree(&rows);
  for (HeapPieces& pieces : heaps) {
    for (const auto& [account, bytes] : pieces.whole) tree.add(account, bytes);
    tree.add_shared(std::move(pieces.shared));
  }
  // Memory of others is what they said.
  std::unordered_map<std::uint32_t, std::uint64_t> own;
  std::unordered_map<std::uint32_t, bool> of_others;
  for (const AccountStatistics& row : rows) {
    const bool is_kind = row.id == mapped.id() || row.id == external.id();
    const auto parent = of_others.find(row.parent);
    of_others[row.id] = is_kind || (parent != of_others.end() && parent->second);
    own[row.id] += row.granted;
    own[row.parent] -= row.granted;
  }
  for (const auto& [account, bytes] : own) {
    if (of_others[account]) tree.add(account, bytes);
  }
  return rows;
}

}  // namespace nbx
