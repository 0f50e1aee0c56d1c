"""Functions that NumPy computes on the host: on the CPU device on the tensor's own memory.

Tensors of other devices make a round trip: their elements are copied to the host, which waits for
them, and the results back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.dtype import DType, complex64, complex128, float32, float64, int64, result_type
from nbxtensor.tensor import Tensor, asarray

Array = np.ndarray[Any, Any]


class UniqueAll(NamedTuple):
    """Distinct elements, their first places, where each element went, and how often they occur."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct elements and how often they occur."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct elements and where each element went."""

    values: Tensor
    inverse_indices: Tensor


def to_array(x: Tensor) -> Array:
    """Return the elements in a type that NumPy's functions take."""
    narrow = x.dtype.kind == "f" and x.dtype.bits < 32
    return (x.to(float32) if narrow else x).numpy()


def from_array(array: Any, like: Tensor, dtype: DType | None = None) -> Tensor:
    """Return a result of NumPy on the device of an operand."""
    return asarray(
        np.ascontiguousarray(array).reshape(np.shape(array)),
        dtype=dtype,
        device=like.device,
        copy=True,
    )


def floating(function: str, x: Tensor) -> DType:
    """Return the dtype of a function's results, for tensors of floating-point numbers.

    Raises
    ------
    TypeError
        For other tensors.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: expected a tensor, got {type(x).__name__}")
    if x.dtype.kind not in "fc" or x.dtype.bits < 16:
        raise TypeError(
            f"{function}: dtype {x.dtype} is not supported, expected floating-point or complex "
            "numbers; convert the tensor first"
        )
    return x.dtype


def real_of(dtype: DType) -> DType:
    """Return the dtype of the parts of complex numbers; another dtype itself."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """Return the complex dtype whose parts hold these numbers."""
    return dtype if dtype.kind == "c" else complex128 if dtype is float64 else complex64


def run(function: Callable[..., Any], *arrays: Any, **keywords: Any) -> Any:
    """Call NumPy without its warnings about special values, which are results here."""
    with np.errstate(all="ignore"):
        return function(*arrays, **keywords)


def searchsorted(
    x1: Tensor, x2: Tensor | float, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Return the places at which elements of x2 keep the sorted vector x1 in order.

    Parameters
    ----------
    x1 : Tensor
        One axis, ascending; NaN counts as greatest.
    side : str
        'left': before equal elements; 'right': after them.
    sorter : Tensor, optional
        Places that sort x1, as argsort gives them.

    Raises
    ------
    ValueError
        If x1 has another number of axes than one, or `side` is neither.
    """
    if x1.ndim != 1:
        raise ValueError(f"searchsorted: x1 must have one axis, got shape {x1.shape}")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if x1.dtype.kind == "c" or (isinstance(x2, Tensor) and x2.dtype.kind == "c"):
        raise TypeError("searchsorted: complex numbers have no order, expected real ones")
    values = to_array(x2) if isinstance(x2, Tensor) else x2
    order = None if sorter is None else sorter.numpy()
    places = np.searchsorted(to_array(x1), values, side=side, sorter=order)  # type: ignore[call-overload]
    return from_array(places, x1, int64)


def _unique(x: Tensor) -> UniqueAll:
    values, first, inverse, counts = np.unique(
        to_array(x).reshape(-1),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        equal_nan=False,
    )
    return UniqueAll(
        from_array(values, x, x.dtype),
        from_array(first, x, int64),
        from_array(inverse.reshape(x.shape), x, int64),
        from_array(counts, x, int64),
    )


def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the distinct elements in order with places, inverse and counts; each NaN is one."""
    return _unique(x)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the distinct elements in order and how often they occur; each NaN is one."""
    found = _unique(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the distinct elements in order and where each element went; each NaN is one."""
    found = _unique(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Return the distinct elements in order; each NaN is one."""
    return from_array(np.unique(to_array(x).reshape(-1), equal_nan=False), x, x.dtype)


def isin(x1: Tensor | float, x2: Tensor | float, /, *, invert: bool = False) -> Tensor:
    """Return which elements of x1 are among those of x2, or with `invert` which are not.

    Raises
    ------
    TypeError
        If both are numbers.
    """
    given = [x for x in (x1, x2) if isinstance(x, Tensor)]
    if not given:
        raise TypeError("isin: x1 and x2 are both numbers, expected one tensor at least")
    common = result_type(x1, x2)
    first, second = (
        to_array(x.to(common) if isinstance(x, Tensor) else asarray(x, dtype=common, device="cpu"))
        for x in (x1, x2)
    )
    return from_array(np.isin(first, second, invert=invert), given[0])


HOST = {
    function.__name__: function
    for function in (isin, searchsorted, unique_all, unique_counts, unique_inverse, unique_values)
}
