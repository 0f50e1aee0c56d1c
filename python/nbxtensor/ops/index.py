"""Selection of elements by index tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype import int64
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.signature import static, tensor
from nbxtensor.ops.table import EVERY, Row, Sample, register

X = tensor("x", "input")
INDICES = tensor("indices", "index")


def _places(builder: Builder, indices: Window) -> Window:
    if indices.dtype.kind not in "iu" or indices.dtype.bits < 8:
        raise builder.type_error(f"indices must be integers, got {indices.dtype}")
    return builder.cast(indices, int64)


def _plan_take(builder: Builder, x: Window, indices: Window, axis: Any) -> Window:
    if indices.rank > 1:
        raise builder.error(f"indices must have one axis, got shape {indices.shape}")
    if axis is None:
        if x.rank != 1:
            raise builder.error(f"axis is needed for a tensor of {x.rank} axes, got None")
        axis = 0
    if x.rank == 0:
        raise builder.error("x must have at least one axis, got shape ()")
    index = builder.axis(axis, x.rank)
    places = _places(builder, indices)
    shape = list(x.shape)
    shape[index : index + 1] = indices.shape or (1,)
    out = builder.output(shape, x.dtype)
    places = places if places.rank else places.insert(0)
    order = [index, *(a for a in range(x.rank) if a != index)]
    builder.step("index:take", [out.permute(order)], [x.permute(order), places], [1, index])
    return out


def _plan_select(builder: Builder, x: Window, axis: int, indices: Window) -> Window:
    return _plan_take(builder, x, indices, axis)


def _plan_along(builder: Builder, x: Window, indices: Window, axis: int) -> Window:
    if indices.rank != x.rank or x.rank == 0:
        raise builder.error(
            f"x of shape {x.shape} and indices of shape {indices.shape} must have as many axes, "
            "one at least"
        )
    index = builder.axis(axis, x.rank)
    for i, (own, wanted) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != index and wanted > own:
            raise builder.error(
                f"indices of shape {indices.shape} reach past x of shape {x.shape} along axis {i}"
            )
    places = _places(builder, indices)
    out = builder.output(indices.shape, x.dtype)
    if out.size == 0:
        return out
    axes = []
    for i, extent in enumerate(indices.shape):
        if i == index:
            axes.append(places)
            continue
        line = builder.temporary((extent,), int64)
        builder.step("fill:arange", [line], [], [0, 1])
        for _ in range(x.rank - 1 - i):
            line = line.insert(line.rank)
        axes.append(line.broadcast_to(indices.shape))
    builder.step("index:take", [out], [x, *axes], [x.rank, *range(x.rank)])
    return out


def _plan_gather(builder: Builder, x: Window, axis: int, indices: Window) -> Window:
    return _plan_along(builder, x, indices, axis)


def _along_oracle(x: Any, indices: Any, axis: int = -1) -> Any:
    window = tuple(
        slice(None) if i == axis % x.ndim else slice(0, extent)
        for i, extent in enumerate(indices.shape)
    )
    return np.take_along_axis(x[window], indices, axis=axis)


def _take_samples(generator: np.random.Generator) -> Any:
    for shape, axis in (((7,), 0), ((5, 7), 0), ((5, 7), -1), ((2, 3, 4), 1)):
        (values,) = inputs.normal(generator, shape)
        for count in (0, 1, 9):
            yield values, generator.integers(-shape[axis], shape[axis], count), axis


def _along_samples(generator: np.random.Generator) -> Any:
    for shape, index_shape, axis in (
        ((7,), (9,), 0),
        ((5, 7), (5, 3), 1),
        ((5, 7), (2, 7), 0),
        ((2, 3, 4), (2, 5, 4), -2),
        ((5, 7), (5, 0), 1),
    ):
        (values,) = inputs.normal(generator, shape)
        yield values, generator.integers(0, shape[axis], index_shape), axis


def _index_row(name: str, **fields: Any) -> None:
    register(
        Row(
            name=name,
            family="index",
            dtypes=EVERY,
            tolerance=0.0,
            methods=(name,),
            kernels=("index:take", "fill:arange"),
            **fields,
        )
    )


_index_row(
    "take",
    parameters=(X, INDICES, static("axis", None, "dim")),
    plan=_plan_take,
    oracle=lambda x, indices, axis: np.take(x, indices, axis=axis),
    samples=lambda g: [Sample((x, i), {"axis": axis}) for x, i, axis in _take_samples(g)],
    summary="The elements at some places along an axis.",
)
_index_row(
    "index_select",
    parameters=(X, static("dim", ..., "axis"), INDICES),
    plan=_plan_select,
    oracle=lambda x, axis, indices: np.take(x, indices, axis=axis),
    samples=lambda g: [Sample((x, axis, i)) for x, i, axis in _take_samples(g)],
    summary="The elements at some places along an axis, as torch calls it.",
)
_index_row(
    "take_along_axis",
    parameters=(X, INDICES, static("axis", -1, "dim")),
    plan=_plan_along,
    oracle=_along_oracle,
    samples=lambda g: [Sample((x, i), {"axis": axis}) for x, i, axis in _along_samples(g)],
    summary="For every place of the indices, the element of x there with its own index along the "
    "axis.",
)
_index_row(
    "gather",
    parameters=(X, static("dim", ..., "axis"), INDICES),
    plan=_plan_gather,
    oracle=lambda x, axis, indices: _along_oracle(x, indices, axis),
    samples=lambda g: [Sample((x, axis, i)) for x, i, axis in _along_samples(g)],
    summary="take_along_axis as torch calls it.",
)
