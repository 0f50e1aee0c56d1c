// Graphs of simulated devices, captured from streams or built node by node.
#include <algorithm>
#include <utility>

#include "device/sim/world.h"

namespace nbx::sim {
namespace {

/// Keeps the nodes as they were at the launch.
class Replay : public Action {
 public:
  explicit Replay(std::shared_ptr<const Nodes> nodes) : nodes_(std::move(nodes)) {}
  void run(World& world, Lock& lock) override {
    for (const Node& node : *nodes_) {
      if (node.action != nullptr) node.action->run(world, lock);
    }
  }

 private:
  std::shared_ptr<const Nodes> nodes_;
};

/// An entry that works on a graph of the device.
class GraphEntry : public Entry {
 public:
  GraphEntry(std::int32_t ordinal, Primitive primitive, double cost, GraphHandle handle)
      : Entry(ordinal, primitive, cost) {
    if (status != kSuccess) return;
    const auto found = world().graphs.find(handle);
    if (found == world().graphs.end() || found->second->ordinal != ordinal) {
      status = kInvalidHandle;
    } else {
      graph = found->second;
    }
  }
  std::shared_ptr<Graph> graph;
};

bool has_node(const Graph& graph, NodeHandle handle) {
  return std::any_of(graph.nodes->begin(), graph.nodes->end(),
                     [handle](const Node& node) { return node.handle == handle; });
}

Status capture_begin(std::int32_t ordinal, StreamHandle handle) {
  const Entry entry(ordinal, Primitive::k_capture_begin, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const auto stream = entry.world().stream(ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (handle == 0 || stream->capture != nullptr) return kCaptureInvalid;
  auto graph = std::make_shared<Graph>();
  graph->ordinal = ordinal;
  graph->origin = stream;
  graph->streams.push_back(stream);
  stream->newest = 0;
  stream->capture = std::move(graph);
  return kSuccess;
}

Status capture_end(std::int32_t ordinal, StreamHandle handle, GraphHandle* handle_out) {
  const Entry entry(ordinal, Primitive::k_capture_end, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const auto stream = entry.world().stream(ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  const std::shared_ptr<Graph> graph = stream->capture;
  if (graph == nullptr || graph->origin != stream) return kCaptureInvalid;
  for (const auto& joined : graph->streams) joined->capture = nullptr;
  graph->streams.clear();
  graph->finished = true;
  *handle_out = entry.world().next_handle++;
  entry.world().graphs.emplace(*handle_out, graph);
  return kSuccess;
}

Status capture_node(std::int32_t ordinal, StreamHandle handle, NodeHandle* node) {
  const Entry entry(ordinal, Primitive::k_capture_node, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  const auto stream = entry.world().stream(ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture == nullptr || stream->newest == 0) return kCaptureInvalid;
  *node = stream->newest;
  return kSuccess;
}

Status graph_create(std::int32_t ordinal, GraphHandle* graph) {
  const Entry entry(ordinal, Primitive::k_graph_create, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  *graph = entry.world().next_handle++;
  const auto made = std::make_shared<Graph>();
  made->ordinal = ordinal;
  entry.world().graphs.emplace(*graph, made);
  return kSuccess;
}

Status graph_add_kernel(std::int32_t ordinal, GraphHandle handle, KernelHandle kernel,
                        const LaunchGeometry* geometry, void* const* arguments,
                        std::size_t argument_count, const NodeHandle* dependencies,
                        std::size_t dependency_count, NodeHandle* node) {
  const GraphEntry entry(ordinal, Primitive::k_graph_add_kernel, kTrivialCost, handle);
  if (entry.status != kSuccess) return entry.status;
  Graph& graph = *entry.graph;
  if (graph.finished) return kNotPermitted;
  // Nodes depend on earlier ones only, so the order of their making is one of those allowed.
  for (std::size_t i = 0; i < dependency_count; ++i) {
    if (!has_node(graph, dependencies[i])) return kInvalidValue;
  }
  std::shared_ptr<Action> action;
  const Status status =
      make_launch(entry.world(), ordinal, kernel, *geometry, arguments, argument_count, &action);
  if (status != kSuccess) return status;
  *node = entry.world().next_handle++;
  graph.nodes->push_back(Node{*node, std::move(action)});
  graph.seconds += kKernelSeconds;
  return kSuccess;
}

Status graph_finish(std::int32_t ordinal, GraphHandle handle) {
  const GraphEntry entry(ordinal, Primitive::k_graph_finish, kTrivialCost, handle);
  if (entry.status != kSuccess) return entry.status;
  if (entry.graph->finished) return kNotPermitted;
  entry.graph->finished = true;
  return kSuccess;
}

Status graph_set_kernel(std::int32_t ordinal, GraphHandle handle, NodeHandle node,
                        KernelHandle kernel, const LaunchGeometry* geometry, void* const* arguments,
                        std::size_t argument_count) {
  std::shared_ptr<Action> action;  // the former one is dropped after the lock
  const GraphEntry entry(ordinal, Primitive::k_graph_set_kernel, kTrivialCost, handle);
  if (entry.status != kSuccess) return entry.status;
  Graph& graph = *entry.graph;
  if (!graph.finished) return kNotPermitted;
  const auto found = std::find_if(graph.nodes->begin(), graph.nodes->end(),
                                  [node](const Node& known) { return known.handle == node; });
  if (found == graph.nodes->end()) return kInvalidHandle;
  if (found->action == nullptr || !found->action->is_kernel()) return kInvalidValue;
  const auto index = static_cast<std::size_t>(found - graph.nodes->begin());
  const Status status =
      make_launch(entry.world(), ordinal, kernel, *geometry, arguments, argument_count, &action);
  if (status != kSuccess) return status;
  if (graph.nodes.use_count() > 1) graph.nodes = std::make_shared<Nodes>(*graph.nodes);
  std::swap((*graph.nodes)[index].action, action);
  return kSuccess;
}

Status graph_launch(std::int32_t ordinal, GraphHandle handle, StreamHandle stream_handle) {
  const GraphEntry entry(ordinal, Primitive::k_graph_launch, kGraphLaunchCost, handle);
  if (entry.status != kSuccess) return entry.status;
  const auto stream = entry.world().stream(ordinal, stream_handle);
  Graph& graph = *entry.graph;
  if (stream == nullptr || !graph.finished) return kInvalidHandle;
  std::vector<Mark> waits;
  if (graph.last_launch.stream != nullptr) waits.push_back(graph.last_launch);
  const Status status = entry.world().submit(stream, std::make_shared<Replay>(graph.nodes),
                                             graph.seconds, std::move(waits));
  if (status == kSuccess && stream->capture == nullptr) {
    graph.last_launch = Mark{stream, stream->submitted, stream->end};
  }
  return status;
}

Status graph_destroy(std::int32_t ordinal, GraphHandle handle) {
  std::shared_ptr<Graph> graph;  // dropped after the lock
  GraphEntry entry(ordinal, Primitive::k_graph_destroy, kTrivialCost, handle);
  if (entry.status != kSuccess) return entry.status;
  graph = std::move(entry.graph);
  entry.world().graphs.erase(handle);
  return kSuccess;
}

}  // namespace

void set_graph_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(capture_begin)
  NBX_SET(capture_end)
  NBX_SET(capture_node)
  NBX_SET(graph_create)
  NBX_SET(graph_add_kernel)
  NBX_SET(graph_finish)
  NBX_SET(graph_set_kernel)
  NBX_SET(graph_launch)
  NBX_SET(graph_destroy)
#undef NBX_SET
}

}  // namespace nbx::sim
