"""Reductions: one skeleton of rows, columns and pieces of long rows, one of places of extrema.

Outputs are numbered in row-major order; each is reduced over `k` elements in tiles of [R, BK]
lanes that meet in a fixed order, so that results never depend on timing. A long row is cut into
pieces whose states the same skeleton merges afterwards. MAP makes a value of an element, COMBINE
adds it to the state, FINISH makes the result of the state. Floats add up in the carrier's type.
"""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot, widen
from nbxtensor.kernels.functions import exponential, logarithm, power, square_root
from nbxtensor.runtime import kernel


@kernel
def identity(COMBINE: tl.constexpr, T: tl.constexpr, p, R: tl.constexpr, BK: tl.constexpr):
    """Return the state of no element."""
    if COMBINE == "sum":
        if T == "int64":
            r = tl.zeros([R, BK], tl.int64)
        elif T == "uint64":
            r = tl.zeros([R, BK], tl.uint64)
        elif T == "float32":
            r = tl.zeros([R, BK], tl.float32)
        else:
            r = tl.zeros([R, BK], tl.float64)
    elif COMBINE == "prod":
        if T == "int64":
            r = tl.full([R, BK], 1, tl.int64)
        elif T == "uint64":
            r = tl.full([R, BK], 1, tl.uint64)
        elif T == "float32":
            r = tl.full([R, BK], 1.0, tl.float32)
        else:
            r = tl.full([R, BK], 1.0, tl.float64)
    elif COMBINE == "max":
        if T == "int64":
            r = tl.full([R, BK], -9223372036854775808, tl.int64)
        elif T == "uint64":
            r = tl.zeros([R, BK], tl.uint64)
        elif T == "float32":
            r = tl.full([R, BK], float("-inf"), tl.float32)
        else:
            r = tl.full([R, BK], float("-inf"), tl.float64)
    elif COMBINE == "min":
        if T == "int64":
            r = tl.full([R, BK], 9223372036854775807, tl.int64)
        elif T == "uint64":
            r = tl.full([R, BK], 18446744073709551615, tl.uint64)
        elif T == "float32":
            r = tl.full([R, BK], float("inf"), tl.float32)
        else:
            r = tl.full([R, BK], float("inf"), tl.float64)
    else:
        if T == "float32":
            r = tl.zeros([R, BK], tl.float32)
        else:
            r = tl.zeros([R, BK], tl.float64)
        r = tl.where(p == float("-inf"), float("inf"), r)
    return r


@kernel
def mapped(MAP: tl.constexpr, x, shift, p):
    """Return what an element adds."""
    if MAP == "nonzero":
        r = (x != 0).to(tl.int64)
    elif MAP == "zero":
        r = (x == 0).to(tl.int64)
    elif MAP == "distance":
        r = (x - shift) * (x - shift)
    elif MAP == "exp":
        r = exponential(x - shift)
    elif MAP == "norm":
        size = tl.abs(x)
        if p == 2.0:
            r = size * size
        elif p == 1.0 or tl.abs(p) == float("inf"):
            r = size
        elif p == 0.0:
            r = (size != 0.0).to(x.dtype)
        else:
            exponent = tl.zeros(size.shape, tl.float64) + p
            r = power(size.to(tl.float64), exponent).to(x.dtype)
    else:
        r = x
    return r


@kernel
def combined(COMBINE: tl.constexpr, state, value, mask, p):
    """Return the state with one more value; NaN wins among extrema."""
    if COMBINE == "sum":
        r = tl.where(mask, state + value, state)
    elif COMBINE == "prod":
        r = tl.where(mask, state * value, state)
    elif COMBINE == "max":
        r = tl.where(mask & ((value > state) | (value != value)), value, state)
    elif COMBINE == "min":
        r = tl.where(mask & ((value < state) | (value != value)), value, state)
    else:
        greater = (value > state) | (value != value)
        less = (value < state) | (value != value)
        r = tl.where(p == float("inf"), tl.where(greater, value, state), state + value)
        r = tl.where(p == float("-inf"), tl.where(less, value, state), r)
        r = tl.where(mask, r, state)
    return r


@kernel
def greatest(x):
    """Return the greatest of each row; NaN wins."""
    if x.dtype.is_floating():
        odd = tl.max((x != x).to(tl.int32), 1)
        best = tl.max(tl.where(x != x, float("-inf"), x), 1)
        r = tl.where(odd > 0, float("nan"), best)
    else:
        r = tl.max(x, 1)
    return r


@kernel
def least(x):
    """Return the least of each row; NaN wins."""
    if x.dtype.is_floating():
        odd = tl.max((x != x).to(tl.int32), 1)
        best = tl.min(tl.where(x != x, float("inf"), x), 1)
        r = tl.where(odd > 0, float("nan"), best)
    else:
        r = tl.min(x, 1)
    return r


@kernel
def product(x, R: tl.constexpr, BK: tl.constexpr):
    """Return the product of each row, in pairs of pairs."""
    left = x
    if BK >= 1024:
        left = halved(left, R, 1024)
    if BK >= 512:
        left = halved(left, R, 512)
    if BK >= 256:
        left = halved(left, R, 256)
    if BK >= 128:
        left = halved(left, R, 128)
    if BK >= 64:
        left = halved(left, R, 64)
    if BK >= 32:
        left = halved(left, R, 32)
    if BK >= 16:
        left = halved(left, R, 16)
    if BK >= 8:
        left = halved(left, R, 8)
    if BK >= 4:
        left = halved(left, R, 4)
    left = halved(left, R, 2)
    return tl.reshape(left, [R])


@kernel
def halved(x, R: tl.constexpr, BK: tl.constexpr):
    """Return the products of neighbours."""
    a, b = tl.split(tl.reshape(x, [R, BK // 2, 2]))
    return a * b


@kernel
def collapsed(COMBINE: tl.constexpr, state, p, R: tl.constexpr, BK: tl.constexpr):
    """Return each row's state from those of its lanes."""
    if COMBINE == "sum":
        r = tl.sum(state, 1)
    elif COMBINE == "prod":
        r = product(state, R, BK)
    elif COMBINE == "max":
        r = greatest(state)
    elif COMBINE == "min":
        r = least(state)
    else:
        r = tl.where(p == float("inf"), greatest(state), tl.sum(state, 1))
        r = tl.where(p == float("-inf"), least(state), r)
    return r


@kernel
def finished(FINISH: tl.constexpr, state, k, shift, p):
    """Return the result of a state over k elements."""
    if FINISH == "mean":
        r = (state.to(tl.float64) / k).to(state.dtype)
    elif FINISH == "var" or FINISH == "std":
        freedom = k - p
        freedom = tl.where(freedom > 0.0, freedom, 0.0).to(tl.float64)
        r = (state.to(tl.float64) / freedom).to(state.dtype)
        if FINISH == "std":
            r = square_root(r)
    elif FINISH == "log":
        r = logarithm(state) + shift
    elif FINISH == "norm":
        if p == 2.0:
            r = square_root(state)
        elif p == 1.0 or p == 0.0 or tl.abs(p) == float("inf"):
            r = state
        else:
            exponent = tl.zeros(state.shape, tl.float64) + 1.0 / p
            r = power(state.to(tl.float64), exponent).to(state.dtype)
    elif FINISH == "not":
        r = (state == 0).to(tl.int64)
    elif FINISH == "shift":
        r = tl.where(tl.abs(state) == float("inf"), 0.0, state)
    else:
        r = state
    return r


@kernel
def rows(out, x, shift, m, k, piece, count, p, d0, d1, d2, d3, d4, d5, d6,
         x0, x1, x2, x3, x4, x5, x6, x7, r0, r1, r2, r3, r4, r5, r6,
         s0, s1, s2, s3, s4, s5, s6, s7, MAP: tl.constexpr, COMBINE: tl.constexpr,
         FINISH: tl.constexpr, T: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
         OUT: tl.constexpr, KEPT: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr,
         R: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Reduce m outputs of k elements each, in pieces of `piece` elements: out[piece, output].

    T is the carrier of elements, S that of states; results are those of `count` elements.
    """
    row = tl.program_id(0)
    part = tl.program_id(1)
    if WIDE:
        row = row.to(tl.int64)
        part = part.to(tl.int64)
    row = row * R + tl.arange(0, R)
    base = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    moved = tl.zeros([R], tl.int32)
    if shift is not None:
        moved = tl.load(shift + row, mask=row < m, other=0)
    first = part * piece
    end = first + piece
    end = tl.where(end < k, end, k)
    state = identity(COMBINE, S, p, R, BK)
    for start in range(first, end, BK):
        column = start + tl.arange(0, BK)
        mask = (row < m)[:, None] & (column < end)[None, :]
        along = spot(column, RANK, r0, r1, r2, r3, r4, r5, r6, s0, s1, s2, s3, s4, s5, s6, s7)
        at = base[:, None] + along[None, :]
        value = widen(tl.load(x + at, mask=mask, other=0), KIND, T)
        state = combined(COMBINE, state, mapped(MAP, value, moved[:, None], p), mask, p)
    total = finished(FINISH, collapsed(COMBINE, state, p, R, BK), count, moved, p)
    tl.store(out + part * m + row, narrow(total, OUT, out.dtype.element_ty), mask=row < m)


@kernel
def better(GREATEST: tl.constexpr, value, best):
    """Return whether a value displaces the best so far."""
    if GREATEST:
        r = value > best
    else:
        r = value < best
    return r | ((value != value) & (best == best))


@kernel
def places(out, values, x, known, m, k, piece, d0, d1, d2, d3, d4, d5, d6,
           x0, x1, x2, x3, x4, x5, x6, x7, r0, r1, r2, r3, r4, r5, r6,
           s0, s1, s2, s3, s4, s5, s6, s7, GREATEST: tl.constexpr, T: tl.constexpr,
           KIND: tl.constexpr, KEPT: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr,
           R: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Find the place of each output's extremum: the first of equals, NaN before all.

    With `values` the extrema are written too; with `known` elements are such values, whose places
    it holds.
    """
    row = tl.program_id(0)
    part = tl.program_id(1)
    if WIDE:
        row = row.to(tl.int64)
        part = part.to(tl.int64)
    row = row * R + tl.arange(0, R)
    base = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    first = part * piece
    end = first + piece
    end = tl.where(end < k, end, k)
    if GREATEST:
        best = identity("max", T, 0.0, R, BK)
    else:
        best = identity("min", T, 0.0, R, BK)
    place = tl.full([R, BK], 9223372036854775807, tl.int64)
    for start in range(first, end, BK):
        column = start + tl.arange(0, BK)
        mask = (row < m)[:, None] & (column < end)[None, :]
        along = spot(column, RANK, r0, r1, r2, r3, r4, r5, r6, s0, s1, s2, s3, s4, s5, s6, s7)
        at = base[:, None] + along[None, :]
        value = widen(tl.load(x + at, mask=mask, other=0), KIND, T)
        if known is not None:
            found = tl.load(known + at, mask=mask, other=0)
        else:
            found = tl.zeros([R, BK], tl.int64) + column[None, :]
        takes = mask & (better(GREATEST, value, best) | (place == 9223372036854775807))
        best = tl.where(takes, value, best)
        place = tl.where(takes, found, place)
    if GREATEST:
        top = greatest(best)
    else:
        top = least(best)
    wins = (best == top[:, None]) | ((best != best) & (top != top)[:, None])
    winner = tl.min(tl.where(wins, place, 9223372036854775807), 1)
    tl.store(out + part * m + row, winner, mask=row < m)
    if values is not None:
        tl.store(values + part * m + row, narrow(top, "plain", values.dtype.element_ty),
                 mask=row < m)  # fmt: skip
