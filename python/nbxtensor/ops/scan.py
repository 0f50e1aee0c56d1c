"""Running sums, products and extrema along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.dtype import as_dtype, int64, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.signature import static, tensor
from nbxtensor.ops.table import COMPLEX, FLOATS, REAL, Row, Sample, register
from nbxtensor.tensor import Tensor

X = tensor("x", "input")
AXIS = static("axis", None, "dim")


class RunningExtremum(NamedTuple):
    """Values of a running extremum and where they stand."""

    values: Tensor
    indices: Tensor


def _axis(builder: Builder, x: Window, axis: Any) -> int:
    if axis is None and x.rank > 1:
        raise builder.error(f"axis is needed for a tensor of {x.rank} axes, got None")
    return builder.axis(0 if axis is None else axis, x.rank)


def _scan(kernel: str, initial: int) -> Any:
    def plan(builder: Builder, x: Window, axis: Any, dtype: Any, include_initial: bool) -> Window:
        builder.check_kind(x.dtype, "biufc")
        common = x.dtype if dtype is None else as_dtype(dtype)
        types = resolve("sum", common)
        result = types.output if dtype is None else common
        if x.rank == 0:
            out = builder.output((), result)
            builder.copy(out, x)
            return out
        index = _axis(builder, x, axis)
        shape = list(x.shape)
        shape[index] += int(include_initial)
        out = builder.output(shape, result)
        target = out
        if include_initial:
            builder.step("fill:value", [out.slice(index, 0, 1)], [], [initial])
            target = out.slice(index, 1, shape[index])
        builder.step(f"scan:{kernel}", [target.last(index)], [x.last(index)], [types.compute])
        return out

    return plan


def _extremum(kernel: str) -> Any:
    def plan(builder: Builder, x: Window, axis: Any) -> tuple[Window, Window]:
        builder.check_kind(x.dtype, "biuf")
        values = builder.output(x.shape, x.dtype)
        places = builder.output(x.shape, int64)
        if x.rank == 0:
            builder.copy(values, x)
            builder.step("fill:value", [places], [], [0])
            return values, places
        index = _axis(builder, x, axis)
        builder.step(
            f"scan:{kernel}",
            [values.last(index), places.last(index)],
            [x.last(index)],
            [resolve("extremum", x.dtype).compute],
        )
        return values, places

    return plan


def _running(better: Any) -> Any:
    def oracle(x: Any, axis: int) -> tuple[Any, Any]:
        moved = np.moveaxis(np.array(x), axis, -1)
        values, places = np.array(moved), np.zeros(moved.shape, np.int64)
        for where in np.ndindex(moved.shape[:-1]):
            best = 0
            for i, value in enumerate(moved[where]):
                # Of equals the last one, as torch says.
                best = i if better(value, moved[where][best]) else best
                values[where][i], places[where][i] = moved[where][best], best
        return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)

    return oracle


def _samples(generator: np.random.Generator) -> Iterator[Sample]:
    for shape in ((17,), (5, 7), (3, 4, 5), (2, 1031), (0, 3), (3, 0)):
        for axis in range(-1, len(shape) - 1):
            (values,) = inputs.normal(generator, shape)
            yield Sample((values,), {"axis": axis})
    (values,) = inputs.normal(generator, (4, 6))
    yield Sample((values,), {"axis": 1, "include_initial": True})


def _cumulative(function: Any, initial: int) -> Any:
    def oracle(x: Any, axis: int, include_initial: bool = False) -> Any:
        result = function(x, axis=axis)
        if include_initial:
            shape = list(result.shape)
            shape[axis] = 1
            result = np.concatenate([np.full(shape, initial, result.dtype), result], axis=axis)
        return result

    return oracle


for _name, _function, _initial, _alias, _domain in (
    ("cumsum", np.cumsum, 0, "cumulative_sum", inputs.anything),
    ("cumprod", np.cumprod, 1, "cumulative_prod", inputs.unit),
):
    register(
        Row(
            name=_name,
            family="scan",
            parameters=(X, AXIS, static("dtype", None), static("include_initial", False)),
            plan=_scan(_name, _initial),
            oracle=_cumulative(_function, _initial),
            samples=_samples,
            summary=f"Running {'sum' if _initial == 0 else 'product'} along an axis.",
            kernels=(f"scan:{_name}", "fill:value"),
            dtypes=(*FLOATS, *COMPLEX, *REAL[4:]) if _initial == 0 else FLOATS,
            methods=(_name,),
            aliases=(_alias,),
            tolerance=64.0,
            bench=(((8192, 8192),),),
        )
    )
for _name, _better in (("cummax", lambda a, b: a >= b), ("cummin", lambda a, b: a <= b)):
    register(
        Row(
            name=_name,
            family="scan",
            parameters=(X, AXIS),
            plan=_extremum(_name),
            oracle=_running(_better),
            samples=lambda g: [
                Sample((np.round(v, 1),), {"axis": axis})
                for v in inputs.normal(g, (5, 7), (3, 41))
                for axis in (0, 1)
            ],
            summary=f"Running {'maximum' if _name == 'cummax' else 'minimum'} along an axis, with "
            "its places (the last of equals).",
            kernels=(f"scan:{_name}",),
            dtypes=REAL,
            methods=(_name,),
            result=RunningExtremum,
            bench=(((8192, 8192),),),
        )
    )
