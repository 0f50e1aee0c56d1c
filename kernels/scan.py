"""Running sums, products and extrema along the last axis, tile after tile of [R, BK]."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot, widen
from nbxtensor.kernels.reduce import identity, product
from nbxtensor.kernels.sort import key_of
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
def extrema(out, places, x, m, k, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7,
            o0, o1, o2, o3, o4, o5, o6, o7, along_x, along_o, GREATEST: tl.constexpr,
            T: tl.constexpr, KIND: tl.constexpr, OUT: tl.constexpr, KEPT: tl.constexpr,
            WIDE: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write running extrema of one row of k elements, and their places; both have one layout.

    The later of equals is the place; from a NaN on, the last NaN. Every element of a tile is
    compared with all before it.
    """
    tl.static_assert(R == 1)
    row = tl.program_id(0).to(tl.int64)
    source = x + spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    target = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    lane = tl.arange(0, BK).to(tl.int64)
    least = tl.full([BK], -9223372036854775807 - 1, tl.int64)
    best = tl.max(least, 0)
    place = tl.max(tl.zeros([BK], tl.int64), 0)
    earlier = lane[:, None] <= lane[None, :]
    for start in range(0, k, BK):
        at = start + lane
        value = widen(tl.load(source + at * along_x, mask=at < k, other=0), KIND, T)
        key = key_of(value, T, False)
        if not GREATEST:
            key = tl.where(value != value, key, ~key)
        key = tl.where(at < k, key, least)
        top = tl.max(tl.where(earlier, key[:, None], least[:, None]), 0)
        top = tl.where(top > best, top, best)
        here = earlier & (key[:, None] == top[None, :]) & (at < k)[:, None]
        found = tl.max(tl.where(here, at[:, None], -1), 0)
        found = tl.where(found < 0, place, found)
        chosen = tl.load(source + found * along_x)
        r = narrow(widen(chosen, KIND, T), OUT, out.dtype.element_ty)
        tl.store(out + target + at * along_o, r, mask=at < k)
        tl.store(places + target + at * along_o, found, mask=at < k)
        best = tl.max(top, 0)
        place = tl.max(tl.where(lane == BK - 1, found, -1), 0)
