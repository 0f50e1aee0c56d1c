"""Host cost of the allocator, from C++ and from Python, as one JSON object.

The C++ part (allocator.cpp) is compiled with the core into a temporary folder: two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from nbxtensor import _core, memory

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("core", "device", "stream", "account", "heap", "storage")


def build(folder: Path) -> Path:
    """Compile the floors that the allocator needs, and its benchmark."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or "c++"
    flags = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"]
    sources = [path for floor in FLOORS for path in (ROOT / "csrc" / floor).rglob("*.cpp")]
    sources = [*sources, ROOT / "benchmarks" / "allocator.cpp"]
    objects = [folder / f"{i}.o" for i in range(len(sources))]

    def compile_one(source: Path, target: Path) -> None:
        subprocess.run([compiler, *flags, "-c", str(source), "-o", str(target)], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    program = folder / "allocator"
    subprocess.run(
        [compiler, *map(str, objects), "-o", str(program), "-lpthread", "-ldl"], check=True
    )
    return program


def median_ns(call: Callable[[], object], count: int = 500, repeats: int = 201) -> float:
    # Runs far shorter than a time slice: a busy machine disturbs few of them.
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        times.append((time.perf_counter_ns() - start) / count)
    return round(statistics.median(times), 1)


def from_python() -> dict[str, float]:
    """Time storages and tags; the empty call and NumPy's array are the yardsticks."""

    def tagged() -> None:
        with memory.tag("bench"):
            pass

    return {
        "python_call_ns": median_ns(lambda: None),
        "python_storage_4k_ns": median_ns(lambda: _core.Storage(4096, "cpu")),
        "python_numpy_empty_4k_ns": median_ns(lambda: np.empty(4096, np.uint8)),
        "python_storage_4m_ns": median_ns(lambda: _core.Storage(4 << 20, "cpu")),
        "python_tag_ns": median_ns(tagged),
        "python_report_ns": median_ns(lambda: memory.report("cpu"), 5),
    }


def random_trace(seed: int, steps: int = 200_000) -> dict[str, float]:
    """Mapped bytes over peak live bytes after random sizes with a drifting mean."""
    rng = np.random.default_rng(seed)
    memory.trim("cpu")
    memory.reset_peak("cpu")
    held: list[object] = []
    start = memory.stats("cpu")
    for step in range(steps):
        if rng.random() < (0.6 if step % 20_000 < 10_000 else 0.4) or not held:
            held.append(_core.Storage(int(2 ** rng.uniform(6, 20)), "cpu"))
        else:
            index = int(rng.integers(len(held)))
            held[index] = held[-1]
            held.pop()
    stats = memory.stats("cpu")
    peak = stats.peak_live - start.live
    return {"trace_peak_live": peak, "trace_mapped_ratio": round(stats.peak_mapped / peak, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python-only", action="store_true", help="leave the C++ part out")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result: dict[str, float] = {}
    if not arguments.python_only:
        with tempfile.TemporaryDirectory() as folder:
            program = build(Path(folder))
            output = subprocess.run([str(program)], check=True, capture_output=True, text=True)
            result.update(json.loads(output.stdout))
    result.update(from_python())
    result.update(random_trace(arguments.seed))
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
