"""Indexing beyond the random chains: positions, errors, casts, overlap."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

CUBE = np.arange(120).reshape(2, 3, 4, 5)


@pytest.mark.parametrize(
    "key",
    [
        (0, [0, 1]),
        ([0, 1], slice(None), [0, 1]),
        ([0, 1], ..., [0, 1]),
        (slice(None), [0, 1], [1, 2]),
        (slice(None), 0, slice(None), [0, 1]),
        (slice(None), [0, 1], 0),
        (None, [0, 1], None, [0, 1]),
        (True, [0, 1]),
        (slice(None), True, [0, 1]),
        ([0], False),
        (np.array([[True, False, True], [False, True, False]]),),
        (slice(None), np.array([True, False, True]), [0, 3]),
        (..., [[0], [1]], [0, 1, 2]),
        ([],),
        (slice(None), [], slice(None, None, -1)),
        np.array(1),
        (np.array(1), [0, 1]),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_positions_of_array_axes(key: Any, device: str) -> None:
    tensor = nbx.asarray(CUBE, device=device, copy=True)
    expected = CUBE[key]
    np.testing.assert_array_equal(tensor[key].numpy(), expected)
    array = CUBE.copy()
    values = -np.arange(expected.size).reshape(expected.shape) - 1
    array[key] = values
    tensor[key] = values
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (2, "index 2 is out of bounds for axis 0 with size 2"),
        ((0, 0, -5), "index -5 is out of bounds for axis 2 with size 4"),
        ((slice(None), [0, 3]), "index 3 is out of bounds for axis 1 with size 3"),
        ((0, 0, 0, 0, 0), "the tensor has 4 axes, but 5 were indexed"),
        ((..., ...), "only one Ellipsis"),
        (([0, 1], [0, 1, 2]), r"broadcast together with shapes \(2,\) \(3,\)"),
        (np.zeros((2, 4), bool), "mask of shape .* does not match axis 1 with size 3"),
        (1.5, "expected integers"),
        ([0.5], "expected integers"),
        ("a", "expected integers"),
        (2**70, "does not fit in 64 bits"),
    ],
)
def test_errors_name_axis_index_and_size(key: Any, message: str) -> None:
    tensor = nbx.asarray(CUBE, copy=True)
    with pytest.raises(IndexError, match=message):
        _ = tensor[key]
    with pytest.raises(IndexError, match=message):
        tensor[key] = 0
    np.testing.assert_array_equal(tensor.numpy(), CUBE)


def test_figures_are_attributes() -> None:
    with pytest.raises(IndexError) as caught:
        _ = nbx.asarray(CUBE)[:, [7]]
    assert (caught.value.index, caught.value.axis, caught.value.size) == (7, 1, 3)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "uint64"])
def test_tensors_as_indices(dtype: str) -> None:
    tensor = nbx.asarray(CUBE)
    index = nbx.asarray(np.array([1, 0, 1])).to(dtype)
    np.testing.assert_array_equal(tensor[index].numpy(), CUBE[[1, 0, 1]])
    np.testing.assert_array_equal(tensor[index[0]].numpy(), CUBE[1])
    mask = nbx.asarray(CUBE % 7 == 0)
    np.testing.assert_array_equal(tensor[mask].numpy(), CUBE[CUBE % 7 == 0])


def test_indices_on_another_device() -> None:
    tensor = nbx.asarray(CUBE, device="sim:0")
    index = nbx.asarray([2, 0], device="cpu")
    np.testing.assert_array_equal(tensor[:, index].numpy(), CUBE[:, [2, 0]])


def test_the_last_of_repeated_indices_wins() -> None:
    tensor = nbx.asarray(np.zeros(3))
    tensor[[1, 1, 1]] = [1.0, 2.0, 3.0]
    assert tensor.tolist() == [0.0, 3.0, 0.0]


def test_assignment_casts_as_numpy() -> None:
    array = np.zeros(4, np.int32)
    tensor = nbx.asarray(array.copy())
    for key, value in (
        (0, 2.9), (1, -2.9), (2, True), (3, np.float64(7.7)), (slice(None), [1.5, 2.5, 3.5, 4.5]),
    ):  # fmt: skip
        array[key] = value
        tensor[key] = value
        assert tensor.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("value", "error"),
    [(300, OverflowError), (-1, OverflowError), (float("nan"), ValueError), (1j, TypeError),
     (float("inf"), OverflowError), ("x", TypeError), (10**30, OverflowError)],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(value: Any, error: type[Exception]) -> None:
    tensor = nbx.asarray(np.ones(2, np.uint8))
    with pytest.raises(error):
        tensor[0] = value
    with pytest.raises(error):
        tensor[[0, 1]] = value
    assert tensor.tolist() == [1, 1]


def test_values_must_broadcast() -> None:
    tensor = nbx.asarray(np.zeros((2, 3)))
    tensor[:] = np.ones((1, 1, 2, 1))
    with pytest.raises(ValueError, match=r"could not broadcast shape \(2,\) into shape \(2, 3\)"):
        tensor[:] = [1.0, 2.0]
    with pytest.raises(ValueError, match="cannot become"):
        tensor[[0, 1]] = [1.0, 2.0]


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_overlapping_assignment_reads_first(device: str) -> None:
    array = np.arange(10)
    tensor = nbx.asarray(array, device=device, copy=True)
    tensor[1:] = tensor[:-1]
    tensor[:] = tensor.flip()
    tensor[[0, 1]] = tensor[1:3]
    tensor[tensor[:3]] = tensor[5:8]
    array[1:] = array[:-1].copy()
    array[:] = array[::-1].copy()
    array[[0, 1]] = array[1:3].copy()
    array[array[:3].copy()] = array[5:8].copy()
    assert tensor.tolist() == array.tolist()


def test_iteration_and_membership() -> None:
    tensor = nbx.asarray(np.array([[1, 2], [3, 4]]))
    assert [row.tolist() for row in tensor] == [[1, 2], [3, 4]]
    assert 3 in tensor
    assert 3.0 in tensor
    assert 5 not in tensor
    assert 2**53 + 1 not in nbx.asarray(np.array([float(2**53)]))
    assert float("nan") not in nbx.asarray(np.array([np.nan]))
    with pytest.raises(TypeError, match="without axes"):
        iter(tensor[0, 0])
    with pytest.raises(TypeError, match="deleted"):
        del tensor[0]


def test_read_only_memory_is_not_written() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    tensor = nbx.from_numpy(array)
    assert tensor.is_read_only()
    for act in (
        lambda: tensor.fill_(0),
        lambda: tensor.__setitem__(0, 1),
        lambda: tensor.__setitem__([0], 1),
        lambda: tensor.copy_(tensor),
    ):
        with pytest.raises(ValueError, match="read-only"):
            act()
    assert tensor.tolist() == [0, 1, 2]
