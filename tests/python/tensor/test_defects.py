"""Mistakes that the system before this one made, one test each."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core

DEVICES = ["cpu", "sim:0"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on(array: np.ndarray, device: str) -> Any:
    return nbx.asarray(array, device=device, copy=True)


def test_fill_of_a_view_writes_only_the_view(device: str, rng: np.random.Generator) -> None:
    array = rng.normal(size=(4, 5)).astype(np.float32)
    tensor = on(array, device)
    tensor[:, 1:2].fill_(0)
    array[:, 1:2] = 0
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_assignment_to_an_index_assigns(device: str, rng: np.random.Generator) -> None:
    array = rng.normal(size=(3, 2))
    tensor = on(array, device)
    tensor[0] = 9.0
    array[0] = 9.0
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_step_is_a_stride(device: str, rng: np.random.Generator) -> None:
    array = rng.integers(0, 99, size=7)
    view = on(array, device)[::2]
    assert view.strides == (2,)
    np.testing.assert_array_equal(view.numpy(), array[::2])


def test_a_long_slice_is_clamped(device: str) -> None:
    tensor = on(np.arange(6), device)
    assert tensor[0:100].shape == (6,)
    assert tensor[4:100].tolist() == [4, 5]


def test_a_view_of_another_count_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=r"12 elements cannot become \(5, 5\).*25"):
        _core.empty((12,), device=device).view(5, 5)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint8", "int16", "float8_e5m2", "uint64"])
def test_item_of_narrow_types(dtype: str, device: str) -> None:
    assert on(np.array([3.0]), device).to(dtype).item() == 3


def test_to_moves(device: str) -> None:
    tensor = on(np.arange(4), device)
    moved = tensor.to("sim:1")
    assert str(moved.device) == "sim:1"
    assert str(moved.to("cpu").device) == "cpu"
    assert moved.to("cpu").tolist() == [0, 1, 2, 3]


def test_clone_stays_on_its_device(device: str) -> None:
    tensor = on(np.arange(4), device)
    assert str(tensor.clone().device) == device
    assert tensor.clone().data_ptr() != tensor.data_ptr()


def test_a_strided_interior_view_reaches_the_host_whole(rng: np.random.Generator) -> None:
    array = rng.normal(size=(5, 6, 7))
    view = on(array, "sim:0")[1:4, ::-2, 2:6].permute(2, 0, 1)
    np.testing.assert_array_equal(view.cpu().numpy(), array[1:4, ::-2, 2:6].transpose(2, 0, 1))


def test_complex_memory_is_counted_whole() -> None:
    assert _core.empty((10,), "complex64", "cpu").nbytes == 80
    assert _core.empty((10,), "complex64", "cpu").storage().nbytes == 80


def test_an_array_without_axes_stays_so() -> None:
    assert nbx.from_numpy(np.array(2.5)).shape == ()
    assert nbx.from_numpy(np.array(2.5)).item() == 2.5


@pytest.mark.parametrize("key", [None, ..., True, False, np.array(True)])
def test_special_keys_act(key: Any, device: str) -> None:
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(on(array, device)[key].numpy(), array[key])


def test_selections_are_checked(device: str) -> None:
    tensor = _core.empty((2, 3), device=device)
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 1 with size 3"):
        tensor.select(1, 3)
    with pytest.raises(IndexError, match="start 2 and length 2 do not fit axis 1 with size 3"):
        tensor.narrow(1, 2, 2)
    with pytest.raises(ValueError, match="all 2 axes once"):
        tensor.permute(0)
    with pytest.raises(ValueError, match="axis 0 is named twice"):
        tensor.permute(0, 0)


def test_a_view_of_a_strided_tensor_never_copies(device: str) -> None:
    with pytest.raises(ValueError, match=r"strides \(1, 3\).*use reshape"):
        _core.empty((2, 3), device=device).T.view(6)


def test_numbers_lengths_and_truth(device: str) -> None:
    tensor = on(np.array([[2], [0]]), device)
    assert len(tensor) == 2
    assert int(tensor[0]) == 2
    assert float(tensor[0]) == 2.0
    assert complex(tensor[0]) == 2 + 0j
    assert [10, 11, 12][tensor[0]] == 12
    assert bool(tensor[0]) is True
    assert bool(tensor[1]) is False
    with pytest.raises(ValueError, match="one element"):
        bool(tensor)
    with pytest.raises(TypeError):
        len(tensor[0, 0])


def test_numpy_past_two_gibibytes_is_one_view() -> None:
    tensor = nbx.from_numpy(np.zeros(1, np.int8)).expand(2**31 + 5)
    assert tensor.numpy().shape == (2**31 + 5,)
    assert not tensor.numpy().flags.writeable


def test_bits_named_otherwise_must_have_their_width() -> None:
    with pytest.raises(ValueError, match="32 bits, items of uint16 have 16"):
        nbx.from_numpy(np.zeros(4, np.uint16), dtype="float32")
    bits = np.array([0x3F80], np.uint16)
    assert nbx.from_numpy(bits, dtype="bfloat16").item() == 1.0
