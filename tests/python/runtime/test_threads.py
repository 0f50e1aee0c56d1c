"""The number of threads of the CPU device: set, asked for, taken from the environment."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import memory


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


DAEMONS = """
import threading, time
import nbxtensor as nbx

def work():
    while True:
        x = nbx.ones((60, 60), device="{device}")
        (x @ x).sum().item()
        nbx.synchronize("{device}")

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("end")
"""


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_threads_may_outlive_the_interpreter(device: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DAEMONS.format(device=device)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


LEFT = """
import sys
import numpy as np
import nbxtensor as nbx

class Cycle:
    def __del__(self):
        self.held = None
        nbx.zeros(10)

cycle = Cycle()
cycle.me, cycle.held = cycle, nbx.zeros(1000, device="sim:0")
tensor = nbx.zeros(4)
with nbx.memory.tag("left"):
    sys.left = [
        nbx.zeros(3), nbx.from_dlpack(np.ones(4)), memoryview(tensor), np.from_dlpack(tensor),
        tensor.__dlpack__(), nbx.from_numpy(np.ones(3)), nbx.random.Generator(1),
    ]
print("end")
"""


def test_what_is_left_at_the_end_is_dropped_in_peace() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEFT], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_eight_threads_do_everything_at_once(device: str, rng: np.random.Generator) -> None:
    seeds = [int(seed) for seed in rng.integers(0, 2**32, 8)]
    wrong: list[object] = []
    gc.collect()
    nbx.synchronize(device)
    before = memory.stats(device)

    def work(index: int) -> None:
        own = np.random.default_rng(seeds[index])
        try:
            for step in range(12):
                tag = f"thread{index}/{own.integers(3)}"
                with memory.tag(tag):
                    a = own.standard_normal(tuple(own.integers(1, 90, 2))).astype(np.float32)
                    x = nbx.asarray(a, device=device)
                    got = (x[::2, ::-1] * 2 + x[::2, ::-1]).sum(1).cpu().numpy()
                    wide = a[::2, ::-1].astype(np.float64) * 3
                    np.testing.assert_allclose(got, wide.sum(1), rtol=1e-3, atol=1e-3)
                    product = (x @ x.permute(1, 0)).cpu().numpy()
                    np.testing.assert_allclose(product, a @ a.T, rtol=1e-3, atol=1e-3)
                    assert x.storage().account.endswith(tag)
                with (
                    memory.tag(f"full{index}"),
                    memory.budget(0, device, f"full{index}"),
                    pytest.raises(nbx.OutOfMemoryError),
                ):
                    nbx.empty((1,), device=device)
                nbx.set_num_threads(1 + step % 3)
                memory.report(device)
                memory.trim(device)
        except BaseException as error:
            wrong.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert wrong == []
    gc.collect()
    nbx.synchronize(device)
    after = memory.stats(device)
    assert (after.allocated, after.objects) == (before.allocated, before.objects)
