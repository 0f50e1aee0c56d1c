#include "bindings/bindings.h"

// Registration only; the order matters where one area's signatures name another's types.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Compiled core of nbxtensor.";
  nbx::bind_core(module);
  nbx::bind_device(module);
  nbx::bind_capture(module);
  nbx::bind_memory(module);
  nbx::bind_recorder(module);
  nbx::bind_replay(module);
  nbx::bind_reclaim(module);
  nbx::bind_hot(module);
  nbx::bind_arena(module);
  nbx::bind_sleep(module);
  nbx::bind_kernel(module);
  nbx::bind_op(module);
  nbx::bind_cpu(module);
}
