"""A real card: memory, copies, streams, refusals, and other libraries in the process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

TORCH = importlib.util.find_spec("torch") is not None
CUPY = importlib.util.find_spec("cupy") is not None
GRANULE = 2 << 20


def numbers(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, count, dtype=np.int64).astype(np.int32)


def test_the_default_device_is_the_card(device: nbx.Device) -> None:
    assert nbx.default_device() == device
    assert device.kind in ("cuda", "hip")
    assert device.architecture.startswith(("sm_", "gfx"))
    assert device.properties["total_bytes"] > 1 << 30
    assert device.properties["base_alignment"] == 256
    assert device.properties["page_granularity"] in (0, GRANULE)
    for primitive in ("launch", "page_map", "graph_launch", "ipc_export", "map_host"):
        assert device.supports(primitive)


@pytest.mark.parametrize("count", [1, 1023, 1_000_003])
def test_bytes_come_back_as_they_went(
    device: nbx.Device, rng: np.random.Generator, count: int
) -> None:
    source = numbers(rng, count)
    x = nbx.asarray(source, device=device)
    np.testing.assert_array_equal(x.to("cpu").numpy(), source)
    np.testing.assert_array_equal(x[count // 2 :].to("cpu").numpy(), source[count // 2 :])


def test_a_thousand_tensors(device: nbx.Device, rng: np.random.Generator) -> None:
    held: dict[int, tuple[nbx.Tensor, np.ndarray]] = {}
    for i in range(1000):
        source = numbers(rng, int(rng.integers(1, 100_000)))
        held[i] = (nbx.asarray(source, device=device), source)
        if i % 3 == 2:
            del held[int(rng.choice(list(held)))]
    for x, source in held.values():
        np.testing.assert_array_equal(x.to("cpu").numpy(), source)


def test_the_account_agrees_with_the_driver(device: nbx.Device) -> None:
    free, total = device.memory_info()
    held = [nbx.empty(size, dtype="uint8", device=device) for size in (5 << 20, 300, 64 << 20)]
    figures = nbx.memory.stats(device)
    now, _ = device.memory_info()
    assert abs((free - now) - figures.mapped) <= GRANULE + (
        GRANULE if device.properties["page_granularity"] == 0 else 0
    )
    assert figures.mapped + figures.external == pytest.approx(total - now, abs=GRANULE)
    held.clear()
    nbx.memory.trim(device)
    again, _ = device.memory_info()
    assert abs(again - free) <= GRANULE


def test_a_real_refusal_is_told_and_survived(device: nbx.Device, rng: np.random.Generator) -> None:
    free, _ = device.memory_info()
    source = numbers(rng, 1 << 20)
    kept = nbx.asarray(source, device=device)
    most = nbx.empty(free - (1 << 30), dtype="uint8", device=device)
    with pytest.raises(nbx.OutOfMemoryError) as caught:
        nbx.empty(2 << 30, dtype="uint8", device=device)
    refused = caught.value
    assert refused.requested >= 2 << 30
    assert 0 < refused.driver_total <= device.properties["total_bytes"] + GRANULE
    del most, caught, refused
    more = nbx.empty(2 << 30, dtype="uint8", device=device)
    again = nbx.asarray(source, device=device)
    assert more.nbytes == 2 << 30
    np.testing.assert_array_equal(again.to("cpu").numpy(), source)
    np.testing.assert_array_equal(kept.to("cpu").numpy(), source)


def test_streams_and_events_order_copies(device: nbx.Device, rng: np.random.Generator) -> None:
    source = numbers(rng, 8 << 20)
    pinned = nbx.memory.pinned(source.shape, "int32", device)
    np.asarray(pinned)[...] = source
    first, second = nbx.Stream(device), nbx.Stream(device, priority=-1)
    x = nbx.empty(source.shape, dtype="int32", device=device)
    start = first.record_event(timing=True)
    with nbx.stream(first):
        x.copy_(pinned, non_blocking=True)
        end = first.record_event(timing=True)
    second.wait_event(end)
    with nbx.stream(second):
        result = x.to("cpu").numpy()
    assert end.is_complete()
    np.testing.assert_array_equal(result, source)
    assert 0 < start.elapsed(end) < 1


def test_pinned_memory_and_files(device: nbx.Device, rng: np.random.Generator) -> None:
    source = numbers(rng, 1 << 20)
    pinned = nbx.memory.pinned(source.shape, "int32", device)
    np.asarray(pinned)[...] = source
    x = pinned.to(device)
    np.testing.assert_array_equal(x.to("cpu").numpy(), source)


if TORCH:

    def test_torch_shares_memory_and_streams(device: nbx.Device, rng: np.random.Generator) -> None:
        import torch

        if not torch.cuda.is_available():
            return  # a build for the CPU
        source = numbers(rng, 1 << 20)
        x = nbx.asarray(source, device=device)
        theirs = torch.from_dlpack(x)
        assert theirs.data_ptr() == x.data_ptr()
        doubled = theirs * 2
        back = nbx.from_dlpack(doubled)
        assert back.device == device
        np.testing.assert_array_equal(back.to("cpu").numpy(), source * np.int32(2))
        side = torch.cuda.Stream()
        wrapped = nbx.Stream.external(side.cuda_stream, device)
        with torch.cuda.stream(side):
            slow = torch.zeros(64 << 20, dtype=torch.int32, device="cuda")
            slow += 7
            ours = nbx.from_dlpack(slow)
        with nbx.stream(wrapped):
            assert (ours.to("cpu").numpy() == 7).all()
        wrapped.synchronize()
        assert wrapped.is_complete()
        del theirs, back, doubled, ours, slow
        torch.cuda.empty_cache()


if CUPY:

    def test_cupy_shares_memory_and_streams(device: nbx.Device, rng: np.random.Generator) -> None:
        import cupy

        source = numbers(rng, 1 << 20)
        x = nbx.asarray(source, device=device)
        theirs = cupy.from_dlpack(x)
        assert theirs.data.ptr == x.data_ptr()
        back = nbx.from_dlpack(theirs + 1)
        np.testing.assert_array_equal(back.to("cpu").numpy(), source + np.int32(1))
        stream = cupy.cuda.Stream(non_blocking=True)
        wrapped = nbx.Stream.external(stream.ptr, device)
        with stream:
            slow = cupy.full(64 << 20, 3, dtype=cupy.int32)
        with nbx.stream(wrapped):
            assert (nbx.from_dlpack(slow).to("cpu").numpy() == 3).all()


def test_a_child_of_the_process_is_refused(device: nbx.Device) -> None:
    program = """
import os
import nbxtensor as nbx

x = nbx.empty(1000, dtype="uint8", device="DEVICE")
child = os.fork()
if child == 0:
    try:
        nbx.empty(1 << 30, dtype="uint8", device="DEVICE")
    except nbx.DeviceError as error:
        os._exit(0 if "forked" in str(error) else 2)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(x) == 1000
"""
    run(program.replace("DEVICE", device.name))


def test_an_import_opens_no_library() -> None:
    run(
        "def libraries():\n"
        "    lines = open('/proc/self/maps').read().splitlines()\n"
        "    return {line.split()[-1] for line in lines if 'libcuda' in line or 'hip' in line}\n"
        "before = libraries()  # a memory checker brings the driver along\n"
        "import nbxtensor\n"
        "assert libraries() == before"
    )


def run(program: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
