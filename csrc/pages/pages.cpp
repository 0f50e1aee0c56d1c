#include "pages/pages.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>

#include "core/log.h"

namespace nbx {

PageRange::PageRange(DeviceAddress base, std::uint64_t bytes, std::uint64_t granule)
    : base_(base),
      bytes_(bytes),
      granule_(granule),
      cells_(static_cast<Cell*>(std::calloc(bytes / granule, sizeof(Cell)))) {
  if (cells_ == nullptr) throw std::bad_alloc();
}

bool PageRange::empty() const noexcept {
  const std::uint64_t count = bytes_ / granule_;
  return std::all_of(cells_.get(), cells_.get() + count,
                     [](const Cell& cell) { return cell.granules == 0; });
}

void PageRange::Free::operator()(Cell* cells) const noexcept { std::free(cells); }

Pages::Pages(Device& device, std::uint64_t granule)
    : device_(device), granule_(granule != 0 ? granule : device.properties().page_granularity) {}

Pages::~Pages() {
  Status status = empty_bank(0);
  // Ranges with live blocks keep their memory: somebody may still use it.
  for (const auto& range : ranges_) {
    if (!range->empty()) continue;
    const Status released =
        device_.primitives().range_release(device_.ordinal(), range->base(), range->bytes());
    if (status == kSuccess) status = released;
  }
  if (status != kSuccess) {
    log(LogLevel::kError, std::string("pages: ") + device_.primitives().status_text(status));
  }
}

bool Pages::has_primitives(const Device& device) noexcept {
  const Primitives& primitives = device.primitives();
  return supports(primitives, Primitive::k_range_reserve) &&
         supports(primitives, Primitive::k_range_release) &&
         supports(primitives, Primitive::k_page_create) &&
         supports(primitives, Primitive::k_page_release) &&
         supports(primitives, Primitive::k_page_map) &&
         supports(primitives, Primitive::k_page_unmap) &&
         supports(primitives, Primitive::k_page_access);
}

// ---- ranges --------------------------------------------------------------------------------

PageRange* Pages::reserve(std::uint64_t bytes) {
  bytes = (bytes + granule_ - 1) / granule_ * granule_;
  DeviceAddress base = 0;
  called();
  if (device_.primitives().range_reserve(device_.ordinal(), bytes, &base) != kSuccess) {
    return nullptr;
  }
  try {
    ranges_.push_back(std::make_unique<PageRange>(base, bytes, granule_));
    return ranges_.back().get();
  } catch (...) {
    called();
    static_cast<void>(device_.primitives().range_release(device_.ordinal(), base, bytes));
    throw;
  }
}

Status Pages::release(PageRange* range) noexcept {
  called();
  const Status status =
      device_.primitives().range_release(device_.ordinal(), range->base(), range->bytes());
  const auto found = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const auto& known) { return known.get() == range; });
  if (status == kSuccess && found != ranges_.end()) ranges_.erase(found);
  return status;
}

// ---- handles -------------------------------------------------------------------------------

void Pages::bank(const Handle& handle) {
  const auto size = std::find(kSizes.begin(), kSizes.end(), handle.granules) - kSizes.begin();
  bank_[static_cast<std::size_t>(size)].push_back(handle.handle);
  banked_.fetch_add(handle.granules * granule_, std::memory_order_relaxed);
}

void Pages::bank_all(std::vector<Target>* targets, Handles* handles) {
  for (Target& target : *targets) {
    for (const Handle& handle : target.handles) bank(handle);
    target.handles.clear();
  }
  for (const Handle& handle : *handles) bank(handle);
  handles->clear();
}

/// A handle that the driver does not take back stays in the bank.
Status Pages::destroy(const Handle& handle) {
  called();
  const Status status = device_.primitives().page_release(device_.ordinal(), handle.handle);
  if (status == kSuccess) {
    held_.fetch_sub(handle.granules * granule_, std::memory_order_relaxed);
  } else {
    bank(handle);
  }
  return status;
}

Status Pages::empty_bank(std::uint64_t keep) {
  // The largest first: fewest calls for the bytes.
  for (std::size_t size = kSizes.size(); size-- > 0;) {
    while (!bank_[size].empty() && banked_bytes() > keep) {
      const Handle handle{bank_[size].back(), kSizes[size]};
      bank_[size].pop_back();
      banked_.fetch_sub(handle.granules * granule_, std::memory_order_relaxed);
      const Status status = destroy(handle);
      if (status != kSuccess) return status;
    }
  }
  return kSuccess;
}

/// Takes the memory from under a run of whole handles.
Status Pages::take(const PageRun& run, Handles* handles) {
  PageRange& range = *run.range;
  handles->reserve(handles->size() + run.count);
  called();
  const Status status = device_.primitives().page_unmap(
      device_.ordinal(), range.address_of(run.first), run.count * granule_);
  if (status != kSuccess) return status;
  for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
    PageRange::Cell& cell = range.cells_[i];
    if (cell.place == 0) handles->push_back(Handle{cell.handle, cell.granules});
    cell = PageRange::Cell{};
  }
  return kSuccess;
}

Status Pages::unmap(const PageRun& run) {
  Handles handles;
  std::vector<Target> none;
  const Status status = take(run, &handles);
  bank_all(&none, &handles);
  return status;
}

void Pages::take_banked(std::uint64_t granules, Lifetime lifetime, Handles* handles) {
  std::uint64_t have = 0;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const std::size_t size = lifetime == Lifetime::kSteady ? kSizes.size() - 1 - i : i;
    while (!bank_[size].empty() && have + kSizes[size] <= granules) {
      handles->push_back(Handle{bank_[size].back(), kSizes[size]});
      bank_[size].pop_back();
      banked_.fetch_sub(kSizes[size] * granule_, std::memory_order_relaxed);
      have += kSizes[size];
    }
  }
}

/// Hands out handles to the runs that have room for them; what fits nowhere goes to the driver, so
/// that smaller ones can be made of its bytes.
Status Pages::place(Handles* handles, std::vector<Target>* targets) {
  std::sort(handles->begin(), handles->end(),
            [](const Handle& a, const Handle& b) { return a.granules > b.granules; });
  Status first = kSuccess;
  std::size_t open = 0;
  for (const Handle& handle : *handles) {
    // Runs fill in order, so only large handles look further than the first open one.
    while (open < targets->size() && (*targets)[open].missing == 0) ++open;
    std::size_t at = open;
    while (at < targets->size() && (*targets)[at].missing < handle.granules) ++at;
    if (at < targets->size()) {
      (*targets)[at].handles.push_back(handle);
      (*targets)[at].missing -= handle.granules;
      continue;
    }
    const Status status = destroy(handle);
    if (first == kSuccess) first = status;
  }
  handles->clear();
  return first;
}

/// Of a large run that may be cut up later a handle is a small part at most.
constexpr std::uint64_t kFewHandles = 16;

Status Pages::create(Target* target, Lifetime lifetime, FillResult* result) {
  const std::uint64_t largest =
      lifetime == Lifetime::kSteady ? target->missing : target->missing / kFewHandles;
  std::size_t size = kSizes.size() - 1;
  while (size > 0 && kSizes[size] > largest) --size;
  while (target->missing != 0) {
    while (kSizes[size] > target->missing) --size;
    const std::uint64_t bytes = kSizes[size] * granule_;
    PageHandle handle = 0;
    // Room first, by doubling: a handle that cannot be noted would be lost.
    if (target->handles.size() == target->handles.capacity()) {
      target->handles.reserve(2 * target->handles.size() + 8);
    }
    called();
    const Status status = device_.primitives().page_create(device_.ordinal(), bytes, &handle);
    if (status == kAllocationRefused && size > 0) {
      --size;
      continue;
    }
    if (status != kSuccess) return status;
    target->handles.push_back(Handle{handle, kSizes[size]});
    target->missing -= kSizes[size];
    held_.fetch_add(bytes, std::memory_order_relaxed);
    result->created += bytes;
  }
  return kSuccess;
}

// ---- mapping -------------------------------------------------------------------------------

/// Maps a target's handles one after the other and opens the run for use. The cells say how far it
/// came.
Status Pages::map(const Target& target, const char** call) {
  PageRange& range = *target.run.range;
  std::uint64_t index = target.run.first;
  *call = "page_map";
  for (const Handle& handle : target.handles) {
    called();
    const Status status = device_.primitives().page_map(device_.ordinal(), range.address_of(index),
                                                        handle.granules * granule_, handle.handle);
    if (status != kSuccess) return status;
    for (std::uint32_t place = 0; place < handle.granules; ++place) {
      range.cells_[index++] = PageRange::Cell{handle.handle, place, handle.granules};
    }
  }
  *call = "page_access";
  called();
  return device_.primitives().page_access(device_.ordinal(), range.address_of(target.run.first),
                                          target.run.count * granule_);
}

/// Takes back what `map` did before it failed.
void Pages::unmap_again(const std::vector<Target>& targets) {
  for (const Target& target : targets) {
    const PageRange& range = *target.run.range;
    std::uint64_t mapped = 0;
    while (mapped < target.run.count && range.mapped(target.run.first + mapped)) ++mapped;
    Handles handles;
    if (mapped != 0) {
      const Status status = take(PageRun{target.run.range, target.run.first, mapped}, &handles);
      // Memory that stays mapped is still counted, and its cells say where it is.
      if (status != kSuccess) {
        log(LogLevel::kError,
            std::string("page_unmap: ") + device_.primitives().status_text(status));
        std::uint64_t kept = 0;
        for (const Handle& handle : target.handles) {
          if (kept >= mapped) bank(handle);
          kept += handle.granules;
        }
        continue;
      }
    }
    for (const Handle& handle : target.handles) bank(handle);
  }
}

FillResult Pages::fill(const std::vector<PageRun>& targets, const std::vector<PageRun>& victims,
                       Lifetime lifetime) {
  FillResult result;
  std::vector<Target> wanted;
  std::uint64_t need = 0;
  for (const PageRun& run : targets) {
    wanted.push_back(Target{run, run.count, {}});
    need += run.count;
  }
  Handles handles;
  take_banked(need, lifetime, &handles);
  std::uint64_t have = 0;
  for (const Handle& handle : handles) have += handle.granules;
  result.call = "page_unmap";
  for (const PageRun& victim : victims) {
    if (have >= need || result.status != kSuccess) break;
    result.status = take(victim, &handles);
    if (result.status != kSuccess) break;
    have += victim.count;
    ++result.taken;
    result.stolen += victim.count * granule_;
  }
  if (result.status == kSuccess) {
    result.call = "page_release";
    result.status = place(&handles, &wanted);
  }
  for (Target& target : wanted) {
    if (result.status != kSuccess) break;
    result.call = "page_create";
    result.status = create(&target, lifetime, &result);
  }
  if (result.status != kSuccess) {
    bank_all(&wanted, &handles);
    return result;
  }
  for (const Target& target : wanted) {
    result.status = map(target, &result.call);
    if (result.status == kSuccess) continue;
    unmap_again(wanted);
    break;
  }
  return result;
}

}  // namespace nbx
