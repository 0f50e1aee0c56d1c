#include "heap/advice.h"

#include <algorithm>
#include <unordered_map>

namespace nbx {
namespace {

constexpr std::size_t kTags = 10;
/// Copies of the books are made until they hold so many records in all: some tens of milliseconds.
constexpr std::uint64_t kRecords = 2'000'000;

struct LiveBlock {
  std::uint64_t bytes;
  std::uint32_t id;
  std::uint32_t account;
};

bool fits(Space* books, const TrialRequest& request, std::uint64_t bytes) {
  return books->fits(request.home, request.reach, bytes, request.alignment, request.spare);
}

class Trials {
 public:
  /// `fits_now`: the request fits as the books are, so that nothing need be freed for that.
  Trials(const Space& space, const TrialRequest& request, bool fits_now)
      : space_(space), request_(request), fits_now_(fits_now) {}

  [[nodiscard]] bool fits_after(const std::vector<LiveBlock>& blocks, std::size_t count) {
    Space copy(space_);
    used_ += space_.records().size();
    for (std::size_t i = 0; i < count; ++i) copy.give(blocks[i].id, nullptr, 0);
    return fits(&copy, request_, request_.bytes);
  }
  [[nodiscard]] bool spent() const noexcept { return used_ > kRecords; }

  /// The fewest of `blocks`, from the front, that must be freed; their count plus one if all of
  /// them are too few.
  [[nodiscard]] std::size_t fewest(const std::vector<LiveBlock>& blocks, std::size_t least) {
    const std::size_t none = blocks.size() + 1;
    if (least > blocks.size()) return none;
    if (fits_now_) return least;
    if (!fits_after(blocks, blocks.size())) return none;
    std::size_t low = least;
    std::size_t high = blocks.size();
    while (low < high && !spent()) {
      const std::size_t middle = low + (high - low) / 2;
      if (fits_after(blocks, middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

 private:
  const Space& space_;
  const TrialRequest& request_;
  const bool fits_now_;
  std::uint64_t used_ = 0;
};

/// `copy`: the books, to try on.
std::uint64_t largest_fit(Space* copy, const TrialRequest& request) {
  std::uint64_t low = 0;  // granules that fit
  std::uint64_t high = std::min(request.bytes, request.room) / copy->granule();
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (fits(copy, request, middle * copy->granule())) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * copy->granule();
}

std::vector<LiveBlock> live_blocks(const Space& space) {
  std::vector<LiveBlock> blocks;
  for (std::uint32_t id = 1; id < space.records().size(); ++id) {
    const BlockRecord& record = space.record(id);
    if (record.state != BlockState::kLive || record.is_slot()) continue;
    blocks.push_back(LiveBlock{record.bytes, id, record.account});
  }
  std::sort(blocks.begin(), blocks.end(), [](const LiveBlock& a, const LiveBlock& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.id < b.id;
  });
  return blocks;
}

bool is_below(const Account* account, const Account* above) noexcept {
  while (account != nullptr && account != above) account = account->parent();
  return account != nullptr;
}

}  // namespace

Advice advise(const Space& space, const TrialRequest& request,
              const std::vector<Account*>& accounts) {
  Advice advice;
  Space copy(space);
  advice.would_fit = largest_fit(&copy, request);
  const std::vector<LiveBlock> blocks = live_blocks(space);
  std::unordered_map<std::uint32_t, const Account*> by_id;
  for (const Account* account : accounts) by_id.emplace(account->id(), account);
  std::vector<const Account*> tags(accounts.begin(), accounts.end());
  std::sort(tags.begin(), tags.end(), [](const Account* a, const Account* b) {
    return a->granted_locked() > b->granted_locked();
  });
  while (tags.size() > kTags || (!tags.empty() && tags.back()->granted_locked() == 0))
    tags.pop_back();

  Trials trials(space, request, fits(&copy, request, request.bytes));
  const std::uint64_t missing = request.bytes > request.room ? request.bytes - request.room : 0;
  for (const Account* tag : tags) {
    advice.tags.emplace_back(tag->path(), tag->granted_locked());
    if (trials.spent()) continue;
    // What the tag frees makes room under the limit only if it is counted there.
    if (missing != 0 && !is_below(tag, request.refused)) continue;
    std::vector<LiveBlock> own;
    for (const LiveBlock& block : blocks) {
      const auto account = by_id.find(block.account);
      if (account != by_id.end() && is_below(account->second, tag)) own.push_back(block);
    }
    std::size_t least = 0;
    std::uint64_t freed = 0;
    while (least < own.size() && freed < missing) freed += own[least++].bytes;
    if (freed < missing) continue;
    const std::size_t count = trials.fewest(own, least);
    if (count > own.size()) continue;
    freed = 0;
    for (std::size_t i = 0; i < count; ++i) freed += own[i].bytes;
    advice.fits_if.emplace_back(tag->path(), tag->granted_locked() - freed);
  }
  if (const std::uint64_t frozen = space.frozen_bytes(); frozen != 0 && missing == 0) {
    copy.release_captures();
    if (fits(&copy, request, request.bytes)) advice.frozen = frozen;
  }
  return advice;
}

}  // namespace nbx
