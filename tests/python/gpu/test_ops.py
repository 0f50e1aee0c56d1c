"""Ops on a card: every row's samples, shapes of many blocks, and what only a card can hold."""

from __future__ import annotations

import secrets
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor.errors import UnsupportedError
from nbxtensor.ops import TABLE
from nbxtensor.testing import Case, accuracy, cases_of, check_case
from nbxtensor.testing.cases import LAYOUTS

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
FAMILIES = sorted({row.family for row in TABLE.values()})
CASES = [case for family in FAMILIES for case in cases_of(family, (DEVICE,))]
# Rows that kernels do not compute for complex numbers, or not at all.
COMPLEX = {"concat", "stack", "tile", "roll", "take", "index_select", "take_along_axis", "gather"}
COMPLEX |= {"sum", "mean", "cumsum", "positive", "fill_value", "embedding"}
HOST_ONLY = {"quantize_blocks"}


@pytest.fixture
def seed() -> int:
    """A fresh seed, in every message of a failing case."""
    return secrets.randbits(32)


@pytest.fixture
def generator(seed: int) -> np.random.Generator:
    """A generator over the seed, which is printed when the test fails."""
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def supported(case: Case) -> bool:
    if case.row.name in HOST_ONLY:
        return False
    if case.row.name in ("tril", "triu"):
        return case.dtype.bits <= 64
    return case.dtype.kind != "c" or case.row.name in COMPLEX


@pytest.mark.parametrize("case", list(filter(supported, CASES)), ids=str)
def test_row_equals_its_oracle(case: Case, seed: int) -> None:
    # Other layouts are other kernels: one dtype of each row has them compiled.
    first = case.dtype is case.row.dtypes[0]
    assert check_case(case, seed, LAYOUTS if first else LAYOUTS[:1]) > 0


@pytest.mark.parametrize("case", [c for c in CASES if not supported(c)], ids=str)
def test_what_kernels_lack_is_refused_by_name(case: Case, seed: int) -> None:
    with pytest.raises(UnsupportedError, match=r"no kernel for cuda"):
        check_case(case, seed)


def up(values: Any) -> Any:
    return nbx.asarray(values).to(DEVICE)


def close(result: Any, expected: Any, units: float) -> None:
    got = np.asarray(result.numpy(), np.float64)
    eps = units * float(nbx.finfo(result.dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=eps, atol=eps * np.max(np.abs(expected)))


@pytest.mark.parametrize("shape", [(3_000_017,), (1731, 2049), (129, 33, 513)])
def test_elementwise_spans_many_blocks(shape: Any, generator: np.random.Generator) -> None:
    x = generator.standard_normal(shape).astype(np.float32)
    y = generator.standard_normal(shape[-1:]).astype(np.float32)
    close(up(x) * up(y) + 1.5, x.astype(np.float64) * y + 1.5, 4)
    close(nbx.exp(up(x)), np.exp(x.astype(np.float64)), 4)
    turned = up(x).permute(*reversed(range(x.ndim)))
    np.testing.assert_array_equal((-turned).numpy(), -x.T)
    np.testing.assert_array_equal(turned.contiguous().numpy(), x.T)


@pytest.mark.parametrize("shape", [(3_000_017,), (7, 300_007), (300_007, 7), (65, 63, 1025)])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_reductions_span_many_blocks(shape: Any, axis: Any, generator: np.random.Generator) -> None:
    x = generator.standard_normal(shape).astype(np.float32)
    wide = x.astype(np.float64)
    card = up(x)
    close(nbx.sum(nbx.abs(card), axis=axis), np.abs(wide).sum(axis), 16)
    close(nbx.var(card, axis=axis), wide.var(axis), 32)
    close(nbx.logsumexp(card, axis=axis), np.log(np.exp(wide).sum(axis)), 16)
    np.testing.assert_array_equal(nbx.amax(card, axis=axis).numpy(), x.max(axis))
    np.testing.assert_array_equal(nbx.argmin(card, axis=axis).numpy(), x.argmin(axis))
    np.testing.assert_array_equal(
        nbx.count_nonzero(card > 0, axis=axis).numpy(), np.count_nonzero(x > 0, axis)
    )


def test_reductions_repeat_bit_for_bit(generator: np.random.Generator) -> None:
    card = up(generator.standard_normal((3, 5_000_011)).astype(np.float32))
    first = nbx.sum(card, axis=1).numpy()
    assert all((nbx.sum(card, axis=1).numpy() == first).all() for _ in range(5))


@pytest.mark.parametrize("width", [31, 1000, 4097, 50_001])
def test_rows_of_any_width(width: int, generator: np.random.Generator) -> None:
    x = generator.standard_normal((37, width)).astype(np.float32)
    wide = x.astype(np.float64)
    power = np.exp(wide - wide.max(-1, keepdims=True))
    card = up(x)
    close(nbx.softmax(card, axis=-1), power / power.sum(-1, keepdims=True), 8)
    close(nbx.softmax(card.T, axis=0).T, power / power.sum(-1, keepdims=True), 8)
    scale = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    close(nbx.rms_norm(card), wide / scale, 16)
    close(nbx.cumsum(card, axis=-1), wide.cumsum(-1), 64)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 515, 1030), (3, 64, 77), (513, 257, 1025)])
def test_products_of_odd_sizes(
    dtype: str, m: int, n: int, k: int, generator: np.random.Generator
) -> None:
    a = nbx.asarray(generator.integers(-4, 5, (m, k)).astype(np.float32)).to(dtype)
    b = nbx.asarray(generator.integers(-4, 5, (n, k)).astype(np.float32)).to(dtype)
    expected = a.to("float64").numpy() @ b.to("float64").numpy().T
    result = a.to(DEVICE) @ b.to(DEVICE).T
    rounded = nbx.asarray(expected).to(dtype).to("float64").numpy()
    np.testing.assert_array_equal(result.to("float64").numpy(), rounded)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 100, 513])
def test_attention_over_many_keys(dtype: str, queries: int, generator: np.random.Generator) -> None:
    q, k, v = (
        nbx.asarray(generator.standard_normal((2, heads, length, 64))).to(dtype)
        for heads, length in ((6, queries), (2, 777), (2, 777))
    )
    oracle = TABLE["attention"].oracle
    expected = oracle(*(x.to("float64").numpy() for x in (q, k, v)), causal=True, kv_length=600)
    result = nbx.attention(*(x.to(DEVICE) for x in (q, k, v)), causal=True, kv_length=600)
    close(result.to("float32"), expected, 64 if dtype == "float32" else 2**16)


def test_more_elements_than_32_bits_count() -> None:
    count = 2**31 + 12_345
    x = nbx.full((count,), 3, dtype="int8", device=DEVICE)
    x[-1] = 7
    y = x + x
    assert y[-3:].numpy().tolist() == [6, 6, 14]
    assert y[:2].numpy().tolist() == [6, 6]
    assert nbx.sum(y, dtype="int64").item() == 6 * (count - 1) + 14
    assert nbx.argmax(y).item() == count - 1


def test_a_wrong_index_is_told() -> None:
    table = nbx.zeros((5, 3), device=DEVICE)
    with pytest.raises(IndexError, match=r"take: index 9 is out of bounds for axis 0 with size 5"):
        nbx.take(table, up(np.array([1, 9])), axis=0).numpy()
    with pytest.raises(IndexError, match=r"embedding: index -1 is out of bounds"):
        nbx.embedding(up(np.array([-1])), table).numpy()
    assert nbx.take(table, up(np.array([-1])), axis=0).numpy().tolist() == [[0, 0, 0]]


def test_assignment_keeps_the_last_of_equals() -> None:
    x = nbx.zeros((10,), device=DEVICE)
    x[up(np.array([1, 3, 1, 1]))] = up(np.array([1, 2, 3, 4], np.float32))
    assert x.numpy().tolist() == [0, 4, 0, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_misaligned_views(offset: int, generator: np.random.Generator) -> None:
    x = generator.standard_normal(5000).astype(np.float32)
    card = up(x)[offset:]
    np.testing.assert_array_equal((card + card).numpy(), x[offset:] * 2)
    other = up(x)[: x.size - offset]
    np.testing.assert_array_equal((card + other).numpy(), x[offset:] + x[: x.size - offset])


def decode(weights: dict[str, Any], ids: Any, device: str) -> Any:
    """Return the logits of two steps of a small decoder: a prompt, then one token."""
    w = {name: nbx.asarray(value).to(device) for name, value in weights.items()}
    keys, values = (nbx.zeros((1, 2, 40, 16), device=device) for _ in range(2))
    found = []
    for start, part in ((0, ids[:-1]), (len(ids) - 1, ids[-1:])):
        count = len(part)
        x = nbx.embedding(nbx.asarray(part).to(device), w["table"])
        h = nbx.rms_norm(x, w["norm"])
        q, k, v = (
            nbx.linear(h, w[name]).reshape((1, count, -1, 16)) for name in ("query", "key", "value")
        )
        places = nbx.arange(start, start + count, device=device).reshape((1, count))
        q, k = (nbx.rope(t, places, interleaved=True) for t in (q, k))
        nbx.kv_append(keys, k.permute(0, 2, 1, 3), start)
        nbx.kv_append(values, v.permute(0, 2, 1, 3), start)
        read = nbx.attention(
            q.permute(0, 2, 1, 3), keys, values, causal=True, kv_length=start + count
        )
        x = x + nbx.linear(read.permute(0, 2, 1, 3).reshape((count, -1)), w["out"])
        h = nbx.rms_norm(x, w["norm"])
        x = x + nbx.linear(
            nbx.silu_mul(nbx.linear(h, w["gate"]), nbx.linear(h, w["up"])), w["down"]
        )
        found.append(nbx.linear(nbx.rms_norm(x, w["norm"]), w["table"]))
    return nbx.concat(found)


def test_a_decoder_says_what_it_says_on_the_cpu(generator: np.random.Generator) -> None:
    shapes = {"table": (131, 96), "norm": (96,), "query": (96, 96), "key": (32, 96)}
    shapes |= {"value": (32, 96), "out": (96, 96), "gate": (160, 96), "up": (160, 96)}
    shapes |= {"down": (96, 160)}
    weights = {
        name: (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    ids = generator.integers(0, 131, 23)
    expected = decode(weights, ids, "cpu")
    result = decode(weights, ids, DEVICE)
    close(result, expected.to("float64").numpy(), 256)
    assert nbx.argmax(result[-1]).item() == nbx.argmax(expected[-1]).item()
    drawn = nbx.random.sample(result, 0.8, 20, 0.9, nbx.random.Generator(3))
    assert drawn.numpy().tolist() == (
        nbx.random.sample(expected, 0.8, 20, 0.9, nbx.random.Generator(3)).numpy().tolist()
    )


@pytest.mark.parametrize("name", [*accuracy.UNARY, *accuracy.BINARY])
def test_functions_of_float32_are_accurate(name: str, generator: np.random.Generator) -> None:
    accuracy.check(name, DEVICE, generator)
