"""Random streams against an independent Philox, and their distributions."""

from __future__ import annotations

import math
import pickle
import threading
from typing import Any

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import random
from nbxtensor.random import _philox

Array = np.ndarray[Any, Any]
MASK = 2**32 - 1


def block(seed: int, counter: int) -> list[int]:
    """Philox4x32-10 in plain integers, from its definition."""
    c = [counter >> 32 * i & MASK for i in range(4)]
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & MASK, p0 >> 32 ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return c


def stream(seed: int, offset: int, words: int) -> list[int]:
    return [w for i in range(-(-words // 4)) for w in block(seed, offset + i)][:words]


def test_known_answers() -> None:
    # From the published test vectors of the generator.
    assert block(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**64 - 1
    assert block(ones, 2**128 - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    key, counter = 0x299F31D0_A4093822, 0x03707344_13198A2E_85A308D3_243F6A88
    assert block(key, counter) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    whole = random.Generator(0).randint(0, 2**63, (2,)).numpy().tolist()
    assert whole == [0x6627E8D5E169C58D >> 1, 0xBC57AC4C9B00DBD8 >> 1]


def test_the_rows_reference_is_the_same(rng: np.random.Generator) -> None:
    for offset in (0, 2**32 - 2, 2**64 - 3):
        seed = int(rng.integers(0, 2**63)) * 2 + 1
        assert _philox.philox(seed, offset, 5).reshape(-1).tolist() == stream(seed, offset, 20)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("start", [0, 2**32 - 3, 2**64 - 2])
def test_draws_from_the_words(rng: np.random.Generator, device: str, start: int) -> None:
    seed = int(rng.integers(0, 2**63)) * 2 + 1
    n = 23
    words = np.array(stream(seed, start, 2 * n + 2), np.float64)
    pairs = [int(a) << 32 | int(b) for a, b in words.astype(np.uint64).reshape(-1, 2)]
    generator = random.Generator()

    def draw(method: str, *arguments: Any, **keywords: Any) -> Array:
        generator.set_state((seed, start))
        drawn: Array = getattr(generator, method)(*arguments, **keywords, device=device)
        return drawn.cpu().numpy()

    np.testing.assert_array_equal(
        draw("rand", n), (np.floor(words[:n] / 2**8) * 2.0**-24).astype(np.float32)
    )
    np.testing.assert_array_equal(
        draw("rand", n, dtype=nbx.float16), np.floor(words[:n] / 2**21) * 2.0**-11
    )
    np.testing.assert_array_equal(
        draw("rand", n, dtype=nbx.bfloat16), np.floor(words[:n] / 2**24) * 2.0**-8
    )
    np.testing.assert_array_equal(
        draw("rand", n, dtype=nbx.float64), [(x >> 11) * 2.0**-53 for x in pairs[:n]]
    )
    np.testing.assert_array_equal(
        draw("randint", -7, 1000, (n,)), [-7 + (x * 1007 >> 64) for x in pairs[:n]]
    )
    u, turn = words[: n + 1].reshape(-1, 2).T
    radius = np.sqrt(-2 * np.log((u + 0.5) * 2.0**-32))
    both = np.stack(
        [
            radius * np.cos(2 * np.pi * turn * 2.0**-32),
            radius * np.sin(2 * np.pi * turn * 2.0**-32),
        ],
        -1,
    ).ravel()[:n]
    np.testing.assert_allclose(draw("randn", n), both, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(draw("normal", 3, 2, (n,)), 3 + 2 * both, rtol=1e-6, atol=1e-6)
    u = np.array([((x >> 12) + 0.5) * 2.0**-52 for x in pairs[: n + 1 : 2]])
    turn = np.array([(x >> 11) * 2.0**-53 for x in pairs[1 : n + 1 : 2]])
    radius = np.sqrt(-2 * np.log(u))
    both = np.stack([radius * np.cos(2 * np.pi * turn), radius * np.sin(2 * np.pi * turn)], -1)
    np.testing.assert_allclose(
        draw("randn", n, dtype=nbx.float64), both.ravel()[:n], rtol=1e-12, atol=1e-14
    )


def test_threads_do_not_change_a_draw() -> None:
    former = nbx.set_num_threads(1)
    try:
        one = random.Generator(5).randn(100_001).numpy()
        nbx.set_num_threads(4)
        four = random.Generator(5).randn(100_001).numpy()
    finally:
        nbx.set_num_threads(former)
    np.testing.assert_array_equal(one, four)


def test_offsets_go_on_block_by_block() -> None:
    generator = random.Generator(3)
    whole = random.Generator(3).rand(40).numpy()
    parts = [generator.rand(n).numpy() for n in (8, 4, 28)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert generator.offset == 10
    generator.rand(1)
    generator.randint(5, size=(3,))
    generator.rand(0)
    generator.randn(3, dtype=nbx.float64)
    assert generator.offset == 10 + 1 + 2 + 0 + 2


def test_state_and_pickle() -> None:
    generator = random.Generator(-1)
    assert generator.seed == 2**64 - 1
    generator.rand(9)
    state = generator.get_state()
    assert state == (2**64 - 1, 3)
    copy = pickle.loads(pickle.dumps(generator))
    expected = generator.rand(5).numpy()
    np.testing.assert_array_equal(copy.rand(5).numpy(), expected)
    generator.set_state(state)
    np.testing.assert_array_equal(generator.rand(5).numpy(), expected)
    assert generator.manual_seed(4) is generator
    assert repr(generator) == "Generator(seed=4, offset=0)"
    assert random.Generator().seed != random.Generator().seed


def test_the_module_has_a_generator() -> None:
    random.manual_seed(11)
    first = [random.rand(3), random.randn(2), random.randint(9, size=4), random.uniform(1, 2, 3)]
    state = random.get_state()
    more = random.normal(size=(2, 2)).numpy()
    random.set_state(state)
    np.testing.assert_array_equal(random.normal(size=(2, 2)).numpy(), more)
    random.manual_seed(11)
    for a, b in zip(
        first,
        [random.rand(3), random.randn(2), random.randint(9, size=4), random.uniform(1, 2, 3)],
        strict=True,
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_concurrent_draws_never_overlap() -> None:
    generator = random.Generator(1)
    found: list[Array] = []

    def work() -> None:
        for _ in range(50):
            found.append(generator.rand(8, dtype=nbx.float64).numpy())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = np.concatenate(found)
    assert len(np.unique(drawn)) == drawn.size == 1600
    assert generator.offset == 800


def kolmogorov(sample: Array, cumulative: Any) -> float:
    """The statistic times sqrt(n); above 1.95 once in a thousand."""
    ordered = np.sort(sample.astype(np.float64).ravel())
    n = ordered.size
    expected = cumulative(ordered)
    above = np.arange(1, n + 1) / n - expected
    below = expected - np.arange(n) / n
    return float(max(above.max(), below.max()) * math.sqrt(n))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distributions(dtype: str) -> None:
    # Seeds are fixed: a statistical bound would refuse a fresh one now and then.
    generator = random.Generator(2024)
    n = 200_000
    uniform = generator.uniform(-2, 6, n, dtype=dtype).numpy()
    assert -2 <= uniform.min() < uniform.max() < 6
    assert kolmogorov(uniform, lambda x: (x + 2) / 8) < 1.95
    normal = generator.normal(1, 3, n, dtype=dtype).numpy()
    erf = np.vectorize(math.erf)
    assert kolmogorov(normal, lambda x: 0.5 * (1 + erf((x - 1) / 3 / math.sqrt(2)))) < 1.95
    steps = normal[1:] * normal[:-1]
    assert abs(np.mean(steps) - 1) < 5 * steps.std() / math.sqrt(n)


def test_integers_are_even() -> None:
    drawn = random.Generator(7).randint(3, 13, 100_000).numpy()
    counts = np.bincount(drawn, minlength=13)[3:]
    assert drawn.min() == 3
    assert drawn.max() == 12
    chi = np.sum((counts - 10_000) ** 2 / 10_000)
    assert chi < 27.9  # of 9 degrees of freedom, once in a thousand


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_whole_ranges_of_integers(name: str) -> None:
    limits = np.iinfo(name)
    low, high = int(limits.min), int(limits.max) + 1
    if name == "int64":
        high -= 1
    drawn = random.Generator(9).randint(low, high, (5000,), dtype=name)
    assert drawn.dtype.name == name
    values = drawn.numpy().astype(np.float64)
    assert abs(values.mean() - (low + high) / 2) < (high - low) / 40
    assert values.max() - values.min() > (high - low) * 0.95


def test_large_unsigned() -> None:
    drawn = random.Generator(9).randint(2**63, 2**64 - 1, (100,), dtype=nbx.uint64).numpy()
    assert drawn.min() >= 2**63
    assert len(set(drawn.tolist())) == 100


@pytest.mark.parametrize("dtype", [nbx.float16, nbx.bfloat16, nbx.float32, nbx.float64])
def test_the_open_end_is_never_reached(dtype: Any) -> None:
    drawn = random.Generator(2).uniform(1.0, 1.0 + 2**-6, 20_000, dtype=dtype)
    values = drawn.numpy().astype(np.float64)
    assert values.min() >= 1
    assert values.max() < 1 + 2**-6
    assert random.Generator(2).uniform(2, 2, (3,), dtype=dtype).tolist() == [2, 2, 2]


def test_shapes_and_dtypes() -> None:
    generator = random.Generator(1)
    assert generator.rand().shape == ()
    assert generator.rand((2, 3)).shape == generator.rand(2, 3).shape == (2, 3)
    assert generator.randn(0, 4).shape == (0, 4)
    assert generator.randint(4, (2, 2)).shape == (2, 2)
    assert generator.rand(2, dtype="bfloat16").numpy().dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        (lambda g: g.manual_seed(2**64), ValueError, "seed: got 18446744073709551616"),
        (lambda g: g.manual_seed(1.5), TypeError, "seed: got float"),
        (lambda g: g.manual_seed(True), TypeError, "seed: got bool"),
        (lambda g: g.set_state((1, -1)), ValueError, "offset -1"),
        (lambda g: g.uniform(1, 0), ValueError, "uniform: got the range 1.0 to 0.0"),
        (lambda g: g.uniform(0, float("nan")), ValueError, "uniform: got the range"),
        (lambda g: g.uniform(-1.7e308, 1.7e308), ValueError, "uniform: got the range"),
        (lambda g: g.normal(0, -1), ValueError, "normal: got std -1.0"),
        (lambda g: g.rand(2, dtype="int32"), TypeError, "uniform: dtype int32"),
        (lambda g: g.randn(2, dtype="float8_e5m2"), TypeError, "normal: dtype float8_e5m2"),
        (lambda g: g.randint(3, 3), ValueError, "randint: got the range 3 to 3"),
        (lambda g: g.randint(0, 257, dtype="uint8"), ValueError, "uint8 \\(0 to 255\\)"),
        (lambda g: g.randint(-(2**63), 2**63), ValueError, "fewer than 2\\*\\*64"),
        (lambda g: g.randint(2, dtype="float32"), TypeError, "randint: dtype float32"),
        (lambda g: g.rand(-1), ValueError, "-1"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], expected: str) -> None:
    generator = random.Generator(1)
    with pytest.raises(error, match=expected):
        call(generator)
    assert generator.get_state() == (1, 0)
