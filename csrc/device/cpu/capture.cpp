#include "device/cpu/capture.h"

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "device/host_status.h"

namespace nbx::cpu {
namespace {

struct Graph {
  StreamHandle origin = 0;
  std::vector<Action> actions;
  std::mutex running;  // launches run one after the other
};
using Shared = std::shared_ptr<Graph>;

/// Actions own payloads whose clean-up may call back: they are dropped outside the lock.
struct Captures {
  std::mutex mutex;
  std::map<StreamHandle, Shared> streams;  // captured now
  std::map<EventHandle, Shared> events;    // recorded in a capture that is open
  std::map<GraphHandle, Shared> graphs;
  GraphHandle next = 1;

  [[nodiscard]] Shared of(StreamHandle stream) const {
    const auto found = streams.find(stream);
    return found == streams.end() ? nullptr : found->second;
  }
  void close(const Shared& graph) {
    std::erase_if(streams, [&](const auto& entry) { return entry.second == graph; });
    std::erase_if(events, [&](const auto& entry) { return entry.second == graph; });
    open_captures.fetch_sub(1, std::memory_order_relaxed);
  }
};

/// Never destroyed: graphs may outlive static objects.
Captures& captures() {
  static auto* const instance = std::make_unique<Captures>().release();
  return *instance;
}

void run(Graph& graph) {
  const std::lock_guard<std::mutex> guard(graph.running);
  for (const Action& action : graph.actions) action();
}

Status capture_begin(std::int32_t ordinal, StreamHandle stream) try {
  if (ordinal != 0) return kInvalidDevice;
  if (stream == 0) return kCaptureInvalid;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  if (all.of(stream) != nullptr) return kCaptureInvalid;
  auto graph = std::make_shared<Graph>();
  graph->origin = stream;
  all.streams.emplace(stream, std::move(graph));
  open_captures.fetch_add(1, std::memory_order_relaxed);
  return kSuccess;
} catch (const std::bad_alloc&) {
  return kSystemFailure;
}

Status capture_end(std::int32_t ordinal, StreamHandle stream, GraphHandle* handle) {
  if (ordinal != 0) return kInvalidDevice;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const Shared graph = all.of(stream);
  if (graph == nullptr || graph->origin != stream) return kCaptureInvalid;
  all.close(graph);
  *handle = all.next++;
  all.graphs.emplace(*handle, graph);
  return kSuccess;
}

Status graph_launch(std::int32_t ordinal, GraphHandle handle, StreamHandle stream) {
  if (ordinal != 0) return kInvalidDevice;
  Shared graph;
  {
    Captures& all = captures();
    const std::lock_guard<std::mutex> guard(all.mutex);
    const auto found = all.graphs.find(handle);
    if (found == all.graphs.end()) return kInvalidHandle;
    graph = found->second;
  }
  if (recorded(stream, [&] { return [graph] { run(*graph); }; })) return kSuccess;
  run(*graph);
  return kSuccess;
}

Status graph_destroy(std::int32_t ordinal, GraphHandle handle) {
  if (ordinal != 0) return kInvalidDevice;
  Shared graph;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.graphs.find(handle);
  if (found == all.graphs.end()) return kInvalidHandle;
  graph = std::move(found->second);
  all.graphs.erase(found);
  return kSuccess;
}

}  // namespace

bool is_captured(StreamHandle stream) {
  if (open_captures.load(std::memory_order_relaxed) == 0) return false;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  return all.of(stream) != nullptr;
}

bool add_action(StreamHandle stream, Action action) {
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const Shared graph = all.of(stream);
  if (graph == nullptr) return false;
  graph->actions.push_back(std::move(action));
  return true;
}

void mark_captured(EventHandle event, StreamHandle stream) {
  if (open_captures.load(std::memory_order_relaxed) == 0) return;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  if (Shared graph = all.of(stream)) {
    all.events[event] = std::move(graph);
  } else {
    all.events.erase(event);
  }
}

void join_captured(StreamHandle stream, EventHandle event) {
  if (open_captures.load(std::memory_order_relaxed) == 0) return;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.events.find(event);
  if (found != all.events.end()) all.streams.emplace(stream, found->second);
}

void drop_captured(StreamHandle stream) {
  if (open_captures.load(std::memory_order_relaxed) == 0) return;
  Shared graph;
  Captures& all = captures();
  const std::lock_guard<std::mutex> guard(all.mutex);
  graph = all.of(stream);
  if (graph == nullptr) return;
  if (graph->origin == stream) {
    all.close(graph);
  } else {
    all.streams.erase(stream);
  }
}

void set_capture_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(capture_begin)
  NBX_SET(capture_end)
  NBX_SET(graph_launch)
  NBX_SET(graph_destroy)
#undef NBX_SET
}

}  // namespace nbx::cpu
