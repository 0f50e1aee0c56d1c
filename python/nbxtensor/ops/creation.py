"""Creation of tensors from numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.dtype import DType, as_dtype, bool_, default_dtype, iinfo
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.signature import scalar, static, written
from nbxtensor.ops.table import EVERY, OPS, REAL, Row, Sample, register
from nbxtensor.tensor import Tensor

OUT = written("out")


def _plan_fill(builder: Builder, out: Window, value: Number) -> Window:
    builder.check_writable(out)
    builder.step("fill:value", [out], [], [value])
    return out


def _plan_arange(builder: Builder, out: Window, start: Number, step: Number) -> Window:
    builder.step("fill:arange", [out], [], [start, step])
    return out


def _plan_linspace(
    builder: Builder, out: Window, start: Number, step: Number, end: Number
) -> Window:
    builder.step("fill:linspace", [out], [], [start, step, end])
    return out


def _plan_eye(builder: Builder, out: Window, k: int) -> Window:
    if out.rank != 2:
        raise builder.error(f"out must be a matrix, got shape {out.shape}")
    builder.step("fill:eye", [out], [], [int(k)])
    return out


def _zeros(*shapes: tuple[int, ...]) -> Any:
    return [np.zeros(shape) for shape in shapes]


def _fill_row(name: str, **fields: Any) -> None:
    register(Row(name=name, family="creation", **fields))


_fill_row(
    "fill_value",
    parameters=(OUT, scalar("value")),
    plan=_plan_fill,
    oracle=lambda out, value: np.full_like(out, value),
    samples=lambda g: [Sample((z, 1)) for z in _zeros((), (0,), (7,), (5, 7))],
    summary="Write one number to every element.",
    kernels=("fill:value",),
    dtypes=EVERY,
)
_fill_row(
    "fill_arange",
    parameters=(OUT, scalar("start"), scalar("step")),
    plan=_plan_arange,
    oracle=lambda out, start, step: (start + step * np.arange(out.size)).astype(out.dtype),
    samples=lambda g: [Sample((z, 2, 3)) for z in _zeros((0,), (1,), (31,))],
    summary="Write start, start + step, ... to a tensor of one axis.",
    kernels=("fill:arange",),
    dtypes=REAL,
)
_fill_row(
    "fill_linspace",
    parameters=(OUT, scalar("start"), scalar("step"), scalar("end", None)),
    plan=_plan_linspace,
    oracle=lambda out, start, step, end=None: np.linspace(start, end, out.size),
    samples=lambda g: [Sample((np.zeros(9), 1.0, 0.25, 3.0))],
    summary="Write evenly spaced numbers; the last one is `end` exactly where it is given.",
    kernels=("fill:linspace",),
)
_fill_row(
    "fill_eye",
    parameters=(OUT, static("k", 0)),
    plan=_plan_eye,
    oracle=lambda out, k=0: np.eye(out.shape[0], out.shape[1], k=k),
    samples=lambda g: [
        Sample((z,), {"k": k}) for z in _zeros((5, 5), (3, 7), (7, 3), (0, 2)) for k in (-1, 0, 2)
    ],
    summary="Write ones to diagonal k of a matrix and zeros elsewhere.",
    kernels=("fill:eye",),
    dtypes=EVERY,
)

_fill = OPS["fill_value"]
_fill_arange = OPS["fill_arange"]
_fill_linspace = OPS["fill_linspace"]
_fill_eye = OPS["fill_eye"]

Shape = int | Sequence[int]
NumberLike = complex | np.number[Any] | np.bool_
DTypeLike = DType | str | type[Any] | np.dtype[Any]
DeviceLike = _core.Device | str


def empty(
    shape: Shape = (), *more: int, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Return a tensor of undefined contents.

    Parameters
    ----------
    shape, *more : int or sequence of int
        Extents, apart or as one sequence.
    dtype : DType, optional
        float32 by default.
    device : Device or str, optional
        The default device by default.
    """
    # Every call counts here: the core checks the shape, and knows the default dtype.
    wanted = dtype if dtype is None or type(dtype) is DType else as_dtype(dtype)
    extents: Any = (shape, *more) if more else shape
    return _core.empty(extents, wanted, device)  # type: ignore[arg-type]


def zeros(
    shape: Shape = (), *more: int, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Return a tensor of zeros; see `empty` for the arguments."""
    tensor: Tensor = _fill(empty(shape, *more, dtype=dtype, device=device), 0)
    return tensor


def ones(
    shape: Shape = (), *more: int, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Return a tensor of ones; see `empty` for the arguments."""
    tensor: Tensor = _fill(empty(shape, *more, dtype=dtype, device=device), 1)
    return tensor


def _kind_dtype(*values: Any) -> DType:
    for kind, name in ((complex, "complex"), (float, "float"), (bool, "bool"), (int, "int")):
        if any(isinstance(value, kind) for value in values):
            return bool_ if name == "bool" else default_dtype(name)
    return default_dtype("float")


def _check_number(function: str, value: Any, dtype: DType) -> None:
    """Refuse what is no number, and integers that the dtype does not hold."""
    if not isinstance(value, (bool, int, float, complex, np.generic)):
        raise TypeError(
            f"{function}: fill_value must be a number, got {type(value).__name__}; broadcast_to "
            "repeats a tensor"
        )
    if isinstance(value, float) and dtype.kind in "iu" and not math.isfinite(value):
        kind = ValueError if math.isnan(value) else OverflowError
        raise kind(f"{function}: fill_value {value} cannot be converted to {dtype}")
    if isinstance(value, int) and dtype.kind in "iu":
        limits = iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise OverflowError(
                f"{function}: fill_value {value} does not fit in {dtype}, expected "
                f"[{limits.min}, {limits.max}]"
            )


def full(
    shape: Shape,
    fill_value: NumberLike,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return a tensor of one number, by default in the number's own default dtype."""
    wanted = _kind_dtype(fill_value) if dtype is None else as_dtype(dtype)
    _check_number("full", fill_value, wanted)
    tensor: Tensor = _fill(_core.empty(shape, wanted, device), fill_value)
    return tensor


def empty_like(
    x: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Return a tensor of undefined contents with the shape, dtype and device of another."""
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    tensor: Tensor = _core.empty(x.shape, wanted, x.device if device is None else device)
    return tensor


def zeros_like(
    x: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Return zeros with the shape, dtype and device of another tensor."""
    tensor: Tensor = _fill(empty_like(x, dtype=dtype, device=device), 0)
    return tensor


def ones_like(
    x: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Return ones with the shape, dtype and device of another tensor."""
    tensor: Tensor = _fill(empty_like(x, dtype=dtype, device=device), 1)
    return tensor


def full_like(
    x: Tensor,
    fill_value: NumberLike,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return one number with the shape, dtype and device of another tensor."""
    _check_number("full_like", fill_value, x.dtype if dtype is None else as_dtype(dtype))
    tensor: Tensor = _fill(empty_like(x, dtype=dtype, device=device), fill_value)
    return tensor


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return start, start + step, ... below stop; with one argument 0, 1, ... below it.

    Raises
    ------
    ValueError
        If `step` is zero.
    """
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange: step must not be 0")
    wanted = _kind_dtype(first, last, step) if dtype is None else as_dtype(dtype)
    if all(isinstance(value, int) for value in (first, last, step)):
        count = max(0, int(-((first - last) // step)))
    else:
        count = max(0, math.ceil((last - first) / step))
    tensor: Tensor = _fill_arange(_core.empty((count,), wanted, device), first, step)
    return tensor


def linspace(
    start: float,
    stop: float,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    endpoint: bool = True,
) -> Tensor:
    """Return `num` evenly spaced numbers from start to stop, stop itself where `endpoint`.

    Raises
    ------
    ValueError
        If `num` is negative.
    """
    if num < 0:
        raise ValueError(f"linspace: num must not be negative, got {num}")
    wanted = default_dtype("float") if dtype is None else as_dtype(dtype)
    gaps = max(num - 1 if endpoint else num, 1)
    out = _core.empty((num,), wanted, device)
    end = stop if endpoint and num > 1 else None
    tensor: Tensor = _fill_linspace(out, start, (stop - start) / gaps, end)
    return tensor


def eye(
    n_rows: int,
    n_cols: int | None = None,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return a matrix with ones on diagonal k and zeros elsewhere."""
    wanted = default_dtype("float") if dtype is None else as_dtype(dtype)
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    # Diagonals past the edges hold nothing, however far.
    diagonal = max(-shape[0], min(k, shape[1]))
    tensor: Tensor = _fill_eye(_core.empty(shape, wanted, device), diagonal)
    return tensor


CREATORS = {
    function.__name__: function
    for function in (
        empty,
        zeros,
        ones,
        full,
        empty_like,
        zeros_like,
        ones_like,
        full_like,
        arange,
        linspace,
        eye,
    )
}
