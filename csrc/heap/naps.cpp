// What moves when blocks go to sleep and wake: contents and pages.
#include <new>
#include <string>

#include "core/log.h"
#include "heap/state.h"

namespace nbx {

// ---- contents ------------------------------------------------------------------------------

/// Waits for the copies; when the stream cannot be waited for, the device is. `over`: they are.
Status Heap::State::drain_copies(bool* over) noexcept {
  driver_calls.fetch_add(1, std::memory_order_relaxed);
  const GrowthLock::Pause pause(growth);
  const Status status = primitives.stream_synchronize(device.ordinal(), 0);
  *over = status == kSuccess || primitives.synchronize(device.ordinal()) == kSuccess;
  return status;
}

std::vector<Heap::State::Span> Heap::State::spans_of(const Nap& nap) {
  std::vector<Span> spans;
  spans.reserve(nap.size());
  const std::lock_guard<ShortLock> guard(lock);
  for (const std::uint32_t id : nap.blocks) {
    const BlockRecord& record = space.record(id);
    spans.push_back(Span{record.address, record.bytes, &sleepers[id].contents});
  }
  for (Reservation* block : nap.reserved) {
    spans.push_back(Span{block->range->base(), block->committed, &block->contents});
  }
  return spans;
}

std::uint64_t Heap::State::copy_out(const Nap& nap) {
  // They are ours: nobody frees or changes a block on its way.
  const std::vector<Span> spans = spans_of(nap);
  std::uint64_t total = 0;
  Status status = kSuccess;
  bool room = true;
  for (const Span& span : spans) {
    std::unique_ptr<std::byte[]> contents(new (std::nothrow) std::byte[span.bytes]);
    room = contents != nullptr;
    if (!room) break;
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    status = primitives.copy(device.ordinal(), reinterpret_cast<DeviceAddress>(contents.get()),
                             span.address, span.bytes, CopyKind::kDeviceToHost, 0);
    if (status != kSuccess) break;
    total += span.bytes;
    const std::lock_guard<ShortLock> guard(lock);
    *span.contents = std::move(contents);
  }
  // Also after a failure: what was queued writes to the contents.
  bool over = true;
  const Status waited = drain_copies(&over);
  if (!over) {
    // They may be written to at any time, so nobody can have that host memory again.
    for (const Span& span : spans) static_cast<void>(span.contents->release());
  }
  device.check(status, "copy");
  device.check(waited, "stream_synchronize");
  if (room) return total;
  throw Error(ErrorKind::kOutOfMemory,
              "sleep: the host has no memory for the contents; sleep without keeping them, or a "
              "smaller tag at a time");
}

std::uint64_t Heap::State::copy_in(const Nap& nap) {
  std::uint64_t total = 0;
  Status status = kSuccess;
  for (const Span& span : spans_of(nap)) {
    const std::byte* contents = span.contents->get();
    if (contents == nullptr) continue;
    driver_calls.fetch_add(1, std::memory_order_relaxed);
    status =
        primitives.copy(device.ordinal(), span.address, reinterpret_cast<DeviceAddress>(contents),
                        span.bytes, CopyKind::kHostToDevice, 0);
    if (status != kSuccess) break;
    total += span.bytes;
  }
  bool over = true;
  const Status waited = drain_copies(&over);
  device.check(status, "copy");
  device.check(waited, "stream_synchronize");
  return total;
}

// ---- pages ---------------------------------------------------------------------------------

/// Gives the pages under the blocks to the driver and returns their bytes. When that fails it
/// throws; `away` says how the blocks are then.
std::uint64_t Heap::State::put_away(const Nap& nap, bool* away) {
  std::vector<PageRun> runs;
  std::vector<std::uint32_t> holes;
  std::uint64_t banked = 0;
  {
    const std::lock_guard<ShortLock> guard(lock);
    space.take_dormant(&runs, &holes);
    banked = pages->banked_bytes();
  }
  for (const Reservation* block : nap.reserved) {
    list_runs(*block, 0, block->committed, true, &runs);
  }
  std::size_t gone = 0;
  std::uint64_t bytes = 0;
  Status status = kSuccess;
  const char* call = "page_unmap";
  for (const PageRun& run : runs) {
    status = pages->unmap(run);
    if (status != kSuccess) break;
    ++gone;
    bytes += run.count * pages->granule();
  }
  if (status == kSuccess) {
    call = "page_release";
    status = pages->empty_bank(banked);
  }
  runs.resize(gone);
  *away = status == kSuccess || !take_back(nap, runs);
  {
    const std::lock_guard<ShortLock> guard(lock);
    for (const std::uint32_t hole : holes) space.scatter(hole);
  }
  if (status == kSuccess) return bytes;
  try {
    device.check(status, call);
  } catch (const Error& error) {
    if (!*away) throw;
    throw Error(error.kind(), std::string(error.what()) +
                                  "; the memory could not be taken back either, so the blocks are "
                                  "asleep: wake them");
  }
  return 0;
}

/// Undoes the first half of a sleep, from the bank; false if that is not possible.
bool Heap::State::take_back(const Nap& nap, const std::vector<PageRun>& runs) {
  try {
    if (!runs.empty() && pages->fill(runs, {}, Lifetime::kTransient).status != kSuccess) {
      return false;
    }
    copy_in(nap);
    return true;
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("sleep: ") + error.what());
    return false;
  }
}

std::vector<PageRun> Heap::State::list_missing(const Nap& nap) {
  std::vector<PageRun> missing;
  for (const std::uint32_t id : nap.blocks) space.list_missing(id, &missing);
  std::uint64_t dormant = 0;
  for (const PageRun& run : missing) dormant += space.dormant_count(run);
  space.ensure_scatter(dormant);
  for (const Reservation* block : nap.reserved) {
    list_runs(*block, 0, block->committed, false, &missing);
  }
  return missing;
}

/// Large handles for what lay on some.
Lifetime Heap::State::lifetime_of(const Nap& nap) {
  const std::lock_guard<ShortLock> guard(lock);
  bool steady = false;
  for (const std::uint32_t id : nap.blocks) steady = steady || sleepers[id].steady;
  for (const Reservation* block : nap.reserved) {
    steady = steady || block->lifetime == Lifetime::kSteady;
  }
  return steady ? Lifetime::kSteady : Lifetime::kTransient;
}

}  // namespace nbx
