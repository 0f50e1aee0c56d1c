"""``selftest``: allocate, copy and compute for real on every device that is ready."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import nbxtensor as nbx
from nbxtensor import _core

Check = Callable[[nbx.Device, np.random.Generator], str]


def _expect(condition: object, text: str) -> None:
    if not condition:
        raise AssertionError(text)


def _allocation(device: nbx.Device, rng: np.random.Generator) -> str:
    before = nbx.memory.allocated(device)
    sizes = rng.integers(1, 1 << 20, 50)
    held = [nbx.empty(int(size), dtype="uint8", device=device) for size in sizes]
    during = nbx.memory.allocated(device)
    _expect(
        during - before >= sizes.sum(),
        f"{sizes.sum()} bytes were allocated, and the account grew by {during - before}",
    )
    held.clear()
    after = nbx.memory.allocated(device)
    _expect(after == before, f"the account went from {before} to {after} bytes")
    return f"{len(sizes)} blocks, {_core.format_bytes(int(sizes.sum()))}"


def _copies(device: nbx.Device, rng: np.random.Generator) -> str:
    source = rng.integers(0, 256, 1_000_003, dtype=np.uint8)
    result = nbx.asarray(source, device=device).to("cpu").numpy()
    _expect(np.array_equal(source, result), "bytes changed on the way to the device and back")
    return f"{_core.format_bytes(source.nbytes)} there and back"


def _compute(device: nbx.Device, rng: np.random.Generator) -> str:
    a, b = (rng.standard_normal((37, 41)).astype(np.float32) for _ in range(2))
    x, y = nbx.asarray(a, device=device), nbx.asarray(b, device=device)
    result = ((x + y) @ y.T).sum(-1).to("cpu").numpy()
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = ((wide_a + wide_b) @ wide_b.T).sum(-1)
    error = float(np.max(np.abs(result - expected)) / np.max(np.abs(expected)))
    _expect(error < 1e-5, f"relative error {error:.2e}, allowed 1e-5")
    return f"add, matmul, sum: relative error {error:.1e}"


def _streams(device: nbx.Device, rng: np.random.Generator) -> str:
    value = int(rng.integers(1, 1000))
    with nbx.stream(nbx.Stream(device)) as first:
        x = nbx.full((1000,), value, dtype="int32", device=device)
    second = nbx.Stream(device)
    second.wait_stream(first)
    with nbx.stream(second):
        total = int((x + x).sum())
    _expect(total == 2000 * value, f"the sum is {total}, expected {2000 * value}")
    return "two streams in order"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("allocate", _allocation),
    ("copy", _copies),
    ("compute", _compute),
    ("streams", _streams),
)


def selftest(names: list[str], seed: int | None) -> int:
    """Run every check on the named devices, or on all; return 1 if one failed."""
    chosen = seed if seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {chosen}")
    failed = 0
    for device in [nbx.device(name) for name in names] or nbx.devices():
        for title, check in CHECKS:
            try:
                text = "ok      " + check(device, np.random.default_rng(chosen))
            except Exception as error:
                text = f"FAILED  {type(error).__name__}: {error}"
                failed += 1
            print(f"{device.name:<8} {title:<10} {text}")
    print("all checks passed" if failed == 0 else f"{failed} checks failed")
    return 1 if failed else 0
