#include "bindings/bindings.h"

// Registration only; the order matters where one area's signatures name another's types.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Compiled core of nbxtensor.";
#ifdef NBX_BIND_CORE
  nbx::bind_core(module);
#endif
#ifdef NBX_BIND_DEVICE
  nbx::bind_device(module);
#endif
#ifdef NBX_BIND_MEMORY
  nbx::bind_memory(module);
#endif
#ifdef NBX_BIND_HOT
  nbx::bind_hot(module);
#endif
#ifdef NBX_BIND_OP
  nbx::bind_op(module);
#endif
#ifdef NBX_BIND_CPU
  nbx::bind_cpu(module);
#endif
}
