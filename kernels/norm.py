"""Softmax and normalisations along the last axis, in tiles of [R, BK]."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot, widen
from nbxtensor.kernels.functions import divide, exponential, logarithm
from nbxtensor.runtime import kernel


@kernel
def softmax(out, x, m, k, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7,
            o0, o1, o2, o3, o4, o5, o6, o7, along_x, along_o, LOG: tl.constexpr,
            T: tl.constexpr, KIND: tl.constexpr, OUT: tl.constexpr, KEPT: tl.constexpr,
            WIDE: tl.constexpr, ONE: tl.constexpr, R: tl.constexpr,
            BK: tl.constexpr):  # fmt: skip
    """Write softmax, or its logarithm, of m rows of k elements."""
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = row * R + tl.arange(0, R)
    source = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)[:, None]
    target = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)[:, None]
    inside = (row < m)[:, None]
    lane = tl.arange(0, BK)[None, :]
    if ONE:
        mask = inside & (lane < k)
        value = widen(tl.load(x + source + lane * along_x, mask=mask, other=0), KIND, T)
        top = tl.max(tl.where(mask, value, float("-inf")), 1)[:, None]
        power = tl.where(mask, exponential(value - top), 0.0)
        total = tl.sum(power, 1)[:, None]
        if LOG:
            r = value - top - logarithm(total)
        else:
            r = divide(power, tl.zeros([R, BK], power.dtype) + total)
        tl.store(out + target + lane * along_o, narrow(r, OUT, out.dtype.element_ty), mask=mask)
    else:
        best = tl.full([R, BK], float("-inf"), tl.float32)
        if T == "float64":
            best = best.to(tl.float64)
        for start in range(0, k, BK):
            at = start + lane
            mask = inside & (at < k)
            value = widen(tl.load(x + source + at * along_x, mask=mask, other=0), KIND, T)
            best = tl.where(mask & (value > best), value, best)
        top = tl.max(best, 1)[:, None]
        total = tl.zeros([R, BK], best.dtype)
        for start in range(0, k, BK):
            at = start + lane
            mask = inside & (at < k)
            value = widen(tl.load(x + source + at * along_x, mask=mask, other=0), KIND, T)
            total += tl.where(mask, exponential(value - top), 0.0)
        whole = tl.sum(total, 1)[:, None]
        for start in range(0, k, BK):
            at = start + lane
            mask = inside & (at < k)
            value = widen(tl.load(x + source + at * along_x, mask=mask, other=0), KIND, T)
            if LOG:
                r = value - top - logarithm(whole)
            else:
                r = divide(exponential(value - top), tl.zeros([R, BK], value.dtype) + whole)
            tl.store(out + target + at * along_o, narrow(r, OUT, out.dtype.element_ty), mask=mask)


@kernel
def element(x, residual, total, source, other, target, at, along_x, along_y, along_o, mask,
            KIND: tl.constexpr, T: tl.constexpr, STORES: tl.constexpr):  # fmt: skip
    """Return elements of x, plus the residual where there is one, as the sum is stored."""
    value = widen(tl.load(x + source + at * along_x, mask=mask, other=0), KIND, T)
    if residual is not None:
        more = widen(tl.load(residual + other + at * along_y, mask=mask, other=0), KIND, T)
        stored = narrow(value + more, KIND, total.dtype.element_ty)
        if STORES:
            tl.store(total + target + at * along_o, stored, mask=mask)
        value = widen(stored, KIND, T)
    return value


@kernel
def normalise(out, total, x, residual, weight, bias, eps, m, k, d0, d1, d2, d3, d4, d5, d6,
              x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5, y6, y7,
              o0, o1, o2, o3, o4, o5, o6, o7, along_x, along_y, along_o, along_w, along_b,
              CENTER: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr,
              OUT: tl.constexpr, W: tl.constexpr, B: tl.constexpr, KEPT: tl.constexpr,
              WIDE: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write (x - mean) / sqrt(variance + eps) * weight + bias of m rows of k elements.

    Without CENTER the mean counts as 0: the root mean square. With a residual the sum is
    normalised, and written to `total`, which has the layout of `out`.
    """
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = row * R + tl.arange(0, R)
    source = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)[:, None]
    target = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)[:, None]
    other = source
    if residual is not None:
        other = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, y0, y1, y2, y3, y4, y5, y6, y7)[:, None]
    inside = (row < m)[:, None]
    lane = tl.arange(0, BK)[None, :]
    sums = tl.zeros([R, BK], tl.float32)
    if T == "float64":
        sums = sums.to(tl.float64)
    squares = sums
    mean = tl.sum(sums, 1)[:, None]
    if CENTER:
        for start in range(0, k, BK):
            at = start + lane
            mask = inside & (at < k)
            value = element(x, residual, total, source, other, target, at, along_x, along_y,
                            along_o, mask, KIND, T, False)  # fmt: skip
            sums += tl.where(mask, value, 0.0)
        mean = (tl.sum(sums, 1).to(tl.float64) / k).to(sums.dtype)[:, None]
    for start in range(0, k, BK):
        at = start + lane
        mask = inside & (at < k)
        value = element(x, residual, total, source, other, target, at, along_x, along_y,
                        along_o, mask, KIND, T, True)  # fmt: skip
        squares += tl.where(mask, (value - mean) * (value - mean), 0.0)
    variance = tl.sum(squares, 1).to(tl.float64) / k
    factor = (1.0 / tl.sqrt(variance + eps)).to(sums.dtype)[:, None]
    for start in range(0, k, BK):
        at = start + lane
        mask = inside & (at < k)
        value = element(x, residual, total, source, other, target, at, along_x, along_y,
                        along_o, mask, KIND, T, False)  # fmt: skip
        r = (value - mean) * factor
        if weight is not None:
            r = r * widen(tl.load(weight + at * along_w, mask=at < k, other=0), W, T)
        if bias is not None:
            r = r + widen(tl.load(bias + at * along_b, mask=at < k, other=0), B, T)
        tl.store(out + target + at * along_o, narrow(r, OUT, out.dtype.element_ty), mask=mask)
