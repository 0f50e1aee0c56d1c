"""The tensor that takes a result: `out` of the functions that have an in-place form."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

DEVICES = ["cpu", "sim:0"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_result_is_written_and_returned(device: str, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 33, 65)).astype(np.float32)
    x, y = nbx.asarray(a, device=device), nbx.asarray(b[:1], device=device)
    z = nbx.empty(a.shape, device=device)
    before = nbx.memory.allocated(device)
    assert nbx.add(x, y, out=z) is z
    assert nbx.memory.allocated(device) == before
    np.testing.assert_array_equal(z.numpy(), a + b[:1])
    assert x.exp(out=z) is z
    np.testing.assert_allclose(z.numpy(), np.exp(a), rtol=1e-6)
    assert nbx.mul(x, 2, out=None) is not z
    np.testing.assert_array_equal(nbx.mul(x, 2.5, out=z).numpy(), a * np.float32(2.5))


def test_views_dtypes_and_operands_take_results(device: str, rng: np.random.Generator) -> None:
    a = rng.integers(-50, 50, (6, 8)).astype(np.int32)
    x = nbx.asarray(a, device=device, copy=True)
    wide = nbx.zeros((8, 6), dtype=nbx.float64, device=device)
    assert nbx.add(x, x, out=wide.T).dtype is nbx.float64
    np.testing.assert_array_equal(wide.numpy(), (a + a).T)
    # The same elements are read before they are written; others are read from a copy.
    nbx.sub(x, 1, out=x)
    np.testing.assert_array_equal(x.numpy(), a - 1)
    nbx.add(x[:5], 0, out=x[1:])
    np.testing.assert_array_equal(x.numpy()[1:], a[:5] - 1)


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (lambda: nbx.empty((3,)), ValueError, "add: the result has shape"),
        (
            lambda: nbx.empty((2, 2), dtype=nbx.int32),
            TypeError,
            "add: the result has dtype float32",
        ),
        (lambda: nbx.empty((1, 2)).broadcast_to((2, 2)), ValueError, "share memory"),
        (lambda: nbx.empty((2, 2), device="sim:0"), ValueError, "'out' is on sim:0, expected cpu"),
        (lambda: np.empty((2, 2), np.float32), TypeError, "out"),
        (lambda: 3, TypeError, "out"),
    ],
)
def test_what_cannot_take_a_result_is_refused(out: Any, error: type[Exception], text: str) -> None:
    x = nbx.ones((2, 2))
    with pytest.raises(error, match=text):
        nbx.add(x, x, out=out())
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        nbx.matmul(x, x, out=x)
    with pytest.raises(TypeError, match="positional"):
        nbx.add(x, x, x)
