// Captures: the work of a stream recorded as a graph, with the memory that it uses.
#pragma once

#include <memory>

#include "storage/storage.h"

namespace nbx {

/// A finished capture: the driver's graph, and the blocks that belong to it. Both go together, the
/// blocks once the last launch is over.
class CapturedGraph {
 public:
  CapturedGraph(DeviceMemory& memory, GraphHandle graph, StreamId capture) noexcept
      : memory_(memory), graph_(graph), capture_(capture) {}
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  [[nodiscard]] Device& device() const noexcept { return memory_.device; }
  [[nodiscard]] GraphHandle handle() const noexcept { return graph_; }
  /// Runs the graph in the order of the stream. What the capture touched counts as used by it.
  void launch(Stream& stream);

 private:
  DeviceMemory& memory_;
  GraphHandle graph_;
  StreamId capture_;
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

  /// Ends the capture. Throws Error(kDevice) if the driver found it invalid; it is abandoned then.
  [[nodiscard]] std::unique_ptr<CapturedGraph> finish();

 private:
  DeviceMemory& memory_;
  StreamHandle stream_;
  StreamId capture_;
  bool open_ = true;
};

}  // namespace nbx
