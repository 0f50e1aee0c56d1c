// Captures and graphs, and the uses of memory by other streams.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/hot.h"
#include "bindings/python_lock.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"
#include "storage/capture.h"

namespace nbx {
namespace {

namespace py = pybind11;

/// `with capture(stream) as scope:`: the stream is current inside, its work is recorded.
class Capture {
 public:
  explicit Capture(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~Capture() { leave(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void enter() {
    if (scope_ != nullptr || graph_ != nullptr) {
      throw Error(ErrorKind::kValue, "capture: entered already; make another one");
    }
    scope_ = std::make_unique<CaptureScope>(memory_of(stream_->device()), *stream_);
    former_ = &set_current_stream(*stream_);
  }
  void exit(const py::args& exception) {
    if (scope_ == nullptr) {
      throw Error(ErrorKind::kValue, "capture: left without having been entered");
    }
    const bool failed = !exception.empty() && !exception[0].is_none();
    const std::unique_ptr<CaptureScope> scope = std::move(scope_);
    leave();
    if (!failed) graph_ = scope->finish();
  }
  [[nodiscard]] std::shared_ptr<CapturedGraph> graph() const {
    if (graph_ == nullptr) {
      throw Error(ErrorKind::kValue,
                  "capture: there is no graph; leave the `with` block without an exception first");
    }
    return graph_;
  }

 private:
  void leave() noexcept {
    if (former_ != nullptr) set_current_stream(*std::exchange(former_, nullptr));
  }

  std::shared_ptr<Stream> stream_;
  std::unique_ptr<CaptureScope> scope_;
  std::shared_ptr<CapturedGraph> graph_;
  Stream* former_ = nullptr;
};

/// Streams of Python callers; what is none is named.
Stream& to_stream(PyObject* object, const char* function) {
  try {
    return py::handle(object).cast<Stream&>();
  } catch (const py::cast_error&) {
    throw Error(ErrorKind::kType, std::string(function) + ": expected a Stream, got " +
                                      Py_TYPE(object)->tp_name +
                                      "; wrap a handle of others with Stream.external(handle)");
  }
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
  py::class_<CapturedGraph, std::shared_ptr<CapturedGraph>>(
      module, "CapturedGraph", "Recorded work with the memory that it uses.")
      .def(
          "launch",
          [](CapturedGraph& graph, const std::shared_ptr<Stream>& stream) {
            graph.launch(stream != nullptr ? *stream : current_stream(graph.device()));
          },
          py::arg("stream") = py::none(),
          "Run the recorded work in the order of the stream, the current one if none is given.");
  py::class_<Capture>(module, "Capture",
                      "A context that records the work of a stream instead of running it.")
      .def(py::init<std::shared_ptr<Stream>>(), py::arg("stream"))
      .def(
          "__enter__",
          [](Capture& capture) -> Capture& {
            capture.enter();
            return capture;
          },
          py::return_value_policy::reference)
      .def("__exit__", &Capture::exit)
      .def_property_readonly("graph", &Capture::graph);
}

namespace python {
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
