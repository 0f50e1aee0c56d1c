"""Time of ops at their rows' bench shapes, with bytes moved and operations done in each second.

Beside a GPU torch does the same in the same process where it is installed: `ratio` is its time
divided by ours. Calls are queued back to back and waited for once, so that a time is the greater
one of what the host and what the device needs.

python benchmarks/ops.py [--device cpu] [--dtype float32] [--family F] [--json] [name ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
import numpy as np
from _machine import describe
from nbxtensor.dtype import as_dtype
from nbxtensor.errors import UnsupportedError
from nbxtensor.ops import OPS, TABLE, Row
from nbxtensor.ops.signature import Kind

TENSORS = (Kind.TENSOR, Kind.OPTIONAL_TENSOR, Kind.OPERAND, Kind.OPTIONAL_OPERAND, Kind.WRITTEN)
# Arguments that are no tensors of the dtype under test, and numbers that ops need.
INTEGERS = ("ids", "positions", "indices")
NUMBERS = {"k": 8}
# What torch calls a row whose name or form differs.
TORCH = {
    "amax": lambda t, x: t.amax(x, tuple(range(x.ndim))),
    "amin": lambda t, x: t.amin(x, tuple(range(x.ndim))),
    "cummax": lambda t, x: t.cummax(x, -1),
    "cummin": lambda t, x: t.cummin(x, -1),
    "cumprod": lambda t, x: t.cumprod(x, -1),
    "cumsum": lambda t, x: t.cumsum(x, -1),
    "softmax": lambda t, x: t.softmax(x, -1),
    "log_softmax": lambda t, x: t.log_softmax(x, -1),
    "logsumexp": lambda t, x: t.logsumexp(x, tuple(range(x.ndim))),
    "clamp": lambda t, x: t.clamp(x, 0.6, 1.0),
    "norm": lambda t, x: t.linalg.vector_norm(x),
    "positive": lambda t, x: x.clone(),
    "rms_norm": lambda t, x, w: t.nn.functional.rms_norm(x, w.shape, w, 1e-6),
    "layer_norm": lambda t, x, w, b: t.nn.functional.layer_norm(x, w.shape, w, b),
    "silu_mul": lambda t, g, u: t.nn.functional.silu(g) * u,
    "gelu_mul": lambda t, g, u: t.nn.functional.gelu(g) * u,
    "attention": lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=True
    ),
    "topk": lambda t, x: t.topk(x, 8),
    "mv": lambda t, a, b: t.mv(a, b),
    "linear": lambda t, x, w: t.nn.functional.linear(x, w),
}


def arguments_of(row: Row, shapes: Any, options: Any) -> list[Any]:
    """Return tensors of the bench shapes."""
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
    return tensors


def keywords_of(row: Row) -> dict[str, Any]:
    """Return the keywords that a row needs beside tensors."""
    keywords = {
        p.name: NUMBERS[p.name] for p in row.parameters if p.name in NUMBERS and p.default is ...
    }
    if row.name == "clamp":
        keywords = {"min": 0.6, "max": 1.0}
    return {"axis": -1} if row.family == "scan" else keywords


def results_of(value: Any) -> list[Any]:
    """Return the tensors of a result."""
    return list(value) if isinstance(value, tuple) else [value]


def seconds(call: Callable[[], object], wait: Callable[[], object], budget: float) -> float:
    """Return the median time of a call among several queued ones."""
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    count = max(1, min(200, int(budget / 10 / max(time.perf_counter() - start, 1e-6))))
    times = []
    until = time.perf_counter() + budget
    while len(times) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def torch_seconds(row: Row, tensors: list[Any], options: Any) -> float | None:
    """Return torch's time for the same, or None where it has no such function."""
    if not options.device.startswith("cuda") or importlib.util.find_spec("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")
    moved = [torch.from_dlpack(tensor) for tensor in tensors]
    own = TORCH.get(row.name)
    function = getattr(torch, row.name, None) or getattr(torch.nn.functional, row.name, None)
    if own is None and function is None:
        return None

    def call() -> object:
        return function(*moved) if own is None else own(torch, *moved)  # type: ignore[misc]

    with torch.no_grad():
        try:
            return seconds(call, torch.cuda.synchronize, options.seconds)
        except (TypeError, RuntimeError, ValueError) as error:
            print(f"{row.name}: torch: {error}".splitlines()[0], file=sys.stderr)
            return None


def measure(row: Row, shapes: Any, options: Any) -> dict[str, Any]:
    """Return the median time of one call and the rates that follow."""
    tensors = arguments_of(row, shapes, options)
    keywords = keywords_of(row)
    op = OPS[row.name]
    try:
        results = results_of(op(*tensors, **keywords))
    except UnsupportedError as error:
        return {"shapes": shapes, "unsupported": str(error)}
    moved = sum(t.nbytes for t in (*tensors, *results))
    median = seconds(
        lambda: op(*tensors, **keywords), lambda: nbx.synchronize(options.device), options.seconds
    )
    report: dict[str, Any] = {"shapes": shapes, "us": round(median * 1e6, 2)}
    report["gb_s"] = round(moved / median / 1e9, 2)
    if row.flops is not None:
        report["gflop_s"] = round(row.flops(*shapes) / median / 1e9, 2)
    peer = torch_seconds(row, tensors, options)
    if peer is not None:
        report["torch_us"] = round(peer * 1e6, 2)
        report["ratio"] = round(peer / median, 3)
    return report


def summary(report: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return the sums over all rows that torch has, and the mean of the ratios."""
    both = [entry for entries in report.values() for entry in entries if "ratio" in entry]
    if not both:
        return {}
    own = sum(entry["us"] for entry in both)
    peer = sum(entry["torch_us"] for entry in both)
    mean = math.exp(statistics.fmean(math.log(entry["ratio"]) for entry in both))
    return {
        "us": round(own, 1),
        "torch_us": round(peer, 1),
        "ratio_of_sums": round(peer / own, 3),
        "geometric_mean_ratio": round(mean, 3),
    }


def main() -> None:
    """Measure the chosen rows and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--family")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each row")
    parser.add_argument("--json", action="store_true", help="with the machine and a summary")
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
    if options.json:
        whole = {"machine": describe(options.device), "dtype": options.dtype}
        print(json.dumps({**whole, "summary": summary(report), "rows": report}, indent=2))
    else:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
