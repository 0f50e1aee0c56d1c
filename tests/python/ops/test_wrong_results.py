"""Results that an earlier system got wrong, for the ops that this one has."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

DEVICES = ["cpu", "sim:0"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on(values: Any, device: str) -> Any:
    return nbx.asarray(np.array(values), device=device, copy=True)


def test_all_of_std_near_ten_thousand(rng: np.random.Generator, device: str) -> None:
    values = (1e4 + rng.standard_normal((33, 65)) * 0.5).astype(np.float32)
    exact = values.astype(np.float64)
    x = on(values, device)
    np.testing.assert_allclose(x.std().item(), exact.std(), rtol=1e-4)
    np.testing.assert_allclose(x.var(axis=0).numpy(), exact.var(axis=0), rtol=1e-4)
    mean, deviation = exact.mean(-1, keepdims=True), exact.std(-1, keepdims=True)
    np.testing.assert_allclose(
        nbx.layer_norm(x, eps=0.0).numpy(), (exact - mean) / deviation, atol=5e-3
    )


def test_integers_past_the_mantissa_of_float32(device: str) -> None:
    assert on([2**24 + 1, 2**24], device).sum().item() == 2**25 + 1
    assert on([2**62, 2**61 + 1], device).cumsum(0).tolist() == [2**62, 2**62 + 2**61 + 1]
    assert (on([2**24 + 1], device) == on([2**24], device)).tolist() == [False]


def test_truth_values_are_counted_in_int64(device: str) -> None:
    total = on(np.ones(354, bool), device).sum()
    assert total.item() == 354
    assert total.dtype is nbx.int64


@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16"])
def test_narrowing_to_halves_is_one_rule(source: str, device: str) -> None:
    """The same bits whether a cast, a copy or an assignment narrows: NumPy's."""
    x = on([1e6, -1e6, 1.0], device).to(source)
    target = nbx.zeros((3,), dtype="float16", device=device)
    target.copy_(x)
    assigned = nbx.zeros((3,), dtype="float16", device=device)
    assigned[...] = x
    joined = nbx.cat([x, x]).to("float16")[:3]
    for result in (x.to("float16"), target, assigned, joined):
        assert result.tolist() == [float("inf"), float("-inf"), 1.0]


@pytest.mark.parametrize("ids", ["int64", "int32", "uint8"])
def test_embedding_of_any_ids_and_strided_tables(
    ids: str, rng: np.random.Generator, device: str
) -> None:
    table = rng.standard_normal((6, 10)).astype(np.float32)
    places = rng.integers(0, 10, (2, 3))
    found = nbx.embedding(on(places.astype(ids), device), on(table, device).T)
    np.testing.assert_array_equal(found.numpy(), table.T[places])


def test_gated_products_of_mixed_dtypes(rng: np.random.Generator, device: str) -> None:
    gate, up = rng.standard_normal((2, 3, 16)).astype(np.float32)
    mixed = nbx.silu_mul(on(gate, device).to("bfloat16"), on(up, device))
    rounded = on(gate, device).to("bfloat16").to("float32").numpy().astype(np.float64)
    expected = rounded / (1 + np.exp(-rounded)) * up
    np.testing.assert_allclose(mixed.to("float32").numpy(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sort_and_topk_along_every_axis(axis: int, rng: np.random.Generator, device: str) -> None:
    values = rng.permutation(5 * 7 * 3).reshape(5, 7, 3).astype(np.float32)
    x = on(values, device)
    np.testing.assert_array_equal(x.sort(axis=axis).numpy(), np.sort(values, axis))
    np.testing.assert_array_equal(x.argsort(axis=axis).numpy(), np.argsort(values, axis))
    top = x.topk(3, axis)
    expected = np.flip(np.sort(values, axis), axis).take(range(3), axis)
    np.testing.assert_array_equal(top.values.numpy(), expected)
    np.testing.assert_array_equal(nbx.take_along_axis(x, top.indices, axis).numpy(), expected)


@pytest.mark.parametrize("k", [0, 1, 3, 6, 7])
def test_topk_with_infinities(k: int, device: str) -> None:
    values = np.array([1, -np.inf, 3, -np.inf, -np.inf, 2, -np.inf], np.float32)
    top = on(values, device).topk(k)
    np.testing.assert_array_equal(top.values.numpy(), -np.sort(-values)[:k])
    assert top.indices.tolist() == np.argsort(-values, kind="stable")[:k].tolist()


def test_equal_compares_values(device: str) -> None:
    x = on([1.0, 2.0], device)
    assert nbx.equal(x, on([1.0, 2.5], device)).tolist() == [True, False]
    assert x.equal(2.0).tolist() == [False, True]


def test_logic_broadcasts_and_negates(device: str) -> None:
    rows, columns = np.arange(4).reshape(1, 1, 4, 1) > 1, np.arange(4).reshape(1, 1, 1, 4) > 2
    np.testing.assert_array_equal((on(rows, device) & on(columns, device)).numpy(), rows & columns)
    assert (~on([True, False], device)).tolist() == [False, True]


def attend(
    q: np.ndarray[Any, Any],
    k: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
    allowed: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Attention in float64 with rows of zeros where nothing is allowed."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (a.astype(np.float64) for a in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    weights = np.where(allowed, np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])), 0.0)
    total = weights.sum(-1, keepdims=True)
    return np.asarray((weights / np.where(total == 0, 1, total)) @ v)


@pytest.mark.parametrize("length", [1, 5, 33])
def test_attention_minds_mask_and_causality_together(
    length: int, rng: np.random.Generator, device: str
) -> None:
    q = rng.standard_normal((2, 6, length, 8)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 2, length + 3, 8)).astype(np.float32)
    mask = rng.random((2, 1, length, length + 3)) < 0.6
    mask[:, :, 0] = False
    causal = np.arange(length + 3) <= np.arange(length)[:, None] + 3
    query, key, value = (on(a, device) for a in (q, k, v))
    found = nbx.attention(query, key, value, on(mask, device), causal=True).numpy()
    np.testing.assert_allclose(found, attend(q, k, v, mask & causal), rtol=1e-4, atol=1e-5)
    assert not found[:, :, 0].any()
    bias = np.where(mask & causal, 0.0, -np.inf).astype(np.float32)
    biased = nbx.attention(query, key, value, on(bias, device)).numpy()
    np.testing.assert_allclose(biased, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like"])
def test_likeness_includes_the_device(name: str) -> None:
    for place in ("cpu", "sim:1"):
        like = getattr(nbx, name)(nbx.zeros((2,), device=place, dtype="int16"))
        assert str(like.device) == place
        assert like.dtype is nbx.int16
    assert nbx.zeros((1,), device="sim:1").device.index == 1


def test_copies_of_many_axes(rng: np.random.Generator, device: str) -> None:
    values = rng.integers(0, 99, (2,) * 12)
    order = rng.permutation(12)
    x = on(values, device).permute(*order.tolist())
    np.testing.assert_array_equal(x.clone().numpy(), values.transpose(order))
    np.testing.assert_array_equal((x + x).numpy(), 2 * values.transpose(order))
    deep = on(values.reshape(-1)[:4], device).reshape((1,) * 23 + (2, 2))
    assert deep.permute(*range(24, -1, -1)).contiguous().flatten().tolist() == (
        values.reshape(-1)[:4].reshape(2, 2).T.reshape(-1).tolist()
    )


def test_slices_before_the_start(rng: np.random.Generator, device: str) -> None:
    values = rng.integers(0, 99, 7)
    x = on(values, device)
    for key in (slice(-100, 3), slice(-3, None), slice(100, -100, -2), slice(-100, -50)):
        np.testing.assert_array_equal(x[key].numpy(), values[key])
