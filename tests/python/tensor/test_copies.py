"""Copies, casts, fills and moves between devices."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core

NUMPY_TYPES = {
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32,
    "float64": np.float64, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2, "complex64": np.complex64, "complex128": np.complex128,
}  # fmt: skip


@pytest.mark.parametrize("source", NUMPY_TYPES)
@pytest.mark.parametrize("target", NUMPY_TYPES)
def test_casts_of_small_integers_are_exact(
    source: str, target: str, rng: np.random.Generator
) -> None:
    array = rng.integers(0, 16, size=(3, 5)).astype(NUMPY_TYPES[source])
    tensor = nbx.asarray(array, copy=True)
    if array.dtype.kind == "c" and "complex" not in target:
        array = array.real
    for view, expected in ((tensor, array), (tensor.T[::-1], array.T[::-1])):
        result = view.to(target).numpy()
        assert result.dtype == NUMPY_TYPES[target]
        np.testing.assert_array_equal(
            result.astype(np.complex128), expected.astype(NUMPY_TYPES[target]).astype(np.complex128)
        )


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_round_to_nearest_even(target: str, rng: np.random.Generator) -> None:
    array = (rng.normal(size=2000) * 8).astype(np.float32)
    result = nbx.asarray(array).to(target)
    expected = array.astype(NUMPY_TYPES[target])
    np.testing.assert_array_equal(result.numpy().astype(np.float32), expected.astype(np.float32))
    assert result.tolist() == expected.astype(np.float64).tolist()


@pytest.mark.parametrize("name", NUMPY_TYPES)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_elements_as_numbers(name: str, device: str) -> None:
    array = np.array([[0, 1], [1, 3]]).astype(NUMPY_TYPES[name])
    tensor = nbx.asarray(array, device=device)
    expected = [[complex(value) for value in row] for row in array.astype(np.complex128)]
    assert tensor.tolist() == expected
    assert tensor.item(1, 1) == expected[1][1]
    assert tensor[1, 1].item() == expected[1][1]
    kinds = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
    assert type(tensor[0, 0].item()) is kinds[tensor.dtype.kind]


def test_shorthands_name_dtypes() -> None:
    tensor = nbx.asarray([0, 1, 2])
    for method, name in (
        ("bool", "bool"), ("char", "int8"), ("byte", "uint8"), ("short", "int16"), ("int", "int32"),
        ("long", "int64"), ("half", "float16"), ("bfloat16", "bfloat16"), ("float", "float32"),
        ("double", "float64"),
    ):  # fmt: skip
        assert getattr(tensor, method)().dtype.name == name
    assert tensor.long() is tensor


def test_to_takes_what_model_code_writes() -> None:
    tensor = nbx.asarray([1, 2])
    assert tensor.to("cpu") is tensor
    assert tensor.to(tensor.dtype) is tensor
    assert tensor.to("int64", copy=True) is not tensor
    other = tensor.to("sim:0", "float32")
    assert (str(other.device), other.dtype.name) == ("sim:0", "float32")
    assert tensor.to(other).dtype is other.dtype
    assert tensor.to(device=other.device, dtype="half").dtype.name == "float16"
    assert tensor.to(np.float32).dtype.name == "float32"
    assert tensor.to(float).dtype.name == "float64"
    assert tensor.type_as(other).device is other.device
    assert other.cpu().tolist() == [1.0, 2.0]
    assert tensor.astype("int64") is not tensor
    assert tensor.astype("int64", copy=False) is tensor
    with pytest.raises(TypeError, match="expected one of"):
        tensor.to("flaot32")
    with pytest.raises(Exception, match="sim:99"):
        tensor.to("sim:99")


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_copy_into_a_view(device: str, rng: np.random.Generator) -> None:
    array = rng.normal(size=(4, 6)).astype(np.float32)
    tensor = nbx.asarray(np.zeros((4, 6)), device=device, copy=True)
    result = tensor[::2, ::-1].copy_(nbx.asarray(array[:2]))
    assert result.shape == (2, 6)
    expected = np.zeros((4, 6))
    expected[::2, ::-1] = array[:2]
    np.testing.assert_array_equal(tensor.numpy(), expected)
    tensor.zero_()
    assert not tensor.numpy().any()
    tensor.copy_(3).fill_(nbx.asarray(2.5))
    assert tensor.tolist() == [[2.5] * 6] * 4


@pytest.mark.parametrize("pair", [("cpu", "sim:0"), ("sim:0", "sim:1"), ("sim:1", "cpu")])
def test_moves_of_every_layout(pair: tuple[str, str], rng: np.random.Generator) -> None:
    array = rng.integers(-99, 99, size=(3, 4, 5)).astype(np.int16)
    tensor = nbx.asarray(array, device=pair[0], copy=True)
    for view, expected in (
        (tensor, array),
        (tensor.permute(2, 0, 1), array.transpose(2, 0, 1)),
        (tensor[:, ::-2], array[:, ::-2]),
        (tensor[:0], array[:0]),
        (tensor[:1].expand(6, 4, 5), np.broadcast_to(array[:1], (6, 4, 5))),
    ):
        moved = view.to(pair[1], "int32")
        assert str(moved.device) == pair[1]
        np.testing.assert_array_equal(moved.numpy(), expected)


def test_contiguous_and_clone() -> None:
    tensor = nbx.asarray(np.arange(6).reshape(2, 3), copy=True)
    assert tensor.contiguous() is tensor
    assert tensor.T.contiguous().strides == (2, 1)
    assert tensor.T.clone().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert not tensor.clone().shares_storage(tensor)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((2, -1),), ValueError, "0 or more"),
        (((2**40, 2**40),), OverflowError, "more than 2"),
        (((2**61,), "float64"), OverflowError, "exceed 2"),
        (((1.5,),), TypeError, "expected an integer"),
        (("ab",), TypeError, "expected integers"),
        ((2, "float33"), TypeError, "float33"),
        ((2, None, "gpu"), ValueError, "gpu"),
    ],
)
def test_empty_refuses(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _core.empty(*arguments)


def test_nothing_constructs_a_tensor_directly() -> None:
    with pytest.raises(TypeError, match="use asarray"):
        nbx.Tensor([1, 2])
