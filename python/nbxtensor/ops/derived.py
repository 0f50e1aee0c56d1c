"""Functions over other ops and views: they run wherever those do."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from nbxtensor.dtype import int8, int16, int32, int64, promote_types
from nbxtensor.ops.creation import arange
from nbxtensor.ops.table import NAMES
from nbxtensor.ops.views import broadcast_to, permute_dims, reshape
from nbxtensor.tensor import Tensor, asarray

# Integers whose sign is that of the floats of the same width.
_SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}

Axes = int | tuple[Sequence[int], Sequence[int]]


def axis_of(function: str, axis: Any, rank: int) -> int:
    """Return an axis counted from the front.

    Raises
    ------
    IndexError
        If there is no such axis.
    """
    index = operator.index(axis)
    if not -rank <= index < rank:
        raise IndexError(
            f"{function}: axis must be in [{-rank}, {rank - 1}] for {rank} axes, got {index}"
        )
    return index % rank


def _check_kind(function: str, x: Tensor, kinds: str, wanted: str) -> None:
    if x.dtype.kind not in kinds or x.dtype.bits < 8:
        raise TypeError(f"{function}: dtype {x.dtype} is not supported, expected {wanted}")


def conj(x: Tensor, /) -> Tensor:
    """Return the complex conjugates; of real numbers the numbers."""
    _check_kind("conj", x, "iufc", "numbers")
    result = x.clone()
    if x.dtype.kind == "c":
        NAMES["neg"](result.imag, out=result.imag)
    return result


def signbit(x: Tensor, /) -> Tensor:
    """Return whether the sign is set, of zeros and NaN too."""
    _check_kind("signbit", x, "iuf", "real numbers")
    signed = x.view(_SIGNED[x.dtype.bits]) if x.dtype.kind == "f" else x
    result: Tensor = NAMES["lt"](signed, 0)
    return result


def nextafter(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the next number after x1 in the direction of x2, in their common dtype."""
    given = x1 if isinstance(x1, Tensor) else x2
    if not isinstance(given, Tensor):
        raise TypeError("nextafter: x1 and x2 are both numbers, expected one tensor at least")
    where = given.device
    x, y = (
        v if isinstance(v, Tensor) else asarray(v, dtype=given.dtype, device=where)
        for v in (x1, x2)
    )
    for operand in (x, y):
        _check_kind("nextafter", operand, "f", "floating numbers")
    common = promote_types(x.dtype, y.dtype)
    zero = NAMES["add"](NAMES["mul"](x.to(common), 0), NAMES["mul"](y.to(common), 0))
    shape = zero.shape
    x, y = (broadcast_to(v.to(common), shape).clone() for v in (x, y))
    bits = x.view(_SIGNED[common.bits])
    # Away from zero the magnitude grows: its bits, read as an integer, count the numbers.
    grows = NAMES["eq"](NAMES["lt"](x, y), NAMES["gt"](x, 0))
    moved = NAMES["where"](grows, NAMES["add"](bits, 1), NAMES["sub"](bits, 1))
    sign = NAMES["bitwise_and"](y.view(bits.dtype), -(1 << (common.bits - 1)))
    least = NAMES["bitwise_or"](sign, 1)
    moved = NAMES["where"](NAMES["eq"](x, 0), least, moved)
    moved = NAMES["where"](NAMES["eq"](x, y), y.view(bits.dtype), moved)
    unordered = NAMES["logical_or"](NAMES["isnan"](x), NAMES["isnan"](y))
    result: Tensor = NAMES["where"](unordered, NAMES["add"](x, y), moved.view(common))
    return result


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Return the n-th differences of neighbours along an axis.

    Raises
    ------
    ValueError
        If `n` is negative.
    """
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    index = axis_of("diff", axis, x.ndim)
    if n == 0:
        return x.clone()
    parts = [part for part in (prepend, x, append) if part is not None]
    result = NAMES["concat"](parts, axis=index) if len(parts) > 1 else x
    after, before = ((*(slice(None),) * index, cut) for cut in (slice(1, None), slice(None, -1)))
    subtract = NAMES["ne" if result.dtype.kind == "b" else "sub"]
    for _ in range(n):
        result = subtract(result[after], result[before])
    return result


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the places of the elements that are not zero, one tensor for each axis.

    Raises
    ------
    ValueError
        If `x` has no axes.
    """
    if x.ndim == 0:
        raise ValueError("nonzero: x must have one axis at least, got shape ()")
    mask = reshape(x if x.dtype.kind == "b" else NAMES["ne"](x, 0), (-1,) if x.size else (0,))
    flat = arange(0, x.size, device=x.device, dtype=int64)[mask]
    places = []
    for extent in reversed(x.shape):
        step = max(extent, 1)
        places.append(NAMES["remainder"](flat, step))
        flat = NAMES["floor_divide"](flat, step)
    return tuple(reversed(places))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return the tensor with each element (or slice of an axis) several times in a row.

    Parameters
    ----------
    x : Tensor
        Flattened where `axis` is None.
    repeats : int or Tensor
        How often; a tensor gives one count for each place of the axis. It is read by the host.

    Raises
    ------
    ValueError
        If a count is negative, or there are not as many as places.
    """
    source = reshape(x, (x.size,)) if axis is None else x
    index = axis_of("repeat", 0 if axis is None else axis, source.ndim)
    extent = source.shape[index]
    if isinstance(repeats, Tensor):
        if repeats.dtype.kind not in "iu":
            raise TypeError(f"repeat: repeats must be integers, got {repeats.dtype}")
        counts = repeats.numpy().reshape(-1)
        if counts.size not in (1, extent):
            raise ValueError(
                f"repeat: got {counts.size} repeats for the {extent} places of axis {index}"
            )
        if (counts < 0).any():
            raise ValueError(f"repeat: repeats must not be negative, got {counts.min()}")
        if counts.size == 1:
            return repeat(x, int(counts[0]), axis=axis)
        places = [i for i, count in enumerate(counts.tolist()) for _ in range(count)]
        indices = asarray(places, dtype=int64, device=x.device)
        result: Tensor = NAMES["take"](source, indices, axis=index)
        return result
    count = operator.index(repeats)
    if count < 0:
        raise ValueError(f"repeat: repeats must not be negative, got {count}")
    shape = source.shape
    inner = (*shape[: index + 1], count, *shape[index + 1 :])
    joined = (*shape[:index], extent * count, *shape[index + 1 :])
    return reshape(broadcast_to(source.unsqueeze(index + 1), inner), joined, copy=True)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return coordinate tensors of the grid that vectors span, as views.

    Raises
    ------
    ValueError
        If a tensor is no vector, their dtypes differ, or `indexing` is neither 'xy' nor 'ij'.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    for i, one in enumerate(arrays):
        if one.ndim > 1:
            raise ValueError(f"meshgrid: tensor {i} has shape {one.shape}, expected one axis")
        if one.dtype is not arrays[0].dtype:
            raise ValueError(
                f"meshgrid: tensor {i} has dtype {one.dtype}, expected {arrays[0].dtype}"
            )
    rank = len(arrays)
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[:2] = [1, 0]
    shape = tuple(arrays[i].size for i in order)
    grids = []
    for i, one in enumerate(arrays):
        own = [1] * rank
        own[order.index(i)] = one.size
        grids.append(broadcast_to(reshape(one, tuple(own)), shape))
    return grids


def _contracted(x1: Tensor, x2: Tensor, axes: Axes) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ValueError(
                f"tensordot: axes must be in [0, {min(x1.ndim, x2.ndim)}] for shapes {x1.shape} "
                f"and {x2.shape}, got {axes}"
            )
        return list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    first, second = (
        [axis_of("tensordot", axis, x.ndim) for axis in one]
        for one, x in zip(axes, (x1, x2), strict=True)
    )
    if len(first) != len(second):
        raise ValueError(f"tensordot: got {len(first)} and {len(second)} axes, expected as many")
    return first, second


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Axes = 2) -> Tensor:
    """Return the sums of products over some axes of both tensors.

    Parameters
    ----------
    axes : int or pair of sequences
        How many last axes of x1 meet the first ones of x2, or the axes of each.

    Raises
    ------
    ValueError
        If the extents of axes that meet differ.
    """
    for x in (x1, x2):
        _check_kind("tensordot", x, "iufc", "numbers")
    first, second = _contracted(x1, x2, axes)
    if [x1.shape[a] for a in first] != [x2.shape[b] for b in second]:
        raise ValueError(
            f"tensordot: axes {first} of shape {x1.shape} and {second} of shape {x2.shape} have "
            "other extents, expected equal ones"
        )
    rows = [a for a in range(x1.ndim) if a not in first]
    columns = [b for b in range(x2.ndim) if b not in second]
    shape = (*(x1.shape[a] for a in rows), *(x2.shape[b] for b in columns))
    inner = height = width = 1
    for a in first:
        inner *= x1.shape[a]
    for a in rows:
        height *= x1.shape[a]
    for b in columns:
        width *= x2.shape[b]
    left = reshape(permute_dims(x1, (*rows, *first)), (height, inner))
    right = reshape(permute_dims(x2, (*second, *columns)), (inner, width))
    return reshape(NAMES["matmul"](left, right), shape)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the dot products of vectors along an axis, x1 conjugated; other axes broadcast.

    Raises
    ------
    ValueError
        If the extents along the axis differ.
    """
    for x in (x1, x2):
        _check_kind("vecdot", x, "iufc", "numbers")
    first, second = (x.movedim(axis_of("vecdot", axis, x.ndim), -1) for x in (x1, x2))
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(
            f"vecdot: shapes {x1.shape} and {x2.shape} do not fit along axis {axis}, expected "
            "equal extents"
        )
    rows = conj(first).unsqueeze(-2) if first.dtype.kind == "c" else first.unsqueeze(-2)
    return NAMES["matmul"](rows, second.unsqueeze(-1)).squeeze((-2, -1))  # type: ignore[no-any-return]


DERIVED = {
    function.__name__: function
    for function in (conj, diff, meshgrid, nextafter, nonzero, repeat, signbit, tensordot, vecdot)
}
