"""Sorting and selection."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nbxtensor.dtype import float16, float32, float64, int64
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.signature import static, tensor
from nbxtensor.ops.table import REAL, Row, Sample, register
from nbxtensor.tensor import Tensor

X = tensor("x", "input")
AXIS = static("axis", -1, "dim")


class TopK(NamedTuple):
    """The selected elements and their places."""

    values: Tensor
    indices: Tensor


def _sorted(
    builder: Builder, x: Window, axis: int, descending: bool, stable: bool, *, places: bool
) -> Window:
    builder.check_kind(x.dtype, "biuf")
    index = builder.axis(axis, x.rank)
    values: Window
    indices: Window
    if places:
        indices, values = builder.output(x.shape, int64), builder.temporary(x.shape, x.dtype)
    else:
        values, indices = builder.output(x.shape, x.dtype), builder.temporary(x.shape, int64)
    windows = [w.insert(0) if x.rank == 0 else w.last(index) for w in (values, indices, x)]
    builder.step("sort:sort", windows[:2], windows[2:], [bool(descending), bool(stable)])
    return indices if places else values


def _plan_sort(builder: Builder, x: Window, axis: int, descending: bool, stable: bool) -> Window:
    return _sorted(builder, x, axis, descending, stable, places=False)


def _plan_argsort(builder: Builder, x: Window, axis: int, descending: bool, stable: bool) -> Window:
    return _sorted(builder, x, axis, descending, stable, places=True)


def _plan_topk(
    builder: Builder, x: Window, k: int, axis: int, largest: bool, sorted_: bool
) -> tuple[Window, Window]:
    builder.check_kind(x.dtype, "biuf")
    if x.rank == 0:
        raise builder.error("x must have at least one axis, got shape ()")
    index = builder.axis(axis, x.rank)
    k = builder.integer(k, "k")
    if not 0 <= k <= x.shape[index]:
        raise builder.error(
            f"k must be in [0, {x.shape[index]}], the extent of axis {axis}, got {k}"
        )
    shape = tuple(k if i == index else extent for i, extent in enumerate(x.shape))
    values, indices = builder.output(shape, x.dtype), builder.output(shape, int64)
    builder.step(
        "sort:topk",
        [values.last(index), indices.last(index)],
        [x.last(index)],
        [k, bool(largest), bool(sorted_)],
    )
    return values, indices


def _argsort_oracle(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    keys = np.array(x)
    if descending:
        # Stable in descending order: equal elements keep their order.
        flipped = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
        return np.flip(keys.shape[axis] - 1 - flipped, axis)
    return np.argsort(keys, axis=axis, kind="stable")


def _sort_oracle(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    ordered = np.sort(x, axis=axis)
    return np.flip(ordered, axis) if descending else ordered


def _topk_oracle(
    x: Any, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Any, Any]:
    order = _argsort_oracle(x, axis, largest)
    places = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, places, axis=axis), places


def _samples(*, ties: bool) -> Any:
    def samples(generator: np.random.Generator) -> Any:
        for shape in ((1,), (17,), (5, 7), (3, 4, 5), (2, 1031), (0, 3), (3, 0)):
            (values,) = inputs.normal(generator, shape)
            values = np.round(values, 1) if ties else values
            for axis in (-1, 0):
                for descending in (False, True):
                    yield Sample((values,), {"axis": axis, "descending": descending})

    return samples


def _topk_samples(generator: np.random.Generator) -> Any:
    for shape, k, axis in (
        ((1,), 1, -1),
        ((17,), 5, -1),
        ((5, 7), 3, 0),
        ((5, 7), 7, 1),
        ((3, 0), 0, 1),
        ((2, 1031), 9, -1),
    ):
        values: Any = np.stack(
            [
                generator.permutation(max(shape[axis], 1))[: shape[axis]]
                for _ in range(int(np.prod(shape)) // max(shape[axis], 1))
            ]
            or [np.zeros(0, np.int64)]
        )
        moved = [*(e for i, e in enumerate(shape) if i != axis % len(shape)), shape[axis]]
        values = np.moveaxis(values.reshape(moved).astype(np.float64) / 8, -1, axis)
        for largest in (True, False):
            yield Sample((values, k), {"axis": axis, "largest": largest})


ORDER = (AXIS, static("descending", False), static("stable", True))

register(
    Row(
        name="sort",
        family="sort",
        parameters=(X, *ORDER),
        plan=_plan_sort,
        oracle=_sort_oracle,
        samples=_samples(ties=True),
        summary="Elements in ascending or descending order along an axis; NaN counts as greatest.",
        kernels=("sort:sort",),
        dtypes=REAL,
        methods=("sort",),
        tolerance=0.0,
        differs="Values only, as in the array API; argsort gives the places.",
    )
)
register(
    Row(
        name="argsort",
        family="sort",
        parameters=(X, *ORDER),
        plan=_plan_argsort,
        oracle=_argsort_oracle,
        samples=_samples(ties=True),
        summary="Places of the elements in ascending or descending order along an axis.",
        kernels=("sort:sort",),
        dtypes=REAL,
        methods=("argsort",),
    )
)
register(
    Row(
        name="topk",
        family="sort",
        parameters=(X, static("k"), AXIS, static("largest", True), static("sorted", True)),
        plan=_plan_topk,
        oracle=_topk_oracle,
        samples=_topk_samples,
        summary="The k greatest or least elements along an axis, and their places.",
        kernels=("sort:topk",),
        dtypes=(float32, float64, float16),
        methods=("topk",),
        result=TopK,
        tolerance=0.0,
        bench=(((64, 49152),),),
    )
)
