"""Memory of a real GPU: what allocations cost beside the peers, and what recorded traces hold.

Peers are measured in the same process where they are installed. Seconds are medians.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
from _machine import ROOT, describe
from nbxtensor.cli.trace_replay import replay
from nbxtensor.memory.trace import read

TRACES = ROOT / "tests" / "data" / "traces"
PAGES = 2 << 20


def median_ns(call: Callable[[], object], count: int = 500, repeats: int = 101) -> float:
    """Return the median of short runs, in nanoseconds a call."""
    for _ in range(count):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        times.append((time.perf_counter_ns() - start) / count)
    return round(statistics.median(times), 1)


def time_empty(device: str) -> dict[str, float]:
    """Time `empty` and the drop of its result."""
    figures = {
        "python_call_ns": median_ns(lambda: None),
        "nbx_empty_1024_ns": median_ns(lambda: nbx.empty((1024,), device=device)),
        "nbx_empty_4m_ns": median_ns(lambda: nbx.empty((1 << 20,), device=device)),
    }
    if not device.startswith(("cuda", "hip")):
        return figures
    if importlib.util.find_spec("torch"):
        import torch

        figures["torch_empty_1024_ns"] = median_ns(lambda: torch.empty((1024,), device="cuda"))
        figures["torch_empty_4m_ns"] = median_ns(lambda: torch.empty((1 << 20,), device="cuda"))
    if importlib.util.find_spec("cupy"):
        import cupy

        figures["cupy_empty_1024_ns"] = median_ns(lambda: cupy.empty((1024,), dtype="float32"))
    return figures


def compare_books(device: str) -> dict[str, Any]:
    """Compare the driver's free memory with what the account and others hold."""
    which = nbx.device(device)
    which.synchronize()
    before_free, total = which.memory_info()
    before = nbx.memory.stats(device)
    blocks = [nbx.empty((size,), dtype="uint8", device=device) for size in (1 << 30, 77, 5 << 20)]
    free, _ = which.memory_info()
    after = nbx.memory.stats(device)
    gap = (before_free - free) - (after.mapped - before.mapped)
    del blocks
    return {"total_bytes": total, "gap_bytes": gap, "gap_pages": abs(gap) / PAGES}


def replay_traces(device: str, names: list[str]) -> list[dict[str, Any]]:
    """Replay recorded traces on the card: what is mapped, over what is live."""
    rows = []
    for name in names:
        trace = read(str(TRACES / name), None)
        nbx.memory.trim(device)
        for slack, repeat in ((0.0, 1), (0.02, 4)):
            start = time.perf_counter()
            report = replay(trace, device=nbx.device(device), slack=slack, repeat=repeat)
            last = report["passes"][-1]
            rows.append(
                {
                    "trace": name,
                    "slack": slack,
                    "passes": repeat,
                    "peak_live": last["peak_live"],
                    "peak_mapped": last["peak_mapped"],
                    "ratio": round(last["ratio"], 4),
                    "remaps": last["remaps"],
                    "allocations": last["allocations"],
                    "refused": last["refused"],
                    "driver_calls": last["driver_calls"],
                    "alloc_ns": last["alloc_ns"],
                    "seconds": round(time.perf_counter() - start, 3),
                }
            )
            gc.collect()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", action="append", help="file below tests/data/traces")
    arguments = parser.parse_args()
    names = arguments.trace or sorted(
        str(path.relative_to(TRACES)) for path in TRACES.rglob("*.gz")
    )
    result = {
        "machine": describe(arguments.device),
        "books": compare_books(arguments.device),
        "empty": time_empty(arguments.device),
        "traces": replay_traces(arguments.device, names),
    }
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    for key, value in {**result["books"], **result["empty"]}.items():
        print(f"{key:24} {value:,}")
    for row in result["traces"]:
        print(
            f"{row['trace']:40} slack {row['slack']:.2f}  {row['ratio']:.4f}x  "
            f"{row['remaps']} remaps of {row['allocations']}"
        )


if __name__ == "__main__":
    main()
