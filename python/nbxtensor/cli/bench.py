"""``python -m nbxtensor bench``: ops at their bench shapes, beside peers and the machine's limits.

Own calls, the peers' and a copy of as many bytes run in turns, so that all meet the same machine;
each figure is a median. Calls of one turn are queued back to back and waited for once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import nbxtensor as nbx
from nbxtensor import _core
from nbxtensor.cli.bench_peers import numpy_call, torch_call
from nbxtensor.dtype import as_dtype
from nbxtensor.errors import InvalidValueError, UnsupportedError
from nbxtensor.ops import OPS, TABLE
from nbxtensor.ops.signature import Kind
from nbxtensor.ops.table import Row

__all__ = ["declare", "measure_rows", "run", "summary"]

PEERS = ("numpy", "torch")
TENSORS = (Kind.TENSOR, Kind.OPTIONAL_TENSOR, Kind.OPERAND, Kind.OPTIONAL_OPERAND, Kind.WRITTEN)
# Arguments that are no tensors of the dtype under test, and numbers that ops need.
INTEGERS = ("ids", "positions", "indices")
NUMBERS: dict[str, Any] = {"k": 8}
SPECIAL: dict[str, dict[str, Any]] = {"clamp": {"min": 0.6, "max": 1.0}}
# Below this many bytes a copy's time is that of its call.
LEAST_BYTES = 1 << 20
PRODUCT = 1024

Call = Callable[[], object]


class Options(NamedTuple):
    """What to measure, and how long."""

    device: str
    dtype: str
    seconds: float  # of own calls of a row, at least
    rounds: int
    peers: tuple[str, ...]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("names", nargs="*", help="ops (default: all that have bench shapes)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of the tensors, where the op takes it")
    parser.add_argument("--family", help="one family of ops only")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each op, at least")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side, at least")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=PEERS, help="timed where they are installed"
    )
    parser.add_argument("--threads", type=int, help="on the cpu; NumPy takes OPENBLAS_NUM_THREADS")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure the chosen rows and print them."""
    unknown = set(arguments.names) - TABLE.keys()
    if unknown:
        raise InvalidValueError(
            f"names: no op is called {sorted(unknown)}; `python -m nbxtensor ops` lists them"
        )
    if arguments.rounds < 1:
        raise InvalidValueError(f"rounds: expected 1 or more, got {arguments.rounds}")
    options = Options(
        arguments.device, arguments.dtype, arguments.seconds, arguments.rounds,
        tuple(arguments.peers),
    )  # fmt: skip
    chosen = [
        row
        for row in TABLE.values()
        if row.bench
        and (not arguments.names or row.name in arguments.names)
        and arguments.family in (None, row.family)
    ]
    with threads(arguments.threads) as count:
        report = measure_rows(chosen, options, None if arguments.json else sys.stdout)
    totals = summary(report)
    if arguments.json:
        head = {"device": arguments.device, "dtype": arguments.dtype, "threads": count}
        print(json.dumps({**head, "summary": totals, "rows": report}, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in totals.items()))
    return 0


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Let every side use `count` threads inside (None: as they are)."""
    former = _core.get_num_threads()
    if count is not None:
        nbx.set_num_threads(count)
    try:
        yield _core.get_num_threads()
    finally:
        nbx.set_num_threads(former)


# ---- what is called ----------------------------------------------------------------------------


def arguments_of(row: Row, shapes: Any, options: Options) -> list[nbx.Tensor]:
    """Return tensors of the bench shapes."""
    generator = np.random.default_rng(0)
    tensors: list[nbx.Tensor] = []
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
    needed = {p.name for p in row.parameters if p.default is ...}
    keywords = {name: value for name, value in NUMBERS.items() if name in needed}
    if row.family == "scan":
        keywords["axis"] = -1
    return {**keywords, **SPECIAL.get(row.name, {})}


def numpy_side(row: Row, tensors: list[nbx.Tensor]) -> Call | None:
    """Return NumPy's call on the same values; None where it cannot do the same."""
    function = numpy_call(row)
    plain = all(tensor.device.kind == "cpu" for tensor in tensors)
    if function is None or not plain or any(t.dtype == nbx.bfloat16 for t in tensors):
        return None
    arrays = [tensor.numpy() for tensor in tensors]
    return lambda: function(*arrays)


def torch_side(row: Row, tensors: list[nbx.Tensor]) -> Call | None:
    """Return torch's call on the same memory; None where it cannot do the same."""
    if tensors[0].device.kind not in ("cpu", "cuda", "hip"):
        return None
    torch = importlib.import_module("torch")
    function = torch_call(row, torch)
    if function is None:
        return None
    torch.set_grad_enabled(False)
    if tensors[0].device.kind == "cpu":
        torch.set_num_threads(_core.get_num_threads())
    moved = [torch.from_dlpack(tensor) for tensor in tensors]
    return lambda: function(*moved)


SIDES: dict[str, Callable[[Row, list[nbx.Tensor]], Call | None]] = {
    "numpy": numpy_side,
    "torch": torch_side,
}


def copy_side(moved: int, device: str) -> Call:
    """Return a call that copies half of `moved` bytes, so that it moves as many."""
    size = moved // 2
    if nbx.device(device).kind != "cpu":
        source, target = (nbx.empty((size,), dtype="uint8", device=device) for _ in range(2))

        def copy() -> None:
            target[...] = source

        return copy
    count = _core.get_num_threads()
    arrays = [(np.ones(size // count, np.uint8), np.ones(size // count, np.uint8))
              for _ in range(count)]  # fmt: skip
    pool = ThreadPoolExecutor(count)
    return lambda: list(pool.map(lambda pair: np.copyto(pair[0], pair[1]), arrays))


def product_rate(device: str) -> float | None:
    """Return float32 operations a second of a large product by the peer's library."""
    on_cpu = nbx.device(device).kind == "cpu"
    if not on_cpu:
        return None
    a, b = (np.ones((PRODUCT, PRODUCT), np.float32) for _ in range(2))
    taken = in_turns({"product": lambda: a @ b}, lambda: None, 0.2, 5)
    return 2 * PRODUCT**3 / taken["product"]


# ---- how it is timed ---------------------------------------------------------------------------


def in_turns(calls: Mapping[str, Call], wait: Call, budget: float, rounds: int) -> dict[str, float]:
    """Return the median seconds of each call; all take turns."""
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        wait()
        start = time.perf_counter()
        call()
        wait()
        once = max(time.perf_counter() - start, 1e-7)
        counts[name] = max(1, min(1000, int(budget / rounds / once)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            wait()
            times[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure(row: Row, shapes: Any, options: Options, rate: float | None) -> dict[str, Any]:
    """Return the medians of a row at some shapes, and the ratios that follow."""
    tensors = arguments_of(row, shapes, options)
    keywords = keywords_of(row)
    op = OPS[row.name]
    try:
        value = op(*tensors, **keywords)
    except UnsupportedError as error:
        return {"shapes": shapes, "unsupported": str(error)}
    results = list(value) if isinstance(value, tuple) else [value]
    moved = sum(tensor.nbytes for tensor in (*tensors, *results))
    del value, results
    calls: dict[str, Call] = {"own": lambda: op(*tensors, **keywords)}
    for name in options.peers:
        if importlib.util.find_spec(name) is None:
            continue
        call = SIDES[name](row, tensors)
        if call is not None and works(call, row, name):
            calls[name] = call
    if moved >= LEAST_BYTES:
        calls["copy"] = copy_side(moved, options.device)

    def wait() -> None:
        nbx.synchronize(options.device)
        if "torch" in calls and tensors[0].device.kind in ("cuda", "hip"):
            importlib.import_module("torch").cuda.synchronize()

    taken = in_turns(calls, wait, options.seconds, options.rounds)
    own = taken["own"]
    report: dict[str, Any] = {"shapes": shapes, "us": round(own * 1e6, 2)}
    report["gb_s"] = round(moved / own / 1e9, 2)
    floor = taken.get("copy", 0.0)
    if row.flops is not None:
        flops = row.flops(*shapes)
        report["gflop_s"] = round(flops / own / 1e9, 2)
        floor = max(floor, flops / rate) if rate else 0.0
    if floor:
        report["of_limit"] = round(floor / own, 3)
    for name in options.peers:
        if name in taken:
            report[f"{name}_us"] = round(taken[name] * 1e6, 2)
            report[f"ratio_{name}"] = round(taken[name] / own, 3)
    return report


def works(call: Call, row: Row, peer: str) -> bool:
    """Whether a peer takes these arguments; what it says otherwise is printed."""
    try:
        call()
    except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:
        print(f"{row.name}: {peer}: {error}".splitlines()[0], file=sys.stderr)
        return False
    return True


def measure_rows(rows: list[Row], options: Options, show: Any) -> dict[str, list[dict[str, Any]]]:
    """Return what `measure` says of each row and shape; `show` gets a line of each as it comes."""
    rate = product_rate(options.device)
    report: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for shapes in row.bench:
            entry = measure(row, shapes, options, rate)
            report.setdefault(row.name, []).append(entry)
            if show is not None:
                print(line_of(row.name, entry), file=show, flush=True)
    return report


def line_of(name: str, entry: Mapping[str, Any]) -> str:
    """Return one row as text."""
    if "unsupported" in entry:
        return f"{name:16} {entry['unsupported']}"
    text = f"{name:16} {entry['us']:12.2f} us {entry['gb_s']:9.2f} GB/s"
    if "of_limit" in entry:
        text += f"  {entry['of_limit']:.2f} of the limit"
    for peer in PEERS:
        if f"ratio_{peer}" in entry:
            text += f"  {entry[f'ratio_{peer}']:.2f}x {peer}"
    return text


def summary(report: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the geometric mean and the least of the ratios to each peer, and of the limits."""
    totals: dict[str, Any] = {}
    for key in (*(f"ratio_{peer}" for peer in PEERS), "of_limit"):
        known = {
            f"{name}#{number}" if number else name: entry[key]
            for name, entries in report.items()
            for number, entry in enumerate(entries)
            if key in entry
        }
        if known:
            mean = math.exp(statistics.fmean(math.log(max(v, 1e-9)) for v in known.values()))
            least = min(known, key=known.__getitem__)
            totals[key] = {
                "geometric_mean": round(mean, 3),
                "least": [least, known[least]],
                "below_0.7": sorted(name for name, value in known.items() if value < 0.7),
            }
    return totals
