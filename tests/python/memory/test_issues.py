"""What users of other allocators ran into, each as a behaviour that holds here."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, memory

DEVICE = "sim:1"
PAGE = 2 << 20
MiB = 1 << 20
ROOM = 64 * MiB


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """The device has room for 64 MiB more than what others hold on it."""
    gc.collect()
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    before = memory.allocated(DEVICE)
    books = _core.sim.books(1)
    total = books["total_bytes"]
    _core.sim.set_memory(1, books["used_bytes"] + books["pressure_bytes"] + ROOM)
    yield
    _core.sim.clear_faults(1)
    _core.sim.set_pressure(1, 0)
    gc.collect()  # errors and the frames that hold them are cycles
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    _core.sim.set_memory(1, total)
    assert memory.allocated(DEVICE) == before


def take(size: int) -> _core.Storage:
    return _core.Storage(size, DEVICE)


def refusal(size: int) -> nbx.OutOfMemoryError:
    with pytest.raises(nbx.OutOfMemoryError) as caught:
        take(size)
    return caught.value.with_traceback(None)


def random_sizes(rng: np.random.Generator, count: int) -> list[int]:
    return [int(2 ** rng.uniform(8, 24)) for _ in range(count)]


# ---- free bytes are usable -----------------------------------------------------------------


# answers: 1, 2, 5, 10, 15
def test_free_pages_between_live_blocks_serve_a_large_request() -> None:
    blocks = [take(PAGE) for _ in range(ROOM // PAGE)]
    del blocks[::2]
    assert memory.stats(DEVICE).largest_hole == PAGE
    held = take(ROOM // 2)
    stats = memory.stats(DEVICE)
    assert stats.stolen_bytes > 0
    assert stats.remaps > 0
    del held, blocks


# answers: 3, 47
def test_no_refusal_is_followed_by_a_success(rng: np.random.Generator) -> None:
    held: list[_core.Storage] = []
    refused = 0
    for size in random_sizes(rng, 300):
        try:
            held.append(take(size))
        except nbx.OutOfMemoryError:
            refused += 1
            refusal(size)
            memory.trim(DEVICE)
            refusal(size)
            del held[int(rng.integers(max(len(held), 1))) :: 3]
    assert refused > 0


# answers: 4
def test_options_in_pairs_keep_the_books(rng: np.random.Generator) -> None:
    for slack in (0.0, 0.5):
        for ordered in (False, True):
            for waits in (False, True):
                with (
                    memory.options(DEVICE, slack=slack, reuse_ordered=ordered, reuse_waits=waits),
                    memory.budget(memory.allocated(DEVICE) + ROOM // 2, DEVICE),
                ):
                    held: list[_core.Storage] = []
                    for size in random_sizes(rng, 60):
                        with suppress(nbx.OutOfMemoryError):
                            held.append(take(size))
                        del held[:: int(rng.integers(2, 9))]
                        stats = memory.stats(DEVICE)
                        assert stats.mapped == stats.live + stats.parked + stats.pending
                        assert stats.mapped <= ROOM
                    held.clear()


# answers: 6
def test_virtual_memory_is_used_where_there_is_any() -> None:
    before = _core.sim.books(1)
    held = take(20 * MiB)
    books = _core.sim.books(1)
    assert books["mappings"] - before["mappings"] == books["pages"] - before["pages"] > 0
    assert books["allocations"] == before["allocations"]
    del held


# answers: 7, 8
def test_the_whole_budget_is_there_again_when_everything_is_freed(
    rng: np.random.Generator,
) -> None:
    limit = 32 * MiB
    with memory.budget(memory.allocated(DEVICE) + limit, DEVICE):
        for _ in range(5):
            held: list[_core.Storage] = []
            with suppress(nbx.OutOfMemoryError):
                for size in random_sizes(rng, 200):
                    held.append(take(size))
            held.clear()
            assert take(limit).nbytes == limit


# answers: 11
def test_the_last_bytes_of_a_device_are_served() -> None:
    first = take(ROOM // 2 + PAGE)
    rest = take(ROOM // 2 - PAGE)
    refusal(1)
    del first, rest


# answers: 12, 23
def test_what_one_stream_freed_serves_every_other() -> None:
    size = ROOM // 4
    streams = [nbx.Stream(DEVICE) for _ in range(4)]
    for stream in streams:
        with nbx.stream(stream):
            held = [nbx.empty((size,), dtype=nbx.uint8, device=DEVICE) for _ in range(4)]
            held[0].fill_(1)
            held.clear()
    created = memory.stats(DEVICE).created_bytes
    with nbx.stream(streams[0]):
        whole = take(ROOM)
    assert memory.stats(DEVICE).created_bytes <= created + PAGE
    del whole


# answers: 13
def test_slowly_growing_sizes_reuse_the_old_memory() -> None:
    memory.reset_peak(DEVICE)
    cache = take(MiB)
    for step in range(1, 200):
        grown = take(MiB + step * 100_000)
        cache = grown
        del grown
    stats = memory.stats(DEVICE)
    assert stats.peak_mapped <= 1.05 * stats.peak_live + PAGE
    del cache


# answers: 14
def test_phases_leave_no_hole_that_the_next_cannot_use() -> None:
    for _ in range(3):
        a = [take(ROOM // 8) for _ in range(8)]
        keep = a[3]
        a.clear()
        b = take(ROOM - ROOM // 8)
        del b, keep


# answers: 17
def test_defaults_hold_what_is_needed_and_no_more(rng: np.random.Generator) -> None:
    memory.reset_peak(DEVICE)
    held: dict[int, _core.Storage] = {}
    for step, size in enumerate(random_sizes(rng, 400)):
        with suppress(nbx.OutOfMemoryError):
            held[step] = take(size)
        for key in list(held)[:: int(rng.integers(2, 30))]:
            del held[key]
    stats = memory.stats(DEVICE)
    assert stats.peak_mapped <= 1.1 * stats.peak_live + PAGE


# ---- threads -------------------------------------------------------------------------------


# answers: 29
def test_memory_is_freed_by_any_thread(rng: np.random.Generator) -> None:
    before = memory.allocated(DEVICE)
    boxes: list[list[_core.Storage]] = [[] for _ in range(4)]
    barrier = threading.Barrier(4)

    def work(index: int) -> None:
        for _ in range(20):
            boxes[index].extend(take(3000 * (index + 1)) for _ in range(10))
            barrier.wait()
            boxes[(index + 1) % 4].clear()
            barrier.wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.allocated(DEVICE) == before


# answers: 22
def test_memory_that_a_stream_still_reads_is_not_reused_early() -> None:
    writer, reader = nbx.Stream(DEVICE), nbx.Stream(DEVICE)
    with nbx.stream(reader):
        source = nbx.ones((4 * MiB,), dtype=nbx.uint8, device=DEVICE)
        copy = source + 1
    del source
    with nbx.stream(writer):
        others = [nbx.zeros((4 * MiB,), dtype=nbx.uint8, device=DEVICE) for _ in range(8)]
    reader.synchronize()
    assert int(copy.min()) == int(copy.max()) == 2
    del others


# ---- budgets and refusals ------------------------------------------------------------------


# answers: 34
def test_a_driver_that_does_not_answer_hides_no_refusal() -> None:
    held = take(ROOM)
    _core.sim.add_fault(1, "memory_info", 1, 100, 999)
    error = refusal(PAGE)
    assert error.driver_free is None
    assert error.driver_total is None
    assert error.external is None
    assert error.requested == PAGE
    _core.sim.clear_faults(1)
    del held


# answers: 36, 44
def test_own_bytes_other_bytes_and_the_limit_are_told_apart() -> None:
    _core.sim.set_pressure(1, 16 * MiB)
    held = take(32 * MiB)
    error = refusal(32 * MiB)
    assert error.live >= 32 * MiB
    assert error.external >= 16 * MiB
    assert error.driver_free + error.parked == 16 * MiB
    assert error.budget is None
    with memory.budget(memory.allocated(DEVICE), DEVICE):
        assert refusal(1).budget == memory.allocated(DEVICE)
    del held


# answers: 38
def test_limits_are_exact_beyond_the_precision_of_floats() -> None:
    limit = 2**53 + 1
    with memory.budget(limit, DEVICE) as set_to:
        assert set_to.bytes == limit
        assert memory.stats(DEVICE).budget == limit


# answers: 41
def test_refusals_can_be_injected() -> None:
    _core.sim.add_fault(1, "page_create", 1, 100, 2)
    refusal(8 * MiB)
    _core.sim.clear_faults(1)
    assert memory.retry(lambda: take(8 * MiB).nbytes) == 8 * MiB
    calls = []

    def step() -> int:
        calls.append(1)
        memory.trim(DEVICE)
        if len(calls) == 1:
            _core.sim.add_fault(1, "page_create", 1, 100, 2)
        try:
            return take(8 * MiB).nbytes
        finally:
            _core.sim.clear_faults(1)

    assert memory.retry(step) == 8 * MiB
    assert len(calls) == 2


# answers: 42
def test_a_driver_that_refuses_is_asked_last() -> None:
    blocks = [take(PAGE) for _ in range(8)]
    del blocks[::2]
    _core.sim.add_fault(1, "page_create", 1, 100, 2)
    held = take(4 * PAGE)
    del held, blocks


# answers: 43
def test_a_refusal_names_the_holders_and_the_largest_hole() -> None:
    with memory.tag("weights"):
        weights = take(30 * MiB)
    with memory.tag("kv/layer.0"):
        cache = take(20 * MiB)
    error = refusal(30 * MiB)
    assert error.tags[f"{DEVICE}/device/weights"] == 30 * MiB
    assert error.tags[f"{DEVICE}/device/kv/layer.0"] == 20 * MiB
    assert error.largest_hole == memory.stats(DEVICE).largest_hole
    assert error.blocks == 2
    del weights, cache


# answers: 46
def test_effective_settings_can_be_read() -> None:
    names = [variable.name for variable in nbx.env.variables()]
    assert {"NBX_MEMORY_BUDGET", "NBX_MEMORY_SLACK", "NBX_CENSUS"} <= set(names)
    with memory.options(DEVICE, slack=0.25):
        assert memory.options(DEVICE).slack == 0.25
    with memory.budget("48 MiB", DEVICE):
        assert memory.stats(DEVICE).budget == 48 * MiB


# answers: 51, 57
@pytest.mark.parametrize("primitive", ["page_create", "page_map", "page_access"])
def test_a_failing_driver_call_breaks_nothing(primitive: str) -> None:
    before = memory.stats(DEVICE)
    for call in range(1, 12):
        for status in (2, 999):
            _core.sim.add_fault(1, primitive, call, 1, status)
            held: list[_core.Storage] = []
            with suppress(nbx.Error):
                held.extend(take(5 * MiB) for _ in range(4))
            _core.sim.clear_faults(1)
            stats = memory.stats(DEVICE)
            assert stats.mapped == stats.live + stats.parked + stats.pending
            assert stats.mapped == _core.sim.books(1)["used_bytes"] - before.external
            held.clear()
            memory.trim(DEVICE)
    held = [take(ROOM)]
    held.clear()


# answers: 49
def test_small_tensors_take_few_objects_of_the_driver() -> None:
    before = _core.sim.books(1)
    held = [take(1000 + i % 50) for i in range(5000)]
    books = _core.sim.books(1)
    assert books["pages"] - before["pages"] <= 5000 * 2048 // PAGE + 2
    assert books["reserved_bytes"] - before["reserved_bytes"] <= 4 * books["total_bytes"]
    del held


# answers: 59
def test_pages_that_leave_an_address_are_kept_for_the_next() -> None:
    memory.reset_peak(DEVICE)  # below a former peak the driver may be asked for more
    block = memory.reserve(32 * MiB, DEVICE)
    counts = []
    for _ in range(6):
        block.commit(16 * MiB)
        block.decommit(0)
        held = take(16 * MiB)
        del held
        counts.append([_core.sim.call_count(1, f"page_{what}") for what in ("create", "release")])
    assert counts == counts[:1] * 6
    del block


# answers: 52
def test_addresses_are_reserved_in_what_the_driver_accepts() -> None:
    memory.new_epoch(DEVICE)
    _core.sim.add_fault(1, "range_reserve", 1, 2, 2)
    before = _core.sim.call_count(1, "range_reserve")
    held = take(ROOM // 2)
    assert held.nbytes == ROOM // 2
    assert _core.sim.call_count(1, "range_reserve") == before + 3  # half, and half again
    del held


# answers: 54
def test_requested_and_granted_are_both_counted() -> None:
    with memory.tag("odd"):
        held = [take(1000) for _ in range(10)]
    (row,) = [r for r in memory.report(DEVICE).rows if r.tag == "odd"]
    assert (row.requested, row.bytes) == (10_000, 10 * 1024)
    with memory.budget(memory.allocated(DEVICE) + 1023, DEVICE):
        error = refusal(1000)
    assert (error.requested, error.granted) == (1000, 1024)
    del held


# answers: 56
def test_waiting_for_the_device_gives_no_memory_back() -> None:
    held = take(8 * MiB)
    del held
    before = memory.stats(DEVICE)
    for _ in range(20):
        nbx.synchronize(DEVICE)
        held = take(8 * MiB)
        del held
    after = memory.stats(DEVICE)
    assert after.created_bytes == before.created_bytes
    assert after.mapped == before.mapped


# ---- what is seen --------------------------------------------------------------------------


# answers: 72
def test_resetting_peaks_changes_nothing_else() -> None:
    with memory.tag("held"):
        held = take(8 * MiB)
    more = take(8 * MiB)
    del more
    before = {
        (r.kind, r.tag): (r.bytes, r.requested, r.objects) for r in memory.report(DEVICE).rows
    }
    memory.reset_peak(DEVICE)
    rows = memory.report(DEVICE).rows
    assert {(r.kind, r.tag): (r.bytes, r.requested, r.objects) for r in rows} == before
    assert all(row.peak == row.bytes for row in rows)
    del held


# answers: 74
def test_size_and_use_of_the_pool_are_shown() -> None:
    held = [take(3 * MiB) for _ in range(4)]
    del held[1:3]
    stats = memory.stats(DEVICE)
    assert stats.mapped == stats.live + stats.parked + stats.pending
    assert stats.live >= 6 * MiB
    assert stats.parked + stats.pending >= 6 * MiB
    assert stats.live_blocks >= 2
    assert stats.free_blocks >= 1
    del held


# answers: 76
def test_memory_of_others_is_measured_and_named() -> None:
    before = memory.stats(DEVICE).external
    _core.sim.set_pressure(1, 5 * MiB)
    stats = memory.stats(DEVICE)
    assert stats.external == before + 5 * MiB
    assert stats.registered == 0
    with memory.external("library", 5 * MiB, DEVICE):
        stats = memory.stats(DEVICE)
        assert (stats.external, stats.registered) == (before + 5 * MiB, 5 * MiB)
    used = stats.device_total - stats.device_free
    assert used == stats.mapped + stats.external


# ---- safety --------------------------------------------------------------------------------


# answers: 85, story 1
def test_memory_lies_on_the_device_that_was_asked_for() -> None:
    found = {}

    def work(device: str, index: int) -> None:
        other = f"sim:{1 - index}"
        with nbx.stream(nbx.Stream(other)):  # another device's stream is current
            x = nbx.ones((100_000,), device=device) + nbx.ones((100_000,), device=device)
            found[device] = (str(x.device), memory.allocated(device), float(x.sum()))

    before = {device: memory.allocated(device) for device in ("sim:0", DEVICE)}
    threads = [
        threading.Thread(target=work, args=(device, index)) for index, device in enumerate(before)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device, held in before.items():
        assert found[device][0] == device
        assert found[device][1] >= held + 400_000
        assert found[device][2] == 200_000
    assert memory.allocated("sim:0") == before["sim:0"]


# answers: 86
def test_storages_of_no_bytes() -> None:
    before = memory.stats(DEVICE)
    held = [take(0) for _ in range(10)]
    stats = memory.stats(DEVICE)
    assert (stats.objects, stats.allocated) == (before.objects + 10, before.allocated)
    assert stats.driver_calls == before.driver_calls
    with memory.budget(memory.allocated(DEVICE), DEVICE):
        held.append(take(0))
    held.clear()
    assert memory.stats(DEVICE).objects == before.objects


# answers: 88
def test_shared_arrays_are_counted_where_they_are_used() -> None:
    array = np.ones(100_000, np.float32)
    before = memory.stats("cpu")
    shared = nbx.from_dlpack(array)
    stats = memory.stats("cpu")
    assert stats.in_place - before.in_place == 400_000
    assert stats.live == before.live
    del shared
    assert memory.stats("cpu").in_place == before.in_place


# answers: story 2
def test_a_refusal_leaves_no_error_behind_for_the_next_call() -> None:
    refusal(2 * ROOM)
    x = nbx.ones((1000,), device=DEVICE)
    assert float((x * 3).sum()) == 3000
    nbx.synchronize(DEVICE)


# answers: story 44
def test_sizes_are_compared_before_bytes_move(rng: np.random.Generator) -> None:
    values = rng.standard_normal(1000).astype(np.float32)
    pinned = memory.pinned((1000,), "float16", device=DEVICE)
    pinned.fill_(7.0)
    with pytest.raises(ValueError, match="shape"):
        pinned.copy_(nbx.asarray(values[:999], device=DEVICE))
    assert (pinned.numpy() == 7.0).all()
    # Another dtype is converted, not moved as it is.
    pinned.copy_(nbx.asarray(values, device=DEVICE))
    np.testing.assert_array_equal(pinned.numpy(), values.astype(np.float16))
    target = nbx.zeros((1000,), dtype="float16", device=DEVICE)
    guard = nbx.zeros((1000,), dtype="float16", device=DEVICE)
    target.copy_(values)
    np.testing.assert_array_equal(target.numpy(), values.astype(np.float16))
    assert (guard.numpy() == 0).all()


# answers: story 4, story 45
def test_what_is_kept_for_later_stays_within_the_budget(rng: np.random.Generator) -> None:
    limit, before = 16 * MiB, memory.stats(DEVICE).mapped
    with memory.budget(memory.allocated(DEVICE) + limit, DEVICE):
        for size in random_sizes(rng, 200):
            with suppress(nbx.OutOfMemoryError):
                held = take(size)
                del held
        assert memory.stats(DEVICE).mapped <= before + limit + PAGE
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).mapped == before


# answers: story 7
def test_every_address_is_aligned(rng: np.random.Generator) -> None:
    held = [take(size) for size in random_sizes(rng, 100)[:40] if size < MiB]
    assert all(storage.data_ptr() % 256 == 0 for storage in held)
    host = [_core.Storage(int(size), "cpu") for size in rng.integers(1, 5000, 100)]
    assert all(storage.data_ptr() % 64 == 0 for storage in host)
    held.clear()
