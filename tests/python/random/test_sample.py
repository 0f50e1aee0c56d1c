"""Sampling for decoding, against probabilities in float64."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import random

Array = np.ndarray[Any, Any]


def probabilities(
    logits: Array, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> Array:
    """The distribution of one row, by sorting it whole."""
    scaled = logits.astype(np.float64) / temperature
    if top_k:
        scaled[scaled < sorted(scaled)[-min(top_k, len(scaled))]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    if top_p < 1:
        total = 0.0
        kept = np.zeros(len(weights), bool)
        for index in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
            if total >= top_p:
                break
            kept[index] = True
            total += weights[index]
        weights = np.where(kept, weights, 0)
    return weights / weights.sum()


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("dtype", [nbx.float32, nbx.float16, nbx.bfloat16, nbx.float64])
def test_greedy_takes_the_first_greatest(device: str, dtype: Any) -> None:
    logits = nbx.asarray([[0.0, 3.0, 3.0, 1.0], [5.0, -1.0, 2.0, 5.0]], dtype=dtype, device=device)
    state = random.get_state()
    ids = random.sample(logits, temperature=0)
    assert (ids.dtype, ids.device.name) == (nbx.int64, logits.device.name)
    assert ids.tolist() == [1, 0]
    assert random.sample(logits, temperature=-1.0).tolist() == [1, 0]
    assert random.get_state() == state


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": 100},
        {"top_p": 0.6},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.9},
    ],
)
def test_frequencies(rule: dict[str, Any]) -> None:
    # A fixed seed: a statistical bound would refuse a fresh one now and then.
    generator = np.random.default_rng(5)
    row = generator.standard_normal(9).astype(np.float32) * 1.5
    row[4] = row[7]
    n = 20_000
    logits = nbx.from_numpy(row).broadcast_to((n, 9))
    ids = random.sample(logits, **rule, generator=random.Generator(17)).numpy()
    counts = np.bincount(ids, minlength=9)
    expected = probabilities(row, **rule) * n
    assert not counts[expected == 0].any()
    used = expected > 0
    chi = np.sum((counts[used] - expected[used]) ** 2 / expected[used])
    assert chi < 26.1  # of 8 degrees of freedom or fewer, once in a thousand


def test_draws_by_the_uniform_numbers(rng: np.random.Generator) -> None:
    logits = rng.standard_normal((50, 301)).astype(np.float32) * 4
    seed = int(rng.integers(2**32))
    uniforms = random.Generator(seed).rand(50, dtype=nbx.float64).numpy()
    ids = random.sample(
        nbx.from_numpy(logits), 0.7, 40, 0.95, generator=random.Generator(seed)
    ).numpy()
    for row, uniform, index in zip(logits, uniforms, ids, strict=True):
        sums = np.cumsum(probabilities(row, 0.7, 40, 0.95))
        low = sums[index - 1] if index else 0.0
        assert low - 1e-12 <= uniform <= sums[index] + 1e-12


def test_devices_agree(rng: np.random.Generator) -> None:
    logits = nbx.from_numpy(rng.standard_normal((20, 100)).astype(np.float32))
    seed = int(rng.integers(2**32))
    rule = {"temperature": 0.9, "top_k": 30, "top_p": 0.8}
    cpu = random.sample(logits, **rule, generator=random.Generator(seed))
    sim = random.sample(logits.to("sim:0"), **rule, generator=random.Generator(seed))
    assert sim.device.name == "sim:0"
    np.testing.assert_array_equal(sim.cpu().numpy(), cpu.numpy())


def test_ties_at_the_cut() -> None:
    logits = nbx.asarray([1.0, 2.0, 2.0, 2.0, 0.0]).broadcast_to((2000, 5))
    generator = random.Generator(4)
    # top_k keeps every tie of the last one; top_p the first of equal ones.
    assert set(random.sample(logits, top_k=1, generator=generator).tolist()) == {1, 2, 3}
    assert set(random.sample(logits, top_p=0.3, generator=generator).tolist()) == {1, 2}
    assert set(random.sample(logits, top_p=1e-9, generator=generator).tolist()) == {1}


def test_shapes() -> None:
    assert random.sample(nbx.zeros(7)).shape == ()
    assert random.sample(nbx.zeros((2, 3, 7))).shape == (2, 3)
    assert random.sample(nbx.zeros((0, 7))).shape == (0,)
    turned = nbx.asarray([[0.0, 9.0], [1.0, -9.0]]).T
    assert random.sample(turned, 0).tolist() == [1, 0]


def test_a_count_above_the_vocabulary_keeps_all() -> None:
    logits = nbx.asarray([0.0, 50.0, 1.0])
    for count in (3, 4, 2**31, 2**63, 10**30):
        assert int(random.sample(logits, top_k=count)) == 1


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"top_k": -2}, "top_k -2"),
        ({"top_p": 0}, "top_p 0.0"),
        ({"top_p": 1.5}, "top_p 1.5"),
    ],
)
def test_bad_rules(keywords: dict[str, Any], expected: str) -> None:
    state = random.get_state()
    with pytest.raises(ValueError, match=f"sample: got {expected}"):
        random.sample(nbx.zeros((1, 4)), **keywords)
    assert random.get_state() == state


def test_bad_logits() -> None:
    for shape in ((), (3, 0)):
        with pytest.raises(ValueError, match=r"expected \(\.\.\., vocabulary\)"):
            random.sample(nbx.zeros(shape))
    with pytest.raises(ValueError, match=r"logits\[0, 1\] is NaN"):
        random.sample(nbx.asarray([[0.0, float("nan")]]))
    with pytest.raises(ValueError, match="-infinity"):
        random.sample(nbx.full((1, 3), float("-inf")))
    with pytest.raises(TypeError, match="dtype int64"):
        random.sample(nbx.zeros((1, 3), dtype=nbx.int64))
