// Graphs: recorded work that runs again at each launch, whose kernels can be changed in between.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "launch/device_kernel.h"
#include "launch/kernel.h"
#include "storage/capture.h"
#include "storage/tensor.h"

namespace nbx {

/// A call of a host kernel kept until the stream reaches it: copies of all metadata. As on a card,
/// the memory itself may be freed before: storages know the work that uses them, and nobody gets it
/// any sooner.
struct HostCall {
  HostKernel kernel;
  std::string name;  // of the op, if it is one
  std::shared_ptr<void> context;
  Device* device;
  std::vector<TensorView> views;
  std::vector<std::int64_t> extents;
  std::vector<Scalar> scalars;
};

/// One argument of a recorded kernel.
struct GraphArgument {
  std::string name;  // empty if the launch itself adds it
  Slot slot;
  std::uint64_t word;  // its bits as the slot passes them
};

/// One piece of recorded work that is no copy and no fill.
struct GraphNode {
  std::string name;
  HostCall* call = nullptr;  // of a host kernel; the driver's graph owns it
  // Of a device's kernel:
  NodeHandle handle = 0;
  KernelHandle kernel = 0;
  LaunchGeometry geometry{};
  std::vector<GraphArgument> arguments;
  std::shared_ptr<const void> keep;  // what the kernel needs to stay loaded
};

/// A kernel was launched on a captured stream; `node.handle` is asked for here. False if the
/// capture keeps no nodes.
[[nodiscard]] bool note_captured_launch(Stream& stream, GraphNode node);
/// A host kernel was.
void note_captured_call(const Stream& stream, HostCall& call);

/// Recorded work with the memory that belongs to it, and what it may be changed in.
class Graph {
 public:
  Graph(std::unique_ptr<CapturedGraph> work, std::vector<GraphNode> nodes) noexcept
      : nodes_(std::move(nodes)), work_(std::move(work)) {}

  [[nodiscard]] Device& device() const noexcept { return work_->device(); }
  [[nodiscard]] const std::vector<GraphNode>& nodes() const noexcept { return nodes_; }
  /// Throws Error(kValue) when the graph cannot be launched any more, or not now.
  void require_valid() const { work_->used().require_all(); }

  /// One thread at a time: held around a launch with the copies that belong to it, and around
  /// changes.
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
  // ---- with the mutex held -------------------------------------------------------------------
  /// What the stream does next comes after the last launch and the copies around it.
  void order_after_last(Stream& stream);
  void launch(Stream& stream) { last_ = work_->launch(stream); }
  /// The stream's newest work is the last that belongs to a launch.
  void note_last(const Stream& stream) { last_ = stream.use(); }

  /// From the next launch on kernels use `fresh` in place of `old`. Throws Error(kValue) unless
  /// both are alike and every use of the old memory can be changed; nothing has changed then.
  void rebind(const TensorMeta& old, const TensorMeta& fresh);
  /// From the next launch on the kernel takes these bits for one of its arguments.
  void update(std::size_t node, std::size_t argument, std::uint64_t word);

 private:
  struct Change;
  [[nodiscard]] std::vector<Change> changes_of(const TensorMeta& old, const TensorMeta& fresh);
  void apply(const std::vector<Change>& changes);
  void submit(const GraphNode& node) const;

  std::mutex mutex_;
  std::vector<GraphNode> nodes_;  // their kernels go after the graph that runs them
  std::unique_ptr<CapturedGraph> work_;
  BlockUse last_;
};

/// A capture that keeps its nodes.
class GraphScope {
 public:
  /// Throws as CaptureScope does.
  GraphScope(DeviceMemory& memory, Stream& stream);
  ~GraphScope();
  GraphScope(const GraphScope&) = delete;
  GraphScope& operator=(const GraphScope&) = delete;

  /// Throws as CaptureScope::finish does.
  [[nodiscard]] std::shared_ptr<Graph> finish();
  /// A graph built of the recorded launches, one after the other, without the driver's capture.
  /// Throws Error(kUnsupported) where the device has no such graphs, Error(kValue) if something
  /// else was recorded.
  [[nodiscard]] std::shared_ptr<Graph> build();

 private:
  [[nodiscard]] std::vector<GraphNode> take_nodes();
  [[nodiscard]] GraphHandle build_graph(std::vector<GraphNode>* nodes) const;

  DeviceMemory& memory_;
  CaptureScope scope_;
};

/// The window's first and last address, and one past that; equal if it has no elements.
struct AddressSpan {
  DeviceAddress low;
  DeviceAddress high;
};
[[nodiscard]] AddressSpan span_of(const TensorMeta& tensor);

}  // namespace nbx
