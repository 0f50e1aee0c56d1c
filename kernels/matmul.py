"""Matrix products in tiles: of floats up to 32 bits by dot, of the rest by sums of products."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import contracted, narrow, spot, widen
from nbxtensor.runtime import kernel


@kernel
def dense(out, a, b, bias, m, n, k, d0, d1, d2, d3, d4, d5, d6, a0, a1, a2, a3, a4, a5, a6, a7,
          b0, b1, b2, b3, b4, b5, b6, b7, c0, c1, c2, c3, c4, c5, c6, c7,
          o0, o1, o2, o3, o4, o5, o6, o7, a_m, a_k, b_k, b_n, c_m, c_n, o_m, o_n,
          T: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr,
          RANK: tl.constexpr, SAME: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
          BK: tl.constexpr):  # fmt: skip
    """Write out = a @ b + bias for batches of matrices.

    T is the type in which products add up: float32 by dot, float64, int64 and uint64 by sums. SAME
    says that both operands have one 16-bit type, which the dot takes as it is.
    """
    columns = tl.cdiv(n, BN)
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64) + tl.program_id(2).to(tl.int64) * tl.num_programs(1)
    row = (tile // columns) * BM + tl.arange(0, BM)
    column = (tile % columns) * BN + tl.arange(0, BN)
    row = row.to(tl.int64)
    column = column.to(tl.int64)
    a += spot(batch, RANK, d0, d1, d2, d3, d4, d5, d6, a0, a1, a2, a3, a4, a5, a6, a7)
    b += spot(batch, RANK, d0, d1, d2, d3, d4, d5, d6, b0, b1, b2, b3, b4, b5, b6, b7)
    out += spot(batch, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    lane = tl.arange(0, BK).to(tl.int64)
    left = a + row[:, None] * a_m + lane[None, :] * a_k
    right = b + lane[:, None] * b_k + column[None, :] * b_n
    if T == "float32":
        total = tl.zeros([BM, BN], tl.float32)
    elif T == "float64":
        total = tl.zeros([BM, BN], tl.float64)
    elif T == "int64":
        total = tl.zeros([BM, BN], tl.int64)
    else:
        total = tl.zeros([BM, BN], tl.uint64)
    for start in range(0, k, BK):
        rest = k - start
        x = tl.load(left, mask=(row < m)[:, None] & (lane < rest)[None, :], other=0)
        y = tl.load(right, mask=(lane < rest)[:, None] & (column < n)[None, :], other=0)
        if SAME:
            total = tl.dot(x, y, total)
        else:
            total = contracted(widen(x, A, T), widen(y, B, T), total, T)
        left += BK * a_k
        right += BK * b_k
    mask = (row < m)[:, None] & (column < n)[None, :]
    if bias is not None:
        bias += spot(batch, RANK, d0, d1, d2, d3, d4, d5, d6, c0, c1, c2, c3, c4, c5, c6, c7)
        at = bias + row[:, None] * c_m + column[None, :] * c_n
        total += widen(tl.load(at, mask=mask, other=0), C, T)
    target = out + row[:, None] * o_m + column[None, :] * o_n
    tl.store(target, narrow(total, OUT, out.dtype.element_ty), mask=mask)


@kernel
def few(out, a, b, bias, m, n, k, a_m, a_k, b_k, b_n, c_m, c_n, o_m, o_n, T: tl.constexpr,
        A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, WIDE: tl.constexpr,
        BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write out = a @ b + bias for few rows of a: every weight is read once, along k."""
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1)
    if WIDE:
        column = column.to(tl.int64)
        row = row.to(tl.int64)
    lane = tl.arange(0, BK)
    total = tl.zeros([BN, BK], tl.float32)
    if T == "float64":
        total = total.to(tl.float64)
    for start in range(0, k, BK):
        at = start + lane
        x = widen(tl.load(a + row * a_m + at * a_k, mask=at < k, other=0), A, T)
        mask = (column < n)[:, None] & (at < k)[None, :]
        w = tl.load(b + column[:, None] * b_n + at[None, :] * b_k, mask=mask, other=0)
        total += widen(w, B, T) * x[None, :]
    r = tl.sum(total, 1)
    if bias is not None:
        r += widen(tl.load(bias + row * c_m + column * c_n, mask=column < n, other=0), C, T)
    target = out + row * o_m + column * o_n
    tl.store(target, narrow(r, OUT, out.dtype.element_ty), mask=column < n)
