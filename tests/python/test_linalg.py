"""Linear algebra against NumPy's in double precision, and by what a decomposition must satisfy."""

from __future__ import annotations

import math
import secrets
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

DTYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = ((1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 3), (0, 3), (2, 0, 3, 3))
SQUARES = ((1, 1), (4, 4), (2, 3, 3), (0, 3, 3))
WIDE = {"float32": "float64", "complex64": "complex128"}


@pytest.fixture
def generator() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def limit(dtype: str) -> float:
    return 2e-4 if dtype in WIDE else 1e-9


def values(generator: np.random.Generator, shape: Any, dtype: str) -> Any:
    drawn = generator.standard_normal(shape)
    if dtype.startswith("complex"):
        drawn = drawn + 1j * generator.standard_normal(shape)
    return drawn.astype(dtype)


def regular(generator: np.random.Generator, shape: Any, dtype: str) -> Any:
    """Matrices far from singular."""
    return values(generator, shape, dtype) + (4 * shape[-1] * np.eye(shape[-1])).astype(dtype)


def definite(generator: np.random.Generator, shape: Any, dtype: str) -> Any:
    array = values(generator, shape, dtype)
    return array @ np.swapaxes(array, -1, -2).conj() + np.eye(shape[-1]).astype(dtype) * 2


def check(got: Any, wanted: Any, dtype: str) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=limit(dtype) * scale)


def exact(array: Any) -> Any:
    return array.astype(WIDE.get(str(array.dtype), array.dtype))


def real(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARES)
def test_square_matrices(generator: np.random.Generator, shape: Any, dtype: str) -> None:
    array = regular(generator, shape, dtype)
    x = nbx.asarray(array)
    wide = exact(array)
    for name in ("inv", "det"):
        got = getattr(nbx.linalg, name)(x)
        assert str(got.dtype) == dtype
        check(got, getattr(np.linalg, name)(wide), dtype)
    got = nbx.linalg.slogdet(x)
    wanted = np.linalg.slogdet(wide)
    check(got.sign, wanted[0], dtype)
    check(got.logabsdet, wanted[1], dtype)
    assert str(got.logabsdet.dtype) == real(dtype)
    for n in (-2, 0, 1, 3):
        check(nbx.linalg.matrix_power(x, n), np.linalg.matrix_power(wide, n), dtype)
    for side in (shape, (*shape[:-1], 2), shape[-1:]):
        b = values(generator, side, dtype)
        got = nbx.linalg.solve(x, nbx.asarray(b))
        columns = exact(b)[:, None] if b.ndim == 1 else exact(b)
        wanted = np.linalg.solve(wide, columns)
        check(got, wanted[..., 0] if b.ndim == 1 else wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARES)
def test_hermitian_matrices(generator: np.random.Generator, shape: Any, dtype: str) -> None:
    array = definite(generator, shape, dtype)
    x = nbx.asarray(array)
    wide = exact(array)
    lower = np.linalg.cholesky(wide)
    check(nbx.linalg.cholesky(x), lower, dtype)
    check(nbx.linalg.cholesky(x, upper=True), np.swapaxes(lower, -1, -2).conj(), dtype)
    check(nbx.linalg.eigvalsh(x), np.linalg.eigvalsh(wide), dtype)
    found, vectors = nbx.linalg.eigh(x)
    assert (str(found.dtype), str(vectors.dtype)) == (real(dtype), dtype)
    check(found, np.linalg.eigvalsh(wide), dtype)
    turned = vectors.numpy()
    back = (turned * found.numpy()[..., None, :]) @ np.swapaxes(turned, -1, -2).conj()
    np.testing.assert_allclose(back, array, atol=limit(dtype) * 100)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_of_any_matrix(generator: np.random.Generator, dtype: str) -> None:
    array = values(generator, (2, 4, 4), dtype)
    found, vectors = nbx.linalg.eig(nbx.asarray(array))
    wanted = "complex64" if dtype in WIDE else "complex128"
    assert (str(found.dtype), str(vectors.dtype)) == (wanted, wanted)
    left = array @ vectors.numpy()
    right = vectors.numpy() * found.numpy()[..., None, :]
    np.testing.assert_allclose(left, right, atol=limit(dtype) * 10)
    only = nbx.linalg.eigvals(nbx.asarray(array)).numpy()
    order = [np.sort_complex(np.round(v, 3)) for v in (only, found.numpy())]
    np.testing.assert_allclose(order[0], order[1], atol=5e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_factors(generator: np.random.Generator, shape: Any, dtype: str) -> None:
    array = values(generator, shape, dtype)
    x = nbx.asarray(array)
    for mode in ("reduced", "complete"):
        q, r = nbx.linalg.qr(x, mode=mode)
        assert q.shape == np.linalg.qr(array, mode=mode)[0].shape
        np.testing.assert_allclose(q.numpy() @ r.numpy(), array, atol=limit(dtype))
        np.testing.assert_array_equal(r.numpy(), np.triu(r.numpy()))
    check(nbx.linalg.svdvals(x), np.linalg.svd(exact(array), compute_uv=False), dtype)
    for full in (True, False):
        u, s, vh = nbx.linalg.svd(x, full_matrices=full)
        assert (str(u.dtype), str(s.dtype), str(vh.dtype)) == (dtype, real(dtype), dtype)
        k = s.shape[-1]
        back = (u.numpy()[..., :k] * s.numpy()[..., None, :]) @ vh.numpy()[..., :k, :]
        np.testing.assert_allclose(back, array, atol=limit(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (0, 3)])
def test_rank_and_pseudo_inverse(generator: np.random.Generator, shape: Any, dtype: str) -> None:
    array = values(generator, shape, dtype)
    if shape[-2] > 1:
        array[..., 1, :] = array[..., 0, :]
    x = nbx.asarray(array)
    for rtol in (None, 1e-3):
        given = {} if rtol is None else {"rtol": rtol}
        rank = nbx.linalg.matrix_rank(x, **given)
        assert rank.dtype is nbx.int64
        np.testing.assert_array_equal(rank.numpy(), np.linalg.matrix_rank(array, **given))
        wanted = np.linalg.pinv(exact(array), 1e-4)
        check(nbx.linalg.pinv(x, **given), wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [1, -1, 2, -2, math.inf, -math.inf, "fro", "nuc"])
def test_matrix_norms(generator: np.random.Generator, order: Any, dtype: str) -> None:
    array = values(generator, (2, 5, 3), dtype)
    for keepdims in (False, True):
        got = nbx.linalg.matrix_norm(nbx.asarray(array), ord=order, keepdims=keepdims)
        assert str(got.dtype) == real(dtype)
        wanted = np.linalg.norm(exact(array), ord=order, axis=(-2, -1), keepdims=keepdims)
        check(got, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, -2, math.inf, -math.inf])
def test_vector_norms(generator: np.random.Generator, order: Any, dtype: str) -> None:
    array = values(generator, (5, 7), dtype)
    array[1, 2] = 0 if order == 0 else array[1, 2]
    for axis in (None, 0, -1):
        for keepdims in (False, True):
            got = nbx.linalg.vector_norm(
                nbx.asarray(array), ord=order, axis=axis, keepdims=keepdims
            )
            assert str(got.dtype) == real(dtype)
            flat = exact(array).reshape(-1) if axis is None else exact(array)
            wanted = np.linalg.norm(flat, ord=order, axis=0 if axis is None else axis)
            check(
                got if axis is not None else got.reshape(()),
                wanted.reshape(got.shape if axis is not None else ()),
                dtype,
            )


def test_products_and_diagonals(generator: np.random.Generator) -> None:
    a, b = (values(generator, shape, "float64") for shape in ((4, 1, 3), (5, 3)))
    check(nbx.linalg.cross(nbx.asarray(a), nbx.asarray(b)), np.cross(a, b), "float64")
    turned = [np.moveaxis(np.broadcast_to(v, (4, 5, 3)), -1, 0).copy() for v in (a, b)]
    got = nbx.linalg.cross(*(nbx.asarray(v) for v in turned), axis=0)
    check(got, np.cross(*turned, axis=0), "float64")
    m = values(generator, (2, 4, 5), "float32")
    for offset in (-3, -1, 0, 2, 4):
        x = nbx.asarray(m)
        wanted = np.diagonal(m, offset, -2, -1)
        np.testing.assert_array_equal(nbx.linalg.diagonal(x, offset=offset).numpy(), wanted)
        check(nbx.linalg.trace(x, offset=offset), wanted.sum(-1), "float32")
    assert nbx.linalg.trace(nbx.asarray(m), dtype=nbx.float64).dtype is nbx.float64
    assert nbx.linalg.trace(nbx.ones((2, 2), dtype=nbx.int8)).dtype is nbx.int64


def test_half_precision_and_other_devices(generator: np.random.Generator) -> None:
    array = regular(generator, (3, 3), "float32")
    for dtype in (nbx.float16, nbx.bfloat16):
        x = nbx.asarray(array, device="sim:0").to(dtype)
        inverse = nbx.linalg.inv(x)
        assert (inverse.dtype, str(inverse.device)) == (dtype, "sim:0")
        wanted = np.linalg.inv(x.to(nbx.float64).numpy())
        np.testing.assert_allclose(inverse.to(nbx.float64).numpy(), wanted, atol=2e-3)


def test_what_is_refused() -> None:
    x = nbx.ones(2, 3)
    square = nbx.zeros(2, 2)
    with pytest.raises(ValueError, match="inv: matrices must be square"):
        nbx.linalg.inv(x)
    with pytest.raises(ValueError, match="inv: Singular"):
        nbx.linalg.inv(square)
    with pytest.raises(ValueError, match="cholesky: Matrix is not positive definite"):
        nbx.linalg.cholesky(square)
    with pytest.raises(ValueError, match="svd: x must have two axes"):
        nbx.linalg.svd(x[0])
    with pytest.raises(TypeError, match="det: dtype int64"):
        nbx.linalg.det(nbx.asarray([[1]]))
    with pytest.raises(TypeError, match="det: expected a tensor"):
        nbx.linalg.det(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="qr: mode must be"):
        nbx.linalg.qr(x, mode="raw")
    with pytest.raises(ValueError, match="solve: shapes"):
        nbx.linalg.solve(square, nbx.ones(3))
    with pytest.raises(ValueError, match="matrix_norm: ord must be"):
        nbx.linalg.matrix_norm(x, ord=3)
    with pytest.raises(ValueError, match="cross: x1 must have extent 3 along axis 0"):
        nbx.linalg.cross(x, x, axis=0)
    with pytest.raises(ValueError, match="diagonal: x must have two axes"):
        nbx.linalg.diagonal(x[0])
