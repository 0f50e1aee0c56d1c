"""``trace replay``: what a recorded workload would hold, map and cost on a device."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import numpy as np

from nbxtensor import _core, runtime
from nbxtensor.memory.trace import FORMATS, Trace, read

_SIMULATED = re.compile(r"sim(?::(\d+))?", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``trace replay``."""
    parser.add_argument(
        "file", help="trace in any of the formats that trace convert reads; .gz too"
    )
    parser.add_argument(
        "--from", dest="source", metavar="FORMAT", help=f"one of {', '.join(FORMATS)}"
    )
    parser.add_argument(
        "--device",
        default="sim",
        help="sim (default; addresses and books, no memory), sim:1, cpu, cuda:0",
    )
    parser.add_argument(
        "--memory", metavar="BYTES", help="size of the simulated device (default: twice the peak)"
    )
    parser.add_argument(
        "--budget",
        metavar="BYTES",
        help="refuse what would pass this many bytes, '2 GiB' or '80%%'",
    )
    parser.add_argument(
        "--slack",
        type=float,
        default=0.0,
        metavar="F",
        help="share of the peak that may be mapped beyond it before pages are remapped (default 0)",
    )
    parser.add_argument(
        "--streams", type=int, default=0, metavar="N", help="split the allocations over N streams"
    )
    parser.add_argument(
        "--seed", type=int, help="split them at random, by this seed, instead of in turns"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="K", help="passes over the trace, the state kept"
    )
    parser.add_argument(
        "--work",
        type=float,
        default=0.0,
        metavar="US",
        help="microseconds of work behind every allocation (default: of several streams, as fast "
        "as the host submits)",
    )
    parser.add_argument(
        "--paced", action="store_true", help="let the virtual clock follow the times of the trace"
    )
    parser.add_argument(
        "--segments", action="store_true", help="map no pages, as on devices that cannot"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing, before anything is read."""
    for name, least, most in (("streams", 0, 1024), ("repeat", 1, 1_000_000)):
        value = getattr(arguments, name)
        if not least <= value <= most:
            raise ValueError(f"--{name}: got {value}; give {least} to {most}")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**64:
        raise ValueError(f"--seed: got {arguments.seed}; give 0 to 2**64 - 1")
    if not 0.0 <= arguments.work < 1e9:
        raise ValueError(f"--work: got {arguments.work:g}; give microseconds from 0 to 1e9")
    if not 0.0 <= arguments.slack <= 100.0:
        raise ValueError(f"--slack: got {arguments.slack:g}; give a share from 0 to 100")


def _bytes(option: str, text: str, total: int | None) -> int:
    """Return the bytes that an option names."""
    if text.strip().endswith("%") and total is None:
        raise ValueError(f"{option}: {text!r} is a share of nothing; give bytes, such as '2 GiB'")
    return _core.parse_bytes(text, total)


def replay(trace: Trace, **options: Any) -> dict[str, Any]:
    """Replay a trace; `options` are those of ``_core.replay``.

    Returns
    -------
    dict
        `device`, `memory`, `budget`, `streams`, `first_refusal`; `passes`, a dict each; and the
        figures of the last pass.
    """
    # The types of NumPy before Python 3.12 do not say that arrays are buffers.
    columns: list[Any] = [
        np.ascontiguousarray(column) for column in (trace.op, trace.id, trace.bytes, trace.stream)
    ]
    report: dict[str, Any] = _core.replay(*columns, **options)
    return {**report, **report["passes"][-1]}


def _options(arguments: argparse.Namespace, trace: Trace) -> dict[str, Any]:
    """Return the options of ``_core.replay`` that the command line asks for."""
    options: dict[str, Any] = {
        "slack": arguments.slack,
        "split": arguments.streams,
        "seed": arguments.seed,
        "repeat": arguments.repeat,
        "work_seconds": arguments.work * 1e-6,
        "virtual_memory": not arguments.segments,
    }
    simulated = _SIMULATED.fullmatch(arguments.device)
    if simulated is None:
        device = runtime.device(arguments.device)
        if arguments.memory is not None:
            raise ValueError(
                f"--memory: {arguments.device} has the memory that it has; leave it out, or set "
                "--budget"
            )
        options["device"] = device
        total = device.memory_info()[1]
    else:
        options["device"] = int(simulated[1] or 0)
        total = 2 * trace.peak()
        if arguments.memory is not None:
            total = options["memory"] = _bytes("--memory", arguments.memory, None)
    if arguments.budget is not None:
        options["budget"] = _bytes("--budget", arguments.budget, total)
    if arguments.paced:
        if trace.clock != "ns" or simulated is None:
            raise ValueError("--paced: needs a trace with times and a simulated device")
        options["seconds"] = trace.time.astype(np.float64) * 1e-9
    return options


def _table(report: dict[str, Any]) -> str:
    """Return the report as lines for people."""
    size = _core.format_bytes
    budget = "none" if report["budget"] is None else size(report["budget"])
    lines = [
        f"{report['device']}: {size(report['memory'])}, budget {budget}, "
        f"{report['streams']} stream{'' if report['streams'] == 1 else 's'}"
    ]
    for number, one in enumerate(report["passes"], 1):
        lines += [
            f"pass {number}: peak live {size(one['peak_live'])}, mapped "
            f"{size(one['peak_mapped'])} ({one['ratio']:.4f}x)",
            f"  {one['allocations']} allocations, {one['refused']} refused, {one['remaps']} remaps "
            f"of {size(one['stolen_bytes'])}, {one['waits']} waits, {one['driver_calls']} driver "
            f"calls",
            f"  allocation {one['alloc_ns']['p50']:.0f} ns, p99 {one['alloc_ns']['p99']:.0f} ns"
            + (f"; {one['virtual_seconds']:.4f} virtual s" if one["virtual_seconds"] else ""),
        ]
    first = report["first_refusal"]
    if first is not None:
        lines.append(
            f"first refused: event {first['event']}, pass {first['pass'] + 1}, "
            f"{size(first['requested'])}: {first['why']}"
        )
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> int:
    """Replay a file and print the report."""
    _check(arguments)
    trace = read(arguments.file, arguments.source)
    report = replay(trace, **_options(arguments, trace))
    print(json.dumps(report, indent=2) if arguments.json else _table(report))
    return 0
