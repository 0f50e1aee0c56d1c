"""Writing tensors from numbers: sequences, diagonals, triangles, random numbers."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot
from nbxtensor.runtime import kernel


@kernel
def sequence(out, start, step, end, n, d0, d1, d2, d3, d4, d5, d6,
             o0, o1, o2, o3, o4, o5, o6, o7, OUT: tl.constexpr, T: tl.constexpr,
             RANK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write start + i * step to element i; the last one is `end` where it is given."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    if T == "float64":
        value = index.to(tl.float64) * step + start
        if end is not None:
            value = tl.where((index == n - 1) & (index > 0), end, value)
    elif T == "uint64":
        value = index.to(tl.uint64) * step + start
    else:
        value = index * step + start
    at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    tl.store(out + at, narrow(value, OUT, out.dtype.element_ty), mask=mask)


@kernel
def eye(out, n, columns, k, o_m, o_n, OUT: tl.constexpr, BLOCK: tl.constexpr):
    """Write ones to diagonal k of a matrix and zeros elsewhere."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = index // columns
    column = index % columns
    value = (column - row == k).to(tl.int64)
    at = row * o_m + column * o_n
    tl.store(out + at, narrow(value, OUT, out.dtype.element_ty), mask=index < n)


@kernel
def triangle(out, x, n, rows, columns, k, d0, d1, d2, d3, d4, d5, d6,
             o0, o1, o2, o3, o4, o5, o6, o7, x0, x1, x2, x3, x4, x5, x6, x7,
             UPPER: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Copy a triangle of each matrix, zeros elsewhere: elements are counted row by row."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    column = index % columns
    row = (index // columns) % rows
    if UPPER:
        inside = column - row >= k
    else:
        inside = column - row <= k
    source = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    target = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    tl.store(out + target, tl.load(x + source, mask=mask & inside, other=0), mask=mask)


@kernel
def philox(seed, low, carry):
    """Return the four words of a block of Philox4x32-10."""
    c0 = low.to(tl.uint32)
    c1 = (low >> 32).to(tl.uint32)
    c2 = carry.to(tl.uint32)
    c3 = c2 & 0
    key0 = seed.to(tl.uint32)
    key1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        first = c0.to(tl.uint64) * 0xD2511F53
        second = c2.to(tl.uint64) * 0xCD9E8D57
        n0 = (second >> 32).to(tl.uint32) ^ c1 ^ key0
        n2 = (first >> 32).to(tl.uint32) ^ c3 ^ key1
        c1 = second.to(tl.uint32)
        c3 = first.to(tl.uint32)
        c0 = n0
        c2 = n2
        key0 = (key0 + 0x9E3779B9).to(tl.uint32)
        key1 = (key1 + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@kernel
def words_of(seed, offset, block):
    """Return the words of block number `block` of a draw, and whether the counter carried."""
    low = offset + block.to(tl.uint64)
    carry = (low < offset).to(tl.uint32)
    return philox(tl.zeros(block.shape, tl.uint64) + seed, low, carry)


@kernel
def joined(high, low):
    """Return two words as one of 64 bits."""
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@kernel
def picked(lane, a, b, c, d):
    """Return the value of each lane's number."""
    return tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))


@kernel
def uniform(out, seed, offset, low, high, n, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Write uniform numbers of low..high; BITS random bits each, 53 from two words."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    E: tl.constexpr = out.dtype.element_ty
    if BITS == 53:
        a, b, c, d = words_of(seed, offset, index // 2)
        word = tl.where(index % 2 == 0, joined(a, b), joined(c, d)) >> 11
        unit = word.to(tl.float64) * 1.1102230246251565e-16
    else:
        a, b, c, d = words_of(seed, offset, index // 4)
        word = picked(index % 4, a, b, c, d) >> (32 - BITS)
        unit = word.to(tl.float64) * (1.0 / (1 << BITS))
    first = tl.zeros([BLOCK], tl.float64) + low
    span = tl.zeros([BLOCK], tl.float64) + (high - low)
    near = narrow(first + unit * span, "plain", E)
    # Rounding may reach the open end.
    inside = (near.to(tl.float64) < high) | (span == 0.0)
    tl.store(out + index, tl.where(inside, near, narrow(first, "plain", E)), mask=index < n)


@kernel
def normal(out, seed, offset, mean, deviation, n, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Write normally distributed numbers by Box-Muller in float64."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        a, b, c, d = words_of(seed, offset, index // 2)
        u = ((joined(a, b) >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
        turn = (joined(c, d) >> 11).to(tl.float64) * 1.1102230246251565e-16
    else:
        a, b, c, d = words_of(seed, offset, index // 4)
        lower = index % 4 < 2
        u = (tl.where(lower, a, c).to(tl.float64) + 0.5) * 2.3283064365386963e-10
        turn = tl.where(lower, b, d).to(tl.float64) * 2.3283064365386963e-10
    radius = tl.sqrt(-2.0 * tl.log(u))
    angle = turn * 6.283185307179586
    value = radius * tl.where(index % 2 == 0, tl.cos(angle), tl.sin(angle))
    value = value * deviation + mean
    tl.store(out + index, narrow(value, "plain", out.dtype.element_ty), mask=index < n)


@kernel
def integers(out, seed, offset, low, high, n, BLOCK: tl.constexpr):
    """Write uniform integers of low..high: low + floor(range * x / 2^64)."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = words_of(seed, offset, index // 2)
    even = index % 2 == 0
    x1 = tl.where(even, a, c).to(tl.uint64)
    x0 = tl.where(even, b, d).to(tl.uint64)
    span = tl.zeros([BLOCK], tl.uint64) + (high - low)
    y1 = span >> 32
    y0 = span & 0xFFFFFFFF
    middle = ((x0 * y0) >> 32) + x1 * y0
    upper = (middle & 0xFFFFFFFF) + x0 * y1
    value = (x1 * y1 + (middle >> 32) + (upper >> 32) + low).to(tl.int64, bitcast=True)
    tl.store(out + index, narrow(value, "plain", out.dtype.element_ty), mask=index < n)
