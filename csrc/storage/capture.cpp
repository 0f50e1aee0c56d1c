#include "storage/capture.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/bytes.h"
#include "core/log.h"
#include "device/host_status.h"
#include "storage/late.h"
#include "stream/fault.h"

namespace nbx {
namespace {

/// The memory of captures that have not ended, and of graphs that are not gone. Never destroyed, as
/// storages may die after static objects have.
struct Captures {
  std::mutex mutex;
  std::unordered_map<StreamId, std::shared_ptr<CaptureMemory>> known;
};

Captures& captures() {
  static auto* const instance = std::make_unique<Captures>().release();
  return *instance;
}

// Held across a fork, so that the child, whose device refuses it, can still end its captures. No
// other lock is taken under these.
void prepare_fork() {
  captures().mutex.lock();
  for (const auto& [capture, memory] : captures().known) memory->lock();
}
void forked() {
  for (const auto& [capture, memory] : captures().known) memory->unlock();
  captures().mutex.unlock();
}
[[maybe_unused]] const int registered = pthread_atfork(prepare_fork, forked, forked);

std::shared_ptr<CaptureMemory> memory_of_capture(StreamId capture) {
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.known.find(capture);
  return found == all.known.end() ? nullptr : found->second;
}

void forget(StreamId capture) noexcept {
  std::shared_ptr<CaptureMemory> last;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.known.find(capture);
  if (found == all.known.end()) return;
  last = std::move(found->second);
  all.known.erase(found);
}

void release(DeviceMemory& memory, StreamId capture, const BlockUse& use) noexcept {
  try {
    memory.heap.release_capture(capture, use);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("capture: its memory is kept: ") + error.what());
  }
}

void destroy_graph(const Device& device, GraphHandle graph) noexcept {
  const Status status = device.primitives().graph_destroy(device.ordinal(), graph);
  if (status != kSuccess && status != kForkedChild) {
    log(LogLevel::kError, std::string("graph_destroy: ") + device.primitives().status_text(status));
  }
}

std::string name_of(const Storage& storage) {
  return "a tensor of " + format_bytes(storage.bytes()) + " (" + storage.account().path() + ")";
}

}  // namespace

// ---- memory from outside -------------------------------------------------------------------

struct CaptureMemory::Kept {
  std::vector<Reference<Storage>> storages;
  std::vector<std::unique_ptr<std::byte[]>> bytes;
};

CaptureMemory::CaptureMemory(DeviceMemory& memory) noexcept : memory_(memory) {}
CaptureMemory::~CaptureMemory() = default;

void CaptureMemory::watch(const Storage& storage) {
  const std::lock_guard<std::mutex> guard(mutex_);
  watched_.push_back(&storage);
}

void CaptureMemory::unwatch(const Storage& storage) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  watched_.erase(std::remove(watched_.begin(), watched_.end(), &storage), watched_.end());
}

void CaptureMemory::lose(const Storage& storage) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = std::find(watched_.begin(), watched_.end(), &storage);
  if (found == watched_.end()) return;
  watched_.erase(found);
  if (lost_ == 0) first_lost_ = name_of(storage);
  ++lost_;
  note_memory_lost();
}

void CaptureMemory::keep(Reference<Storage> storage) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (kept_ == nullptr) kept_ = std::make_unique<Kept>();
  kept_->storages.push_back(std::move(storage));
}

const void* CaptureMemory::keep_bytes(const void* source, std::uint64_t bytes) {
  const auto count = static_cast<std::size_t>(bytes);
  auto copy = std::make_unique<std::byte[]>(count);
  std::memcpy(copy.get(), source, count);
  const std::lock_guard<std::mutex> guard(mutex_);
  if (kept_ == nullptr) kept_ = std::make_unique<Kept>();
  kept_->bytes.push_back(std::move(copy));
  return kept_->bytes.back().get();
}

void CaptureMemory::note_range(DeviceAddress address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  ranges_.emplace_back(address, address + bytes);
}

bool CaptureMemory::has_range(DeviceAddress low, DeviceAddress high) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const auto& range) { return range.first < high && low < range.second; });
}

void CaptureMemory::look(std::uint64_t now) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (memory_.ended()) {
    throw Error(ErrorKind::kValue,
                "graph: its memory is of epoch " + std::to_string(memory_.epoch) + " of " +
                    memory_.device.name() + ", which ended when a new one began; capture again");
  }
  if (lost_ != 0) {
    const std::string others =
        lost_ == 1 ? " was" : " and " + std::to_string(lost_ - 1) + " more were";
    throw Error(ErrorKind::kValue, "graph: " + first_lost_ + others +
                                       " freed that the captured work uses, so that its results "
                                       "would be out of date; keep such tensors, or capture again");
  }
  for (const Storage* storage : watched_) {
    if (storage->memory().ended()) {
      throw Error(ErrorKind::kValue, "graph: " + name_of(*storage) +
                                         " that the captured work uses is of an epoch that "
                                         "ended; capture again");
    }
    if (storage->is_asleep()) {
      throw Error(ErrorKind::kValue,
                  "graph: " + name_of(*storage) +
                      " that the captured work uses is asleep; call nbx.memory.wake() for its tag "
                      "first, or capture again with other memory");
    }
  }
  seen_.store(now, std::memory_order_relaxed);
}

void CaptureMemory::finish(const BlockUse& last) noexcept {
  std::unique_ptr<Kept> kept;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    kept = std::move(kept_);
  }
  if (kept == nullptr) return;
  try {
    LateOwner owner{kept.get(),
                    [](void* it) noexcept { delete static_cast<Kept*>(it); },
                    &memory_.mapped,
                    0,
                    {}};
    if (last.ticket != 0 && known_completed(last.stream) < last.ticket) owner.uses.push_back(last);
    static_cast<void>(kept.release());
    finish_owner(std::move(owner));
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("graph: host memory is kept: ") + error.what());
  }
}

void watch_for_capture(StreamId capture, const Storage& storage) {
  if (const auto memory = memory_of_capture(capture)) memory->watch(storage);
}

void lose_for_capture(StreamId capture, const Storage& storage) {
  if (const auto memory = memory_of_capture(capture)) memory->lose(storage);
}

void keep_for_capture(StreamId capture, Reference<Storage> storage) noexcept {
  try {
    if (const auto memory = memory_of_capture(capture)) memory->keep(std::move(storage));
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("capture: memory is not kept: ") + error.what());
  }
}

const void* kept_for_capture(StreamId capture, const void* source, std::uint64_t bytes) {
  const auto memory = memory_of_capture(capture);
  if (memory == nullptr) {
    throw Error(ErrorKind::kValue, "copy: the capture of the stream is over; begin another one");
  }
  return memory->keep_bytes(source, bytes);
}

void note_captured_range(const Stream& stream, DeviceAddress address, std::uint64_t bytes) {
  if (!stream.is_captured()) [[likely]]
    return;
  if (const auto memory = memory_of_capture(stream.id())) memory->note_range(address, bytes);
}

// ---- graphs --------------------------------------------------------------------------------

CapturedGraph::~CapturedGraph() {
  const BlockUse last = resolved(BlockUse{capture_, 0});
  destroy_graph(memory_.device, graph_);
  forget(capture_);
  release(memory_, capture_, last);
  used_->finish(last);
}

BlockUse CapturedGraph::launch(Stream& stream) {
  const Device& device = memory_.device;
  if (&stream.device() != &device) [[unlikely]] {
    throw Error(ErrorKind::kValue, "launch: the graph is of " + device.name() +
                                       " and the stream of " + stream.device().name() +
                                       "; launch it on a stream of its device");
  }
  if (stream.is_captured()) [[unlikely]] {
    throw Error(ErrorKind::kValue,
                "launch: the stream is captured, and a graph cannot be part of another; call what "
                "it was captured from instead");
  }
  used_->require_all();
  raise_fault(memory_.device);
  const Status status = device.primitives().graph_launch(device.ordinal(), graph_, stream.handle());
  if (status != kSuccess) [[unlikely]]
    device.check(status, "graph_launch");
  if (device.properties().integrated_work) {
    raise_fault(memory_.device);
    return BlockUse{};
  }
  const BlockUse launched = stream.use();
  note_replay(capture_, launched);
  return launched;
}

void CapturedGraph::wait() const {
  const BlockUse last = resolved(BlockUse{capture_, 0});
  if (last.ticket != 0) wait_for(last);
}

// ---- captures ------------------------------------------------------------------------------

CaptureScope::CaptureScope(DeviceMemory& memory, Stream& stream)
    : memory_(memory), stream_(stream.handle()), used_(std::make_shared<CaptureMemory>(memory)) {
  const Device& device = memory.device;
  if (&stream.device() != &device) {
    throw Error(ErrorKind::kValue, "capture: the memory is of " + device.name() +
                                       " and the stream of " + stream.device().name() +
                                       "; capture a stream of its device");
  }
  for (const Primitive needed : {Primitive::k_capture_begin, Primitive::k_capture_end,
                                 Primitive::k_graph_launch, Primitive::k_graph_destroy}) {
    device.require(needed);
  }
  if (stream_ == 0) {
    throw Error(ErrorKind::kValue, "capture: the default stream of " + device.name() +
                                       " cannot be captured; make one with nbx.Stream()");
  }
  capture_ = memory.heap.begin_capture(stream);
  const Status status = device.primitives().capture_begin(device.ordinal(), stream_);
  if (status != kSuccess) {
    release(memory_, capture_, BlockUse{});
    device.check(status, "capture_begin");
  }
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  all.known.emplace(capture_, used_);
}

CaptureScope::~CaptureScope() {
  if (!open_) return;
  const Device& device = memory_.device;
  GraphHandle graph = 0;
  const Status status = device.primitives().capture_end(device.ordinal(), stream_, &graph);
  if (status == kSuccess) {
    destroy_graph(device, graph);
  } else if (status != kForkedChild) {
    log(LogLevel::kError, std::string("capture_end: ") + device.primitives().status_text(status));
  }
  forget(capture_);
  release(memory_, capture_, BlockUse{});
  used_->finish(BlockUse{});
}

GraphHandle CaptureScope::end() {
  if (!open_) {
    throw Error(ErrorKind::kValue, "capture: finished already; begin another one");
  }
  const Device& device = memory_.device;
  GraphHandle graph = 0;
  const Status status = device.primitives().capture_end(device.ordinal(), stream_, &graph);
  open_ = false;
  if (status != kSuccess) {
    forget(capture_);
    release(memory_, capture_, BlockUse{});
    used_->finish(BlockUse{});
    device.check(status, "capture_end");
  }
  return graph;
}

/// The graph is of this object from here on, whatever is thrown.
std::unique_ptr<CapturedGraph> CaptureScope::close(GraphHandle graph) {
  memory_.heap.end_capture(capture_);
  auto captured = std::make_unique<CapturedGraph>(memory_, graph, capture_, used_);
  used_->require_all();
  return captured;
}

std::unique_ptr<CapturedGraph> CaptureScope::finish() { return close(end()); }

std::unique_ptr<CapturedGraph> CaptureScope::finish_with(GraphHandle graph) {
  destroy_graph(memory_.device, end());
  return close(graph);
}

}  // namespace nbx
