"""Linear algebra, as the array API names it.

Decompositions, solutions and inverses are LAPACK's, through NumPy on the host: on the CPU device on
the tensor's own memory, from other devices through a round trip. Float32 stays float32; float16 and
bfloat16 are computed in float32 and rounded once. Products, norms and views are ops and run on the
tensor's device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.dtype import DType, as_dtype, int64, promote_types
from nbxtensor.ops import NAMES
from nbxtensor.ops.derived import tensordot, vecdot
from nbxtensor.ops.host import complex_of, floating, from_array, real_of, run, to_array
from nbxtensor.ops.views import broadcast_arrays, matrix_transpose, reshape
from nbxtensor.tensor import Tensor

matmul = NAMES["matmul"]
outer = NAMES["outer"]


class QR(NamedTuple):
    """An orthonormal and an upper triangular factor."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """Singular vectors, values in descending order, and the conjugated right vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigen(NamedTuple):
    """Eigenvalues and, as columns, eigenvectors."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SignLog(NamedTuple):
    """Sign (of complex numbers the phase) and logarithm of the magnitude of determinants."""

    sign: Tensor
    logabsdet: Tensor


def _matrices(name: str, x: Tensor, *, square: bool = False) -> DType:
    dtype = floating(name, x)
    if x.ndim < 2:
        raise ValueError(f"{name}: x must have two axes at least, got shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{name}: matrices must be square, got shape {x.shape}")
    return dtype


def _call(name: str, function: Callable[..., Any], *arrays: Any, **keywords: Any) -> Any:
    """Call LAPACK; its refusals name the function."""
    try:
        return run(function, *arrays, **keywords)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"{name}: {error}") from error


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Return the triangular factor L of positive definite matrices L L^H, or with `upper` L^H.

    Raises
    ------
    ValueError
        If a matrix is not positive definite.
    """
    dtype = _matrices("cholesky", x, square=True)
    lower = _call("cholesky", np.linalg.cholesky, to_array(x))
    return from_array(np.swapaxes(lower, -1, -2).conj() if upper else lower, x, dtype)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QR:
    """Return the factors Q and R of matrices; `mode` is 'reduced' or 'complete' (Q square).

    Raises
    ------
    ValueError
        If `mode` is another.
    """
    dtype = _matrices("qr", x)
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode must be 'reduced' or 'complete', got {mode!r}")
    first, second = _call("qr", np.linalg.qr, to_array(x), mode=mode)
    return QR(from_array(first, x, dtype), from_array(second, x, dtype))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Return singular vectors and values; without `full_matrices` only the vectors of values."""
    dtype = _matrices("svd", x)
    left, values, right = _call("svd", np.linalg.svd, to_array(x), full_matrices=full_matrices)
    return SVD(
        from_array(left, x, dtype),
        from_array(values, x, real_of(dtype)),
        from_array(right, x, dtype),
    )


def svdvals(x: Tensor, /) -> Tensor:
    """Return singular values in descending order."""
    dtype = _matrices("svdvals", x)
    values = _call("svdvals", np.linalg.svd, to_array(x), compute_uv=False)
    return from_array(values, x, real_of(dtype))


def eigh(x: Tensor, /) -> Eigen:
    """Return eigenvalues in ascending order and vectors of symmetric or Hermitian matrices.

    Only the lower triangles are read.
    """
    dtype = _matrices("eigh", x, square=True)
    values, vectors = _call("eigh", np.linalg.eigh, to_array(x))
    return Eigen(from_array(values, x, real_of(dtype)), from_array(vectors, x, dtype))


def eigvalsh(x: Tensor, /) -> Tensor:
    """Return eigenvalues of symmetric or Hermitian matrices in ascending order."""
    dtype = _matrices("eigvalsh", x, square=True)
    return from_array(_call("eigvalsh", np.linalg.eigvalsh, to_array(x)), x, real_of(dtype))


def eig(x: Tensor, /) -> Eigen:
    """Return eigenvalues and vectors of square matrices, always complex, in no order."""
    dtype = complex_of(_matrices("eig", x, square=True))
    values, vectors = _call("eig", np.linalg.eig, to_array(x))
    return Eigen(from_array(values, x, dtype), from_array(vectors, x, dtype))


def eigvals(x: Tensor, /) -> Tensor:
    """Return eigenvalues of square matrices, always complex, in no order."""
    dtype = complex_of(_matrices("eigvals", x, square=True))
    return from_array(_call("eigvals", np.linalg.eigvals, to_array(x)), x, dtype)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the solutions of x1 @ x = x2, where x2 is one vector or matrices.

    Raises
    ------
    ValueError
        If a matrix is singular or the shapes do not fit.
    """
    dtype = promote_types(_matrices("solve", x1, square=True), floating("solve", x2))
    vector = x2.ndim == 1
    if x2.ndim == 0 or x2.shape[0 if vector else -2] != x1.shape[-1]:
        raise ValueError(f"solve: shapes {x1.shape} and {x2.shape} do not fit")
    sides = to_array(x2)
    sides = sides[:, None] if vector else sides
    result = _call("solve", np.linalg.solve, to_array(x1), sides)
    return from_array(result[..., 0] if vector else result, x1, dtype)


def inv(x: Tensor, /) -> Tensor:
    """Return the inverses of square matrices.

    Raises
    ------
    ValueError
        If a matrix is singular.
    """
    dtype = _matrices("inv", x, square=True)
    return from_array(_call("inv", np.linalg.inv, to_array(x)), x, dtype)


def det(x: Tensor, /) -> Tensor:
    """Return the determinants of square matrices."""
    dtype = _matrices("det", x, square=True)
    return from_array(_call("det", np.linalg.det, to_array(x)), x, dtype)


def slogdet(x: Tensor, /) -> SignLog:
    """Return sign and logarithm of the determinants of square matrices."""
    dtype = _matrices("slogdet", x, square=True)
    sign, log = _call("slogdet", np.linalg.slogdet, to_array(x))
    return SignLog(from_array(sign, x, dtype), from_array(log, x, real_of(dtype)))


def _tolerance(x: Tensor, dtype: DType, rtol: Any, values: Any) -> Any:
    """Return, for each matrix, the singular value below which another counts as zero."""
    if rtol is None:
        given: Any = max(x.shape[-2:]) * np.finfo(to_array(x).dtype).eps
    else:
        given = rtol.numpy() if isinstance(rtol, Tensor) else rtol
    return np.max(values, axis=-1, initial=0) * given


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Return the Moore-Penrose inverses of matrices.

    Parameters
    ----------
    rtol : float or Tensor, optional
        Singular values up to rtol times the greatest count as zero; by default eps times the
        greater extent.
    """
    dtype = _matrices("pinv", x)
    left, values, right = _call("pinv", np.linalg.svd, to_array(x), full_matrices=False)
    limit = _tolerance(x, dtype, rtol, values)
    keep = values > np.asarray(limit)[..., None]
    inverse = np.where(keep, 1 / np.where(keep, values, 1), 0).astype(values.dtype)
    turned = np.swapaxes(right, -1, -2).conj() * inverse[..., None, :]
    result = np.matmul(turned, np.swapaxes(left, -1, -2).conj())
    return from_array(result, x, dtype)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Return how many singular values of matrices exceed rtol times the greatest; see `pinv`."""
    dtype = _matrices("matrix_rank", x)
    values = _call("matrix_rank", np.linalg.svd, to_array(x), compute_uv=False)
    limit = np.asarray(_tolerance(x, dtype, rtol, values))[..., None]
    return from_array(np.count_nonzero(values > limit, axis=-1), x, int64)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Return square matrices to an integer power; negative powers through the inverse."""
    dtype = _matrices("matrix_power", x, square=True)
    return from_array(_call("matrix_power", np.linalg.matrix_power, to_array(x), n), x, dtype)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Return norms of matrices; `ord` is 1, -1, 2, -2, inf, -inf, 'fro' or 'nuc'.

    Raises
    ------
    ValueError
        If `ord` is another.
    """
    dtype = real_of(_matrices("matrix_norm", x))
    if ord not in (1, -1, 2, -2, math.inf, -math.inf, "fro", "nuc"):
        raise ValueError(
            f"matrix_norm: ord must be 1, -1, 2, -2, inf, -inf, 'fro' or 'nuc', got {ord!r}"
        )
    array = to_array(x)
    if ord == "fro":
        norms = np.sqrt(np.sum(np.abs(array) ** 2, axis=(-2, -1)))
    elif ord in (2, -2, "nuc"):
        values = _call("matrix_norm", np.linalg.svd, array, compute_uv=False)
        empty = values.shape[-1] == 0
        folds: dict[Any, Callable[..., Any]] = {2: np.max, -2: np.min, "nuc": np.sum}
        norms = np.zeros(values.shape[:-1]) if empty else folds[ord](values, axis=-1)
    else:
        sums = np.sum(np.abs(array), axis=-2 if abs(ord) == 1 else -1)
        empty = sums.shape[-1] == 0
        fold = np.max if ord > 0 else np.min
        norms = np.zeros(sums.shape[:-1]) if empty else fold(sums, axis=-1)
    result = from_array(norms, x, dtype)
    return reshape(result, (*x.shape[:-2], 1, 1)) if keepdims else result


def vector_norm(
    x: Tensor,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Tensor:
    """Return norms of vectors of order `ord` (any number, inf and -inf) over axes, or of all."""
    floating("vector_norm", x)
    if ord == -math.inf:
        size: Tensor = NAMES["amin"](NAMES["abs"](x), axis=axis, keepdims=keepdims)
        return size
    result: Tensor = NAMES["norm"](x, float(ord), axis=axis, keepdims=keepdims)
    return result


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the cross products of vectors of three elements along an axis.

    Raises
    ------
    ValueError
        If the axis has another extent than 3 in one of both.
    """
    for name, x in (("x1", x1), ("x2", x2)):
        if x.ndim == 0 or x.shape[axis] != 3:
            raise ValueError(
                f"cross: {name} must have extent 3 along axis {axis}, got shape {x.shape}"
            )
        if x.dtype.kind not in "iufc":
            raise TypeError(f"cross: dtype {x.dtype} is not supported, expected numbers")
    a, b = (x.movedim(axis, 0) for x in broadcast_arrays(x1, x2))
    parts = [
        NAMES["sub"](NAMES["mul"](a[i], b[j]), NAMES["mul"](a[j], b[i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    joined: Tensor = NAMES["stack"](parts, axis=0)
    return joined.movedim(0, axis)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Return a view of diagonal `offset` of matrices, above the main one where it is positive."""
    if x.ndim < 2:
        raise ValueError(f"diagonal: x must have two axes at least, got shape {x.shape}")
    return x.diagonal(offset, -2, -1)


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Return the sums of diagonal `offset` of matrices; small integers add up in 64 bits."""
    wanted = None if dtype is None else as_dtype(dtype)
    result: Tensor = NAMES["sum"](diagonal(x, offset=offset), axis=-1, dtype=wanted)
    return result


__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
