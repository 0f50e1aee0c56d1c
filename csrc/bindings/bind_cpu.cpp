#include "bindings/bindings.h"
#include "cpu/pool.h"

namespace nbx {

void bind_cpu(pybind11::module_& module) {
  namespace py = pybind11;
  // A malformed NBX_NUM_THREADS is reported here, at import, and not at the first kernel.
  cpu::set_thread_count(cpu::default_thread_count());
  module.def(
      "set_num_threads", [](int count) { return cpu::set_thread_count(count); }, py::arg("count"),
      "Set the number of threads that CPU kernels use; returns the former number.");
  module.def(
      "get_num_threads", [] { return cpu::thread_count(); },
      "Number of threads that CPU kernels use, the calling one included.");
}

}  // namespace nbx
