"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbxtensor.dtype import DType, bfloat16, bool_, float16, float32, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.signature import optional_tensor, static, tensor
from nbxtensor.ops.table import COMPLEX, FLOATS, REAL, Row, Sample, register

X = tensor("x", "input", "x1")
Y = tensor("y", "other", "x2", "mat2")
NUMBERS = (*REAL, *COMPLEX, bool_)

# Kernels read any mix of these and add up in float32.
_MIXED = (float32, float16, bfloat16)


def _operands(builder: Builder, *windows: Window) -> tuple[DType, list[Window]]:
    """Return the result's dtype and the operands in dtypes that a product takes together."""
    common = builder.promote(*windows)
    builder.check_kind(common, "biufc")
    output = resolve("matmul", common).output
    if output.bits == 8 and output.kind == "f":
        raise builder.type_error(f"dtype {output} is not supported, expected float16 or wider")
    if all(window.dtype in _MIXED for window in windows):
        return output, list(windows)
    return output, [builder.cast(window, common) for window in windows]


def product(
    builder: Builder, out: Window, a: Window, b: Window, bias: Window | None = None
) -> None:
    """Add the product of two matrices or batches of them, whose batch axes broadcast."""
    batch = out.shape[:-2]
    a = a.broadcast_to((*batch, *a.shape[-2:]))
    b = b.broadcast_to((*batch, *b.shape[-2:]))
    if bias is not None:
        bias = bias.broadcast_to(out.shape)
    builder.step("matmul:dense", [out], [a, b, bias])


def _inner(builder: Builder, a: int, b: int, x: Window, y: Window) -> None:
    if a != b:
        raise builder.error(
            f"shapes {x.shape} and {y.shape} do not fit: the inner extents are {a} and {b}, "
            "expected equal ones"
        )


def _plan_matmul(builder: Builder, x: Window, y: Window) -> Window:
    if x.rank == 0 or y.rank == 0:
        raise builder.error(f"got shapes {x.shape} and {y.shape}, expected one axis at least")
    _inner(builder, x.shape[-1], y.shape[-2 if y.rank > 1 else 0], x, y)
    dtype, (a, b) = _operands(builder, x, y)
    a = a.insert(0) if x.rank == 1 else a
    b = b.insert(1) if y.rank == 1 else b
    batch = builder.broadcast(a.shape[:-2], b.shape[:-2])
    full = (*batch, a.shape[-2], b.shape[-1])
    rows = () if x.rank == 1 else full[-2:-1]
    columns = () if y.rank == 1 else full[-1:]
    out = builder.output((*batch, *rows, *columns), dtype)
    target = out.reshape(full)
    assert target is not None
    product(builder, target, a, b)
    return out


def _ranked(rank_x: int, rank_y: int) -> Any:
    def plan(builder: Builder, x: Window, y: Window) -> Window:
        if (x.rank, y.rank) != (rank_x, rank_y):
            raise builder.error(
                f"got shapes {x.shape} and {y.shape}, expected {rank_x} and {rank_y} axes; "
                "matmul takes any"
            )
        if rank_x == 3 and x.shape[0] != y.shape[0]:
            raise builder.error(
                f"got shapes {x.shape} and {y.shape}, expected as many matrices in both"
            )
        return _plan_matmul(builder, x, y)

    return plan


def flat_rows(builder: Builder, x: Window) -> Window:
    """Return the window as one matrix of rows, through a copy where its layout needs one."""
    return builder.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _plan_linear(builder: Builder, x: Window, weight: Window, bias: Window | None) -> Window:
    if x.rank == 0 or weight.rank != 2:
        raise builder.error(
            f"got x of shape {x.shape} and weight of shape {weight.shape}, expected (..., K) and "
            "(N, K)"
        )
    _inner(builder, x.shape[-1], weight.shape[1], x, weight)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise builder.error(f"bias must have shape {weight.shape[:1]}, got {bias.shape}")
    operands = (x, weight) if bias is None else (x, weight, bias)
    dtype, cast = _operands(builder, *operands)
    out = builder.output((*x.shape[:-1], weight.shape[0]), dtype)
    rows = flat_rows(builder, cast[0])
    target = out.reshape((rows.shape[0], weight.shape[0]))
    assert target is not None
    product(builder, target, rows, cast[1].swap(0, 1), cast[2] if bias is not None else None)
    return out


def _plan_addmm(
    builder: Builder, bias: Window, a: Window, b: Window, beta: float, alpha: float
) -> Window:
    if a.rank != 2 or b.rank != 2:
        raise builder.error(f"got shapes {a.shape} and {b.shape}, expected two matrices")
    _inner(builder, a.shape[1], b.shape[0], a, b)
    dtype, (own, left, right) = _operands(builder, bias, a, b)
    shape = (a.shape[0], b.shape[1])
    if builder.broadcast(bias.shape, shape) != shape:
        raise builder.error(f"input of shape {bias.shape} cannot be broadcast to {shape}")
    out = builder.output(shape, dtype)
    if beta == 1 and alpha == 1:
        product(builder, out, left, right, own)
        return out
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if dtype.kind in "iu" and not isinstance(factor, int):
            raise builder.type_error(f"{name} must be an integer for {dtype}, got {factor!r}")
    compute = resolve("arithmetic", dtype).compute
    product(builder, out, left, right)
    builder.step("elementwise:mul", [out], [out, None], [compute, alpha])
    if beta != 0:
        scaled = builder.temporary(own.shape, dtype)
        builder.step("elementwise:mul", [scaled], [own, None], [compute, beta])
        builder.step("elementwise:add", [out], [out, scaled.broadcast_to(shape)], [compute])
    return out


def _plan_outer(builder: Builder, x: Window, y: Window) -> Window:
    if x.rank != 1 or y.rank != 1:
        raise builder.error(f"got shapes {x.shape} and {y.shape}, expected one axis each")
    common = builder.promote(x, y)
    shape = (x.shape[0], y.shape[0])
    out = builder.output(shape, common)
    operands = [x.insert(1).broadcast_to(shape), y.broadcast_to(shape)]
    builder.step("elementwise:mul", [out], operands, [resolve("arithmetic", common).compute])
    return out


def _products(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
    def samples(generator: np.random.Generator) -> Any:
        for pair in shapes:
            yield Sample(inputs.normal(generator, *pair))

    return samples


def _flops(*shapes: tuple[int, ...]) -> float:
    return 2.0 * math.prod(shapes[0]) * shapes[1][-1]


for _name, _planner, _form, _shapes, _bench in (
    (
        "matmul",
        _plan_matmul,
        "Product of matrices, batches of them or vectors, as NumPy's.",
        (
            ((7,), (7,)),
            ((5, 7), (7,)),
            ((7,), (7, 3)),
            ((1, 1), (1, 1)),
            ((5, 7), (7, 3)),
            ((64, 129), (129, 65)),
            ((2, 5, 7), (7, 3)),
            ((2, 1, 5, 7), (3, 7, 2)),
            ((5, 0), (0, 3)),
            ((0, 5), (5, 3)),
        ),
        (((1024, 1024), (1024, 1024)), ((1, 4096), (4096, 4096))),
    ),
    (
        "mm",
        _ranked(2, 2),
        "Product of two matrices.",
        (((5, 7), (7, 3)),),
        (((512, 512), (512, 512)),),
    ),
    (
        "bmm",
        _ranked(3, 3),
        "Products of two batches of matrices.",
        (((4, 5, 7), (4, 7, 3)),),
        (((8, 256, 256), (8, 256, 256)),),
    ),
    (
        "mv",
        _ranked(2, 1),
        "Product of a matrix and a vector.",
        (((5, 7), (7,)),),
        (((4096, 4096), (4096,)),),
    ),
    (
        "dot",
        _ranked(1, 1),
        "Sum of the products of two vectors.",
        (((17,), (17,)), ((0,), (0,))),
        (((4096,), (4096,)),),
    ),
):
    register(
        Row(
            name=_name,
            family="matmul",
            parameters=(X, Y),
            plan=_planner,
            oracle=np.matmul,
            samples=_products(*_shapes),
            summary=_form,
            kernels=("matmul:dense",),
            dtypes=NUMBERS,
            methods=(_name,),
            operator="__matmul__" if _name == "matmul" else None,
            reflected="__rmatmul__" if _name == "matmul" else None,
            tolerance=32.0,
            flops=_flops if _name != "dot" else None,
            bench=_bench,
        )
    )
register(
    Row(
        name="linear",
        family="matmul",
        parameters=(tensor("x", "input"), tensor("weight"), optional_tensor("bias")),
        plan=_plan_linear,
        oracle=lambda x, w, b=None: np.matmul(x, w.T) + (0 if b is None else b),
        samples=lambda g: [
            Sample(inputs.normal(g, (7,), (3, 7))),
            Sample(inputs.normal(g, (5, 7), (3, 7), (3,))),
            Sample(inputs.normal(g, (2, 3, 64), (129, 64), (129,))),
            Sample(inputs.normal(g, (0, 7), (3, 7))),
        ],
        summary="x @ weight.T + bias, for weights of shape (N, K).",
        kernels=("matmul:dense",),
        dtypes=FLOATS,
        tolerance=32.0,
        flops=lambda x, w, *b: 2.0 * math.prod(x) * w[0],
        bench=(((1, 576), (1536, 576)), ((512, 576), (1536, 576))),
    )
)
register(
    Row(
        name="addmm",
        family="matmul",
        parameters=(
            tensor("input"),
            tensor("mat1"),
            tensor("mat2"),
            static("beta", 1),
            static("alpha", 1),
        ),
        plan=_plan_addmm,
        oracle=lambda i, a, b, beta=1, alpha=1: beta * i + alpha * np.matmul(a, b),
        samples=lambda g: [
            Sample(inputs.normal(g, (3,), (5, 7), (7, 3))),
            Sample(inputs.normal(g, (5, 1), (5, 7), (7, 3)), {"beta": 2, "alpha": 3}),
            Sample(inputs.normal(g, (5, 3), (5, 7), (7, 3)), {"beta": 0, "alpha": 2}),
        ],
        summary="beta input + alpha (mat1 @ mat2).",
        kernels=("matmul:dense", "elementwise:mul", "elementwise:add"),
        dtypes=FLOATS,
        methods=("addmm",),
        tolerance=64.0,
    )
)
register(
    Row(
        name="outer",
        family="matmul",
        parameters=(X, Y),
        plan=_plan_outer,
        oracle=np.multiply.outer,
        samples=_products(((5,), (7,)), ((0,), (7,)), ((131,), (17,))),
        summary="Products of every pair of elements of two vectors.",
        kernels=("elementwise:mul",),
        dtypes=NUMBERS,
        methods=("outer",),
    )
)
