// Graphs, captured from streams or built node by node.
#pragma once

#include "device/gpu/streams.h"

namespace nbx::gpu {

template <class Api>
struct Graphs {
  static Status capture_begin(std::int32_t ordinal, StreamHandle stream) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (stream_state<Api>(ordinal, stream) == nullptr) return kInvalidHandle;
    return answered<Api>(Api::capture_begin(raw(stream), kRelaxedCapture));
  }

  static Status capture_end(std::int32_t ordinal, StreamHandle stream, GraphHandle* graph) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (stream_state<Api>(ordinal, stream) == nullptr) return kInvalidHandle;
    void* captured = nullptr;
    int code = Api::capture_end(raw(stream), &captured);
    if (code != 0) return answered<Api>(code);
    if (captured == nullptr) return kCaptureInvalid;
    void* executable = nullptr;
    code = Api::graph_instantiate(&executable, captured, 0);
    if (code != 0) {
      static_cast<void>(Api::graph_destroy(captured));  // the failure before it is told
      return answered<Api>(code);
    }
    return keep(ordinal, captured, executable, graph);
  }

  static Status capture_node(std::int32_t ordinal, StreamHandle stream, NodeHandle* node) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (stream_state<Api>(ordinal, stream) == nullptr) return kInvalidHandle;
    void* graph = nullptr;
    void* newest = nullptr;
    std::size_t count = 0;
    const int code = Api::capture_state(raw(stream), &graph, &newest, &count);
    if (code != 0) return answered<Api>(code);
    if (count != 1) return kCaptureInvalid;
    *node = address_of(newest);
    return kSuccess;
  }

  static Status graph_create(std::int32_t ordinal, GraphHandle* graph) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    void* made = nullptr;
    const int code = Api::graph_create(&made, 0);
    return code == 0 ? keep(ordinal, made, nullptr, graph) : answered<Api>(code);
  }

  static Status graph_add_kernel(std::int32_t ordinal, GraphHandle graph, KernelHandle kernel,
                                 const LaunchGeometry* geometry, void* const* arguments,
                                 std::size_t /*argument_count*/, const NodeHandle* dependencies,
                                 std::size_t dependency_count, NodeHandle* node) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const GraphState* const state = find(ordinal, graph);
    if (state == nullptr || kernel == 0) return kInvalidHandle;
    if (state->executable != nullptr) return kNotPermitted;
    static_assert(sizeof(NodeHandle) == sizeof(void*));
    void* made = nullptr;
    const int code = Api::add_kernel_node(
        &made, state->graph, reinterpret_cast<void* const*>(dependencies), dependency_count,
        raw(kernel), *geometry, const_cast<void**>(arguments));
    if (code == 0) *node = address_of(made);
    return answered<Api>(code);
  }

  static Status graph_finish(std::int32_t ordinal, GraphHandle graph) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    GraphState* const state = find(ordinal, graph);
    if (state == nullptr) return kInvalidHandle;
    if (state->executable != nullptr) return kNotPermitted;
    void* executable = nullptr;
    const int code = Api::graph_instantiate(&executable, state->graph, 0);
    if (code == 0) state->executable = executable;
    return answered<Api>(code);
  }

  static Status graph_set_kernel(std::int32_t ordinal, GraphHandle graph, NodeHandle node,
                                 KernelHandle kernel, const LaunchGeometry* geometry,
                                 void* const* arguments, std::size_t /*argument_count*/) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const GraphState* const state = find(ordinal, graph);
    if (state == nullptr || node == 0 || kernel == 0) return kInvalidHandle;
    if (state->executable == nullptr) return kNotPermitted;
    return answered<Api>(Api::set_kernel_node(state->executable, raw(node), raw(kernel), *geometry,
                                              const_cast<void**>(arguments)));
  }

  static Status graph_launch(std::int32_t ordinal, GraphHandle graph, StreamHandle stream) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const GraphState* const state = find(ordinal, graph);
    StreamState* const queue = stream_state<Api>(ordinal, stream);
    if (state == nullptr || state->executable == nullptr || queue == nullptr) {
      return kInvalidHandle;
    }
    return submitted(queue, Api::graph_launch(state->executable, raw(stream)));
  }

  /// Launches under way are completed by the driver.
  static Status graph_destroy(std::int32_t ordinal, GraphHandle graph) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const GraphState* const state = find(ordinal, graph);
    if (state == nullptr) return kInvalidHandle;
    const GraphState own = *state;
    if (!objects<Api>().graphs.give(graph)) return kInvalidHandle;
    const int first = own.executable == nullptr ? 0 : Api::exec_destroy(own.executable);
    const int second = Api::graph_destroy(own.graph);
    return answered<Api>(first != 0 ? first : second);
  }

 private:
  static GraphState* find(std::int32_t ordinal, GraphHandle graph) {
    GraphState* const state = objects<Api>().graphs.find(graph);
    return state != nullptr && state->ordinal == ordinal ? state : nullptr;
  }

  static Status keep(std::int32_t ordinal, void* graph, void* executable, GraphHandle* handle) {
    GraphHandle made = 0;
    GraphState* const state = objects<Api>().graphs.take(&made);
    if (state == nullptr) return kAllocationRefused;
    *state = GraphState{ordinal, graph, executable};
    *handle = made;
    return kSuccess;
  }
};

}  // namespace nbx::gpu
