"""Special values and forms of call as the array API has them, where NumPy or C differ."""

from __future__ import annotations

import math
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

INF, NAN = math.inf, math.nan
DEVICES = ("cpu", "sim:0")


def same(got: Any, wanted: Any) -> None:
    """Compare numbers with NaN equal to NaN and zeros by their sign."""
    for one, other in ((got.real, wanted.real), (got.imag, wanted.imag)):
        np.testing.assert_array_equal(one, other)
        assert math.isnan(one) or math.copysign(1, one) == math.copysign(1, other)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("expm1", complex(-0.0, 0.0), 0j),
        ("expm1", complex(2.0, INF), complex(NAN, NAN)),
        ("expm1", complex(INF, 0.0), complex(INF, 0.0)),
        ("expm1", complex(-INF, INF), complex(-1.0, 0.0)),
        ("expm1", complex(-INF, NAN), complex(-1.0, 0.0)),
        ("expm1", complex(INF, INF), complex(INF, NAN)),
        ("expm1", complex(NAN, 0.0), complex(NAN, 0.0)),
        ("log1p", complex(-1.0, 0.0), complex(-INF, 0.0)),
        ("log1p", complex(NAN, INF), complex(INF, NAN)),
        ("log1p", complex(INF, NAN), complex(INF, NAN)),
        ("tanh", complex(INF, 2.0), complex(1.0, 0.0)),
        ("tanh", complex(-INF, -2.0), complex(-1.0, -0.0)),
        ("sign", complex(-0.0, -0.0), 0j),
        ("acosh", complex(0.0, INF), complex(INF, math.pi / 2)),
    ],
)
def test_complex_special_values(name: str, given: complex, wanted: complex, dtype: str) -> None:
    got = getattr(nbx, name)(nbx.asarray([given], dtype=dtype)).numpy()
    same(got[0], np.array([wanted], dtype)[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_quotients_with_infinities_are_not_rounded(device: str, dtype: str) -> None:
    cases = [
        (INF, 2.0, INF),
        (INF, -2.0, -INF),
        (-INF, 2.0, -INF),
        (-INF, -2.0, INF),
        (2.0, INF, 0.0),
        (2.0, -INF, -0.0),
        (-2.0, INF, -0.0),
        (-2.0, -INF, 0.0),
        (INF, INF, NAN),
        (INF, NAN, NAN),
        (7.0, -2.0, -4.0),
    ]
    a, b, wanted = (np.array(column, dtype) for column in zip(*cases, strict=True))
    got = (nbx.asarray(a, device=device) // nbx.asarray(b, device=device)).numpy()
    for one, other in zip(got, wanted, strict=True):
        same(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_clip_without_limits_copies(device: str) -> None:
    x = nbx.asarray([1.0, NAN, -3.0], device=device)
    got = nbx.clip(x)
    np.testing.assert_array_equal(got.numpy(), x.numpy())
    assert not got.shares_storage(x)


def test_masks_of_no_elements_select_nothing() -> None:
    x = nbx.ones(0, 3)
    mask = nbx.zeros((0, 0), dtype=nbx.bool)
    assert x[mask].shape == np.ones((0, 3))[np.zeros((0, 0), bool)].shape
    y = nbx.ones(3, 2)
    none = nbx.zeros((0,), dtype=nbx.bool)
    assert y[none].shape == (0, 2)
    y[none] = 5.0
    np.testing.assert_array_equal(y.numpy(), np.ones((3, 2)))
    with pytest.raises(IndexError, match="a mask of shape"):
        y[nbx.zeros((2,), dtype=nbx.bool)]


@pytest.mark.parametrize("k", [1 << 63, -(1 << 64), 3, -2, 1])
def test_eye_takes_any_diagonal(k: int) -> None:
    wanted = np.eye(2, 3, k=max(-9, min(k, 9)))
    np.testing.assert_array_equal(nbx.eye(2, 3, k=k).numpy(), wanted)


def test_forms_of_call() -> None:
    for function in (nbx.empty, nbx.zeros, nbx.ones):
        assert function(shape=(2, 3)).shape == (2, 3)
        assert function((2, 3)).shape == function(2, 3).shape == (2, 3)
        assert function().shape == ()
    moved = nbx.astype(nbx.ones(3), nbx.int32, device="sim:0")
    assert (moved.dtype, str(moved.device)) == (nbx.int32, "sim:0")
    x = nbx.ones(3)
    assert nbx.astype(x, nbx.float32, copy=False) is x
