"""Time of ops at their rows' bench shapes, with bytes moved and operations done in each second.

python benchmarks/ops.py [--device cpu] [--dtype float32] [--family F] [name ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import nbxtensor as nbx
import numpy as np
from nbxtensor.dtype import as_dtype
from nbxtensor.ops import OPS, TABLE, Row
from nbxtensor.ops.signature import Kind

TENSORS = (Kind.TENSOR, Kind.OPTIONAL_TENSOR, Kind.OPERAND, Kind.OPTIONAL_OPERAND, Kind.WRITTEN)
# Arguments that are no tensors of the dtype under test, and numbers that ops need.
INTEGERS = ("ids", "positions", "indices")
NUMBERS = {"k": 8}


def arguments_of(row: Row, shapes: Any, options: Any) -> tuple[list[Any], int]:
    """Return tensors of the bench shapes, and their bytes."""
    generator = np.random.default_rng(0)
    tensors: list[Any] = []
    named = [parameter for parameter in row.parameters if parameter.kind in TENSORS]
    for shape, parameter in zip(shapes, named, strict=False):
        if parameter.name in INTEGERS:
            values = generator.integers(0, 64, shape)
            tensors.append(nbx.asarray(values).to(options.device))
            continue
        values = generator.standard_normal(shape).astype(np.float32)
        if parameter.name == "condition":
            tensors.append(nbx.asarray(values > 0).to(options.device))
            continue
        wanted = as_dtype(options.dtype)
        if wanted not in row.dtypes:
            wanted = row.dtypes[0]
        tensors.append(nbx.asarray(np.abs(values) + 0.5).to(options.device).to(wanted))
    return tensors, sum(tensor.nbytes for tensor in tensors)


def results_of(value: Any) -> list[Any]:
    """Return the tensors of a result."""
    return list(value) if isinstance(value, tuple) else [value]


def measure(row: Row, shapes: Any, options: Any) -> dict[str, Any]:
    """Return the median time of one call and the rates that follow."""
    tensors, bytes_read = arguments_of(row, shapes, options)
    keywords = {
        p.name: NUMBERS[p.name] for p in row.parameters if p.name in NUMBERS and p.default is ...
    }
    if row.name in ("clamp", "clip"):
        keywords = {"min": 0.6, "max": 1.0}
    if row.family == "scan":
        keywords = {"axis": -1}
    op = OPS[row.name]
    moved = bytes_read + sum(t.nbytes for t in results_of(op(*tensors, **keywords)))
    times = []
    until = time.perf_counter() + options.seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        result = op(*tensors, **keywords)
        nbx.synchronize(options.device)
        times.append(time.perf_counter() - start)
        del result
    median = statistics.median(times)
    report: dict[str, Any] = {"shapes": shapes, "us": round(median * 1e6, 1)}
    report["gb_s"] = round(moved / median / 1e9, 2)
    if row.flops is not None:
        report["gflop_s"] = round(row.flops(*shapes) / median / 1e9, 2)
    return report


def main() -> None:
    """Measure the chosen rows and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--family")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    options = parser.parse_args()
    unknown = set(options.names) - TABLE.keys()
    if unknown:
        parser.error(f"no op of the names {sorted(unknown)}")
    report = {
        row.name: [measure(row, shapes, options) for shapes in row.bench]
        for row in TABLE.values()
        if row.bench
        and (not options.names or row.name in options.names)
        and options.family in (None, row.family)
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
