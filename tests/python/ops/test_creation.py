"""Creation functions against NumPy, on every device."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

DEVICES = ("cpu", "sim")
DTYPES = ("float32", "float64", "float16", "int8", "int64", "uint64", "bool", "complex64")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (5, 7)])
def test_constant_tensors(device: str, dtype: str, shape: tuple[int, ...]) -> None:
    for name in ("zeros", "ones"):
        made = getattr(nbx, name)(shape, dtype=dtype, device=device)
        assert made.dtype.name == dtype
        assert str(made.device).split(":")[0] == device
        np.testing.assert_array_equal(made.numpy(), getattr(np, name)(shape, dtype))
        like = getattr(nbx, f"{name}_like")(made)
        assert (like.shape, like.dtype, like.device) == (made.shape, made.dtype, made.device)
    full = nbx.full(shape, 1, dtype=dtype, device=device)
    np.testing.assert_array_equal(full.numpy(), np.full(shape, 1, dtype))


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 9), (9, 2), (0, 10, 3), (10, 0, -3), (0.0, 1.0, 0.25), (2**40, 2**40 + 3), (-3, 4)],
)
@pytest.mark.parametrize("device", DEVICES)
def test_arange(arguments: tuple[Any, ...], device: str) -> None:
    made = nbx.arange(*arguments, device=device)
    expected = np.arange(*arguments)
    assert made.dtype is (nbx.int64 if expected.dtype.kind == "i" else nbx.float32)
    np.testing.assert_array_equal(made.numpy(), expected)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 101])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(count: int, endpoint: bool) -> None:
    made = nbx.linspace(-1.5, 2.25, count, endpoint=endpoint, dtype=nbx.float64)
    expected = np.linspace(-1.5, 2.25, count, endpoint=endpoint)
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-14)
    if endpoint and count > 1:
        assert made[-1].item() == 2.25


@pytest.mark.parametrize(("rows", "columns"), [(3, None), (2, 5), (5, 2), (0, 3)])
def test_eye(rows: int, columns: int | None) -> None:
    for k in (-2, 0, 1):
        made = nbx.eye(rows, columns, k=k)
        np.testing.assert_array_equal(made.numpy(), np.eye(rows, columns, k))


def test_kinds_of_full() -> None:
    assert nbx.full((2,), 1).dtype is nbx.int64
    assert nbx.full((2,), 1.5).dtype is nbx.float32
    assert nbx.full((2,), True).dtype is nbx.bool
    assert nbx.full((2,), 1j).dtype is nbx.complex64
    assert nbx.full(3, 2.0).shape == (3,)
    assert nbx.zeros(2, 3).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nbx.full((2,), "a"), TypeError, "full: fill_value must be a number, got str"),
        (lambda: nbx.full((2,), 2**63), OverflowError, r"full: fill_value 9223372036854775808"),
        (lambda: nbx.full((2,), -1, dtype="uint8"), OverflowError, r"expected \[0, 255\]"),
        (lambda: nbx.arange(3, step=0), ValueError, "step must not be 0"),
        (lambda: nbx.linspace(0, 1, -1), ValueError, "num must not be negative, got -1"),
        (lambda: nbx.zeros((-1,)), ValueError, "-1"),
        (lambda: nbx.zeros((2,), dtype="floof"), TypeError, "got 'floof'"),
        (lambda: nbx.zeros((2,), device="warp:0"), ValueError, "warp"),
        (lambda: nbx.zeros((2**40, 2**40)), OverflowError, "1099511627776"),
        (lambda: nbx.topk(nbx.ones((3,)), "a"), TypeError, "topk: k must be an integer, got str"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    before = nbx.memory.allocated("cpu")
    with pytest.raises(error, match=text):
        call()
    assert nbx.memory.allocated("cpu") == before


def test_view_functions() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = nbx.asarray(values)
    for made, expected in (
        (nbx.reshape(x, (6, -1)), values.reshape(6, -1)),
        (nbx.permute_dims(x, (2, 0, 1)), values.transpose(2, 0, 1)),
        (nbx.moveaxis(x, 0, -1), np.moveaxis(values, 0, -1)),
        (nbx.swapaxes(x, 0, 2), values.swapaxes(0, 2)),
        (nbx.matrix_transpose(x), values.swapaxes(-1, -2)),
        (nbx.expand_dims(x, axis=1), values[:, None]),
        (nbx.squeeze(x[:1], axis=0), values[0]),
        (nbx.flip(x, axis=1), np.flip(values, 1)),
        (nbx.flip(x), np.flip(values)),
        (nbx.broadcast_to(x[0], (5, 3, 4)), np.broadcast_to(values[0], (5, 3, 4))),
        (nbx.astype(x, nbx.int32), values.astype(np.int32)),
    ):
        np.testing.assert_array_equal(made.numpy(), expected)
    assert len(nbx.unstack(x, axis=1)) == 3
    assert nbx.broadcast_shapes((3, 1), (4,)) == (3, 4)
    assert [one.shape for one in nbx.broadcast_arrays(x, x[0, 0])] == [(2, 3, 4)] * 2
    assert nbx.reshape(x, (24,), copy=True).data_ptr() != x.data_ptr()
    with pytest.raises(ValueError, match="axis 1 of shape"):
        nbx.squeeze(x, axis=1)
    with pytest.raises(ValueError, match="cannot be broadcast"):
        nbx.broadcast_shapes((3,), (4,))


def test_empty_takes_a_shape_in_every_form() -> None:
    for shape in (
        (2, 3),
        ((2, 3),),
        ([2, 3],),
        (np.int64(2), 3),
        (nbx.asarray([[0, 0, 0]] * 2).shape,),
    ):
        assert nbx.empty(*shape).shape == (2, 3)
    assert nbx.empty().shape == nbx.empty(()).shape == ()
    assert nbx.empty(4).shape == (4,)
    assert nbx.empty(2).dtype is nbx.dtype.default_dtype("float")
    assert nbx.empty(2, dtype="half").dtype is nbx.empty(2, dtype=np.float16).dtype is nbx.float16
