"""Time static plans: the hard instances at their capacity, and large traces against their bound.

Usage: python benchmarks/memory_plans.py [--seconds 60] [--output results/memory_plans.json]
Every plan is checked by the independent validator. The processor time is that of this process.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import platform
import time
from pathlib import Path
from typing import Any

from nbxtensor import memory

ROOT = Path(__file__).resolve().parent
TRACES = ROOT.parent / "tests" / "data" / "traces"
CAPACITY = 1_048_576


def measured(intervals: list[memory.Interval], **options: Any) -> dict[str, Any]:
    """Plan, validate and time one problem."""
    start = time.process_time()
    plan = memory.plan(intervals, **options)
    processor = time.process_time() - start
    plan.validate(options.get("capacity"))
    return {
        "buffers": len(intervals),
        "peak": plan.peak,
        "lower_bound": plan.lower_bound,
        "ratio": round(plan.peak / plan.lower_bound, 6),
        "optimal": plan.optimal,
        "method": plan.method,
        "nodes": plan.nodes,
        "seconds": round(plan.seconds, 3),
        "processor_seconds": round(processor, 3),
        "validated": True,
    }


def read_compressed(path: Path) -> list[memory.Interval]:
    """Read the intervals of a compressed file."""
    with gzip.open(path, "rb") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8"))
        return [
            memory.Interval(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in rows
        ]


def main() -> None:
    """Print a table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for a hard instance")
    parser.add_argument("--trace-seconds", type=float, default=2.0, help="limit for a large trace")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "memory_plans.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine()},
        "minimalloc": {},
        "traces": {},
    }
    for path in sorted((TRACES / "minimalloc").glob("*.csv")):
        name = path.name.split(".")[0]
        row = measured(memory.read_intervals(path), capacity=CAPACITY, seconds=arguments.seconds)
        row["fits"] = row["peak"] <= CAPACITY
        results["minimalloc"][name] = row
        print(f"minimalloc {name}: {row['seconds']:8.3f} s, {row['nodes']} nodes, {row['peak']}")
    for path in sorted((TRACES / "public" / "idealloc").glob("*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        row = measured(read_compressed(path), seconds=arguments.trace_seconds)
        results["traces"][name] = row
        print(f"{name}: {row['ratio']:.5f} of the bound in {row['seconds']:.3f} s, {row['method']}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
