// For functions whose cost is that of a call: hot paths of a few nanoseconds, kernels' inner loops.
#pragma once

#define NBX_INLINE inline __attribute__((always_inline))
