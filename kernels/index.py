"""Gathering and scattering by index tensors."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import spot
from nbxtensor.runtime import kernel


@kernel
def offsets(out, places, fault, n, extent, stride, site, d0, d1, d2, d3, d4, d5, d6,
            p0, p1, p2, p3, p4, p5, p6, p7, FIRST: tl.constexpr, WRAPS: tl.constexpr,
            RANK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Add the offsets of n indices along one axis to those of the axes before.

    An index outside 0..extent takes element 0, and leaves itself with the number of its place in
    the program, `site`, in the fault word of the device.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, p0, p1, p2, p3, p4, p5, p6, p7)
    value = tl.load(places + at, mask=mask, other=0).to(tl.int64)
    place = value
    if WRAPS:
        place = tl.where(value < 0, value + extent, value)
    outside = (place < 0) | (place >= extent)
    offset = tl.where(outside, 0, place) * stride
    if not FIRST:
        offset += tl.load(out + index, mask=mask, other=0)
    tl.store(out + index, offset, mask=mask)
    if fault is not None:
        word = (site.to(tl.int64) << 48) | (value & 0xFFFFFFFFFFFF)
        tl.store(fault + index * 0, word, mask=mask & outside)


@kernel
def latest(out, known, n, BLOCK: tl.constexpr):
    """Write for every offset whether no later one equals it."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(known + index, mask=index < n, other=-1)
    repeated = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, BLOCK):
        other = start + tl.arange(0, BLOCK)
        value = tl.load(known + other, mask=other < n, other=-2)
        same = (own[:, None] == value[None, :]) & (other[None, :] > index[:, None])
        repeated += tl.max(same.to(tl.int32), 1)
    tl.store(out + index, (repeated == 0).to(tl.uint8), mask=index < n)


@kernel
def move(out, x, known, keep, n, row, d0, d1, d2, d3, d4, d5, d6,
         o0, o1, o2, o3, o4, o5, o6, o7, x0, x1, x2, x3, x4, x5, x6, x7,
         PUT: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """Copy n elements in rows of `row`: out[...] = x[known[i] + ...], or with PUT the reverse."""
    index = tl.program_id(0)
    if WIDE:
        index = index.to(tl.int64)
    index = index * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    offset = tl.load(known + index // row, mask=mask, other=0)
    to = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    source = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    if PUT:
        if keep is not None:
            mask = mask & (tl.load(keep + index // row, mask=mask, other=0) != 0)
        tl.store(out + offset + to, tl.load(x + source, mask=mask, other=0), mask=mask)
    else:
        tl.store(out + to, tl.load(x + offset + source, mask=mask, other=0), mask=mask)
