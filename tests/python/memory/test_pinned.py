"""Page-locked host memory: pooled, counted, fast, and not reused under a copy."""

from __future__ import annotations

from collections.abc import Iterator

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, memory, runtime

DEVICE = "sim:0"
MiB = 1 << 20


@pytest.fixture(autouse=True)
def start() -> Iterator[memory.Stats]:
    memory.trim(DEVICE)
    before = memory.stats(DEVICE)
    yield before
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).allocated == before.allocated
    assert _core.sim.books(0)["pinned_bytes"] == 0


def seconds_of_copy(source: nbx.Tensor) -> float:
    warm = source.to(DEVICE)  # its memory serves the second copy
    del warm
    nbx.synchronize(DEVICE)
    before = _core.sim.seconds()
    held = source.to(DEVICE)
    nbx.synchronize(DEVICE)
    del held
    return _core.sim.seconds() - before


def test_it_is_a_tensor_of_the_cpu(rng: np.random.Generator) -> None:
    values = rng.standard_normal((37, 5)).astype(np.float32)
    tensor = memory.pinned((37, 5), device=DEVICE)
    tensor.copy_(nbx.asarray(values, device="cpu"))
    assert tensor.device.name == "cpu"
    assert memory.is_pinned(tensor)
    assert memory.is_pinned(tensor[3:, 1])
    assert not memory.is_pinned(tensor.clone())
    np.testing.assert_array_equal(np.asarray(tensor + 1), values + 1)
    np.testing.assert_array_equal(np.asarray(tensor.to(DEVICE).to("cpu")), values)
    assert memory.pinned(3, nbx.int8, DEVICE).shape == (3,)


def test_copies_run_at_the_pinned_rate() -> None:
    pageable = nbx.zeros((32 * MiB,), dtype=nbx.uint8, device="cpu")
    locked = memory.pinned((32 * MiB,), nbx.uint8, DEVICE)
    locked.zero_()
    slow, fast = seconds_of_copy(pageable), seconds_of_copy(locked)
    rate = 32 * MiB / fast
    assert 50e9 < rate < 56e9
    assert 6 < slow / fast < 8


def test_copies_to_it_run_at_the_pinned_rate() -> None:
    source = nbx.zeros((32 * MiB,), dtype=nbx.uint8, device=DEVICE)
    locked = memory.pinned((32 * MiB,), nbx.uint8, DEVICE)
    nbx.synchronize(DEVICE)
    before = _core.sim.seconds()
    locked.copy_(source)
    assert 32 * MiB / (_core.sim.seconds() - before) > 50e9


# answers: 48
def test_a_driver_locks_memory_once_for_many_uses() -> None:
    for _ in range(3):
        held = [memory.pinned((MiB,), nbx.uint8, DEVICE) for _ in range(4)]
        del held
    before = _core.sim.call_count(0, "host_allocate")
    for size in (100, 5000, MiB // 2, MiB):
        held = [memory.pinned((size,), nbx.uint8, DEVICE)]
        del held
    assert _core.sim.call_count(0, "host_allocate") == before
    assert memory.stats(DEVICE).pinned_parked == _core.sim.books(0)["pinned_bytes"] > 0
    assert memory.trim(DEVICE) > 0
    assert memory.stats(DEVICE).pinned_parked == 0


def test_it_is_counted_and_limited_with_the_device(start: memory.Stats) -> None:
    with memory.tag("staging"):
        held = memory.pinned((MiB,), nbx.uint8, DEVICE)
    stats = memory.stats(DEVICE)
    assert stats.pinned == MiB
    assert stats.allocated == start.allocated + MiB
    (row,) = [r for r in memory.report(DEVICE).rows if r.kind == "pinned" and r.tag == "staging"]
    assert (row.bytes, row.objects) == (MiB, 1)
    assert memory.report(DEVICE).by_tag()["staging"] == MiB
    with memory.budget(stats.allocated + MiB, DEVICE):
        more = memory.pinned((MiB,), nbx.uint8, DEVICE)
        with pytest.raises(nbx.OutOfMemoryError, match="budget of sim:0") as caught:
            memory.pinned((1,), nbx.uint8, DEVICE)
        assert caught.value.budget == stats.allocated + MiB
        with pytest.raises(nbx.OutOfMemoryError):
            nbx.empty((1,), device=DEVICE)
    del held, more


def test_memory_under_a_copy_is_not_handed_out(rng: np.random.Generator) -> None:
    """The copy runs late; the freed source must not become somebody else's before it does."""
    values = rng.integers(0, 255, MiB, dtype=np.uint8)
    source = memory.pinned((MiB,), nbx.uint8, DEVICE)
    source.copy_(nbx.asarray(values, device="cpu"))
    address = source.data_ptr()
    stream = runtime.Stream(DEVICE)
    with runtime.stream(stream):
        there = source.to(DEVICE, non_blocking=True)
    del source
    others = [memory.pinned((MiB,), nbx.uint8, DEVICE) for _ in range(3)]
    for other in others:
        assert other.data_ptr() != address
        other.fill_(7)
    stream.synchronize()
    np.testing.assert_array_equal(np.asarray(there.to("cpu")), values)
    del others, there
    stream.synchronize()
    # Now the pool serves from what it has.
    locked = _core.sim.books(0)["pinned_bytes"]
    again = [memory.pinned((MiB,), nbx.uint8, DEVICE) for _ in range(3)]
    assert _core.sim.books(0)["pinned_bytes"] == locked
    del again


def test_a_waited_copy_may_be_overwritten(rng: np.random.Generator) -> None:
    values = rng.integers(0, 255, 1000, dtype=np.uint8)
    source = memory.pinned((1000,), nbx.uint8, DEVICE)
    source.copy_(nbx.asarray(values, device="cpu"))
    there = source.to(DEVICE)
    source.fill_(0)
    np.testing.assert_array_equal(np.asarray(there.to("cpu")), values)
    # An array over the same memory, which the driver also reads later.
    source.copy_(nbx.asarray(values, device="cpu"))
    array = np.asarray(source)
    there = nbx.asarray(array, device=DEVICE)
    array[:] = 1
    np.testing.assert_array_equal(np.asarray(there.to("cpu")), values)


def test_the_host_waits_for_a_copy_that_still_reads() -> None:
    source = memory.pinned((MiB,), nbx.uint8, DEVICE)
    source.fill_(3)
    there = source.to(DEVICE, non_blocking=True)
    assert int(source[0]) == 3  # reads are harmless, and see the end of the copy
    assert int(there[-1]) == 3


def test_a_driver_that_refuses_to_lock_is_named() -> None:
    _core.sim.add_fault(0, "host_allocate", 1, 10**9, 2)
    try:
        with pytest.raises(nbx.OutOfMemoryError, match="pinned sim:0") as caught:
            memory.pinned((300 * MiB,), nbx.uint8, DEVICE)
        assert caught.value.requested == 300 * MiB
        assert caught.value.device == "pinned sim:0"
    finally:
        _core.sim.clear_faults(0)


@pytest.mark.parametrize("shape", [(-1,), (2, -3)])
def test_bad_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="extents are 0 or more"):
        memory.pinned(shape, device=DEVICE)


def test_empty_pinned_tensors() -> None:
    held = memory.pinned((0, 5), device=DEVICE)
    assert held.shape == (0, 5)
    assert held.to(DEVICE).shape == (0, 5)


def test_on_the_cpu_it_is_ordinary_memory_of_the_kind() -> None:
    before = memory.stats("cpu").pinned
    held = memory.pinned((100,), device="cpu")
    assert memory.stats("cpu").pinned == before + 448
    del held
    assert memory.stats("cpu").pinned == before
