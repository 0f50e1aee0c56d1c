#include <string>

#include "bindings/bindings.h"
#include "core/error.h"
#include "cpu/pool.h"

namespace nbx {
namespace {

int set_threads(const pybind11::object& count) {
  if (PyIndex_Check(count.ptr()) == 0 || PyBool_Check(count.ptr())) {
    throw Error(ErrorKind::kType, std::string("set_num_threads: count must be an integer, got ") +
                                      Py_TYPE(count.ptr())->tp_name);
  }
  const auto index = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(count.ptr()));
  if (!index) throw pybind11::error_already_set();
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value != static_cast<int>(value)) {
    throw Error(ErrorKind::kValue, "set_num_threads: count is " +
                                       std::string(pybind11::str(index)) +
                                       "; give the cores to use, 1 or more");
  }
  return cpu::set_thread_count(static_cast<int>(value));
}

}  // namespace

void bind_cpu(pybind11::module_& module) {
  namespace py = pybind11;
  // A malformed NBX_NUM_THREADS is reported here, at import, and not at the first kernel.
  cpu::set_thread_count(cpu::default_thread_count());
  module.def("set_num_threads", &set_threads, py::arg("count"),
             "Set the number of threads that CPU kernels use; returns the former number.");
  module.def(
      "get_num_threads", [] { return cpu::thread_count(); },
      "Number of threads that CPU kernels use, the calling one included.");
}

}  // namespace nbx
