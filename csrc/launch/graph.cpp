#include "launch/graph.h"

#include <pthread.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace nbx {
namespace {

constexpr DeviceAddress kKernelAlignment = 16;  // that compiled kernels may rely on

struct NodeList {
  std::mutex mutex;
  std::vector<GraphNode> nodes;
};

/// The nodes of captures that are open.
struct NodeLists {
  std::mutex mutex;
  std::unordered_map<StreamId, std::shared_ptr<NodeList>> open;
};

NodeLists& node_lists() {
  static auto* const instance = std::make_unique<NodeLists>().release();
  return *instance;
}

// Held across a fork, so that the child can still end its captures.
void prepare_fork() {
  node_lists().mutex.lock();
  for (const auto& [capture, list] : node_lists().open) list->mutex.lock();
}
void forked() {
  for (const auto& [capture, list] : node_lists().open) list->mutex.unlock();
  node_lists().mutex.unlock();
}
[[maybe_unused]] const int registered = pthread_atfork(prepare_fork, forked, forked);

std::shared_ptr<NodeList> nodes_of(StreamId capture) {
  NodeLists& all = node_lists();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.open.find(capture);
  return found == all.open.end() ? nullptr : found->second;
}

std::vector<void*> pointers_to(const GraphNode& node) {
  std::vector<void*> pointers;
  for (const GraphArgument& argument : node.arguments) {
    pointers.push_back(const_cast<std::uint64_t*>(&argument.word));
  }
  return pointers;
}

[[noreturn]] void refuse_rebind(const std::string& reason) {
  throw Error(ErrorKind::kValue, "rebind: " + reason);
}

bool same_layout(const Layout& a, const Layout& b) noexcept {
  return a.rank() == b.rank() && std::equal(a.shape(), a.shape() + a.rank(), b.shape()) &&
         std::equal(a.strides(), a.strides() + a.rank(), b.strides());
}

void require_alike(const TensorMeta& old, const TensorMeta& fresh, const Device& device) {
  if (&old.device() != &device || &fresh.device() != &device) {
    refuse_rebind("the graph is of " + device.name() + ", the tensors of " + old.device().name() +
                  " and " + fresh.device().name() + "; give tensors of its device");
  }
  if (old.dtype != fresh.dtype || !same_layout(old.layout, fresh.layout)) {
    refuse_rebind(
        "the new tensor must have the old one's dtype, shape and strides; capture again "
        "for others");
  }
  if (old.data % kKernelAlignment == 0 && fresh.data % kKernelAlignment != 0) {
    refuse_rebind(
        "the new tensor starts at an address that is no multiple of 16 bytes, as the old "
        "one's is; give one that does, or capture again");
  }
  if (old.storage->writable() && !fresh.storage->writable()) {
    refuse_rebind("the new tensor is read-only memory; give a clone()");
  }
  fresh.storage->require_awake();
}

}  // namespace

AddressSpan span_of(const TensorMeta& tensor) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::int32_t axis = 0; axis < tensor.layout.rank(); ++axis) {
    const std::int64_t extent = tensor.layout.shape()[axis];
    if (extent == 0) return {tensor.data, tensor.data};
    const std::int64_t reach = (extent - 1) * tensor.layout.strides()[axis];
    (reach < 0 ? low : high) += reach;
  }
  // Strides count elements, of which packed types have two a byte.
  const std::uint64_t below = bytes_of(tensor.dtype, -low);
  return {tensor.data - below, tensor.data + bytes_of(tensor.dtype, high + 1)};
}

// ---- notes ---------------------------------------------------------------------------------

bool note_captured_launch(Stream& stream, GraphNode node) {
  const auto list = nodes_of(stream.id());
  if (list == nullptr) return false;
  const Device& device = stream.device();
  if (supports(device.primitives(), Primitive::k_capture_node)) {
    device.check(device.primitives().capture_node(device.ordinal(), stream.handle(), &node.handle),
                 "capture_node");
  }
  const std::lock_guard<std::mutex> guard(list->mutex);
  list->nodes.push_back(std::move(node));
  return true;
}

void note_captured_call(const Stream& stream, HostCall& call) {
  const auto list = nodes_of(stream.id());
  if (list == nullptr) return;
  GraphNode node;
  node.name = call.name;
  node.call = &call;
  const std::lock_guard<std::mutex> guard(list->mutex);
  list->nodes.push_back(std::move(node));
}

// ---- graphs --------------------------------------------------------------------------------

void Graph::order_after_last(Stream& stream) {
  if (last_.stream == stream.id() || last_.ticket == 0) [[likely]]
    return;
  if (is_ordered(stream.id(), last_) || insert_wait(stream.id(), last_.stream)) return;
  wait_for(last_);
}

/// One address that changes: of argument `index` of a node.
struct Graph::Change {
  std::size_t node;
  std::size_t index;
  DeviceAddress former;
  DeviceAddress next;
};

std::vector<Graph::Change> Graph::changes_of(const TensorMeta& old, const TensorMeta& fresh) {
  const AddressSpan span = span_of(old);
  const Storage& storage = *old.storage;
  std::vector<Change> changes;
  const auto consider = [&](std::size_t node, std::size_t index, DeviceAddress address) {
    if (address < storage.address() || address >= storage.address() + storage.bytes()) return;
    if (address < span.low || address >= span.high) {
      refuse_rebind("kernel '" + nodes_[node].name +
                    "' uses another window of the same memory; give the tensor that covers all of "
                    "it, or capture again");
    }
    changes.push_back(Change{node, index, address, address - old.data + fresh.data});
  };
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const GraphNode& node = nodes_[i];
    if (node.call != nullptr) {
      const auto& views = node.call->views;
      for (std::size_t k = 0; k < views.size(); ++k) {
        consider(i, k, reinterpret_cast<DeviceAddress>(views[k].data));
      }
    }
    for (std::size_t k = 0; k < node.arguments.size(); ++k) {
      if (node.arguments[k].slot == Slot::kRaw8) consider(i, k, node.arguments[k].word);
    }
  }
  return changes;
}

void Graph::submit(const GraphNode& node) const {
  const Device& device = work_->device();
  const std::vector<void*> pointers = pointers_to(node);
  device.check(device.primitives().graph_set_kernel(device.ordinal(), work_->handle(), node.handle,
                                                    node.kernel, &node.geometry, pointers.data(),
                                                    pointers.size()),
               ("graph_set_kernel of '" + node.name + "'").c_str());
}

/// All of them or none: what was set is set back if a later one is refused.
void Graph::apply(const std::vector<Change>& changes) {
  const auto set = [&](const Change& change, DeviceAddress address) {
    GraphNode& node = nodes_[change.node];
    if (node.call != nullptr) {
      node.call->views[change.index].data = reinterpret_cast<std::byte*>(address);
    } else {
      node.arguments[change.index].word = address;
    }
  };
  for (const Change& change : changes) set(change, change.next);
  std::size_t done = 0;
  try {
    for (; done < changes.size(); ++done) {
      const GraphNode& node = nodes_[changes[done].node];
      const bool again = done + 1 < changes.size() && changes[done + 1].node == changes[done].node;
      if (node.call == nullptr && !again) submit(node);
    }
  } catch (const Error&) {
    for (const Change& change : changes) set(change, change.former);
    for (std::size_t i = 0; i < done; ++i) {
      const GraphNode& node = nodes_[changes[i].node];
      if (node.call != nullptr) continue;
      try {
        submit(node);
      } catch (const Error& error) {
        log(LogLevel::kError, std::string("rebind: a kernel is not set back: ") + error.what());
      }
    }
    throw;
  }
}

void Graph::rebind(const TensorMeta& old, const TensorMeta& fresh) {
  require_alike(old, fresh, device());
  if (old.data == fresh.data && old.storage.get() == fresh.storage.get()) return;
  const AddressSpan span = span_of(old);
  if (work_->used().has_range(span.low, span.high)) {
    refuse_rebind(
        "a copy, a fill or work of another library uses the old tensor, and only what "
        "kernels use can be changed; capture again");
  }
  const std::vector<Change> changes = changes_of(old, fresh);
  if (changes.empty()) refuse_rebind("no kernel of the graph uses the old tensor");
  if (std::any_of(changes.begin(), changes.end(),
                  [&](const Change& change) { return nodes_[change.node].call != nullptr; })) {
    work_->wait();  // launches that are under way read the calls themselves
  } else {
    device().require(Primitive::k_graph_set_kernel);
  }
  fresh.storage->hold_for(work_->capture());
  apply(changes);
  const Storage& storage = *old.storage;
  if (&storage == fresh.storage.get() ||
      work_->used().has_range(storage.address(), storage.address() + storage.bytes())) {
    return;
  }
  work_->used().unwatch(storage);
  old.storage->let_go_of(work_->capture());
}

void Graph::update(std::size_t node, std::size_t argument, std::uint64_t word) {
  device().require(Primitive::k_graph_set_kernel);
  GraphArgument& changed = nodes_.at(node).arguments.at(argument);
  const std::uint64_t former = std::exchange(changed.word, word);
  try {
    submit(nodes_[node]);
  } catch (...) {
    changed.word = former;
    throw;
  }
}

// ---- captures ------------------------------------------------------------------------------

GraphScope::GraphScope(DeviceMemory& memory, Stream& stream)
    : memory_(memory), scope_(memory, stream) {
  NodeLists& all = node_lists();
  const std::lock_guard<std::mutex> guard(all.mutex);
  all.open.emplace(scope_.capture(), std::make_shared<NodeList>());
}

GraphScope::~GraphScope() { static_cast<void>(take_nodes()); }

std::vector<GraphNode> GraphScope::take_nodes() {
  std::shared_ptr<NodeList> list;
  {
    NodeLists& all = node_lists();
    const std::lock_guard<std::mutex> guard(all.mutex);
    const auto found = all.open.find(scope_.capture());
    if (found == all.open.end()) return {};
    list = std::move(found->second);
    all.open.erase(found);
  }
  const std::lock_guard<std::mutex> guard(list->mutex);
  return std::move(list->nodes);
}

std::shared_ptr<Graph> GraphScope::finish() {
  std::vector<GraphNode> nodes = take_nodes();
  return std::make_shared<Graph>(scope_.finish(), std::move(nodes));
}

GraphHandle GraphScope::build_graph(std::vector<GraphNode>* nodes) const {
  const Device& device = memory_.device;
  const Primitives& table = device.primitives();
  GraphHandle graph = 0;
  device.check(table.graph_create(device.ordinal(), &graph), "graph_create");
  NodeHandle former = 0;
  Status status = kSuccess;
  for (GraphNode& node : *nodes) {
    const std::vector<void*> pointers = pointers_to(node);
    status = table.graph_add_kernel(device.ordinal(), graph, node.kernel, &node.geometry,
                                    pointers.data(), pointers.size(), &former, former == 0 ? 0 : 1,
                                    &node.handle);
    if (status != kSuccess) break;
    former = node.handle;
  }
  if (status == kSuccess) status = table.graph_finish(device.ordinal(), graph);
  if (status != kSuccess) {
    static_cast<void>(table.graph_destroy(device.ordinal(), graph));
    device.check(status, "graph_add_kernel");
  }
  return graph;
}

std::shared_ptr<Graph> GraphScope::build() {
  for (const Primitive needed :
       {Primitive::k_graph_create, Primitive::k_graph_add_kernel, Primitive::k_graph_finish}) {
    memory_.device.require(needed);
  }
  std::vector<GraphNode> nodes = take_nodes();
  for (const GraphNode& node : nodes) {
    if (node.call == nullptr) continue;
    throw Error(ErrorKind::kValue, "from_launches: '" + node.name +
                                       "' is a function of the host, and graphs are built of "
                                       "kernels; capture it instead");
  }
  const GraphHandle graph = build_graph(&nodes);
  return std::make_shared<Graph>(scope_.finish_with(graph), std::move(nodes));
}

}  // namespace nbx
