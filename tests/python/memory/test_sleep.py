"""Sleep and wake by tag: what leaves the budget, what comes back, and what is refused meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import memory

DEVICE = "sim:0"
MEGA = 1 << 20


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    memory.trim(DEVICE)
    before = memory.stats(DEVICE).allocated
    yield
    assert memory.sleeping("", DEVICE).blocks == 0
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).allocated == before


def filled(rows: int, tag: str) -> tuple[Any, np.ndarray]:
    values = np.arange(rows * 1024, dtype=np.float32).reshape(rows, 1024)
    with memory.tag(tag):
        return nbx.asarray(values, device=DEVICE), values


def test_contents_and_addresses_stay_and_the_bytes_leave_the_account() -> None:
    tensor, values = filled(1024, "sleep_test/a")
    address = tensor.data_ptr()
    before = memory.allocated(DEVICE)
    report = memory.sleep("sleep_test", DEVICE)
    assert report.blocks == 1
    assert report.granted == report.contents == 4 * MEGA
    assert memory.allocated(DEVICE) == before - 4 * MEGA
    assert memory.sleeping("sleep_test/a", DEVICE) == memory.SleepReport(1, 4 * MEGA, 0, 4 * MEGA)
    woke = memory.wake("sleep_test", DEVICE)
    assert (woke.blocks, woke.granted) == (1, 4 * MEGA)
    assert memory.allocated(DEVICE) == before
    assert tensor.data_ptr() == address
    np.testing.assert_array_equal(np.asarray(tensor.cpu()), values)


def test_a_sleeping_tensor_is_refused_by_name() -> None:
    tensor, values = filled(600, "sleep_test")
    other = nbx.asarray(values, device=DEVICE)
    view = tensor[10:20]
    memory.sleep("sleep_test", DEVICE)
    for use in (
        lambda: tensor.cpu(),
        lambda: view.cpu(),
        lambda: tensor.fill_(0),
        lambda: tensor + other,
        lambda: other.copy_(tensor),
        lambda: tensor.copy_(other),
        lambda: tensor.__dlpack__(),
        lambda: view.__dlpack__(copy=True),
    ):
        with pytest.raises(ValueError, match=r"sim:0/device/sleep_test is asleep.*wake"):
            use()
    memory.wake("sleep_test", DEVICE)
    np.testing.assert_array_equal(np.asarray(tensor.cpu()), values)


def test_others_have_the_budget_meanwhile() -> None:
    tensor, values = filled(1024, "sleep_test")
    with memory.budget(memory.allocated(DEVICE) + MEGA, DEVICE):
        memory.sleep("sleep_test", DEVICE)
        other = nbx.empty((1024, 1024), dtype=nbx.float32, device=DEVICE)
        with pytest.raises(nbx.OutOfMemoryError):
            memory.wake("sleep_test", DEVICE)
        assert memory.sleeping("sleep_test", DEVICE).blocks == 1
        del other
        memory.wake("sleep_test", DEVICE)
    np.testing.assert_array_equal(np.asarray(tensor.cpu()), values)


def test_the_figures_say_what_sleeps_and_add_up() -> None:
    before = memory.stats(DEVICE)
    assert (before.asleep, before.asleep_held) == (0, 0)
    assert (before.asleep_blocks, before.asleep_contents) == (0, 0)
    # Their ends share pages: with each other, and with what stays awake.
    kept, values = filled(700, "sleep_test/kept")
    awake, _ = filled(300, "awake_test")
    dropped, _ = filled(500, "sleep_test/dropped")
    memory.sleep("sleep_test/kept", DEVICE)
    memory.sleep("sleep_test/dropped", DEVICE, keep=False)
    asleep = memory.stats(DEVICE)
    assert asleep.asleep == 1200 * 4096
    assert asleep.asleep_blocks == 2
    assert asleep.asleep_contents == 700 * 4096
    assert 0 <= asleep.asleep_held < asleep.asleep
    assert asleep.mapped == asleep.live + asleep.parked + asleep.pending + asleep.asleep_held
    assert asleep.kept <= asleep.parked
    memory.wake("sleep_test", DEVICE)
    after = memory.stats(DEVICE)
    assert (after.asleep, after.asleep_held) == (0, 0)
    assert (after.asleep_blocks, after.asleep_contents) == (0, 0)
    assert after.mapped == after.live + after.parked + after.pending
    np.testing.assert_array_equal(np.asarray(kept.cpu()), values)
    del awake, dropped


def test_dropped_while_it_sleeps() -> None:
    tensor, _ = filled(1024, "sleep_test")
    memory.sleep("sleep_test", DEVICE, keep=False)
    assert memory.sleeping("sleep_test", DEVICE).contents == 0
    del tensor
    assert memory.sleeping("sleep_test", DEVICE).blocks == 0
    assert memory.wake("sleep_test", DEVICE) == memory.SleepReport(0, 0, 0, 0)


def test_sleep_of_the_sleeping_and_wake_of_the_awake_do_nothing() -> None:
    nothing = memory.SleepReport(0, 0, 0, 0)
    tensor, values = filled(1024, "sleep_test")
    assert memory.wake("sleep_test", DEVICE) == nothing
    memory.sleep("sleep_test", DEVICE)
    assert memory.sleep("sleep_test", DEVICE) == nothing
    memory.wake("sleep_test", DEVICE)
    np.testing.assert_array_equal(np.asarray(tensor.cpu()), values)


def test_devices_without_virtual_memory_are_named() -> None:
    with pytest.raises(nbx.UnsupportedError, match="sleep: cpu has no virtual memory"):
        memory.sleep("sleep_test", "cpu")
    with pytest.raises(TypeError, match="sleep: tag is 3; give a text"):
        memory.sleep(3, DEVICE)  # type: ignore[arg-type]
