"""Reductions over one, several or all axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nbxtensor.dtype import DType, as_dtype, bool_, complex64, float32, float64, int64, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Shape, Window
from nbxtensor.ops.signature import Parameter, scalar, static, tensor
from nbxtensor.ops.table import COMPLEX, EVERY, FLOATS, REAL, Row, Sample, register

X = tensor("x", "input")
AXIS = static("axis", None, "dim")
KEEPDIMS = static("keepdims", False, "keepdim")
DTYPE = static("dtype", None)

_oracle: Any


def reduced(x: Window, axes: Shape) -> tuple[Window, int]:
    """Return the window with `axes` at the end, and how many there are (one at least)."""
    if not axes:
        return x.insert(x.rank), 1
    kept = [axis for axis in range(x.rank) if axis not in axes]
    return x.permute([*kept, *sorted(axes)]), len(axes)


def result_of(
    builder: Builder, x: Window, axes: Shape, dtype: DType, *, keep: bool
) -> tuple[Window, Window]:
    """Return the output as the caller sees it, and as the kernel does."""
    kept = tuple(extent for axis, extent in enumerate(x.shape) if axis not in axes)
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
    out = builder.output(shape if keep else kept, dtype)
    flat = out.reshape(kept)
    assert flat is not None
    return out, flat


def require_elements(builder: Builder, x: Window, axes: Shape) -> None:
    """Refuse to look for an extremum among no elements."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise builder.error(
                f"axis {axis} of shape {x.shape} has no elements, expected at least one"
            )


def reduction(kernel: str, policy: str, kinds: str, *, needs_elements: bool = False) -> Any:
    """Return the planner of a kernel of one input; runtime scalars follow axis and keepdims."""

    def plan(
        builder: Builder, x: Window, axis: Any, keepdims: bool, *extras: Any, dtype: Any = None
    ) -> Window:
        builder.check_kind(x.dtype, kinds)
        axes = builder.axes(axis, x.rank)
        if needs_elements:
            require_elements(builder, x, axes)
        common = x.dtype if dtype is None else as_dtype(dtype)
        types = resolve(policy, common)
        result = types.output if dtype is None else common
        out, flat = result_of(builder, x, axes, result, keep=keepdims)
        source, count = reduced(x, axes)
        builder.step(f"reduce:{kernel}", [flat], [source], [types.compute, count, *extras])
        return out

    return plan


def _with_dtype(kernel: str, policy: str, kinds: str) -> Any:
    planner = reduction(kernel, policy, kinds)

    def plan(builder: Builder, x: Window, axis: Any, keepdims: bool, dtype: Any) -> Window:
        window: Window = planner(builder, x, axis, keepdims, dtype=dtype)
        return window

    return plan


def _plan_norm(builder: Builder, x: Window, order: Number, axis: Any, keepdims: bool) -> Window:
    builder.check_kind(x.dtype, "biufc")
    axes = builder.axes(axis, x.rank)
    types = resolve("statistic", x.dtype)
    dtype = types.output
    if dtype.kind == "c":
        dtype = float32 if dtype is complex64 else float64
    out, flat = result_of(builder, x, axes, dtype, keep=keepdims)
    source, count = reduced(x, axes)
    builder.step("reduce:norm", [flat], [source], [types.compute, count, order])
    return out


def _plan_arg(kernel: str) -> Any:
    def plan(builder: Builder, x: Window, axis: Any, keepdims: bool) -> Window:
        builder.check_kind(x.dtype, "biuf")
        axes = builder.axes(axis, x.rank)
        if axis is not None and len(axes) > 1:
            raise builder.error(f"axis must be one integer or None, got {axis}")
        require_elements(builder, x, axes)
        out, flat = result_of(builder, x, axes, int64, keep=keepdims)
        source, count = reduced(x, axes)
        compute = resolve("index", x.dtype).compute
        builder.step(f"reduce:{kernel}", [flat], [source], [compute, count])
        return out

    return plan


def _samples(
    domain: inputs.Domain = inputs.anything, *, empty: bool = True, **keywords: Any
) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(generator: np.random.Generator) -> Iterator[Sample]:
        shapes: list[tuple[Shape, Any]] = [
            ((), None),
            ((17,), None),
            ((17,), 0),
            ((5, 7), None),
            ((5, 7), 0),
            ((5, 7), -1),
            ((2, 3, 4, 5), (0, 2)),
            ((2, 3, 4, 5), (1, -1)),
            ((2, 3, 4), ()),
            ((3, 2053), 1),
            ((0, 4), 1),
        ]
        if empty:
            shapes += [((0,), None), ((3, 0, 2), 1)]
        for shape, axis in shapes:
            (values,) = inputs.normal(generator, shape)
            yield Sample((domain(values),), {"axis": axis, **keywords})
            yield Sample((domain(values),), {"axis": axis, "keepdims": True, **keywords})

    return samples


def _arg_samples(generator: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in (
        ((1,), None),
        ((5, 7), None),
        ((5, 7), 0),
        ((5, 7), 1),
        ((2, 3, 4), 1),
        ((3, 2053), -1),
    ):
        (values,) = inputs.normal(generator, shape)
        yield Sample((np.round(values, 1),), {"axis": axis})
        yield Sample((np.round(values, 1),), {"axis": axis, "keepdims": True})


def _row(
    name: str,
    plan: Any,
    oracle: Any,
    summary: str,
    *,
    extras: tuple[Parameter, ...] = (),
    before: tuple[Parameter, ...] = (),
    dtypes: tuple[DType, ...] = FLOATS,
    samples: Any = None,
    kernel: str = "",
    **fields: Any,
) -> None:
    register(
        Row(
            name=name,
            family="reduce",
            parameters=(X, *before, AXIS, KEEPDIMS, *extras),
            plan=plan,
            oracle=oracle,
            samples=samples or _samples(),
            summary=summary,
            kernels=(f"reduce:{kernel or name}",),
            dtypes=dtypes,
            methods=fields.pop("methods", (name,)),
            bench=(((8192, 8192),),),
            **fields,
        )
    )


def _logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    if x.size == 0:
        with np.errstate(all="ignore"):
            return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))
    peak = np.max(x, axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(x - peak), axis=axis, keepdims=True)) + peak
    return total if keepdims else np.sum(total, axis=axis)


def _norm(x: Any, ord: float = 2.0, axis: Any = None, keepdims: bool = False) -> Any:
    size = np.abs(x).astype(np.float64)
    if ord == math.inf:
        return np.max(size, axis=axis, keepdims=keepdims, initial=0.0)
    return np.sum(size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


_row(
    "sum",
    _with_dtype("sum", "sum", "biufc"),
    np.sum,
    "Sum; booleans and small integers add up in 64 bits.",
    extras=(DTYPE,),
    dtypes=EVERY,
    tolerance=64.0,
)
_row(
    "prod",
    _with_dtype("prod", "sum", "biufc"),
    np.prod,
    "Product; booleans and small integers multiply in 64 bits.",
    extras=(DTYPE,),
    dtypes=(*FLOATS, *COMPLEX),
    samples=_samples(lambda v: np.where(np.abs(v) > 1, 1.03125, 0.96875)),
    tolerance=64.0,
)
_row(
    "mean",
    _with_dtype("mean", "statistic", "biufc"),
    np.mean,
    "Arithmetic mean; of integers a real number.",
    extras=(DTYPE,),
    dtypes=(*REAL, *COMPLEX),
    samples=_samples(empty=False),
    tolerance=64.0,
)
for _name, _oracle, _summary, _alias in (
    ("amax", np.max, "Greatest element; NaN wins.", "max"),
    ("amin", np.min, "Least element; NaN wins.", "min"),
):
    _row(
        _name,
        reduction(_name, "extremum", "biuf", needs_elements=True),
        _oracle,
        _summary,
        dtypes=(*REAL, bool_),
        samples=_samples(empty=False),
        aliases=(_alias,),
        methods=(_name, _alias),
        differs="As in the array API, values only; argmax and argmin give the places.",
    )
for _name, _oracle, _summary in (
    ("all", np.all, "Whether all elements are nonzero."),
    ("any", np.any, "Whether some element is nonzero."),
):
    _row(
        _name,
        reduction(_name, "predicate", "biufc"),
        _oracle,
        _summary,
        dtypes=(*REAL, bool_),
        samples=_samples(lambda v: np.where(np.abs(v) > 1, v, 0)),
    )
_row(
    "count_nonzero",
    reduction("count_nonzero", "index", "biufc"),
    np.count_nonzero,
    "Number of nonzero elements.",
    dtypes=(*REAL, bool_),
    samples=_samples(lambda v: np.where(np.abs(v) > 1, v, 0)),
)
for _name, _oracle, _summary in (
    ("var", np.var, "Variance with divisor N - correction, by two passes."),
    ("std", np.std, "Standard deviation with divisor N - correction, by two passes."),
):
    _row(
        _name,
        reduction(_name, "statistic", "biuf"),
        lambda x, axis=None, keepdims=False, correction=0.0, *, _f=_oracle: _f(
            x, axis=axis, keepdims=keepdims, ddof=correction
        ),
        _summary,
        extras=(scalar("correction", 0.0),),
        dtypes=REAL,
        samples=lambda g: [
            Sample(inputs.normal(g, shape), {"axis": axis, "correction": correction})
            for shape, axis in (((17,), None), ((5, 7), 0), ((3, 2053), 1), ((2, 3, 4), (0, 2)))
            for correction in (0.0, 1.0)
        ],
        tolerance=16.0,
        differs="The divisor is N by default, as in the array API; torch's default is N - 1.",
    )
_row(
    "logsumexp",
    reduction("logsumexp", "statistic", "biuf"),
    _logsumexp,
    "log(sum(exp(x))) without overflow.",
    samples=_samples(empty=False),
)
_row(
    "norm",
    _plan_norm,
    _norm,
    "Vector norm of order `ord` over the axes.",
    before=(scalar("ord", 2.0, "p"),),
    dtypes=(*FLOATS, *COMPLEX),
    samples=lambda g: [
        Sample(inputs.normal(g, shape), {"ord": order, "axis": axis})
        for shape, axis in (((17,), None), ((5, 7), 0), ((3, 2053), 1), ((2, 3, 4), (0, 2)))
        for order in (2.0, 1.0, 3.0, math.inf)
    ],
    aliases=("vector_norm",),
    tolerance=16.0,
)
for _name, _oracle in (("argmax", np.argmax), ("argmin", np.argmin)):
    _row(
        _name,
        _plan_arg(_name),
        _oracle,
        f"Place of the {'greatest' if _name == 'argmax' else 'least'} element, the first of "
        "equals; NaN wins. Without an axis, in the flattened tensor.",
        dtypes=(*REAL, bool_),
        samples=_arg_samples,
    )
