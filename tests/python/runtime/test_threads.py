"""The number of threads of the CPU device: set, asked for, taken from the environment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import nbxtensor as nbx
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def former() -> Iterator[int]:
    """Put the number back."""
    count = nbx.get_num_threads()
    yield count
    nbx.set_num_threads(count)


def started(value: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "NBX_NUM_THREADS"}
    if value is not None:
        environment["NBX_NUM_THREADS"] = value
    command = [sys.executable, "-c", "import nbxtensor; print(nbxtensor.get_num_threads())"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_set_returns_the_former_number(former: int) -> None:
    assert nbx.set_num_threads(3) == former
    assert nbx.get_num_threads() == 3
    assert nbx.set_num_threads(np.int64(1)) == 3
    assert nbx.set_num_threads(count=former) == 1


def test_the_number_is_one_for_all_threads() -> None:
    nbx.set_num_threads(5)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(nbx.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [5]


@pytest.mark.parametrize("count", [0, -1, 1025, 2**31, 2**40, 2**70, -(2**70)])
def test_counts_out_of_range_are_refused(count: int) -> None:
    before = nbx.get_num_threads()
    with pytest.raises(ValueError, match="set_num_threads: count") as caught:
        nbx.set_num_threads(count)
    assert str(count) in str(caught.value)
    assert nbx.get_num_threads() == before


@pytest.mark.parametrize("count", [1.5, 2.0, "2", None, True])
def test_counts_that_are_no_integers_are_refused(count: object) -> None:
    with pytest.raises(TypeError, match="set_num_threads: count must be an integer, got "):
        nbx.set_num_threads(count)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_results_do_not_depend_on_it(threads: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((129, 257), (257, 65)))
    x, y = nbx.asarray(a), nbx.asarray(b)
    nbx.set_num_threads(2)
    expected = [nbx.matmul(x, y).numpy(), nbx.sum(x, axis=0).numpy(), nbx.softmax(x).numpy()]
    nbx.set_num_threads(threads)
    found = [nbx.matmul(x, y).numpy(), nbx.sum(x, axis=0).numpy(), nbx.softmax(x).numpy()]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found[0], wide, rtol=1e-4, atol=1e-4)


def test_the_environment_decides() -> None:
    assert started("3").stdout == "3\n"
    cores = started(None).stdout
    assert 1 <= int(cores) <= (os.cpu_count() or 1)
    assert started("0").stdout == started("").stdout == cores


@pytest.mark.parametrize("value", ["-1", "two", "1.5", "1025"])
def test_a_wrong_environment_is_refused_at_import(value: str) -> None:
    done = started(value)
    assert done.returncode == 1
    assert (
        f"NBX_NUM_THREADS: expected a number from 1 to 1024, or 0 for the cores that may be "
        f"used, got '{value}'; correct it or unset it" in done.stderr
    )
