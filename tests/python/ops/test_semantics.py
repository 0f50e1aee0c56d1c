"""What the rows' own tests do not see: operators, numbers, promotion, in-place forms, errors."""

from __future__ import annotations

import operator
import pickle
import secrets
import threading
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core
from nbxtensor.ops import FUNCTIONS, METHODS, OPS
from nbxtensor.tensor import Tensor, asarray


def tensor(values: Any, dtype: Any = None) -> Tensor:
    made: Tensor = asarray(values, dtype=dtype)
    return made


def array(value: Tensor) -> Any:
    return np.asarray(value.numpy())


@pytest.fixture
def generator() -> np.random.Generator:
    seed = secrets.randbits(32)
    print("seed", seed)
    return np.random.default_rng(seed)


ARITHMETIC = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
)


@pytest.mark.parametrize("function", ARITHMETIC)
def test_operators_with_numbers_on_both_sides(function: Any) -> None:
    values = np.array([1.0, 2.0, 3.5], np.float32)
    x = tensor(values)
    np.testing.assert_allclose(array(function(x, 2)), function(values, 2), rtol=1e-6)
    np.testing.assert_allclose(array(function(2, x)), function(np.float32(2), values), rtol=1e-6)
    np.testing.assert_allclose(
        array(function(2.5, x)), function(np.float32(2.5), values), rtol=1e-6
    )
    assert function(2.5, x).dtype is nbx.float32


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ipow"])
def test_in_place_operators_write_the_tensor(name: str) -> None:
    function = getattr(operator, name)
    x = tensor(np.array([1.0, 2.0, 3.0], np.float32))
    address = x.data_ptr()
    expected = function(np.array([1.0, 2.0, 3.0], np.float32), 2)
    y = function(x, 2)
    assert y is x
    assert x.data_ptr() == address
    np.testing.assert_allclose(array(x), expected)


def test_in_place_reads_an_overlapping_source_first() -> None:
    values = np.arange(8, dtype=np.float32)
    x = tensor(values.copy())
    x += x[::-1]
    np.testing.assert_array_equal(array(x), values + values[::-1])
    x = tensor(values.copy())
    x[1:].add_(x[:-1])
    np.testing.assert_array_equal(array(x)[1:], values[1:] + values[:-1])


def test_in_place_refuses_what_does_not_fit() -> None:
    x = tensor(np.ones((3,), np.int32))
    with pytest.raises(TypeError, match="float32, which cannot be written to a tensor of int32"):
        x += 0.5
    with pytest.raises(ValueError, match=r"result has shape \(2, 3\)"):
        x.add_(tensor(np.ones((2, 3), np.int32)))
    with pytest.raises(ValueError, match="share memory"):
        x.expand(4, 3).add_(1)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (operator.eq, [False, True, False]),
        (operator.ne, [True, False, True]),
        (operator.lt, [True, False, False]),
        (operator.le, [True, True, False]),
        (operator.gt, [False, False, True]),
        (operator.ge, [False, True, True]),
    ],
)
def test_comparisons_keep_their_sides(function: Any, expected: list[bool]) -> None:
    x = tensor(np.array([1.0, 2.0, 3.0], np.float32))
    assert array(function(x, 2)).tolist() == expected
    mirrored = {
        operator.lt: operator.gt,
        operator.gt: operator.lt,
        operator.le: operator.ge,
        operator.ge: operator.le,
    }.get(function, function)
    assert array(mirrored(2, x)).tolist() == expected
    assert function(x, 2).dtype is nbx.bool


def test_bit_operators() -> None:
    values = np.array([1, 6, 12], np.int32)
    x = tensor(values)
    assert array(x & 5).tolist() == (values & 5).tolist()
    assert array(5 | x).tolist() == (5 | values).tolist()
    assert array(x ^ x).tolist() == [0, 0, 0]
    assert array(~x).tolist() == (~values).tolist()
    assert array(x << 2).tolist() == (values << 2).tolist()
    assert array(64 >> x).tolist() == (64 >> values).tolist()
    flags = tensor(np.array([True, False]))
    assert array(~flags).tolist() == [False, True]
    assert (~flags).dtype is nbx.bool


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("int32", 0.5, "float32"),
        ("int8", 2, "int8"),
        ("float16", 0.5, "float16"),
        ("bool", 2, "int64"),
        ("bool", True, "bool"),
        ("float32", 1j, "complex64"),
        ("float64", 1j, "complex128"),
        ("int64", "float32", "float32"),
        ("uint8", "int8", "int16"),
        ("float16", "bfloat16", "float32"),
        ("float32", "float64", "float64"),
    ],
)
def test_promotion(first: str, second: Any, expected: str) -> None:
    x = nbx.ones((3,), dtype=first)
    y = nbx.ones((3,), dtype=second) if isinstance(second, str) else second
    assert (x * y).dtype.name == expected
    assert (y * x).dtype.name == expected


def test_numpy_scalars_are_numbers() -> None:
    x = tensor(np.array([1, 2, 3], np.int32))
    assert (x + np.int64(2)).dtype is nbx.int32
    assert array(x + np.int64(2)).tolist() == [3, 4, 5]
    assert array(x * np.float32(0.5)).tolist() == [0.5, 1.0, 1.5]
    assert (x == np.bool_(True)).dtype is nbx.bool


def test_numpy_numbers_on_the_left_and_numpy_functions() -> None:
    x = tensor(np.array([1.0, 4.0], np.float32))
    doubled = np.float32(2) * x
    assert isinstance(doubled, Tensor)
    assert array(doubled).tolist() == [2.0, 8.0]
    assert array(np.sqrt(x)).tolist() == [1.0, 2.0]
    assert isinstance(np.ones(2) + x, np.ndarray)
    assert (np.ones(2) + x).tolist() == [2.0, 5.0]
    assert np.add.reduce(x) == 5.0


def test_ops_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(nbx.add)) is nbx.add


def test_tensors_without_elements_are_operands() -> None:
    assert (nbx.zeros((0, 3)) + 1).shape == (0, 3)
    assert (nbx.zeros((0, 3)) + nbx.ones((1, 3))).shape == (0, 3)
    assert array(nbx.zeros((0, 3)).sum(0)).tolist() == [0.0, 0.0, 0.0]
    assert array(nbx.zeros((2, 0)) @ nbx.zeros((0, 2))).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_large_integers_stay_exact() -> None:
    large = np.array([2**53 + 1, 2**62], np.int64)
    assert array(tensor(large) + 1).tolist() == (large + 1).tolist()
    assert array(tensor(large).sum()).tolist() == int(large.sum())
    unsigned = np.array([2**64 - 1, 5], np.uint64)
    assert array(tensor(unsigned) == 2**64 - 1).tolist() == [True, False]
    assert array(tensor(np.full(2**16 + 1, 2**24 - 1, np.int64)).sum()) == (2**16 + 1) * (2**24 - 1)


def test_division_by_zero_of_integers_does_not_trap() -> None:
    x = tensor(np.array([-(2**63), 7], np.int64))
    assert array(x // tensor(np.array([-1, 0], np.int64))).tolist() == [-(2**63), 0]
    assert array(x % tensor(np.array([-1, 0], np.int64))).tolist() == [0, 0]


# Rows of the list of wrong results that an earlier system gave.


def test_argmax_along_another_axis(generator: np.random.Generator) -> None:
    values = generator.standard_normal((5, 7, 3)).astype(np.float32)
    for axis in range(3):
        assert array(tensor(values).argmax(dim=axis)).tolist() == values.argmax(axis).tolist()


def test_numbers_on_the_left_keep_their_side() -> None:
    x = tensor(np.array([1.0, 4.0], np.float32))
    assert array(nbx.subtract(2, x)).tolist() == [1.0, -2.0]
    assert array(nbx.divide(1.0, x)).tolist() == [1.0, 0.25]
    assert array(nbx.greater(2.0, x)).tolist() == [True, False]


def test_integers_divide_into_real_numbers() -> None:
    x = tensor(np.array([1, 2, 3]))
    assert array(x / tensor(np.array([2, 2, 2]))).tolist() == [0.5, 1.0, 1.5]
    assert array(x * 0.5).tolist() == [0.5, 1.0, 1.5]
    assert array(x.mean()).item() == 2.0


def test_topk_keeps_float32() -> None:
    values = np.array([1.0001, 1.0002, 1.0003, 100000.0], np.float32)
    found = tensor(values).topk(2)
    assert array(found.values).tolist() == values[[3, 2]].tolist()
    assert array(found.indices).tolist() == [3, 2]


def test_variance_of_large_values_is_not_negative(generator: np.random.Generator) -> None:
    values = (1e4 + generator.standard_normal((64, 129)) * 0.5).astype(np.float32)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(array(tensor(values).var()), exact.var(), rtol=1e-4)
    np.testing.assert_allclose(array(tensor(values).std(axis=1)), exact.std(axis=1), rtol=1e-4)


def test_halves_of_both_kinds_meet_in_float32() -> None:
    x = nbx.ones((2,), dtype="float16") + nbx.ones((2,), dtype="bfloat16")
    assert x.dtype is nbx.float32


def test_power_of_negative_bases() -> None:
    base = tensor(np.array([-2.0, -2.0, -8.0], np.float32))
    exponent = tensor(np.array([2.0, 3.0, 1 / 3], np.float32))
    result = array(base**exponent)
    assert result[:2].tolist() == [4.0, -8.0]
    assert np.isnan(result[2])


def test_where_with_a_number() -> None:
    x = tensor(np.array([1.0, -1.0], np.float32))
    assert array(nbx.where(x > 0, x, 0)).tolist() == [1.0, 0.0]
    assert array(nbx.where(x > 0, 5.0, x)).tolist() == [5.0, -1.0]


def test_concat_promotes() -> None:
    joined = nbx.cat([tensor(np.array([1, 2])), tensor(np.array([1.5], np.float32))])
    assert joined.dtype is nbx.float32
    assert array(joined).tolist() == [1.0, 2.0, 1.5]


def test_mask_and_causal_both_apply(generator: np.random.Generator) -> None:
    q, k, v = (tensor(generator.standard_normal((1, 1, 4, 8)).astype(np.float32)) for _ in range(3))
    mask = nbx.ones((4, 4), dtype=nbx.bool)
    both = array(nbx.attention(q, k, v, mask, causal=True))
    np.testing.assert_allclose(both, array(nbx.attention(q, k, v, causal=True)), rtol=1e-6)


# Refusals: each names the op, what was given and what is allowed.


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: nbx.add(x),
            TypeError,
            r"add: argument 'y' is missing; the call is add\(x, y, \*, out\)",
        ),
        (lambda x: nbx.add(x, x, x), TypeError, "add: takes at most 2 positional arguments, got 3"),
        (lambda x: nbx.add(x, z=1), TypeError, "add: unexpected keyword argument 'z'"),
        (lambda x: nbx.add(x, x=1, y=1), TypeError, "add: argument 'x' was given twice"),
        (
            lambda x: nbx.add(x, "a"),
            TypeError,
            "add: argument 'y' must be a tensor or a number, got str",
        ),
        (lambda x: nbx.exp([1.0]), TypeError, "exp: argument 'x' must be a tensor, got list"),
        (lambda x: nbx.add(1, 2), TypeError, "add: expected at least one tensor"),
        (lambda x: x + "a", TypeError, "unsupported operand"),
        (
            lambda x: x + nbx.ones((4,)),
            ValueError,
            r"shapes \(2, 3\) and \(4,\) cannot be broadcast",
        ),
        (lambda x: x.sum(axis=2), IndexError, r"sum: axis must be in \[-2, 1\] for 2 axes, got 2"),
        (lambda x: x.sum(axis=(0, 0)), ValueError, "names an axis twice"),
        (lambda x: x @ x, ValueError, "inner extents are 3 and 2"),
        (lambda x: nbx.zeros((0,)).max(), ValueError, "has no elements"),
        (lambda x: x.topk(4), ValueError, r"topk: k must be in \[0, 3\]"),
        (lambda x: ~x, TypeError, "bitwise_not: dtype float32 is not supported"),
        (
            lambda x: x.add(2**70),
            OverflowError,
            "add: argument 'y' is 1180591620717411303424, which does not fit in 64 bits",
        ),
        (lambda x: nbx.where(x, x, x), TypeError, "condition must have dtype bool"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(tensor(np.ones((2, 3), np.float32)))


def test_guards_are_checked_at_every_call() -> None:
    cache = nbx.zeros((1, 1, 4, 2))
    new = nbx.ones((1, 1, 2, 2))
    nbx.kv_append(cache, new, 1)
    with pytest.raises(IndexError, match=r"kv_append: position must be in \[0, 2\], got 3"):
        nbx.kv_append(cache, new, 3)
    with pytest.raises(IndexError, match=r"attention: kv_length must be in \[0, 4\], got 5"):
        nbx.attention(new, cache, cache, kv_length=5)


def test_read_only_memory_is_not_written() -> None:
    values = np.ones(3, np.float32)
    values.flags.writeable = False
    x = nbx.from_numpy(values)
    with pytest.raises(ValueError, match="read-only"):
        x += 1
    assert values.tolist() == [1.0, 1.0, 1.0]


# The cache of plans.


def test_numbers_do_not_need_a_new_plan() -> None:
    op = OPS["mul"]
    x = nbx.ones((3, 11))
    op(x, 1.5)
    misses = op.misses
    for i in range(20):
        op(x, i + 0.25)
    assert op.misses == misses
    op(nbx.ones((3, 12)), 1.5)
    assert op.misses == misses + 1


def test_decode_steps_share_a_plan() -> None:
    cache = nbx.zeros((1, 3, 32, 8))
    new = nbx.ones((1, 3, 1, 8))
    query = nbx.ones((1, 9, 1, 8))
    for position in range(3):
        nbx.kv_append(cache, new, position)
        nbx.attention(query, cache, cache, causal=True, kv_length=position + 1)
    before = OPS["kv_append"].misses, OPS["attention"].misses
    for position in range(3, 32):
        nbx.kv_append(cache, new, position)
        nbx.attention(query, cache, cache, causal=True, kv_length=position + 1)
    assert (OPS["kv_append"].misses, OPS["attention"].misses) == before


def test_the_cache_is_bounded() -> None:
    op = _core.Op("probe", [("x", 0, ..., ()), ("n", 6, ..., ())], _probe)
    x = nbx.ones((2,))
    for n in range(5000):
        op(x, n)
    assert op.misses == 5000
    assert 0 < op.cached_plans <= 4096


def _probe(x: Tensor, n: int) -> Any:
    return _core.Plan(
        [(x.dtype, x.shape)],
        [],
        [("fill:value", [(1, 0, x.dtype, 0, (2,), (1,))], [n], 1)],
        [(1, 0)],
    )


def test_static_values_decide_the_plan() -> None:
    x = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert array(x.sum(0)).tolist() == [3.0, 5.0, 7.0]
    assert array(x.sum(1)).tolist() == [3.0, 12.0]
    assert array(x.sum(dim=[0, 1])).item() == 15.0
    assert x.sum(dtype=nbx.float64).dtype is nbx.float64
    assert x.sum(dtype=nbx.float32).dtype is nbx.float32


def test_forgotten_plans_are_made_anew() -> None:
    x = nbx.ones((5,))
    x.exp()
    misses = OPS["exp"].misses
    _core.forget_plans()
    OPS["exp"](x)
    assert OPS["exp"].misses == misses + 1


def test_threads_share_an_op(generator: np.random.Generator) -> None:
    values = generator.standard_normal((64, 65)).astype(np.float32)
    failures: list[str] = []

    def work(rows: int) -> None:
        for i in range(50):
            part = values[: 1 + (rows * i) % 64]
            if not np.array_equal(
                array(tensor(part) * 2 + 1), part * np.float32(2) + np.float32(1)
            ):
                failures.append(f"rows {rows} turn {i}")

    threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Names.


def test_methods_and_functions_are_the_same_ops() -> None:
    x = tensor(np.array([0.5, 1.0], np.float32))
    assert array(x.silu()).tolist() == array(nbx.silu(x)).tolist()
    assert METHODS["silu"] is FUNCTIONS["silu"]
    assert nbx.add.__name__ == "add"
    assert str(nbx.add.__signature__) == "(x, y, *, out=None)"
    assert str(nbx.Tensor.add_.__signature__) == "(x, y)"


def test_keywords_go_by_both_families_of_names() -> None:
    x = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert array(x.sum(dim=1, keepdim=True)).shape == (2, 1)
    assert array(x.sum(axis=1, keepdims=True)).shape == (2, 1)
    assert array(nbx.add(input=x, other=1)).tolist() == array(x + 1).tolist()
