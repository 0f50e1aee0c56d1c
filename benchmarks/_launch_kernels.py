"""A kernel of 4 tensors and an integer that does nothing, for ours and for Triton's launch."""

from __future__ import annotations

import triton
from nbxtensor import kernel


@kernel
def five(a, b, c, d, n):
    pass


@triton.jit
def foreign_five(a, b, c, d, n):
    pass
