// Captures: the work of a stream recorded as a graph, with the memory that it uses.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace nbx {

/// What a capture knows of the memory that its work uses. Blocks that were allocated inside belong
/// to the heap's lane of the capture; this is the rest.
class CaptureMemory {
 public:
  explicit CaptureMemory(DeviceMemory& memory) noexcept;
  ~CaptureMemory();
  CaptureMemory(const CaptureMemory&) = delete;
  CaptureMemory& operator=(const CaptureMemory&) = delete;

  /// Memory from outside, which must be there whenever the graph is launched.
  void watch(const Storage& storage);
  void unwatch(const Storage& storage) noexcept;
  void lose(const Storage& storage);
  /// Lives as long as the graph.
  void keep(Reference<Storage> storage);
  [[nodiscard]] const void* keep_bytes(const void* source, std::uint64_t bytes);
  /// Work uses these bytes in a way that nobody can change: a copy, a fill, or work of others.
  void note_range(DeviceAddress address, std::uint64_t bytes);
  [[nodiscard]] bool has_range(DeviceAddress low, DeviceAddress high) const;

  /// Throws Error(kValue) naming what is missing. Costs one load unless something was lost.
  void require_all() {
    const std::uint64_t now = graph_memory_generation.load(std::memory_order_acquire);
    if (now != seen_.load(std::memory_order_relaxed)) [[unlikely]]
      look(now);
  }
  /// For forks: holds it still.
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  /// What is kept goes once the work is over.
  void finish(const BlockUse& last) noexcept;

 private:
  struct Kept;
  void look(std::uint64_t now);

  DeviceMemory& memory_;
  std::atomic<std::uint64_t> seen_{0};
  mutable std::mutex mutex_;
  std::vector<const Storage*> watched_;
  std::uint64_t lost_ = 0;
  std::string first_lost_;
  std::vector<std::pair<DeviceAddress, DeviceAddress>> ranges_;
  std::unique_ptr<Kept> kept_;
};

/// A finished capture: the driver's graph, and the blocks that belong to it. Both go together, the
/// blocks once the last launch is over.
class CapturedGraph {
 public:
  CapturedGraph(DeviceMemory& memory, GraphHandle graph, StreamId capture,
                std::shared_ptr<CaptureMemory> used) noexcept
      : memory_(memory), graph_(graph), capture_(capture), used_(std::move(used)) {}
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  [[nodiscard]] Device& device() const noexcept { return memory_.device; }
  [[nodiscard]] GraphHandle handle() const noexcept { return graph_; }
  [[nodiscard]] StreamId capture() const noexcept { return capture_; }
  [[nodiscard]] CaptureMemory& used() const noexcept { return *used_; }
  /// Runs the graph in the order of the stream, after its former launches. What the capture touched
  /// counts as used by it. One thread at a time. Throws Error(kValue) when memory that the capture
  /// used is gone or asleep, Error(kDevice) if the driver refuses, and what work threw before.
  /// Returns the launch.
  BlockUse launch(Stream& stream);
  /// Blocks until the newest launch is over.
  void wait() const;

 private:
  DeviceMemory& memory_;
  GraphHandle graph_;
  StreamId capture_;
  std::shared_ptr<CaptureMemory> used_;
};

/// While it lives, work of `stream` is captured, and so is that of streams which wait for it; what
/// they allocate and free is reused among them only. Abandoned unless finished: the recorded work
/// never runs, and the blocks are free again.
class CaptureScope {
 public:
  /// Throws Error(kValue) if the stream is captured already or of another device, Error(kDevice)
  /// if the driver refuses, as for a default stream.
  CaptureScope(DeviceMemory& memory, Stream& stream);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  [[nodiscard]] StreamId capture() const noexcept { return capture_; }
  /// Ends the capture. Throws Error(kDevice) if the driver found it invalid, Error(kValue) if
  /// memory from outside was freed inside; it is abandoned then.
  [[nodiscard]] std::unique_ptr<CapturedGraph> finish();
  /// Ends it with a graph that somebody built in place of the recorded one, and takes that over.
  [[nodiscard]] std::unique_ptr<CapturedGraph> finish_with(GraphHandle graph);

 private:
  [[nodiscard]] GraphHandle end();
  [[nodiscard]] std::unique_ptr<CapturedGraph> close(GraphHandle graph);

  DeviceMemory& memory_;
  StreamHandle stream_;
  StreamId capture_;
  std::shared_ptr<CaptureMemory> used_;
  bool open_ = true;
};

// ---- what storages and copies tell a capture -----------------------------------------------

void watch_for_capture(StreamId capture, const Storage& storage);
void lose_for_capture(StreamId capture, const Storage& storage);
void keep_for_capture(StreamId capture, Reference<Storage> storage) noexcept;
/// A copy of host bytes that lives as long as the graph.
[[nodiscard]] const void* kept_for_capture(StreamId capture, const void* source,
                                           std::uint64_t bytes);
/// Work on the stream that nobody can change uses the bytes; nothing unless it is captured.
void note_captured_range(const Stream& stream, DeviceAddress address, std::uint64_t bytes);

}  // namespace nbx
