// The controls of the simulated devices, `_core.sim`.
#pragma once

#include <pybind11/pybind11.h>

namespace nbx {

void bind_sim(pybind11::module_& module);

}  // namespace nbx
