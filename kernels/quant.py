"""Quantised weights in blocks of 32: Q4_1 (FORMAT 0) and Q8_0 (FORMAT 1)."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot, widen
from nbxtensor.runtime import kernel


@kernel
def half_at(bytes_at, mask):
    """Return the float16 that lies at an address of any alignment, as float32."""
    low = tl.load(bytes_at, mask=mask, other=0).to(tl.uint16)
    high = tl.load(bytes_at + 1, mask=mask, other=0).to(tl.uint16)
    return (low | (high << 8)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def decoded(row, column, mask, FORMAT: tl.constexpr):
    """Return the weights of columns in rows of blocks that begin at the addresses `row`."""
    block = column // 32
    place = column % 32
    if FORMAT == 0:
        start = row + block * 20
        code = tl.load(start + 4 + place % 16, mask=mask, other=0).to(tl.int32)
        code = tl.where(place < 16, code & 15, code >> 4)
        r = code.to(tl.float32) * half_at(start, mask) + half_at(start + 2, mask)
    else:
        start = row + block * 34
        code = tl.load(start + 2 + place, mask=mask, other=0).to(tl.int8, bitcast=True)
        r = code.to(tl.float32) * half_at(start, mask)
    return r


@kernel
def rows(out, blocks, known, n, width, row_bytes, d0, d1, d2, d3, d4, d5, d6,
         o0, o1, o2, o3, o4, o5, o6, o7, OUT: tl.constexpr, FORMAT: tl.constexpr,
         RANK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Expand n weights in rows of `width`; `known` holds the byte offsets of chosen rows."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    row = index // width
    if known is not None:
        start = tl.load(known + row, mask=mask, other=0)
    else:
        start = row * row_bytes
    value = decoded(blocks + start, index % width, mask, FORMAT)
    at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    tl.store(out + at, narrow(value, OUT, out.dtype.element_ty), mask=mask)


@kernel
def few(out, a, blocks, bias, n, k, row_bytes, a_m, c_n, o_m, A: tl.constexpr, C: tl.constexpr,
        OUT: tl.constexpr, FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write one row of a @ weights.T + bias for BN rows of weights."""
    column = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BK)
    start = blocks + column[:, None] * row_bytes
    total = tl.zeros([BN, BK], tl.float32)
    for first in range(0, k, BK):
        at = first + lane
        x = widen(tl.load(a + row * a_m + at, mask=at < k, other=0), A, "float32")
        mask = (column < n)[:, None] & (at < k)[None, :]
        total += decoded(start, at[None, :], mask, FORMAT) * x[None, :]
    r = tl.sum(total, 1)
    if bias is not None:
        r += widen(tl.load(bias + column * c_n, mask=column < n, other=0), C, "float32")
    target = out + row * o_m + column
    tl.store(target, narrow(r, OUT, out.dtype.element_ty), mask=column < n)


@kernel
def dense(out, a, blocks, bias, m, n, k, row_bytes, a_m, c_n, o_m, A: tl.constexpr,
          C: tl.constexpr, OUT: tl.constexpr, FORMAT: tl.constexpr, BM: tl.constexpr,
          BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Write a tile of a @ weights.T + bias in full float32 precision."""
    columns = tl.cdiv(n, BN)
    row = ((tl.program_id(0) // columns) * BM + tl.arange(0, BM)).to(tl.int64)
    column = ((tl.program_id(0) % columns) * BN + tl.arange(0, BN)).to(tl.int64)
    lane = tl.arange(0, BK)
    start = blocks + column[None, :] * row_bytes
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, k, BK):
        at = first + lane
        x = tl.load(a + row[:, None] * a_m + at[None, :],
                    mask=(row < m)[:, None] & (at < k)[None, :], other=0)  # fmt: skip
        mask = (column < n)[None, :] & (at < k)[:, None]
        w = decoded(start, at[:, None], mask, FORMAT)
        total = tl.dot(widen(x, A, "float32"), w, total, input_precision="ieee")
    if bias is not None:
        more = widen(tl.load(bias + column * c_n, mask=column < n, other=0), C, "float32")
        total += more[None, :]
    target = out + row[:, None] * o_m + column[None, :]
    mask = (row < m)[:, None] & (column < n)[None, :]
    tl.store(target, narrow(total, OUT, out.dtype.element_ty), mask=mask)
