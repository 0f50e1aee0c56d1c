"""Views that the random chains do not draw, and what views refuse."""

from __future__ import annotations

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core


def counting(*shape: int, dtype: type = np.int32) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def test_reshape_copies_only_when_it_must() -> None:
    tensor = nbx.asarray(counting(4, 6))
    assert tensor.reshape(2, 2, 6).shares_storage(tensor)
    assert tensor[:, :3].reshape(2, 2, 3).shares_storage(tensor)
    copied = tensor.T.reshape(24)
    assert not copied.shares_storage(tensor)
    np.testing.assert_array_equal(copied.numpy(), counting(4, 6).T.reshape(24))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1, -1), "only one extent may be -1"),
        ((5, -1), "multiply to 5"),
        ((-2, 3), "0 or more"),
        ((0, -1), "ambiguous"),
        ((7,), "it has 7 elements"),
    ],
)
def test_reshape_refuses(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nbx.asarray(counting(4, 6)).reshape(shape)


def test_flatten_and_unflatten() -> None:
    tensor = nbx.asarray(counting(2, 3, 4))
    assert tensor.flatten().shape == (24,)
    assert tensor.flatten(1).shape == (2, 12)
    assert tensor.flatten(0, -2).shape == (6, 4)
    assert tensor[0, 0, 0].flatten().shape == (1,)
    assert tensor.unflatten(2, (2, -1)).shape == (2, 3, 2, 2)
    with pytest.raises(ValueError, match="size 4 cannot be split into"):
        tensor.unflatten(2, (3, -1))
    with pytest.raises(ValueError, match="start axis 2 lies behind end axis 0"):
        tensor.flatten(2, 0)


def test_splits() -> None:
    array = counting(7, 2)
    tensor = nbx.asarray(array)
    for pieces, sizes in (
        (tensor.split(3), [3, 3, 1]),
        (tensor.split([2, 0, 5]), [2, 0, 5]),
        (tensor.chunk(3), [3, 3, 1]),
        (tensor.chunk(20), [1] * 7),
    ):
        assert [piece.shape[0] for piece in pieces] == sizes
        joined = np.concatenate([piece.numpy() for piece in pieces])
        np.testing.assert_array_equal(joined, array)
        assert all(piece.shares_storage(tensor) for piece in pieces)
    assert [row.tolist() for row in tensor.unbind(1)] == array.T.tolist()
    with pytest.raises(ValueError, match="add up to 7"):
        tensor.split([3, 3])
    with pytest.raises(ValueError, match="positive"):
        tensor.split(0)


def test_windows_by_stride_are_checked() -> None:
    array = counting(12)
    tensor = nbx.asarray(array)
    view = tensor.as_strided((3, 4), (2, 1), 2)
    expected = np.lib.stride_tricks.as_strided(array[2:], (3, 4), (8, 4))
    np.testing.assert_array_equal(view.numpy(), expected)
    np.testing.assert_array_equal(tensor[4:].as_strided((2,), (-2,)).numpy(), array[[4, 2]])
    for shape, strides, offset in (
        ((13,), (1,), 0),
        ((2,), (-1,), 0),
        ((1,), (1,), 12),
        ((2,), (2**62,), 0),
        ((1,), (1,), -1),
    ):
        with pytest.raises((ValueError, OverflowError), match=r"as_strided|strides"):
            tensor.as_strided(shape, strides, offset)
    with pytest.raises(ValueError, match=r"reach past 2\^63 - 1 bytes of a storage of"):
        tensor.as_strided((2**62 + 1,), (1,))
    assert tensor.as_strided((0, 5), (1, 1), 12).shape == (0, 5)


def test_bytes_as_another_dtype() -> None:
    array = counting(3, 4)
    tensor = nbx.asarray(array)
    for dtype in (np.int8, np.uint32, np.int64, np.float32):
        np.testing.assert_array_equal(
            tensor.view(np.dtype(dtype).name).numpy().tobytes(), array.view(dtype).tobytes()
        )
        assert tensor.view(dtype).shape == array.view(dtype).shape
    assert tensor.view(dtype=np.int16).shape == (3, 8)
    with pytest.raises(ValueError, match="stride 4, not 1"):
        tensor.T.view("int8")
    with pytest.raises(ValueError, match="multiple of 2"):
        tensor[:, :3].view("int64")
    with pytest.raises(ValueError, match="same width"):
        tensor[0, 0].view("int8")
    with pytest.raises(ValueError, match="aligned to 8"):
        tensor.view(-1)[1:3].view("int64")


def test_complex_parts_are_views(rng: np.random.Generator) -> None:
    array = rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3))
    tensor = nbx.asarray(array, copy=True)
    np.testing.assert_array_equal(tensor.real.numpy(), array.real)
    np.testing.assert_array_equal(tensor.imag.numpy(), array.imag)
    pairs = tensor.view_as_real()
    assert pairs.shape == (2, 3, 2)
    np.testing.assert_array_equal(pairs.view_as_complex().numpy(), array)
    tensor.imag[0] = 5
    assert pairs[0, :, 1].tolist() == [5.0] * 3
    assert tensor.real.real.shares_storage(tensor)
    with pytest.raises(TypeError, match="imag: expected complex64 or complex128, got float64"):
        _ = tensor.real.imag
    with pytest.raises(ValueError, match="size 2 and stride 1"):
        tensor.real.view_as_complex()


def test_transposed_attributes() -> None:
    tensor = nbx.asarray(counting(2, 3, 4))
    assert tensor.mT.shape == (2, 4, 3)
    assert tensor[0].T.shape == (4, 3)
    assert tensor[0, 0].t().shape == (4,)
    with pytest.raises(ValueError, match="expected a matrix"):
        _ = tensor.T
    with pytest.raises(ValueError, match="2 or more axes"):
        _ = tensor[0, 0].mT


def test_expansion() -> None:
    tensor = nbx.asarray(counting(3, 1))
    np.testing.assert_array_equal(
        tensor.expand(2, -1, 4).numpy(), np.broadcast_to(counting(3, 1), (2, 3, 4))
    )
    assert tensor.expand(3, 4).is_expanded()
    assert tensor.expand_as(_core.empty((3, 7))).shape == (3, 7)
    for shape in ((2,), (4, 4), (-1, 3, 4), (3, -2)):
        with pytest.raises(ValueError, match="cannot become"):
            tensor.expand(shape)
    with pytest.raises(OverflowError):
        tensor[:1].expand(2**40, 2**40)
    with pytest.raises(ValueError, match="share memory"):
        tensor.expand(3, 4).fill_(1)


def test_axes_are_named_in_errors() -> None:
    tensor = _core.empty((2, 3))
    with pytest.raises(IndexError, match=r"transpose: axis 2 .*allowed: -2 to 1"):
        tensor.transpose(0, 2)
    with pytest.raises(IndexError, match="unsqueeze: axis 4"):
        tensor.unsqueeze(4)
    with pytest.raises(TypeError, match="expected an integer, got float"):
        tensor.select(0, 1.5)
    with pytest.raises(TypeError, match="unknown argument 'axis'"):
        tensor.select(axis=0, index=0)
    with pytest.raises(TypeError, match="argument 'index' is missing"):
        tensor.select(0)
    with pytest.raises(ValueError, match="at most 64 axes"):
        tensor.reshape((1,) * 63 + (2, 3))


def test_packed_types_keep_whole_bytes() -> None:
    tensor = nbx.asarray(np.array([1, -2, 3, -4, 5, -6, 7, -8], np.int8)).to("int4")
    assert (tensor.nbytes, tensor.itemsize) == (4, 0)
    assert tensor.tolist() == [1, -2, 3, -4, 5, -6, 7, -8]
    assert tensor[2:6].tolist() == [3, -4, 5, -6]
    assert tensor.reshape(2, 4)[1].tolist() == [5, -6, 7, -8]
    assert tensor.view("uint8").tolist() == [0xE1, 0xC3, 0xA5, 0x87]
    assert tensor.to("int8").tolist() == tensor.tolist()
    for act in (
        lambda: tensor[1:],
        lambda: tensor[::2],
        lambda: tensor[:3],
        lambda: tensor.flip(),
        lambda: tensor.reshape(2, 4).T,
    ):
        with pytest.raises(ValueError, match="packed 2 to a byte"):
            act()
    with pytest.raises(TypeError, match="packed int4"):
        _ = tensor[[0, 1]]


def test_queries() -> None:
    tensor = nbx.asarray(counting(2, 3, 4))
    view = tensor[1, :, 1:]
    assert (view.ndim, view.dim(), view.size, view.numel(), view.nbytes) == (2, 2, 9, 9, 36)
    assert (view.itemsize, view.element_size(), view.storage_offset()) == (4, 4, 13)
    assert (view.stride(), view.stride(-1), view.strides) == ((4, 1), 1, (4, 1))
    assert view.data_ptr() == tensor.data_ptr() + 13 * 4
    assert view.is_view()
    assert not tensor.is_view()
    assert view.storage() == tensor.storage()
    assert hash(view.storage()) == hash(tensor.storage())
    assert view.storage().nbytes == 96
    assert tensor.is_contiguous()
    assert not view.is_contiguous()
    assert not tensor.is_floating_point()
    assert tensor.to("complex64").is_complex()
