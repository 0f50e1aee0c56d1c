"""Discrete Fourier transforms, as the array API names them.

NumPy computes them on the host: on the CPU device on the tensor's own memory, from other devices
through a round trip. Results of float32 are complex64, those of float64 complex128; float16 and
bfloat16 are transformed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbxtensor.dtype import DType, as_dtype, default_dtype
from nbxtensor.ops import NAMES
from nbxtensor.ops.creation import arange
from nbxtensor.ops.host import complex_of, floating, from_array, real_of, run, to_array
from nbxtensor.tensor import Tensor

_NORMS = ("backward", "ortho", "forward")

Sizes = Sequence[int] | None
Axes = Sequence[int] | None


def _transform(
    name: str, x: Tensor, size: Any, axis: Any, norm: str, *, real_result: bool = False
) -> Tensor:
    """Run a transform of NumPy and give its result the precision of the input."""
    dtype = floating(name, x)
    if norm not in _NORMS:
        raise ValueError(f"{name}: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if name in ("rfft", "rfftn", "ihfft") and dtype.kind == "c":
        raise TypeError(f"{name}: dtype {dtype} is not supported, expected real numbers")
    if x.ndim == 0:
        raise ValueError(f"{name}: x must have one axis at least, got shape ()")
    several = name.endswith("n")
    keywords = {"s": size, "axes": axis} if several else {"n": size, "axis": axis}
    if several and size is not None and axis is None:
        keywords["axes"] = tuple(range(x.ndim - len(size), x.ndim))
    function: Callable[..., Any] = getattr(np.fft, name)
    wide = complex_of(dtype)
    result = run(function, to_array(x), norm=norm, **keywords)
    return from_array(result, x, real_of(wide) if real_result else wide)


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the transform along an axis.

    Parameters
    ----------
    n : int, optional
        Length of the transform; shorter axes are filled with zeros, longer ones cut.
    norm : str
        Where 1 / n goes: 'backward' (to the inverse), 'forward', or 'ortho' (the root to both).
    """
    return _transform("fft", x, n, axis, norm)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse transform along an axis; see `fft`."""
    return _transform("ifft", x, n, axis, norm)


def fftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """Return the transform along several axes, by default all; see `fft`."""
    return _transform("fftn", x, s, axes, norm)


def ifftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """Return the inverse transform along several axes, by default all; see `fft`."""
    return _transform("ifftn", x, s, axes, norm)


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the n // 2 + 1 first terms of the transform of real numbers; see `fft`."""
    return _transform("rfft", x, n, axis, norm)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the real numbers whose transform begins with x; see `fft`."""
    return _transform("irfft", x, n, axis, norm, real_result=True)


def rfftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """Return the transform of real numbers along several axes, half of the last; see `fft`."""
    return _transform("rfftn", x, s, axes, norm)


def irfftn(x: Tensor, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """Return the real numbers whose transform along several axes is x; see `fft`."""
    return _transform("irfftn", x, s, axes, norm, real_result=True)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the real transform of numbers that are conjugate symmetric; see `fft`."""
    return _transform("hfft", x, n, axis, norm, real_result=True)


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse transform of real numbers, of which half is needed; see `fft`."""
    return _transform("ihfft", x, n, axis, norm)


def _frequencies(
    name: str, count: int, n: int, d: float, first: int, dtype: Any, device: Any
) -> Tensor:
    if n < 1:
        raise ValueError(f"{name}: n must be positive, got {n}")
    wanted: DType = default_dtype("float") if dtype is None else as_dtype(dtype)
    if wanted.kind != "f":
        raise TypeError(f"{name}: dtype must be real floating-point, got {wanted}")
    steps = arange(first, first + count, dtype=wanted, device=device)
    result: Tensor = NAMES["mul"](steps, 1.0 / (n * d))
    return result


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of the terms of a transform of n samples, d apart."""
    result: Tensor = ifftshift(_frequencies("fftfreq", n, n, d, -(n // 2), dtype, device))
    return result


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of the terms that `rfft` gives for n samples, d apart."""
    return _frequencies("rfftfreq", n // 2 + 1, n, d, 0, dtype, device)


def _shift(x: Tensor, axes: Any, *, inverse: bool) -> Tensor:
    given = tuple(range(x.ndim)) if axes is None else axes
    chosen = (given,) if isinstance(given, int) else tuple(given)
    by = tuple(-(x.shape[axis] // 2) if inverse else x.shape[axis] // 2 for axis in chosen)
    result: Tensor = NAMES["roll"](x, by, chosen)
    return result


def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Return the terms with the zero frequency in the middle of each axis."""
    return _shift(x, axes, inverse=False)


def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Return the terms with the zero frequency from the middle back at the start."""
    return _shift(x, axes, inverse=True)


__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]
