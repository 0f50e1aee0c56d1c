"""Edges: numbers that do not fit, extents that multiply past 64 bits, packed types, extrema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

DEVICES = ["cpu", "sim:0"]
HUGE = 2**40
NOTHING: Any = None


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on(values: Any, device: str = "cpu") -> Any:
    return nbx.asarray(np.array(values), device=device, copy=True)


# Python's integers beside tensors of integers: held, or refused by name.


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x + 300, r"add: y is 300, which does not fit in int8; expected \[-128, 127\]"),
        (lambda x: 300 - x, r"sub: x is 300, which does not fit in int8"),
        (lambda x: x.mul_(-129), r"mul_: y is -129, which does not fit in int8"),
        (lambda x: nbx.maximum(x, 128), r"maximum: y is 128, which does not fit in int8"),
        (lambda x: x & 2**63, r"bitwise_and: y is 9223372036854775808, which does not fit"),
        (lambda x: nbx.where(x > 1, x, 300), r"where: y is 300, which does not fit in int8"),
        (lambda x: nbx.where(x > 1, -300, x), r"where: x is -300, which does not fit in int8"),
        (lambda x: x.masked_fill(x > 1, 300), r"masked_fill: value is 300, which does not fit"),
        (lambda x: x.clamp(0, 300), r"clamp: max is 300, which does not fit in int8"),
        (lambda x: x.clamp(min=-300), r"clamp: min is -300, which does not fit in int8"),
    ],
)
def test_integers_that_do_not_fit_are_refused(
    call: Callable[[Any], Any], text: str, device: str
) -> None:
    x = on(np.array([1, 2, 3], np.int8), device)
    with pytest.raises(OverflowError, match=text):
        call(x)
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_limits_of_signed_integers_fit(name: str) -> None:
    limits = np.iinfo(name)
    x = on(np.zeros(1, name))
    assert (x + int(limits.max)).tolist() == [limits.max]
    assert (x + int(limits.min)).tolist() == [limits.min]
    for value in (int(limits.max) + 1, int(limits.min) - 1):
        with pytest.raises(OverflowError):
            x + value


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
def test_limits_of_unsigned_integers_fit(name: str) -> None:
    limits = np.iinfo(name)
    x = on(np.zeros(1, name))
    assert (x + int(limits.max)).tolist() == [limits.max]
    for value in (int(limits.max) + 1, -1):
        with pytest.raises(OverflowError):
            x + value


def test_comparisons_take_integers_of_any_range() -> None:
    x = on(np.array([1, 2], np.int8))
    assert (x < 300).tolist() == [True, True]
    assert (on(np.array([1], np.uint8)) > -1).tolist() == [True]
    assert (on(np.array([2**64 - 1], np.uint64)) == -1).tolist() == [False]


def test_numbers_of_other_kinds_promote_and_always_fit() -> None:
    x = on(np.array([1], np.int8))
    assert (x + 300.0).tolist() == [301.0]
    assert (on([True]) + 300).tolist() == [301]


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**400])
def test_integers_past_64_bits_are_refused_by_name(value: int) -> None:
    with pytest.raises(OverflowError, match=r"add: argument 'y' is .* does not fit in 64 bits"):
        on([1.0]) + value
    with pytest.raises(OverflowError, match=r"assignment: the integer .* does not fit in 64 bits"):
        on([1.0])[0] = value
    with pytest.raises(OverflowError, match=r"shape: the integer .* does not fit in 64 bits"):
        nbx.empty((value,))


def test_integers_have_no_negative_powers() -> None:
    x = on([2, 3])
    with pytest.raises(ValueError, match="pow: y is -1, and integers have no negative powers"):
        x**-1
    assert (x**0).tolist() == [1, 1]
    assert (x**-1.0).dtype is nbx.float32
    assert (on([2.0]) ** -1).tolist() == [0.5]


ASSIGNMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "whole": lambda x, values: x.__setitem__(..., values),
    "places": lambda x, values: x.__setitem__([0, 1], values),
    "copy_": lambda x, values: x.copy_(values),
}


@pytest.mark.parametrize("form", list(ASSIGNMENTS))
@pytest.mark.parametrize(
    ("dtype", "values", "error"),
    [
        (np.int8, [300, 1], OverflowError),
        (np.int8, [1, -129], OverflowError),
        (np.uint8, [-1, 1], OverflowError),
        (np.int64, [2**63, 1], OverflowError),
        (np.int64, [2**70, 1], OverflowError),
        (np.int8, [float("nan"), 1.0], ValueError),
        (np.int8, [float("inf"), 1.0], OverflowError),
        (np.int8, [1e10, 1.0], OverflowError),
    ],
)
def test_assigned_lists_hold_what_fits(
    form: str, dtype: Any, values: list[Any], error: type[Exception]
) -> None:
    x = on(np.array([7, 8], dtype))
    with pytest.raises(error):
        ASSIGNMENTS[form](x, values)
    assert x.tolist() == [7, 8]
    x[...] = [127, 0]
    assert x.tolist() == [127, 0]
    x[...] = [2.9, 1.0]
    assert x.tolist() == [2, 1]


def test_assigned_arrays_are_cast() -> None:
    x = on(np.zeros(2, np.int8))
    x[...] = np.array([300, 1])
    assert x.tolist() == [44, 1]


def test_full_refuses_what_integers_do_not_hold() -> None:
    with pytest.raises(ValueError, match="full: fill_value nan cannot be converted to int32"):
        nbx.full((2,), float("nan"), dtype=nbx.int32)
    with pytest.raises(OverflowError, match="fill_value inf cannot be converted to int32"):
        nbx.full((2,), float("inf"), dtype=nbx.int32)


# Extents of an empty tensor may multiply past 64 bits.


@pytest.mark.parametrize("shape", [(0, HUGE, HUGE), (HUGE, 0, HUGE), (HUGE, HUGE, 0)])
def test_empty_tensors_of_huge_extents(shape: tuple[int, ...]) -> None:
    x = nbx.zeros(shape)
    assert x.shape == shape
    assert x.numel() == 0
    assert x.is_contiguous()
    assert (x + 1).shape == shape
    assert x.clone().shape == shape
    assert x.contiguous().shape == shape
    assert x.sum().item() == 0.0
    assert x.exp().shape == shape
    assert x.flatten().shape == (0,)
    assert nbx.zeros((0,)).reshape(shape).shape == shape


def test_counts_past_64_bits_are_refused() -> None:
    with pytest.raises(OverflowError, match=r"shape \(1099511627776, 1099511627776\) has more"):
        nbx.empty((HUGE, HUGE))
    with pytest.raises(OverflowError, match="has more than"):
        on([1.0]).expand(HUGE, HUGE)
    with pytest.raises(OverflowError, match="has more than"):
        nbx.empty((HUGE, 0)) @ nbx.empty((0, HUGE))
    with pytest.raises(OverflowError):
        nbx.cat([on([1.0]).expand(2**62)] * 2)
    with pytest.raises(OverflowError):
        nbx.stack([on([1.0]).expand(2**62)] * 2)
    with pytest.raises(OverflowError, match="has more than"):
        nbx.zeros((0, 1, 1)).expand(0, HUGE, HUGE).flatten(1, 2)


# Packed elements.


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nbx.cat([x, x]),
        lambda x: nbx.stack([x, x]),
        lambda x: x.tile((2,)),
        lambda x: x.roll(1),
        lambda x: nbx.where(on([True, False, True]), x, x),
        lambda x: x.take(on([0]), 0),
    ],
)
def test_packed_elements_are_not_taken_apart(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"int4.*int8"):
        call(on([1, 2, 3]).to("int4"))


# Numbers that an op needs.


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: nbx.kv_append(nbx.zeros((1, 1, 4, 2)), nbx.ones((1, 1, 2, 2)), NOTHING),
            "kv_append: position must be a number, got None",
        ),
        (lambda: nbx.rms_norm(nbx.ones((2, 3)), eps=NOTHING), "rms_norm: eps must be a number"),
        (
            lambda: nbx.addmm(on([[1]]), on([[2]]), on([[3]]), alpha=0.5),
            "addmm: alpha must be an integer for int64, got 0.5",
        ),
        (
            lambda: nbx.addcmul(on([1]), on([2]), on([3]), value=0.5),
            "addcmul: value must be an integer for int64, got a float",
        ),
    ],
)
def test_numbers_of_a_wrong_type_are_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


# Errors of kernels name the op, wherever it runs.


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, i: x.take(i, 0), "take: index 9 is out of bounds for axis 0 with size 3"),
        (lambda x, i: x.index_select(0, i), "index_select: index 9 is out of bounds for axis 0"),
        (lambda x, i: nbx.embedding(i, x), r"embedding: ids\[1\] \(flattened\) is 9"),
        (
            lambda x, i: nbx.take_along_axis(x, i.reshape(2, 1), 0),
            "take_along_axis: index 9 is out of bounds",
        ),
    ],
)
def test_index_errors_name_the_op(call: Callable[..., Any], text: str, device: str) -> None:
    x = on(np.ones((3, 4), np.float32), device)
    with pytest.raises(IndexError, match=text):
        call(x, on([0, 9], device)).tolist()
    assert x.sum().item() == 12.0


def test_type_errors_name_the_op() -> None:
    with pytest.raises(TypeError, match="abs: dtype bool is not supported"):
        abs(on([True]))


def test_positions_are_refused_by_name() -> None:
    x = nbx.ones((1, 2, 3, 8))
    with pytest.raises(ValueError, match=r"rope: positions must have shape \(1, 2\)"):
        nbx.rope(x, on([0, 1, 2]))


# Extrema: NaN wins, the first of equals is named.

EXTREMA: list[tuple[str, Callable[..., Any]]] = [
    ("amax", np.max),
    ("amin", np.min),
    ("argmax", np.argmax),
    ("argmin", np.argmin),
]
LENGTHS = [1, 2, 15, 16, 63, 64, 65, 127, 128, 129, 1000, 4097, 70001]


@pytest.mark.parametrize(("name", "oracle"), EXTREMA)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "uint64", "float16"])
def test_extrema_of_any_length(
    name: str, oracle: Callable[..., Any], dtype: str, rng: np.random.Generator
) -> None:
    for length in LENGTHS:
        values = rng.integers(0, 100, length).astype(dtype)
        if dtype.startswith("float"):
            values -= values.dtype.type(50)
        assert getattr(nbx.from_numpy(values), name)().item() == oracle(values), length
        square = values[: length // 3 * 3].reshape(-1, 3)
        for axis in (0, 1):
            if square.size:
                found = getattr(nbx.from_numpy(square), name)(axis)
                np.testing.assert_array_equal(found.numpy(), oracle(square, axis=axis))


@pytest.mark.parametrize(("name", "oracle"), EXTREMA)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_wins_at_every_place(
    name: str, oracle: Callable[..., Any], dtype: str, rng: np.random.Generator
) -> None:
    for length in (1, 3, 16, 64, 65, 130, 1030):
        values = rng.standard_normal(length).astype(dtype)
        values[rng.integers(0, length)] = rng.choice([np.inf, -np.inf])
        places = {0, length - 1, length // 2, int(rng.integers(0, length))}
        for place in places:
            marked = values.copy()
            marked[place] = np.nan
            marked[min(place + 1, length - 1)] = np.nan
            found = getattr(nbx.from_numpy(marked), name)()
            np.testing.assert_array_equal(found.numpy(), oracle(marked))
            rows = np.stack([values, marked])
            for axis in (0, 1):
                found = getattr(nbx.from_numpy(rows), name)(axis)
                np.testing.assert_array_equal(found.numpy(), oracle(rows, axis=axis))


@pytest.mark.parametrize(("name", "oracle"), EXTREMA)
def test_extrema_of_infinities(name: str, oracle: Callable[..., Any]) -> None:
    for value in (np.inf, -np.inf):
        values = np.full(200, value, np.float32)
        assert getattr(nbx.from_numpy(values), name)().item() == oracle(values)
