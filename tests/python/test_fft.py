"""Transforms against NumPy's in double precision."""

from __future__ import annotations

import secrets
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "complex64": 2e-5, "complex128": 1e-12}
NORMS = ("backward", "ortho", "forward")


@pytest.fixture
def generator() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def values(generator: np.random.Generator, shape: Any, dtype: str) -> Any:
    drawn = generator.standard_normal(shape)
    if dtype.startswith("complex"):
        drawn = drawn + 1j * generator.standard_normal(shape)
    return drawn.astype(dtype)


def check(got: Any, wanted: Any, dtype: str, result: str) -> None:
    wide = dtype in ("float64", "complex128")
    kinds = {"real": ("float32", "float64"), "complex": ("complex64", "complex128")}
    assert str(got.dtype) == kinds[result][wide]
    assert got.shape == wanted.shape
    limit = TOLERANCE[dtype] * max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis(generator: np.random.Generator, name: str, norm: str) -> None:
    real_input = name in ("rfft", "ihfft")
    real_result = name in ("irfft", "hfft")
    names = ("float32", "float64") if real_input else ("complex64", "complex128")
    for dtype in names:
        for shape, n, axis in (((7,), None, -1), ((5, 31), 16, 1), ((8, 3), 11, 0), ((4, 1), 6, 1)):
            array = values(generator, shape, dtype)
            got = getattr(nbx.fft, name)(nbx.asarray(array), n=n, axis=axis, norm=norm)
            exact = array.astype("float64" if real_input else "complex128")
            wanted = getattr(np.fft, name)(exact, n=n, axis=axis, norm=norm)
            check(got, wanted, dtype, "real" if real_result else "complex")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(generator: np.random.Generator, name: str, norm: str) -> None:
    dtype = "float64" if name == "rfftn" else "complex64"
    for shape, s, axes in (
        ((5, 7), None, None),
        ((4, 5, 6), (3, 8), (0, 2)),
        ((4, 5, 6), (3, 8), None),
        ((2, 3, 4), None, (1, 2)),
    ):
        array = values(generator, shape, dtype)
        got = getattr(nbx.fft, name)(nbx.asarray(array), s=s, axes=axes, norm=norm)
        exact = array if name == "rfftn" else array.astype("complex128")
        chosen = tuple(range(len(shape) - len(s), len(shape))) if s and axes is None else axes
        wanted = getattr(np.fft, name)(exact, s=s, axes=chosen, norm=norm)
        check(got, wanted, dtype, "real" if name == "irfftn" else "complex")


def test_there_and_back_on_another_device(generator: np.random.Generator) -> None:
    array = values(generator, (3, 10), "float32")
    there = nbx.fft.rfft(nbx.asarray(array, device="sim:0"))
    back = nbx.fft.irfft(there, n=10)
    assert str(back.device) == "sim:0"
    np.testing.assert_allclose(back.numpy(), array, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_frequencies(n: int) -> None:
    for dtype in ("float32", "float64"):
        for name in ("fftfreq", "rfftfreq"):
            got = getattr(nbx.fft, name)(n, d=0.3, dtype=dtype)
            assert str(got.dtype) == dtype
            wanted = getattr(np.fft, name)(n, d=0.3)
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("axes", [None, 0, (0, 1), (-1,)])
def test_shifts(generator: np.random.Generator, axes: Any) -> None:
    array = values(generator, (5, 8), "complex64")
    tensor = nbx.asarray(array)
    for name in ("fftshift", "ifftshift"):
        got = getattr(nbx.fft, name)(tensor, axes=axes)
        np.testing.assert_array_equal(got.numpy(), getattr(np.fft, name)(array, axes=axes))


def test_what_is_refused() -> None:
    x = nbx.ones(4, dtype=nbx.complex64)
    with pytest.raises(TypeError, match="rfft: dtype complex64"):
        nbx.fft.rfft(x)
    with pytest.raises(TypeError, match="fft: dtype int64"):
        nbx.fft.fft(nbx.asarray([1, 2]))
    with pytest.raises(ValueError, match="fft: norm must be"):
        nbx.fft.fft(x, norm="both")
    with pytest.raises(ValueError, match="fft: x must have one axis"):
        nbx.fft.fft(nbx.asarray(1.0))
    with pytest.raises(ValueError, match="fftfreq: n must be positive"):
        nbx.fft.fftfreq(0)
    with pytest.raises(TypeError, match="fftfreq: dtype must be real"):
        nbx.fft.fftfreq(3, dtype=nbx.int64)
