"""Random chains of views and assignments do in a tensor what they do in a NumPy array."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .keys import keys

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]  # fmt: skip
RELAXED = settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def filled(data: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    seed = data.draw(st.integers(0, 2**32 - 1), label="seed")
    values = np.random.default_rng(seed).integers(0, 100, size=shape)
    return values.astype(dtype)


def same(tensor: Any, array: Any) -> None:
    array = np.asarray(array)
    assert tensor.shape == array.shape
    result = tensor.numpy()
    assert result.dtype == array.dtype
    assert result.tobytes() == array.tobytes()


def both(array: Any, tensor: Any, action: Any) -> tuple[Any, Any] | None:
    """Do it twice; None if both refuse, an error if only one does."""
    try:
        expected = action(array, True)
    except (IndexError, ValueError) as error:
        refused: type[Exception] = IndexError if isinstance(error, IndexError) else ValueError
        with pytest.raises((refused, IndexError, ValueError)):
            action(tensor, False).cpu()  # queued work reports when somebody waits for it
        return None
    return expected, action(tensor, False)


def at(array: np.ndarray, key: Any) -> Any:
    """Index; NumPy before 2.3 only warns of an index out of bounds where nothing is selected."""
    try:
        return array[key]
    except DeprecationWarning as warning:
        raise IndexError(str(warning)) from warning


def indexed(array: np.ndarray, key: Any) -> np.ndarray:
    """Index without NumPy's change of arrays without axes into scalars, which share nothing."""
    result = at(array, key)
    if isinstance(result, np.generic):
        result = array[(*key, ...) if isinstance(key, tuple) else (key, ...)]
    return result


def write_one(tensor: Any, key: Any) -> None:
    tensor[key] = 1
    tensor.cpu()


def aliased(array: np.ndarray) -> bool:
    """Whether two indices name one element: what is written there depends on the order."""
    offsets = np.zeros(array.shape, np.int64)
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        steps = np.arange(extent) * stride
        offsets = offsets + steps.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return np.unique(offsets).size < array.size


def view_step(data: Any, array: np.ndarray) -> Any:
    """Draw one action that makes a view of (or, for arrays in keys, a copy of) the array."""
    rank = array.ndim
    name = data.draw(
        st.sampled_from(["index", "basic", "permute", "reshape", "flip", "none", "squeeze", "split",
                         "diagonal", "unfold", "select", "move"])
    )  # fmt: skip
    if name in ("index", "basic"):
        key = data.draw(keys(array.shape, advanced=name == "index"))
        return lambda x, numpy: indexed(x, key) if numpy else x[key]
    if name == "permute":
        order = data.draw(st.permutations(range(rank)))
        return lambda x, numpy: x.transpose(order) if numpy else x.permute(*order)
    if name == "reshape":
        parts = [p for p in (1, 2, 3, 4, array.size) if p and array.size % p == 0]
        first = data.draw(st.sampled_from(parts or [1]))
        shape = data.draw(st.sampled_from([(-1,), (first, -1), (-1, first), (1, -1, 1, first)]))
        return lambda x, _: x.reshape(shape) if array.size else x.reshape(array.shape)
    if name == "flip" and rank:
        axes = tuple(data.draw(st.sets(st.integers(0, rank - 1))))
        return lambda x, numpy: (
            np.flip(x, axes) if numpy else (x.flip(axes) if axes else x.detach())
        )
    if name == "none":
        axis = data.draw(st.integers(-rank - 1, rank))
        return lambda x, numpy: np.expand_dims(x, axis) if numpy else x.unsqueeze(axis)
    if name == "squeeze":
        return lambda x, _: x.squeeze() if x.ndim else x[...]
    if name == "split" and rank and array.shape[0]:
        count = data.draw(st.integers(1, array.shape[0]))
        return lambda x, numpy: x[:count] if numpy else x.split(count)[0]
    if name == "diagonal" and rank > 1:
        offset = data.draw(st.integers(-3, 3))
        return lambda x, _: x.diagonal(offset, 0, rank - 1)
    if name == "unfold" and rank and array.dtype.type.__module__ == "numpy":
        size = data.draw(st.integers(1, 4))
        window = np.lib.stride_tricks.sliding_window_view
        return lambda x, numpy: (
            window(x, size, axis=0, writeable=True) if numpy else x.unfold(0, size, 1)
        )
    if name == "select" and rank:
        index = data.draw(st.integers(-5, 5))
        return lambda x, numpy: indexed(x, index) if numpy else x[index]
    if name == "move" and rank:
        source, target = data.draw(st.tuples(*[st.integers(-rank, rank - 1)] * 2))
        return lambda x, numpy: (
            np.moveaxis(x, source, target) if numpy else x.movedim(source, target)
        )
    return lambda x, _: x[...]


def assigned_value(
    data: Any, target: np.ndarray, array: np.ndarray, tensor: Any
) -> tuple[Any, Any]:
    """Draw what is written: a number, a broadcast array, or a window of the same memory."""
    kind = data.draw(st.sampled_from(["number", "array", "overlap", "list"]))
    if kind == "overlap" and array.shape == target.shape:
        return array, tensor
    if kind == "overlap" and array[::-1].shape == target.shape if array.ndim else False:
        return array[::-1], tensor[::-1]
    if kind in ("array", "overlap"):
        shape = tuple(
            1 if data.draw(st.booleans()) else extent
            for extent in target.shape[data.draw(st.integers(0, target.ndim)) :]
        )
        values = filled(data, shape, data.draw(st.sampled_from([array.dtype, np.int32, np.uint8])))
        return values, data.draw(st.sampled_from([values, nbx.asarray(values)]))
    number = data.draw(st.integers(0, 100))
    return (number, number) if kind == "number" else ([number], [number])


@RELAXED
@given(st.data())
def test_chain_of_views_and_assignments(data: Any) -> None:
    dtype = data.draw(st.sampled_from(DTYPES), label="dtype")
    base = filled(data, data.draw(shapes, label="shape"), dtype)
    device = data.draw(st.sampled_from(["cpu", "cpu", "cpu", "sim:0"]), label="device")
    root = nbx.asarray(base, copy=True, device=device)
    array, tensor = base, root
    for _ in range(data.draw(st.integers(1, 5))):
        pair = both(array, tensor, view_step(data, array))
        if pair is None:
            continue
        shares = np.shares_memory(pair[0], base) if pair[0].size else None
        array, tensor = np.asarray(pair[0]), pair[1]
        same(tensor, array)
        if shares is not None:
            assert tensor.shares_storage(root) == shares
        if not array.flags.writeable or aliased(array) or data.draw(st.booleans()):
            continue
        key = data.draw(keys(array.shape))
        try:
            target = at(array, key)
        except IndexError:
            with pytest.raises(IndexError):
                write_one(tensor, key)
            continue
        expected, given = assigned_value(data, np.asarray(target), array, tensor)
        if isinstance(expected, list) and target.ndim == 0:
            continue
        array[key] = expected
        tensor[key] = given
        same(tensor, array)
        if tensor.shares_storage(root):
            same(root, base)
        else:
            base, root = array, tensor


@RELAXED
@given(st.data())
def test_high_ranks_index_like_numpy(data: Any) -> None:
    rank = data.draw(st.integers(5, 12))
    shape = tuple(data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)))
    array = filled(data, shape, np.int32)
    tensor = nbx.asarray(array, copy=True)
    for _ in range(3):
        key = data.draw(keys(array.shape))
        try:
            expected = at(array, key)
        except IndexError:
            with pytest.raises(IndexError):
                tensor[key]
            continue
        same(tensor[key], expected)
        order = data.draw(st.permutations(range(rank)))
        array, tensor = array.transpose(order), tensor.permute(order)
        same(tensor, array)


@RELAXED
@given(st.data())
def test_taken_elements_have_numpys_layout(data: Any) -> None:
    array = filled(data, data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)), np.int16)
    tensor = nbx.asarray(array)
    key = data.draw(keys(array.shape))
    pair = both(array, tensor, lambda x, numpy: at(x, key) if numpy else x[key])
    if pair is not None:
        same(pair[1], pair[0])
