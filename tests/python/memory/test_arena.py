"""Arenas, slabs and layouts from Python: tensors in one block, and who keeps it alive."""

from __future__ import annotations

import ctypes
import gc
import random
import secrets
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import memory

DEVICES = ["cpu", "sim:0"]


@pytest.fixture
def numbers() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def counted(tag: str, device: str) -> int:
    """Bytes under a tag."""
    rows = memory.report(device).rows
    return sum(row.bytes for row in rows if (row.kind, row.tag) == ("device", tag))


@pytest.mark.parametrize("device", DEVICES)
def test_arena_holds_tensors_in_one_block(device: str) -> None:
    with memory.tag("decoder"):
        arena = memory.Arena(1 << 16, device, name="decoder")
    assert counted("decoder", device) == arena.capacity == 1 << 16
    values = np.arange(300, dtype=np.float32).reshape(15, 20)
    x = arena.empty((15, 20), "float32")
    x[...] = nbx.asarray(values).to(device)
    y = arena.empty(5, nbx.int8)
    assert x.data_ptr() == arena.base
    assert y.data_ptr() == arena.base + 1280
    assert (arena.used, arena.tensors) == (1536, 2)
    np.testing.assert_array_equal((x * 2).numpy(), values * 2)
    arena.check(x)
    arena.check(x[3:])
    assert arena.resolve(x[3:].data_ptr()) == (arena.base, 1200, 240, 0)
    arena.free()
    np.testing.assert_array_equal(x.numpy(), values)  # its outputs stay
    assert counted("decoder", device) == 1 << 16
    del x, y
    assert counted("decoder", device) == 0
    assert arena.closed


def test_alloc_of_nothing_is_address_zero() -> None:
    arena = memory.Arena(1024, "cpu")
    assert arena.alloc(0) == 0
    assert arena.empty((0, 4)).shape == (0, 4)
    assert arena.used == 0
    assert arena.alloc(1) == arena.base
    assert arena.alloc(1) == arena.base + 256


def test_overflow_tells_used_and_capacity() -> None:
    arena = memory.Arena(1024, "cpu", name="vae")
    arena.alloc(700)
    with pytest.raises(ValueError, match=r"arena 'vae' of cpu:?0?: alloc of 300 bytes") as caught:
        arena.alloc(300)
    error: Any = caught.value
    assert (error.requested, error.used, error.capacity) == (300, 768, 1024)
    assert "reset it" in str(error)
    with pytest.raises(ValueError, match="alloc of 4000 bytes"):
        arena.empty((1000,), "float32")
    assert arena.used == 768


def test_reset_voids_what_was_carved_before() -> None:
    arena = memory.Arena(4096, "cpu", name="vae")
    x = arena.empty((10,))
    view = x[2:]
    arena.reset()
    for old in (x, view):
        with pytest.raises(ValueError, match="was carved before reset 1, and 1 resets"):
            arena.check(old)
    y = arena.empty((10,))
    assert y.data_ptr() == x.data_ptr()
    arena.check(y)
    assert arena.generation == 1
    del x, view, old
    assert arena.stale_frees == 1
    arena.check(y)
    with pytest.raises(ValueError, match="was not carved from it"):
        arena.check(nbx.zeros((3,), device="cpu"))


def test_a_constructor_that_raised_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with memory.tag("small"), memory.budget(1000, "cpu", "small"):
        for kind in (memory.Arena, memory.ReplaySlab, memory.StepSlab):
            with pytest.raises(nbx.OutOfMemoryError):
                kind(4096, "cpu")
        for capacity in (0, -1, 2**60):
            with pytest.raises((ValueError, TypeError)):
                memory.Arena(capacity, "cpu")
    gc.collect()
    assert counted("small", "cpu") == 0
    assert capfd.readouterr().err == ""


def test_arena_as_a_context_gives_its_block_back() -> None:
    with memory.tag("scope"), memory.Arena(4096, "cpu") as arena:
        arena.alloc(10)
        assert counted("scope", "cpu") == 4096
    assert counted("scope", "cpu") == 0
    for action in (arena.reset, arena.verify, lambda: arena.alloc(1)):
        with pytest.raises(ValueError, match="after it was freed"):
            action()
    arena.free()


@pytest.mark.parametrize("device", DEVICES)
def test_guards_lie_between_tensors(device: str) -> None:
    arena = memory.Arena(8192, device, name="vae", guarded=True)
    x = arena.empty((64,), "float32")
    y = arena.empty((64,), "float32")
    x[...] = 1.0
    y[...] = 2.0
    assert y.data_ptr() - x.data_ptr() == 512
    arena.verify()
    arena.reset()
    arena.verify()


def test_guards_find_writes_past_the_end() -> None:
    arena = memory.Arena(8192, "cpu", name="vae", guarded=True)
    arena.empty((64,), "float32")
    bad = arena.empty((10,), "uint8")
    for past in (10, 13, 255, 256):  # the first byte behind it, and behind its padding
        ctypes.memset(bad.data_ptr() + past, 0, 1)
        place = rf"at offset 512 was written past its end, from byte {past - 10} behind"
        with pytest.raises(ValueError, match=f"carving 2 of 10 bytes {place}"):
            arena.verify()
        arena.verify()
    ctypes.memset(bad.data_ptr() + 511, 0, 1)
    with pytest.raises(ValueError, match="was written past its end"):
        arena.free()
    assert arena.closed


def test_replay_slab_reuses_and_falls_back_to_the_heap() -> None:
    slab = memory.ReplaySlab(1 << 14, "cpu", name="graph")
    first = slab.empty((1024,))
    second = slab.empty((1024,))
    address = first.data_ptr()
    del first
    again = slab.empty((1024,))
    assert again.data_ptr() == address
    big = slab.empty((1 << 14,))
    assert not slab.base <= big.data_ptr() < slab.base + slab.capacity
    assert slab.shortfall == 4 << 14
    assert slab.alloc(1 << 20) is None
    raw = slab.alloc(100)
    assert raw is not None
    slab.release(raw)
    with pytest.raises(ValueError, match="freed before"):
        slab.release(raw)
    del second, again
    assert (slab.used, slab.holes, slab.largest_hole) == (0, 1, 1 << 14)


def test_retired_slab_keeps_its_outputs() -> None:
    with memory.tag("graph"):
        slab = memory.ReplaySlab(1 << 14, "cpu")
        output = slab.empty((8,))
    output[...] = 3.0
    slab.retire()
    del slab
    gc.collect()
    assert counted("graph", "cpu") == 1 << 14
    assert float(output.sum()) == 24.0
    del output
    assert counted("graph", "cpu") == 0


def test_step_slab_repeats_its_addresses(numbers: random.Random) -> None:
    sizes = [numbers.randint(1, 3000) for _ in range(60)]
    slab = memory.StepSlab(memory.StepSlab.capacity_for(sum(sizes)), "cpu")
    kept: list[nbx.Tensor] = []
    first: list[int] = []
    for step in range(5):
        addresses = []
        for size in sizes:
            tensor = slab.empty(size, "uint8")
            addresses.append(tensor.data_ptr())
            if numbers.random() < 0.5:
                kept.append(tensor)
            if kept and numbers.random() < 0.5:
                kept.pop(numbers.randrange(len(kept)))
        first = first or addresses
        assert addresses == first
        assert slab.carve_sizes == sizes
        assert slab.first_difference is None
        assert slab.reset() is (step > 0)
    assert slab.shortfall == 0
    kept.clear()
    del tensor
    assert slab.stale_frees > 0
    assert slab.tensors == 0


def test_step_slab_tells_the_first_difference() -> None:
    slab = memory.StepSlab(4096, "cpu")
    for size in (8, 16):
        slab.empty(size)
    slab.reset()
    slab.empty(8)
    slab.empty(17)
    assert slab.first_difference == 1
    assert slab.former_sizes == [32, 64]
    assert slab.reset() is False


def test_layout_places_named_tensors() -> None:
    entries = [("weight", (3, 5), "float32"), ("bias", (5,), "float16"), ("none", (0,), "int8")]
    plan = memory.layout(entries)
    assert plan.names == ["weight", "bias", "none"]
    assert [plan.offset(name) for name in plan.names] == [0, 256, 512]
    assert plan.nbytes("weight") == 60
    assert plan.total == 512
    assert plan.add("packed", 100, alignment=1) == 512
    block = nbx.zeros((plan.total,), dtype="uint8", device="cpu")
    views = plan.tensors(block)
    views["weight"][...] = nbx.asarray(np.arange(15, dtype=np.float32).reshape(3, 5))
    views["bias"][...] = 2.0
    assert views["bias"].data_ptr() == block.data_ptr() + 256
    raw = block.numpy()
    np.testing.assert_array_equal(raw[:60].view(np.float32), np.arange(15, dtype=np.float32))
    np.testing.assert_array_equal(raw[256:266].view(np.float16), np.full(5, 2, np.float16))
    with pytest.raises(ValueError, match="is there already"):
        plan.add("bias", 1)
    with pytest.raises(ValueError, match="no entry 'other'"):
        plan.offset("other")
    with pytest.raises(ValueError, match="power of two"):
        plan.add("other", 1, alignment=3)
    with pytest.raises(ValueError, match="at least"):
        plan.tensors(block[:10])


def made(kind: str, device: str) -> Any:
    if kind != "PlannedSlab":
        return getattr(memory, kind)(4096, device, name="decoder")
    plan = memory.plan([(0, 3, 256)], alignment=256)
    return memory.PlannedSlab([("a", 0, 256)], plan, device, name="decoder")


@pytest.mark.parametrize("kind", ["Arena", "StepSlab", "ReplaySlab", "PlannedSlab"])
def test_nothing_is_carved_once_the_epoch_has_ended(kind: str) -> None:
    device = "sim:1"
    carver = made(kind, device)
    tensor = carver.empty((4,))
    memory.new_epoch(device)
    calls = {"empty": ((4,),), "alloc": (16,), "reset": (), "verify": ()}
    for name, arguments in calls.items():
        if hasattr(carver, name):
            with pytest.raises(ValueError, match=r"decoder.*an epoch of sim:1 that ended .*; make"):
                getattr(carver, name)(*arguments)
    del tensor
    carver.free()
    del carver
    memory.trim(device)
    assert memory.stats(device).mapped == 0
