"""Attention with an online softmax over blocks of keys, and appending to a cache."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import contracted, narrow, spot, widen
from nbxtensor.kernels.functions import exponential
from nbxtensor.runtime import kernel


@kernel
def visible_scores(score, mask, query, key, queries, length, window, T: tl.constexpr,
                   MASK: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """Return the scores with the mask added, minus infinity where a query does not see a key."""
    position = length - queries + query
    visible = (query < queries)[:, None] & (key < length)[None, :]
    if MASK != "":
        term = tl.load(mask, mask=visible, other=0)
        if MASK == "bool":
            visible = visible & (term != 0)
        else:
            score += widen(term, MASK, T)
    if CAUSAL:
        visible = visible & (key[None, :] <= position[:, None])
    visible = visible & ((window < 0) | (key[None, :] > position[:, None] - window))
    return tl.where(visible, score, float("-inf"))


@kernel
def forward(out, q, k, v, mask, heads, group, queries, length, width, value_width, scale, window,
            q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3, m0, m1, m2, m3, o0, o1, o2, o3,
            T: tl.constexpr, KIND: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr,
            SAME: tl.constexpr, BQ: tl.constexpr, BKEY: tl.constexpr, D: tl.constexpr,
            DV: tl.constexpr):  # fmt: skip
    """Write the attention of one block of queries of one head; zeros without a visible key.

    Only the first `length` keys exist. Query i stands at position length - queries + i; where
    CAUSAL it sees keys up to it, and of these the last `window`, which is negative for all.
    SAME: the elements have a 16-bit type, which the dot takes as it is.
    """
    head = (tl.program_id(1) % heads).to(tl.int64)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    query = (tl.program_id(0) * BQ + tl.arange(0, BQ)).to(tl.int64)
    column = tl.arange(0, D)
    value_column = tl.arange(0, DV)
    there = query < queries
    at = q + batch * q0 + head * q1 + query[:, None] * q2 + column[None, :] * q3
    x = tl.load(at, mask=there[:, None] & (column < width)[None, :], other=0)
    if not SAME:
        x = widen(x, KIND, T)
    key_base = k + batch * k0 + (head // group) * k1
    value_base = v + batch * v0 + (head // group) * v1
    top = tl.full([BQ], float("-inf"), tl.float32)
    total = tl.zeros([BQ], tl.float32)
    sums = tl.zeros([BQ, DV], tl.float32)
    origin = tl.zeros([BQ, BKEY], tl.float32)
    if T == "float64":
        top = top.to(tl.float64)
        total = total.to(tl.float64)
        sums = sums.to(tl.float64)
        origin = origin.to(tl.float64)
    end = length
    if CAUSAL:
        end = tl.minimum(end, length - queries + (tl.program_id(0) + 1) * BQ)
    for start in range(0, end, BKEY):
        key = start + tl.arange(0, BKEY).to(tl.int64)
        exists = key < length
        y = tl.load(key_base + column[:, None] * k3 + key[None, :] * k2,
                    mask=(column < width)[:, None] & exists[None, :], other=0)  # fmt: skip
        if SAME:
            score = tl.dot(x, y)
        else:
            score = contracted(x, widen(y, KIND, T), origin, T)
        given = mask
        if MASK != "":
            given = mask + batch * m0 + head * m1 + query[:, None] * m2 + key[None, :] * m3
        score = visible_scores(score * scale.to(score.dtype), given, query, key, queries, length,
                               window, T, MASK, CAUSAL)  # fmt: skip
        best = tl.maximum(tl.max(score, 1), top)
        shift = tl.where(best == float("-inf"), 0.0, best)
        kept = tl.where(top == float("-inf"), 0.0, exponential(top - shift))
        weight = exponential(score - shift[:, None])
        total = total * kept + tl.sum(weight, 1)
        z = tl.load(value_base + key[:, None] * v2 + value_column[None, :] * v3,
                    mask=exists[:, None] & (value_column < value_width)[None, :],
                    other=0)  # fmt: skip
        if SAME:
            sums = sums * kept[:, None] + tl.dot(weight.to(z.dtype), z)
        else:
            sums = contracted(weight, widen(z, KIND, T), sums * kept[:, None], T)
        top = best
    r = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    at = out + batch * o0 + head * o1 + query[:, None] * o2 + value_column[None, :] * o3
    tl.store(at, narrow(r, KIND, out.dtype.element_ty),
             mask=there[:, None] & (value_column < value_width)[None, :])  # fmt: skip


@kernel
def append(out, x, n, position, stride, d0, d1, d2, d3, d4, d5, d6,
           o0, o1, o2, o3, o4, o5, o6, o7, x0, x1, x2, x3, x4, x5, x6, x7, T: tl.constexpr,
           KIND: tl.constexpr, OUT: tl.constexpr, RANK: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    """Write n elements into a cache, `position` steps of `stride` from its start."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    source = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    target = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    value = widen(tl.load(x + source, mask=mask, other=0), KIND, T)
    start = position.to(tl.int64) * stride
    tl.store(out + start + target, narrow(value, OUT, out.dtype.element_ty), mask=mask)
