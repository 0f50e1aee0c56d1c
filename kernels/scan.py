"""Running sums, products and extrema along the last axis, tile after tile of [R, BK]."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot, widen
from nbxtensor.kernels.reduce import identity, product
from nbxtensor.runtime import kernel


@kernel
def cumulate(out, x, m, k, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7,
             o0, o1, o2, o3, o4, o5, o6, o7, along_x, along_o, PRODUCT: tl.constexpr,
             T: tl.constexpr, KIND: tl.constexpr, OUT: tl.constexpr, KEPT: tl.constexpr,
             WIDE: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write running sums or products of m rows of k elements."""
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = row * R + tl.arange(0, R)
    source = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)[:, None]
    target = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)[:, None]
    inside = (row < m)[:, None]
    lane = tl.arange(0, BK)[None, :]
    if PRODUCT:
        neutral = identity("prod", T, 0.0, R, BK)
        carry = product(neutral, R, BK)[:, None]
    else:
        neutral = identity("sum", T, 0.0, R, BK)
        carry = tl.sum(neutral, 1)[:, None]
    for start in range(0, k, BK):
        at = start + lane
        mask = inside & (at < k)
        value = widen(tl.load(x + source + at * along_x, mask=mask, other=0), KIND, T)
        value = tl.where(mask, value, neutral)
        if PRODUCT:
            r = tl.cumprod(value, 1) * carry
            carry = carry * product(value, R, BK)[:, None]
        else:
            r = tl.cumsum(value, 1) + carry
            carry = carry + tl.sum(value, 1)[:, None]
        tl.store(out + target + at * along_o, narrow(r, OUT, out.dtype.element_ty), mask=mask)


@kernel
def later_greatest(a, i, b, j):
    """Return the greater of two with its place; the later of equals, and NaN before all."""
    takes = (j >= 0) & ((b >= a) | (b != b) | (i < 0))
    return tl.where(takes, b, a), tl.where(takes, j, i)


@kernel
def later_least(a, i, b, j):
    """Return the lesser of two with its place; the later of equals, and NaN before all."""
    takes = (j >= 0) & ((b <= a) | (b != b) | (i < 0))
    return tl.where(takes, b, a), tl.where(takes, j, i)


@kernel
def extrema(out, places, x, m, k, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7,
            o0, o1, o2, o3, o4, o5, o6, o7, along_x, along_o, GREATEST: tl.constexpr,
            T: tl.constexpr, KIND: tl.constexpr, OUT: tl.constexpr, KEPT: tl.constexpr,
            WIDE: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write running extrema of m rows of k elements, and their places; both have one layout."""
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = row * R + tl.arange(0, R)
    source = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)[:, None]
    target = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)[:, None]
    inside = (row < m)[:, None]
    lane = tl.arange(0, BK)[None, :]
    best = tl.sum(identity("sum", T, 0.0, R, BK), 1)[:, None]
    place = tl.full([R, 1], -1, tl.int64)
    for start in range(0, k, BK):
        at = start + lane
        mask = inside & (at < k)
        value = widen(tl.load(x + source + at * along_x, mask=mask, other=0), KIND, T)
        here = tl.where(mask, at.to(tl.int64), -1)
        if GREATEST:
            v, i = tl.associative_scan((value, here), 1, later_greatest)
            v, i = later_greatest(best, place, v, i)
        else:
            v, i = tl.associative_scan((value, here), 1, later_least)
            v, i = later_least(best, place, v, i)
        tl.store(out + target + at * along_o, narrow(v, OUT, out.dtype.element_ty), mask=mask)
        tl.store(places + target + at * along_o, i, mask=mask)
        # The last lane holds what the tile leaves behind; those outside repeat it.
        last = lane == BK - 1
        place = tl.max(tl.where(last, i, -1), 1)[:, None]
        best = tl.sum(tl.where(last, v, tl.zeros([R, BK], v.dtype)), 1)[:, None].to(v.dtype)
