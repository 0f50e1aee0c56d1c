"""Functions over other ops, and those that NumPy computes on the host, against NumPy."""

from __future__ import annotations

import secrets
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

REAL = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64")
SHAPES = ((), (1,), (0,), (13,), (5, 7), (3, 0, 2), (2, 3, 5))
DEVICES = ("cpu", "sim:0")


@pytest.fixture
def generator() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def values(generator: np.random.Generator, shape: Any, dtype: str) -> Any:
    drawn = generator.standard_normal(shape) * 3
    return np.asarray(drawn if np.dtype(dtype).kind in "ifc" else np.abs(drawn)).astype(dtype)


def special(dtype: str) -> Any:
    return np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2.5, 1e-45, -6e4], dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", *REAL])
@pytest.mark.parametrize("shape", SHAPES)
def test_conj(generator: np.random.Generator, shape: Any, dtype: str) -> None:
    array = values(generator, shape, dtype)
    if array.dtype.kind == "c":
        array = array + values(generator, shape, dtype) * array.dtype.type(1j)
    tensor = nbx.asarray(np.array(array, dtype))
    np.testing.assert_array_equal(nbx.conj(tensor).numpy(), np.conj(tensor.numpy()))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_signbit_and_nextafter_of_special_values(dtype: str) -> None:
    with np.errstate(all="ignore"):
        array = special(dtype)
    a, b = (np.array(grid.reshape(-1)) for grid in np.meshgrid(array, array))
    with np.errstate(all="ignore"):
        wanted = np.nextafter(a, b)
    got = nbx.nextafter(nbx.asarray(a), nbx.asarray(b)).numpy()
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
    number = ~np.isnan(wanted)
    if dtype != "float16":  # NumPy's half keeps the first of two zeros, C and the others the second
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(wanted[number]))
    np.testing.assert_array_equal(nbx.signbit(nbx.asarray(array)).numpy(), np.signbit(array))


@pytest.mark.parametrize("shape", SHAPES)
def test_nextafter_of_drawn_values(generator: np.random.Generator, shape: Any) -> None:
    a, b = (values(generator, shape, "float32") for _ in range(2))
    got = nbx.nextafter(nbx.asarray(a), nbx.asarray(b)).numpy()
    np.testing.assert_array_equal(got, np.nextafter(a, b))


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_signbit_of_numbers(generator: np.random.Generator, dtype: str) -> None:
    array = values(generator, (5, 7), dtype)
    np.testing.assert_array_equal(nbx.signbit(nbx.asarray(array)).numpy(), array < 0)


@pytest.mark.parametrize("n", [0, 1, 2, 9])
@pytest.mark.parametrize("axis", [0, -1])
def test_diff(generator: np.random.Generator, n: int, axis: int) -> None:
    array, before, after = (values(generator, (5, 7), "float64") for _ in range(3))
    tensors = [nbx.asarray(one) for one in (array, before, after)]
    got = nbx.diff(tensors[0], n=n, axis=axis)
    np.testing.assert_allclose(got.numpy(), np.diff(array, n=n, axis=axis), atol=1e-9)
    if n > 0:  # with 0 NumPy joins nothing
        got = nbx.diff(tensors[0], n=n, axis=axis, prepend=tensors[1], append=tensors[2])
        wanted = np.diff(array, n=n, axis=axis, prepend=before, append=after)
        np.testing.assert_allclose(got.numpy(), wanted, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_nonzero(generator: np.random.Generator, shape: Any, device: str) -> None:
    array = np.round(values(generator, shape, "float32"))
    got = nbx.nonzero(nbx.asarray(array, device=device))
    wanted = np.nonzero(array)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype is nbx.int64
        np.testing.assert_array_equal(one.numpy(), other)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_repeat(generator: np.random.Generator, axis: int | None) -> None:
    array = values(generator, (5, 7), "int32")
    tensor = nbx.asarray(array)
    for count in (0, 1, 3):
        got = nbx.repeat(tensor, count, axis=axis)
        np.testing.assert_array_equal(got.numpy(), np.repeat(array, count, axis=axis))
    counts = generator.integers(0, 4, array.size if axis is None else array.shape[axis])
    got = nbx.repeat(tensor, nbx.asarray(counts), axis=axis)
    np.testing.assert_array_equal(got.numpy(), np.repeat(array, counts, axis=axis))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("extents", [(3,), (3, 4), (2, 0, 5), (2, 3, 4, 5)])
def test_meshgrid(generator: np.random.Generator, extents: Any, indexing: Any) -> None:
    arrays = [values(generator, (extent,), "float32") for extent in extents]
    got = nbx.meshgrid(*(nbx.asarray(one) for one in arrays), indexing=indexing)
    for one, other in zip(got, np.meshgrid(*arrays, indexing=indexing), strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


@pytest.mark.parametrize(
    ("first", "second", "axes"),
    [
        ((5, 7), (7, 3), 1),
        ((5,), (7,), 0),
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3, 4), (4, 2, 5), ((0, 2), (1, 0))),
        ((2, 0), (0, 3), 1),
        ((2, 3), (2, 3), ((-1, 0), (1, -2))),
    ],
)
def test_tensordot(generator: np.random.Generator, first: Any, second: Any, axes: Any) -> None:
    a, b = (values(generator, shape, "float64") for shape in (first, second))
    got = nbx.tensordot(nbx.asarray(a), nbx.asarray(b), axes=axes).numpy()
    np.testing.assert_allclose(got, np.tensordot(a, b, axes=axes), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_vecdot(generator: np.random.Generator, dtype: str) -> None:
    for first, second, axis in (((7,), (7,), -1), ((5, 7), (7,), -1), ((4, 1, 3), (4, 5, 3), -3)):
        a, b = (values(generator, shape, dtype) for shape in (first, second))
        if dtype == "complex64":
            a, b = a + np.complex64(2j), b - np.complex64(1j)
        moved = [np.moveaxis(v, axis, -1).astype(np.result_type(dtype, "float64")) for v in (a, b)]
        wanted = np.sum(np.conj(moved[0]) * moved[1], axis=-1)
        got = nbx.vecdot(nbx.asarray(a), nbx.asarray(b), axis=axis)
        assert str(got.dtype) == dtype
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(generator: np.random.Generator, side: Any) -> None:
    line = np.round(values(generator, (31,), "float32"))
    sought = np.round(values(generator, (5, 7), "float32"))
    order = np.argsort(line)
    got = nbx.searchsorted(
        nbx.asarray(line), nbx.asarray(sought), side=side, sorter=nbx.asarray(order)
    )
    assert got.dtype is nbx.int64
    np.testing.assert_array_equal(got.numpy(), np.searchsorted(np.sort(line), sought, side=side))


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_isin(generator: np.random.Generator, dtype: str, invert: bool) -> None:
    array = np.round(values(generator, (5, 7), "float64")).astype(dtype)
    among = np.round(values(generator, (4,), "float64")).astype(dtype)
    got = nbx.isin(nbx.asarray(array), nbx.asarray(among), invert=invert)
    np.testing.assert_array_equal(got.numpy(), np.isin(array, among, invert=invert))
    got = nbx.isin(nbx.asarray(array), 1, invert=invert)
    np.testing.assert_array_equal(got.numpy(), np.isin(array, 1, invert=invert))
    got = nbx.isin(1, nbx.asarray(array), invert=invert)
    assert got.item() == ((array == 1).any() != invert)


@pytest.mark.parametrize(("axis", "shape"), [((0, -1), (1, 2, 3, 1)), ((1, 2), (2, 1, 1, 3))])
def test_expand_dims_takes_several_axes(axis: Any, shape: Any) -> None:
    assert nbx.expand_dims(nbx.ones(2, 3), axis).shape == shape
    with pytest.raises(ValueError, match=r"expand_dims: axis .* names an axis twice"):
        nbx.expand_dims(nbx.ones(2, 3), (1, 1))
    with pytest.raises(IndexError, match="expand_dims: axes must be in"):
        nbx.expand_dims(nbx.ones(2, 3), (0, 7))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
def test_unique(generator: np.random.Generator, dtype: str, device: str) -> None:
    array = np.round(values(generator, (5, 7), "float64")).astype(dtype)
    if dtype == "float32":
        array[1:3, 2] = np.nan
    tensor = nbx.asarray(array, device=device)
    found = nbx.unique_all(tensor)
    wanted = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    for one, other in zip(found, wanted, strict=True):
        assert str(one.device) == device
        np.testing.assert_array_equal(one.numpy(), other.reshape(one.shape))
    assert found.inverse_indices.shape == array.shape
    np.testing.assert_array_equal(nbx.unique_values(tensor).numpy(), wanted[0])
    np.testing.assert_array_equal(nbx.unique_counts(tensor).counts.numpy(), wanted[3])
    inverse = nbx.unique_inverse(tensor).inverse_indices
    np.testing.assert_array_equal(inverse.numpy().reshape(-1), wanted[2].reshape(-1))


def test_what_is_refused() -> None:
    x = nbx.ones(2, 3)
    with pytest.raises(ValueError, match="nonzero: x must have one axis at least"):
        nbx.nonzero(nbx.asarray(1.0))
    with pytest.raises(ValueError, match="diff: n must not be negative"):
        nbx.diff(x, n=-1)
    with pytest.raises(IndexError, match="diff: axis must be in"):
        nbx.diff(x, axis=2)
    with pytest.raises(ValueError, match="repeat: got 2 repeats for the 3 places of axis 1"):
        nbx.repeat(x, nbx.asarray([1, 2]), axis=1)
    with pytest.raises(ValueError, match="repeat: repeats must not be negative"):
        nbx.repeat(x, -1)
    with pytest.raises(ValueError, match="meshgrid: indexing must be"):
        nbx.meshgrid(x[0], indexing="yx")
    with pytest.raises(ValueError, match="searchsorted: side must be"):
        nbx.searchsorted(x[0], x, side="middle")
    with pytest.raises(ValueError, match="tensordot: axes"):
        nbx.tensordot(x, x, axes=1)
    with pytest.raises(ValueError, match="vecdot: shapes"):
        nbx.vecdot(x, x[:, :1])
    with pytest.raises(TypeError, match="nextafter: dtype int64"):
        nbx.nextafter(nbx.asarray([1]), nbx.asarray([2]))
    with pytest.raises(TypeError, match="signbit: dtype bool"):
        nbx.signbit(nbx.asarray([True]))
    with pytest.raises(TypeError, match="nextafter: x1 and x2 are both numbers"):
        nbx.nextafter(1.0, 2.0)


def test_the_tensor_names_its_namespace() -> None:
    x = nbx.ones(2, 2)
    assert x.__array_namespace__() is nbx
    assert x.__array_namespace__(api_version="2024.12") is nbx
    with pytest.raises(ValueError, match="api_version '1999-01' is unknown"):
        x.__array_namespace__(api_version="1999-01")
    assert x.to_device("cpu").device == x.device
    with pytest.raises(ValueError, match="stream must be None"):
        x.to_device("cpu", stream=1)
    own = x
    own @= nbx.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert own is x
    np.testing.assert_array_equal(x.numpy(), [[4, 6], [4, 6]])
    with pytest.raises(ValueError, match="matmul: the result has shape"):
        x @= nbx.ones(2, 3)
