"""Budgets in every form, options, lifetimes and epochs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, memory

DEVICE = "sim:1"
MiB = 1 << 20


@pytest.fixture(autouse=True)
def start() -> Iterator[memory.Stats]:
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    before = memory.stats(DEVICE)
    yield before
    after = memory.stats(DEVICE)
    assert (after.allocated, after.budget) == (before.allocated, before.budget)


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NBX_")} | variables
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---- budgets -------------------------------------------------------------------------------


def test_a_budget_that_leaves_room_to_others(start: memory.Stats) -> None:
    with memory.budget(reserve="2 GiB", device=DEVICE) as limit:
        assert limit.bytes == start.device_total - (2 << 30)
    with memory.budget(reserve="25%", device=DEVICE) as limit:
        assert limit.bytes == start.device_total - start.device_total // 4
    with pytest.raises(ValueError, match="reserve is '1 TiB', but the device has"):
        memory.budget(reserve="1 TiB", device=DEVICE)
    with pytest.raises(ValueError, match="give one of them"):
        memory.budget(5, DEVICE, reserve=5)
    with pytest.raises(ValueError, match="no limit"):
        memory.budget(device=DEVICE)


def test_soft_limits_come_back_with_the_hard_one() -> None:
    with memory.budget("2 MiB", DEVICE, "soft", soft="50%") as outer:
        assert outer.bytes == 2 * MiB
        assert outer.soft == memory.mem_get_info(DEVICE)[1] // 2
        with memory.budget(device=DEVICE, tag="soft", soft=MiB) as inner:
            assert (inner.bytes, inner.soft, inner.former_soft) == (2 * MiB, MiB, outer.soft)
        assert _core.memory_limit(DEVICE, "soft", True) == outer.soft
        with pytest.raises(ValueError, match="unknown unit"):
            memory.budget("2 potatoes", DEVICE, "soft", soft=5)
        assert _core.memory_limit(DEVICE, "soft", True) == outer.soft
    assert _core.memory_limit(DEVICE, "soft", True) is None
    assert _core.memory_limit(DEVICE, "soft") is None


def test_a_soft_limit_refuses_nothing() -> None:
    with memory.budget(device=DEVICE, tag="soft", soft=MiB), memory.tag("soft"):
        held = _core.Storage(4 * MiB, DEVICE)
    assert held.nbytes == 4 * MiB


# answers: 37, story 43
def test_the_environment_sets_the_budget_of_every_device() -> None:
    code = "import nbxtensor as nbx; print(nbx.memory.stats('sim:0').budget)"
    assert run(code, NBX_MEMORY_BUDGET="1.5 MiB").stdout == "1572864\n"
    assert run(code, NBX_MEMORY_BUDGET="25%", NBX_SIM_MEMORY="4 GiB").stdout == f"{1 << 30}\n"
    done = run(code, NBX_MEMORY_BUDGET="lots")
    assert done.returncode == 1
    assert "NBX_MEMORY_BUDGET" in done.stderr


# ---- options -------------------------------------------------------------------------------


def test_options_are_read_and_come_back() -> None:
    before = memory.options(DEVICE)
    assert (before.slack, before.reuse_ordered, before.reuse_waits) == (0.0, True, True)
    with memory.options(DEVICE, slack=0.02, reuse_waits=False) as now:
        assert (now.slack, now.reuse_ordered, now.reuse_waits) == (0.02, True, False)
        with memory.options(DEVICE, slack=1):
            assert memory.options(DEVICE).slack == 1.0
            assert memory.options(DEVICE).reuse_waits is False
        assert memory.options(DEVICE).slack == 0.02
    assert memory.options(DEVICE).slack == 0.0
    assert "slack 0.0" in repr(before)


# answers: 4, 46
@pytest.mark.parametrize("slack", [-0.1, 1.5, float("nan")])
def test_bad_slack_is_refused_by_name(slack: float) -> None:
    with pytest.raises(ValueError, match="slack"):
        memory.options(DEVICE, slack=slack)
    assert memory.options(DEVICE).slack == 0.0


def test_wrong_types_of_options_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="slack"):
        memory.options(DEVICE, slack="2%")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="slack"):
        memory.options(DEVICE, slack=True)
    with pytest.raises(TypeError, match="reuse_waits"):
        memory.options(DEVICE, reuse_waits=1)  # type: ignore[arg-type]


def test_the_environment_sets_the_slack() -> None:
    code = "import nbxtensor as nbx; print(nbx.memory.options('sim:0').slack)"
    assert run(code, NBX_MEMORY_SLACK="0.02").stdout == "0.02\n"
    for wrong in ("2", "-1", "half", "0.1x"):
        done = run(code, NBX_MEMORY_SLACK=wrong)
        assert done.returncode == 1
        assert "NBX_MEMORY_SLACK" in done.stderr
    assert nbx.env.get("NBX_MEMORY_SLACK") == 0.0


# ---- lifetimes -----------------------------------------------------------------------------


def pages_of(size: int) -> int:
    """Page handles that the driver made for one allocation of a fresh heap."""
    before = _core.sim.call_count(1, "page_create")
    held = _core.Storage(size, DEVICE)
    made = _core.sim.call_count(1, "page_create") - before
    del held
    memory.trim(DEVICE)
    return made


def test_steady_memory_lies_on_few_large_handles() -> None:
    size = 64 * MiB
    assert pages_of(size) == 32
    with memory.steady():
        assert pages_of(size) == 2
        with memory.tag("scratch", steady=False):
            assert pages_of(size) == 32
        with memory.tag("weights"):
            assert pages_of(size) == 2
    with memory.tag("weights", steady=True):
        assert pages_of(size) == 2
    assert pages_of(size) == 32


def test_steady_is_a_decorator_and_comes_back_after_an_error() -> None:
    @memory.steady()
    def load() -> int:
        return pages_of(64 * MiB)

    assert load() == 2
    with pytest.raises(KeyError), memory.steady():
        raise KeyError
    assert pages_of(64 * MiB) == 32
    with pytest.raises(TypeError, match="steady"):
        memory.tag("x", steady=1)  # type: ignore[arg-type]


# ---- epochs --------------------------------------------------------------------------------


# answers: story 6
def test_a_new_epoch_voids_every_address(start: memory.Stats) -> None:
    first = memory.epoch(DEVICE)
    old = nbx.ones((1000,), device=DEVICE)
    storage = old.storage()
    unused = nbx.ones((MiB,), device=DEVICE)
    with memory.budget("1 GiB", DEVICE, "kept"), memory.options(DEVICE, slack=0.05):
        assert memory.new_epoch(DEVICE) == first + 1 == memory.epoch(DEVICE)
        assert memory.options(DEVICE).slack == 0.05
        assert _core.memory_limit(DEVICE, "kept") == 1 << 30
    assert memory.allocated(DEVICE) == 0
    for use in (
        lambda: old + 1,
        lambda: old.to("cpu"),
        lambda: old.fill_(3),
        lambda: old.data_ptr(),
        lambda: storage.data_ptr(),
        lambda: np.asarray(old.to("cpu")),
        lambda: old[0].item(),
        lambda: old.__dlpack__(),
        lambda: nbx.empty((1000,), device=DEVICE).copy_(old),
    ):
        with pytest.raises(ValueError, match=rf"epoch {first} of sim:1, which ended"):
            use()
    fresh = nbx.ones((1000,), device=DEVICE)
    held = memory.allocated(DEVICE)
    old = storage = None
    del unused
    assert memory.allocated(DEVICE) == held
    assert float((fresh + 1).sum()) == 2000
    del fresh
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).external == start.external


def test_reclaimers_follow_into_the_new_epoch() -> None:
    asked: list[int] = []

    def note(missing: int) -> int:
        asked.append(missing)
        return 0

    with memory.reclaimer(note, device=DEVICE):
        memory.new_epoch(DEVICE)
        with memory.budget(MiB, DEVICE), pytest.raises(nbx.OutOfMemoryError):
            _core.Storage(2 * MiB, DEVICE)
        assert asked
        asked.clear()
    with memory.budget(MiB, DEVICE), pytest.raises(nbx.OutOfMemoryError):
        _core.Storage(2 * MiB, DEVICE)
    assert not asked


def test_the_cpu_has_no_epochs() -> None:
    with pytest.raises(NotImplementedError, match="new_epoch"):
        memory.new_epoch("cpu")
    assert memory.epoch("cpu") == 1


# ---- exit and fork -------------------------------------------------------------------------

STATES = {
    "live tensors": "held = nbx.zeros(1000, device='sim:0')",
    "pending work": """
stream = nbx.Stream("sim:0")
with nbx.stream(stream):
    x = nbx.zeros(1 << 20, device="sim:0")
    for _ in range(10): x = x + 1
""",
    "inside scopes": """
nbx.memory.budget("1 GiB", "sim:0").__enter__()
nbx.memory.tag("left").__enter__()
nbx.memory.steady().__enter__()
nbx.memory.options("sim:0", slack=0.1).__enter__()
held = nbx.zeros(10, device="sim:0")
""",
    "threads running": """
import threading, time
def churn():
    while True: nbx.zeros(1000, device="sim:0")
for _ in range(3): threading.Thread(target=churn, daemon=True).start()
time.sleep(0.05)
""",
    "pinned and reclaimers": """
class Cache:
    def drop(self, missing): return 0
cache = Cache()
left = [nbx.memory.reclaimer(cache.drop, device="sim:0"),
        nbx.memory.reclaimer(lambda missing: 0, device="sim:0"),
        nbx.memory.external("lib", 100, "sim:0")]
pinned = nbx.memory.pinned(1000, device="sim:0")
there = pinned.to("sim:0", non_blocking=True)
""",
    "after an epoch": "old = nbx.zeros(5, device='sim:0'); nbx.memory.new_epoch('sim:0')",
    "after a refusal": """
try: nbx.empty(1 << 60, dtype=nbx.uint8, device="sim:0")
except nbx.OutOfMemoryError as error: kept = error
""",
}


# answers: 83, story 5
@pytest.mark.parametrize("state", STATES)
def test_the_end_is_silent_in_every_state(state: str) -> None:
    done = run(f"import nbxtensor as nbx\n{STATES[state]}\nprint('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
import nbxtensor as nbx
device = "sim:0"
held = nbx.ones(1000, device=device)
pinned = nbx.memory.pinned(1000, device=device)
reclaimer = nbx.memory.reclaimer(lambda missing: 0, device=device)
nbx.synchronize(device)
before = nbx.memory.allocated(device)
sys.stdout.flush()
child = os.fork()
if child == 0:
    del held, pinned
    try:
        nbx.empty(4, device=device)
    except nbx.Error as error:
        print(type(error).__name__, "fork" in str(error))
    nbx.zeros(10, device="cpu")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert nbx.memory.allocated(device) == before
assert float((held + 1).sum()) == 2000
del held, pinned
nbx.synchronize(device)
assert nbx.memory.allocated(device) == 0
print("parent")
"""


# answers: 84
def test_a_forked_child_frees_in_peace_and_allocates_nothing() -> None:
    done = run(FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "DeviceError True\nparent\n"


FORK_UNDER_LOAD = """
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import nbxtensor as nbx
device, stop = "sim:0", threading.Event()
nbx.memory.budget("8 MiB", device)
def churn():
    while not stop.is_set():
        try: nbx.empty(1 << 22, device=device)
        except nbx.OutOfMemoryError: pass
with nbx.memory.reclaimer(lambda missing: sum(range(2000)) * 0, device=device):
    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads: thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0: os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads: thread.join()
print("done")
"""


# answers: 40, 84
def test_forks_while_reclaimers_run() -> None:
    done = run(FORK_UNDER_LOAD)
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0
