// Captures and graphs, and the uses of memory by other streams.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/graph_launch.h"
#include "bindings/hot.h"
#include "bindings/kernel_type.h"
#include "bindings/python_lock.h"
#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "bindings/translated.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/graph.h"
#include "storage/transfer.h"

namespace nbx {
namespace {

namespace py = pybind11;

/// `with`: the stream is current inside, its work is recorded.
class Capture {
 public:
  explicit Capture(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~Capture() { leave(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void enter() {
    if (scope_ != nullptr || graph_ != nullptr) {
      throw Error(ErrorKind::kValue, "graph: captured already; make another one");
    }
    scope_ = std::make_unique<GraphScope>(memory_of(stream_->device()), *stream_);
    former_ = &set_current_stream(*stream_);
    // What is allocated inside is counted under the caller's tag, or else under one of its own.
    former_tag_ = set_tag("graph");
    if (!former_tag_.empty()) set_tag(former_tag_);
  }
  /// `built`: of the recorded launches, without the driver's capture.
  void exit(bool failed, bool built) {
    if (scope_ == nullptr) {
      throw Error(ErrorKind::kValue, "graph: left without having been entered");
    }
    const std::unique_ptr<GraphScope> scope = std::move(scope_);
    leave();
    if (!failed) graph_ = built ? scope->build() : scope->finish();
  }
  [[nodiscard]] std::shared_ptr<Graph> graph() const { return graph_; }
  [[nodiscard]] std::shared_ptr<Stream> stream() const { return stream_; }

 private:
  void leave() noexcept {
    if (former_ == nullptr) return;
    set_current_stream(*std::exchange(former_, nullptr));
    try {
      set_tag(std::exchange(former_tag_, {}));
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("graph: the tag stays: ") + error.what());
    }
  }

  std::shared_ptr<Stream> stream_;
  std::unique_ptr<GraphScope> scope_;
  std::shared_ptr<Graph> graph_;
  Stream* former_ = nullptr;
  std::string former_tag_;
};

// ---- launches ------------------------------------------------------------------------------

/// Held without the Python lock while somebody else has it: that one may need the Python lock.
std::unique_lock<std::mutex> lock_graph(Graph& graph) {
  std::unique_lock<std::mutex> lock(graph.mutex(), std::try_to_lock);
  if (lock.owns_lock()) return lock;
  const python::Unlocked unlocked;
  lock.lock();
  return lock;
}

std::string described(const TensorMeta& tensor) {
  return std::string(facts_of(tensor.dtype).name) + " of shape " +
         shape_text(tensor.layout.shape(), tensor.layout.rank());
}

void check_input(std::size_t index, const TensorMeta& own, const TensorMeta& given) {
  const Layout& a = own.layout;
  const Layout& b = given.layout;
  if (own.dtype == given.dtype && a.rank() == b.rank() &&
      std::equal(a.shape(), a.shape() + a.rank(), b.shape())) {
    return;
  }
  throw Error(ErrorKind::kValue, "graph: tensor " + std::to_string(index) + " of the inputs is " +
                                     described(given) + ", captured was " + described(own) +
                                     "; capture again for other shapes and dtypes");
}

void copy_input(TensorMeta& own, const TensorMeta& given) {
  const bool plain =
      &own.device() == &given.device() && own.layout.contiguous() && given.layout.contiguous();
  if (!plain) return python::assign("graph", own, given);
  if (own.data != given.data) copy_across(own, given);
}

/// Without gaps, on the tensor's device, in the order of its current stream.
py::object copied(const py::object& tensor) {
  const TensorMeta& given = python::to_tensor(tensor.ptr(), "copied");
  TensorMeta own = empty_tensor(memory_of(given.device()), given.dtype, given.layout.shape(),
                                given.layout.rank());
  copy_input(own, given);
  return py::reinterpret_steal<py::object>(python::wrap_tensor(std::move(own)));
}

/// Copies the inputs into the graph's own, runs it, and copies its outputs, all in the order of the
/// current stream and of the graph's other launches.
py::list call_graph(Graph& graph, const std::vector<py::object>& own_inputs,
                    const std::vector<py::object>& inputs,
                    const std::vector<py::object>& own_outputs) {
  for (std::size_t i = 0; i < own_inputs.size(); ++i) {
    check_input(i, python::to_tensor(own_inputs[i].ptr(), "graph"),
                python::to_tensor(inputs.at(i).ptr(), "graph"));
  }
  Stream& stream = current_stream(graph.device());
  std::vector<TensorMeta> outputs;
  for (const py::object& own : own_outputs) {
    const TensorMeta& meta = python::meta_of(own.ptr());
    outputs.push_back(empty_tensor(memory_of(meta.device()), meta.dtype, meta.layout.shape(),
                                   meta.layout.rank()));
  }
  const std::unique_lock<std::mutex> lock = lock_graph(graph);
  {
    const python::Unlocked unlocked;
    graph.order_after_last(stream);
  }
  for (std::size_t i = 0; i < own_inputs.size(); ++i) {
    copy_input(python::meta_of(own_inputs[i].ptr()), python::meta_of(inputs[i].ptr()));
  }
  py::list results;
  {
    const python::Unlocked unlocked;
    graph.launch(stream);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      copy_across(outputs[i], python::meta_of(own_outputs[i].ptr()));
    }
    graph.note_last(stream);
  }
  for (TensorMeta& output : outputs) {
    results.append(py::reinterpret_steal<py::object>(python::wrap_tensor(std::move(output))));
  }
  return results;
}

// ---- changes -------------------------------------------------------------------------------

void rebind_graph(Graph& graph, const py::object& old, const py::object& fresh) {
  const TensorMeta from = python::to_tensor(old.ptr(), "rebind");
  const TensorMeta to = python::to_tensor(fresh.ptr(), "rebind");
  const python::Unlocked unlocked;
  const std::lock_guard<std::mutex> guard(graph.mutex());
  graph.rebind(from, to);
}

/// A number for the named parameter of a kernel.
void update_graph(Graph& graph, std::size_t index, const std::string& name,
                  const py::object& value) {
  std::size_t argument = 0;
  Slot slot{};
  {
    const std::unique_lock<std::mutex> lock = lock_graph(graph);
    const auto& nodes = graph.nodes();
    if (index >= nodes.size()) {
      throw Error(ErrorKind::kIndex, "update: node " + std::to_string(index) + " of a graph of " +
                                         std::to_string(nodes.size()) + "; look at graph.nodes");
    }
    const GraphNode& node = nodes[index];
    if (node.call != nullptr) {
      throw Error(ErrorKind::kUnsupported,
                  "update: node " + std::to_string(index) +
                      " is a function of the host, whose parameters have no names; put the number "
                      "into a tensor, or capture again");
    }
    std::string known;
    for (; argument < node.arguments.size(); ++argument) {
      const GraphArgument& candidate = node.arguments[argument];
      if (!candidate.name.empty() && candidate.name == name) break;
      if (!candidate.name.empty()) known += (known.empty() ? "" : ", ") + candidate.name;
    }
    if (argument == node.arguments.size()) {
      throw Error(ErrorKind::kValue, "update: kernel '" + node.name + "' has no parameter '" +
                                         name + "' that is passed at run time; it has " + known);
    }
    slot = node.arguments[argument].slot;
  }
  if (python::is_tensor(value.ptr())) {
    throw Error(ErrorKind::kType,
                "update: '" + name + "' got a tensor; graph.rebind(old, new) exchanges tensors");
  }
  const std::uint64_t word = python::translated(
      [&] { return python::packed_number(slot, value.ptr(), ("update: '" + name + "'").c_str()); });
  const python::Unlocked unlocked;
  const std::lock_guard<std::mutex> guard(graph.mutex());
  graph.update(index, argument, word);
}

std::string kernel_name(const GraphNode& node) {
  if (node.call == nullptr) return node.name;
  for (const std::string& name : host_kernel_names()) {
    if (find_host_kernel(name) == node.call->kernel) return name;
  }
  return node.name;
}

py::object number_of(const Scalar& scalar) {
  return py::reinterpret_steal<py::object>(python::number_of(scalar));
}

py::dict arguments_of(const GraphNode& node) {
  py::dict arguments;
  if (node.call != nullptr) {
    std::size_t index = 0;
    for (const TensorView& view : node.call->views) {
      arguments[py::str("tensor" + std::to_string(index++))] =
          reinterpret_cast<DeviceAddress>(view.data);
    }
    index = 0;
    for (const Scalar& scalar : node.call->scalars) {
      arguments[py::str("number" + std::to_string(index++))] = number_of(scalar);
    }
  }
  for (const GraphArgument& argument : node.arguments) {
    if (!argument.name.empty()) arguments[py::str(argument.name)] = argument.word;
  }
  return arguments;
}

/// (kernel, grid, arguments) of each node; the grid is None where the host runs the kernel.
py::list nodes_of(Graph& graph) {
  const std::unique_lock<std::mutex> lock = lock_graph(graph);
  py::list rows;
  for (const GraphNode& node : graph.nodes()) {
    const auto& grid = node.geometry.grid;
    const py::object blocks = node.call != nullptr
                                  ? py::object(py::none())
                                  : py::object(py::make_tuple(grid[0], grid[1], grid[2]));
    rows.append(py::make_tuple(kernel_name(node), blocks, arguments_of(node)));
  }
  return rows;
}

std::vector<std::string> check_memory(const py::object& device) {
  DeviceMemory& memory = memory_of(python::to_device(device.ptr()));
  if (memory.checker == nullptr) {
    throw Error(ErrorKind::kValue, "check: check mode is off for " + memory.device.name() +
                                       "; set NBX_MEMORY_CHECK=1 before its first tensor");
  }
  const python::Unlocked unlocked;
  memory.checker->verify();
  return memory.checker->reports();
}

}  // namespace

void bind_capture(py::module_& module) {
  module.def("check_memory", &check_memory, py::arg("device") = py::none(),
             "In check mode: look at every block, and return what was found so far.");
  python::bind_graph_launch(module.ptr());
  module.def(
      "is_capturing",
      [](const py::object& device) {
        return current_stream(python::to_device(device.ptr())).is_captured();
      },
      py::arg("device") = py::none(),
      "True while the calling thread's stream on the device is captured.");
  module.def("copied", &copied, py::arg("tensor"),
             "The elements in new memory of the same device, without gaps.");
  py::class_<Graph, std::shared_ptr<Graph>>(module, "RecordedGraph",
                                            "Recorded work with the memory that it uses.")
      .def_property_readonly(
          "replay",
          [](const std::shared_ptr<Graph>& graph) {
            return py::reinterpret_steal<py::object>(python::make_graph_launch(graph));
          },
          "Runs the recorded work; a new callable each time, to be kept.")
      .def("call", &call_graph, py::arg("own_inputs"), py::arg("inputs"), py::arg("own_outputs"),
           "Copy the inputs in, run the work, and copy its outputs.")
      .def("rebind", &rebind_graph, py::arg("old"), py::arg("new"),
           "Let kernels use another tensor in place of one from the next launch on.")
      .def("update", &update_graph, py::arg("node"), py::arg("name"), py::arg("value"),
           "Give a kernel another number for a parameter from the next launch on.")
      .def_property_readonly("nodes", &nodes_of);
  py::class_<Capture>(module, "Capture", "What records the work of a stream instead of running it.")
      .def(py::init<std::shared_ptr<Stream>>(), py::arg("stream"))
      .def("enter", &Capture::enter, "Begin; the stream is current from here on.")
      .def("exit", &Capture::exit, py::arg("failed"), py::arg("built") = false,
           "End, with a graph unless something failed inside.")
      .def_property_readonly("stream", &Capture::stream)
      .def_property_readonly("graph", &Capture::graph, "None unless the capture has ended well.");
}

namespace python {

Stream& to_stream(PyObject* object, const char* function) {
  try {
    return py::handle(object).cast<Stream&>();
  } catch (const py::cast_error&) {
    throw Error(ErrorKind::kType, std::string(function) + ": expected a Stream, got " +
                                      Py_TYPE(object)->tp_name +
                                      "; wrap a handle of others with Stream.external(handle)");
  }
}

namespace {

PyObject* record_on(const TensorMeta& tensor, PyObject* stream, const char* function) {
  tensor.storage->record_use(to_stream(stream, function));
  Py_RETURN_NONE;
}

PyObject* method_record_use(PyObject* self, FastArguments arguments, Py_ssize_t count,
                            PyObject* names) {
  return guarded([&] {
    PyObject* stream = nullptr;
    bind_arguments("record_use", {"stream"}, 1, 1, arguments, count, names, &stream);
    return record_on(meta_of(self), stream, "record_use");
  });
}

PyObject* method_record_stream(PyObject* self, FastArguments arguments, Py_ssize_t count,
                               PyObject* names) {
  return guarded([&] {
    PyObject* stream = nullptr;
    bind_arguments("record_stream", {"stream"}, 1, 1, arguments, count, names, &stream);
    return record_on(meta_of(self), stream, "record_stream");
  });
}

PyObject* record_use(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[2];
    bind_arguments("record_use", {"tensor", "stream"}, 2, 2, arguments, count, names, bound);
    return record_on(to_tensor(bound[0], "record_use"), bound[1], "record_use");
  });
}

const PyMethodDef kMethods[] = {
    method(
        "record_use", &method_record_use,
        "Note that work submitted to the stream so far uses the memory: it is freed after that."),
    method("record_stream", &method_record_stream, "The same as record_use."),
};
const PyMethodDef kFunctions[] = {
    method("record_use", &record_use,
           "record_use(tensor, stream): work submitted to the stream so far uses the memory, which "
           "is freed after that."),
};

}  // namespace

MethodTable use_methods() { return {kMethods, std::size(kMethods)}; }
MethodTable use_functions() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace python
}  // namespace nbx
