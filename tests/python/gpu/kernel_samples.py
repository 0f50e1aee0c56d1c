"""Kernels of the tests on cards."""

from __future__ import annotations

import triton
import triton.language as tl
from nbxtensor import kernel


@kernel
def add(x_ptr, y_ptr, o_ptr, n, alpha, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(o_ptr + offs, x + y * alpha, mask=mask)


@kernel
def through_descriptor(x_ptr, o_ptr, rows, columns, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(o_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    place = [tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK]
    target.store(place, source.load(place) + 1.0)


@kernel
def scalars(o_ptr, a, b, c: tl.float64, d: tl.float16, e: tl.bfloat16, f: tl.int64, flag):
    tl.store(o_ptr + 0, a)
    tl.store(o_ptr + 1, b)
    tl.store(o_ptr + 2, c)
    tl.store(o_ptr + 3, d)
    tl.store(o_ptr + 4, e)
    tl.store(o_ptr + 5, f)
    tl.store(o_ptr + 6, flag)


@triton.jit
def foreign_add(x_ptr, y_ptr, o_ptr, n, alpha, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(o_ptr + offs, x + y * alpha, mask=mask)


foreign_tuned = triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((128, 1), (1024, 4))],
    key=["n"],
)(foreign_add)
