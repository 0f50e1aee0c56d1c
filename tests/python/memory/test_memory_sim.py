"""Memory of a simulated device: queued work, refusals, waits that let go of the Python lock."""

from __future__ import annotations

from collections.abc import Iterator

import nbxtensor as nbx
import pytest
from nbxtensor import _core, memory, runtime

DEVICE = "sim:0"
TAG = "sim_test"


@pytest.fixture
def start() -> Iterator[memory.Stats]:
    memory.trim(DEVICE)
    before = memory.stats(DEVICE)
    yield before
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).allocated == before.allocated


def test_books_of_the_device_and_of_the_heap_agree(start: memory.Stats) -> None:
    with memory.tag(TAG):
        held = [_core.Storage(1_000_000 + i, DEVICE) for i in range(20)]
    stats = memory.stats(DEVICE)
    assert stats.mapped == stats.live + stats.parked + stats.pending
    assert stats.device_total - stats.device_free == stats.mapped + stats.external
    assert stats.external == start.external
    assert memory.report(DEVICE).by_tag()[TAG] == 20 * (-(-1_000_019 // 256) * 256)
    del held
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).mapped <= start.mapped


def test_more_than_the_device_is_refused_by_the_device(start: memory.Stats) -> None:
    assert start.budget is None
    size = start.device_total + 1
    with pytest.raises(_core.OutOfMemoryError, match="no release can help") as caught:
        _core.Storage(size, DEVICE)
    assert caught.value.requested == size
    assert caught.value.budget is None
    text = memory.what_would_have_fit(caught.value, (4, size // 4))
    assert "2 pieces" in text
    assert "Cut axis 0" in text


def test_a_failed_load_leaves_the_account_as_it_was(start: memory.Stats) -> None:
    with memory.budget(start.allocated + (64 << 20), DEVICE), memory.tag(TAG):
        held: list[object] = []
        with pytest.raises(MemoryError) as caught:
            held.extend(_core.Storage(5 << 20, DEVICE) for _ in range(100))
        assert len(held) == 12
        assert caught.value.tag == DEVICE
        assert caught.value.shortfall == (5 << 20) * 13 - (64 << 20)
        held.clear()
        assert memory.allocated(DEVICE) == start.allocated
        held.append(_core.Storage(64 << 20, DEVICE))
        held.clear()


# answers: 12
def test_memory_that_queued_work_holds_is_waited_for(start: memory.Stats) -> None:
    streams = [runtime.Stream(DEVICE), runtime.Stream(DEVICE)]
    size = 40 << 20
    total = start.device_total
    _core.sim.set_memory(0, total - start.device_free + (64 << 20))
    try:
        with runtime.stream(streams[0]):
            _core.empty((size,), nbx.uint8, DEVICE).fill_(3)
        # Only the memory of the first tensor can serve this.
        with runtime.stream(streams[1]):
            held = _core.Storage(size, DEVICE)
        assert memory.stats(DEVICE).live == start.live + size
        del held
    finally:
        _core.sim.set_memory(0, total)
