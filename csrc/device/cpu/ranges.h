// Ranges of host addresses under which memory comes and goes.
#pragma once

#include "device/primitives.h"

namespace nbx::cpu {

void set_range_entries(Primitives* table);

}  // namespace nbx::cpu
