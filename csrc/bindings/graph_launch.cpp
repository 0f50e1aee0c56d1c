#include "bindings/graph_launch.h"

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/python_lock.h"

namespace nbx::python {
namespace {

struct LaunchObject {
  PyObject_HEAD vectorcallfunc call;
  std::shared_ptr<Graph> graph;
};

PyTypeObject* launch_type = nullptr;

PyObject* launch_call(PyObject* self, PyObject* const* arguments, std::size_t flagged_count,
                      PyObject* names) {
  return guarded([&] {
    Graph& graph = *reinterpret_cast<LaunchObject*>(self)->graph;
    const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    if (count == 0 && names == nullptr) [[likely]] {
      launch_graph(graph, nullptr);
      return Py_NewRef(Py_None);
    }
    PyObject* stream = nullptr;
    bind_arguments("replay", {"stream"}, 0, 1, arguments, count, names, &stream);
    const bool given = stream != nullptr && stream != Py_None;
    launch_graph(graph, given ? &to_stream(stream, "replay") : nullptr);
    return Py_NewRef(Py_None);
  });
}

void launch_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<LaunchObject*>(self)->graph.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LaunchObject, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot launch_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&launch_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_members, launch_members},
    {Py_tp_doc, const_cast<char*>("Runs a graph in the order of a stream, the current one if none "
                                  "is given.")},
    {0, nullptr},
};

PyType_Spec launch_specification = {
    "nbxtensor._core.GraphLaunch",
    static_cast<int>(sizeof(LaunchObject)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    launch_slots,
};

}  // namespace

void launch_graph(Graph& graph, Stream* stream) {
  Stream& used = stream != nullptr ? *stream : current_stream(graph.device());
  const Unlocked unlocked;
  const std::lock_guard<std::mutex> guard(graph.mutex());
  graph.order_after_last(used);
  graph.launch(used);
}

PyObject* make_graph_launch(std::shared_ptr<Graph> graph) {
  PyObject* object = launch_type->tp_alloc(launch_type, 0);
  if (object == nullptr) return nullptr;
  auto* self = reinterpret_cast<LaunchObject*>(object);
  self->call = &launch_call;
  new (&self->graph) std::shared_ptr<Graph>(std::move(graph));
  return object;
}

void bind_graph_launch(PyObject* module) {
  PyObject* type = PyType_FromSpec(&launch_specification);
  if (type == nullptr) throw pybind11::error_already_set();
  launch_type = reinterpret_cast<PyTypeObject*>(type);
  if (PyModule_AddObjectRef(module, "GraphLaunch", type) < 0) throw pybind11::error_already_set();
}

}  // namespace nbx::python
