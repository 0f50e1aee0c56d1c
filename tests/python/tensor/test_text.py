"""Printing and pickling."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

DTYPES = ["bool", "int8", "uint64", "float16", "bfloat16", "float32", "float8_e4m3fn", "complex64"]


@pytest.mark.parametrize("dtype", [*DTYPES, "int4"])
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_text_names_values_dtype_and_device(dtype: str, device: str) -> None:
    text = repr(nbx.asarray([0, 1]).to(dtype).to(device))
    assert text.startswith("tensor([")
    assert text.endswith(f"], dtype={dtype}, device={device})")
    expected = {"bool": "False,  True", "complex64": "0.+0.j, 1.+0.j"}
    numbers = expected.get(dtype, "0., 1." if "float" in dtype else "0, 1")
    assert f"[{numbers}]" in text


def test_long_tensors_are_summarised() -> None:
    array = np.arange(30000.0).reshape(3, 100, 100)
    text = repr(nbx.asarray(array, device="sim:0"))
    expected = np.array2string(
        array, max_line_width=100, precision=4, separator=", ", prefix="tensor(", threshold=1000
    )
    assert text == f"tensor({expected}, dtype=float64, device=sim:0)"
    with nbx.printoptions(edgeitems=1, threshold=5):
        assert repr(nbx.asarray(list(range(9)))) == ("tensor([0, ..., 8], dtype=int64, device=cpu)")
    packed = nbx.asarray(np.zeros(2000, np.int8)).to("int4")
    assert "..." in repr(packed)


def test_empty_tensors_show_their_shape() -> None:
    assert repr(nbx.asarray(np.zeros((0, 3)))) == (
        "tensor([], shape=(0, 3), dtype=float64, device=cpu)"
    )
    assert repr(nbx.asarray([], dtype="int8")) == "tensor([], dtype=int8, device=cpu)"


def test_options_are_restored_and_checked() -> None:
    former = nbx.get_printoptions()
    with nbx.printoptions(precision=1):
        assert "0.1]" in repr(nbx.asarray([0.123]))
    assert nbx.get_printoptions() == former
    assert nbx.set_printoptions(precision=2) == former
    assert "0.12]" in repr(nbx.asarray([0.123]))
    nbx.set_printoptions(precision=former.precision)
    with pytest.raises(ValueError, match="edgeitems must be an int of 1 or more"):
        nbx.set_printoptions(edgeitems=0)


def test_numbers_are_formatted() -> None:
    assert f"{nbx.asarray(2.5):.2f}" == "2.50"
    assert f"{nbx.asarray(7):>3}" == "  7"


@pytest.mark.parametrize("dtype", [*DTYPES, "int4"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(dtype: str, protocol: int, rng: np.random.Generator) -> None:
    tensor = nbx.asarray(rng.integers(0, 2, size=(3, 4))).to(dtype)
    for value in (tensor, tensor.to("sim:1")):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert type(again) is nbx.Tensor
        assert (again.shape, again.dtype) == (value.shape, value.dtype)
        assert again.device is value.device
        assert again.tolist() == value.tolist()
        again.fill_(1)


def test_pickles_of_views_hold_the_view_only(rng: np.random.Generator) -> None:
    array = rng.normal(size=(100, 100))
    view = nbx.asarray(array)[::50, ::-50]
    data = pickle.dumps(view)
    assert len(data) < 400
    np.testing.assert_array_equal(pickle.loads(data).numpy(), array[::50, ::-50])
    for shape in ((), (0, 3)):
        empty = nbx.asarray(np.zeros(shape))
        assert pickle.loads(pickle.dumps(empty)).shape == shape


def test_pickles_out_of_band_share_memory() -> None:
    tensor = nbx.asarray(np.arange(1000), copy=True)
    buffers: list[Any] = []
    data = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    assert len(data) < 300
    again = pickle.loads(data, buffers=buffers)
    assert again.data_ptr() == tensor.data_ptr()
    assert again.tolist() == tensor.tolist()


def test_copies_of_objects() -> None:
    tensor = nbx.asarray([1, 2], copy=True)
    assert copy.copy(tensor).shares_storage(tensor)
    pair = [tensor, tensor]
    deep = copy.deepcopy(pair)
    assert deep[0] is deep[1]
    assert not deep[0].shares_storage(tensor)
    assert deep[0].tolist() == [1, 2]
