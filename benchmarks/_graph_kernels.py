"""Kernels of graphs.py, in a file of their own: only devices that run them import Triton."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.runtime import kernel


@kernel
def affine(y, x, factor, offset, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = x * factor + offset."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(y + place, tl.load(x + place, mask=inside) * factor + offset, mask=inside)
