// What `graph.replay` is: a callable of the C API, as a replay costs little more than the call.
#pragma once

#include "bindings/hot.h"

#include <memory>

#include "launch/graph.h"

namespace nbx::python {

/// Runs the graph on the stream, the thread's current one if there is none. Without the Python
/// lock, as work of the host may need it.
void launch_graph(Graph& graph, Stream* stream);

/// Called as `(stream=None)`; null with an exception set on failure.
[[nodiscard]] PyObject* make_graph_launch(std::shared_ptr<Graph> graph);
void bind_graph_launch(PyObject* module);

}  // namespace nbx::python
