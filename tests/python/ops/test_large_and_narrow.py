"""Results past the caches, which are written by other stores, and integers below 64 bits."""

from __future__ import annotations

from collections.abc import Callable

import nbxtensor as nbx
import numpy as np
import pytest

# More than the caches keep, and no multiple of a line or a block.
ROWS, COLUMNS = 1021, 4099
NARROW = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
SHIFTS = ("left_shift", "right_shift")
BINARY: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNARY: dict[str, Callable[..., np.ndarray]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "bitwise_not": np.invert,
    "logical_not": np.logical_not,
    "relu": lambda x: np.maximum(x, 0),
}
LARGE: dict[str, tuple[Callable[..., nbx.Tensor], Callable[..., np.ndarray]]] = {
    "add": (lambda a, b: nbx.add(a, b), lambda a, b: a + b),
    "shifted": (lambda a, b: nbx.add(a[:, 1:], b[:, :-1]), lambda a, b: a[:, 1:] + b[:, :-1]),
    "compare": (lambda a, b: nbx.lt(a, b), lambda a, b: a < b),
    "cast": (lambda a, b: a.to("float64"), lambda a, b: a.astype(np.float64)),
    "narrow": (lambda a, b: a.to("float16"), lambda a, b: a.astype(np.float16)),
    "copy": (lambda a, b: nbx.Tensor.clone(b), lambda a, b: b),
    "fill": (lambda a, b: nbx.full((ROWS, COLUMNS), 3.5), lambda a, b: np.full(a.shape, 3.5, "f4")),
    "relu": (lambda a, b: nbx.relu(a), lambda a, b: np.maximum(a, 0)),
    "fmod": (lambda a, b: nbx.fmod(a, b), lambda a, b: np.fmod(a, b)),
}


@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, np.ndarray]:
    """Two large matrices of random numbers."""
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal((ROWS, COLUMNS), dtype=np.float32) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("count", [1, 3])
def test_large_results_equal_numpys_for_any_thread_count(
    name: str, count: int, large: tuple[np.ndarray, np.ndarray]
) -> None:
    own, reference = LARGE[name]
    former = nbx.get_num_threads()
    nbx.set_num_threads(count)
    try:
        result = own(*(nbx.asarray(array) for array in large))
    finally:
        nbx.set_num_threads(former)
    np.testing.assert_array_equal(result.numpy(), reference(*large))


@pytest.mark.parametrize("axis", [0, 1])
def test_large_running_sums_are_rounded_once(
    axis: int, large: tuple[np.ndarray, np.ndarray]
) -> None:
    result = nbx.cumsum(nbx.asarray(large[0]), axis=axis)
    expected = np.cumsum(large[0].astype(np.float64), axis=axis)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-7, atol=1e-9)


def test_large_rows_are_normalised(large: tuple[np.ndarray, np.ndarray]) -> None:
    wide = large[0].astype(np.float64)
    x = nbx.asarray(large[0])
    shifted = np.exp(wide - wide.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(
        nbx.softmax(x).numpy(), shifted / shifted.sum(axis=-1, keepdims=True), rtol=3e-6
    )
    centred = wide - wide.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    ones = nbx.ones((COLUMNS,))
    result = nbx.layer_norm(x, ones, ones, eps=1e-5)
    np.testing.assert_allclose(result.numpy(), centred / scale + 1, rtol=1e-4, atol=1e-5)


def test_a_large_result_may_be_written_over_an_operand(
    large: tuple[np.ndarray, np.ndarray],
) -> None:
    x = nbx.asarray(large[0].copy())
    own: Callable[..., nbx.Tensor] = nbx.mul
    own(x, nbx.asarray(large[1]), out=x)
    np.testing.assert_array_equal(x.numpy(), large[0] * large[1])


def random_integers(dtype: str, count: int = 3001) -> np.ndarray:
    """Return numbers of the whole range of a type."""
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(1)
    return generator.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", [*BINARY, *SHIFTS])
def test_narrow_integers_of_two_operands(dtype: str, name: str) -> None:
    a, b = random_integers(dtype), random_integers(dtype)[::-1].copy()
    width = np.iinfo(dtype).bits
    if name in SHIFTS:
        # NumPy shifts by the machine's rule for counts inside the width, and past it all bits out.
        b = np.arange(b.size).astype(dtype) % (width + 3)
        wide, places = a.astype(object), np.minimum(b.astype(object), width)
        shifted = wide * 2**places if name == "left_shift" else wide // 2**places
        mask = (1 << width) - 1
        expected = np.array([int(v) & mask for v in shifted], dtype=f"uint{width}").view(dtype)
    else:
        expected = BINARY[name](a, b)
    own = getattr(nbx, name)
    np.testing.assert_array_equal(own(nbx.asarray(a), nbx.asarray(b)).numpy(), expected)
    strided = own(nbx.asarray(a)[::3], nbx.asarray(b)[::3])
    np.testing.assert_array_equal(strided.numpy(), expected[::3])


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", BINARY)
def test_narrow_integers_beside_a_number(dtype: str, name: str) -> None:
    a = random_integers(dtype)
    expected = BINARY[name](a, np.asarray(5, dtype=dtype))
    result = getattr(nbx, name)(nbx.asarray(a), 5)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", UNARY)
def test_narrow_integers_of_one_operand(dtype: str, name: str) -> None:
    a = random_integers(dtype)
    result = getattr(nbx, name)(nbx.asarray(a))
    np.testing.assert_array_equal(result.numpy(), UNARY[name](a))


@pytest.mark.parametrize("k", [1, 7, 64, 65])
@pytest.mark.parametrize("largest", [True, False])
def test_few_of_many_in_order(k: int, largest: bool) -> None:
    generator = np.random.default_rng(2)
    x = generator.integers(-50, 50, (5, 1003)).astype(np.float32)
    x[1, ::100] = np.nan
    values, indices = nbx.topk(nbx.asarray(x), k, largest=largest)
    # Equal numbers keep their order, and NaN counts as greatest.
    key = np.where(np.isnan(x), np.inf, x)
    order = np.argsort(-key if largest else key, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, axis=-1))
