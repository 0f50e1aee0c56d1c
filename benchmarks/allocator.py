"""Host cost of the allocator, from C++ and from Python, as one JSON object.

The C++ part (memory/) is built with the core in build/bench: minutes at first, seconds afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbxtensor as nbx
import numpy as np
from nbxtensor import _core, memory

ROOT = Path(__file__).resolve().parents[1]
TARGET = "nbx_bench_memory"
PARTS = ["pairs", "threads", "holes", "observers"]


def build(folder: Path) -> Path:
    """Build the C++ part and return its path."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    options = ["-DNBX_BUILD_BENCHMARKS=ON", "-DNBX_BUILD_PYTHON=OFF", "-DNBX_BUILD_TESTS=OFF"]
    jobs = str(os.cpu_count() or 1)
    # Standard output is for the figures.
    subprocess.run([*configure, *options], check=True, stdout=sys.stderr)
    subprocess.run(
        ["cmake", "--build", str(folder), "--target", TARGET, "-j", jobs],
        check=True,
        stdout=sys.stderr,
    )
    return folder / "benchmarks" / TARGET


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
        "python_empty_1024_ns": median_ns(lambda: nbx.empty((1024,), device="cpu")),
        "python_storage_4k_ns": median_ns(lambda: _core.Storage(4096, "cpu")),
        "python_numpy_empty_4k_ns": median_ns(lambda: np.empty(4096, np.uint8)),
        "python_storage_4m_ns": median_ns(lambda: _core.Storage(4 << 20, "cpu")),
        "python_tag_ns": median_ns(tagged),
        "python_report_ns": median_ns(lambda: memory.report("cpu"), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python-only", action="store_true", help="leave the C++ part out")
    parser.add_argument("--program", type=Path, help="the C++ part, where it is built already")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        choices=PARTS,
        help="of the C++ part; may be given again (default: all)",
    )
    arguments = parser.parse_args()
    result: dict[str, float] = {}
    if not arguments.python_only:
        program = arguments.program or build(ROOT / "build" / "bench")
        # A process each: a heap keeps the records of all the blocks that it ever had at once.
        for part in arguments.part or PARTS:
            output = subprocess.run(
                [str(program), part], check=True, capture_output=True, text=True
            )
            result.update(json.loads(output.stdout))
    result.update(from_python())
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
