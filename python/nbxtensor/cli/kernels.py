"""``python -m nbxtensor kernels``: compile kernels ahead of time, list those that are compiled."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from nbxtensor import facts
from nbxtensor.errors import InvalidValueError
from nbxtensor.runtime import targets
from nbxtensor.runtime.loading import Request, request_of
from nbxtensor.runtime.pack import Pack, packs

__all__ = ["TARGETS", "declare", "run"]

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942")


class Job(NamedTuple):
    """One specialisation for one target, and the pack that it goes to."""

    name: str
    types: dict[str, str]
    constants: dict[str, Any]
    divisible: frozenset[str]
    options: dict[str, Any]
    target: targets.Target
    folder: Path


class Row(NamedTuple):
    """What came of a job."""

    name: str
    target: str
    state: str  # "compiled", "kept" (it was in the pack), or "failed"
    record: dict[str, Any]
    problems: list[str]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="action", required=True)
    build = commands.add_parser("compile", help="compile what the ops need, without a GPU")
    build.add_argument(
        "--target",
        action="append",
        metavar="ARCHITECTURE",
        help=f"such as sm_90 or gfx942; repeatable (default: {' '.join(TARGETS)})",
    )
    build.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes"
    )
    build.add_argument("--out", type=Path, metavar="DIR", help="the pack (default: the user's)")
    build.add_argument(
        "--kernels",
        default="nbxtensor.kernels",
        metavar="MODULE",
        help="whose specializations(target) to compile (default: nbxtensor.kernels)",
    )
    build.add_argument(
        "--known", type=Path, metavar="FILE", help="leave out what this table says was compiled"
    )
    build.add_argument(
        "--write-known", type=Path, metavar="FILE", help="write that table, if all compiled"
    )
    build.add_argument("--json", action="store_true", help="print one JSON object")
    show = commands.add_parser("list", help="list the compiled kernels")
    show.add_argument("--out", type=Path, metavar="DIR", help="the pack (default: all in use)")
    show.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Run one subcommand; return the exit status."""
    return _compile(arguments) if arguments.action == "compile" else _list(arguments)


def target_named(architecture: str) -> targets.Target:
    """Return the target of an architecture's name, with what its file says of it."""
    kind = "cuda" if architecture.startswith("sm_") else "hip"
    if not architecture.startswith(("sm_", "gfx")):
        raise InvalidValueError(
            f"kernels: unknown target {architecture!r}; known are {', '.join(TARGETS)}"
        )
    return targets.target_of(architecture, facts.load(kind, architecture).lanes)


def jobs_of(module: str, targets: Iterable[str], folder: Path) -> Iterator[Job]:
    """Yield the specialisations that a module of kernels asks for."""
    specializations = importlib.import_module(module).specializations
    for architecture in targets:
        target = target_named(architecture)
        for name, types, constants, divisible, options in specializations(architecture):
            yield Job(
                name,
                dict(types),
                dict(constants),
                frozenset(divisible),
                dict(options or {}),
                target,
                folder,
            )


def key_of(job: Job) -> tuple[Request, str]:
    """Return what to compile, and the hash of all that it depends on."""
    request = request_of(job.name, job.types, job.constants, job.divisible, job.options)
    return request, request.key(job.target, str(targets.triton_version()))


def compiled(job: Job) -> Row:
    """Compile one specialisation unless it is in the pack."""
    request, key = key_of(job)
    pack = Pack(job.folder, True)
    kept = pack.read(job.name, job.target.text, key)
    if kept is not None:
        return Row(job.name, job.target.text, "kept", kept.record, problems_of(job, kept.record))
    try:
        made = request.compiled(job.target)
    except Exception as error:
        return Row(job.name, job.target.text, "failed", {}, [str(error)])
    pack.write(job.name, job.target.text, key, made)
    record = {**made.record, "bytes": len(made.image)}
    return Row(job.name, job.target.text, "compiled", record, problems_of(job, record))


def problems_of(job: Job, record: dict[str, Any]) -> list[str]:
    """Return what a kernel takes beyond what a block of the device has."""
    known = facts.load(job.target.backend, job.target.architecture)
    threads, registers = record["threads"], record["registers"]
    limits = (
        ("bytes of shared memory", record["shared_bytes"], known.shared_bytes_per_block),
        ("threads", threads, known.threads_per_block),
        ("registers of a thread", registers, known.registers_per_thread),
        ("registers of a block", threads * registers, known.registers_per_block),
        ("blocks of a cluster", record["cluster"], known.cluster_blocks or 1),
    )
    return [
        f"{given} {what}, {job.target.architecture} has {most}"
        for what, given, most in limits
        if most is not None and given > most
    ]


# ---- what was compiled before -----------------------------------------------------------------


class Known(NamedTuple):
    """A kernel's specialisations for one target: their hash, and the most that one takes."""

    target: str
    name: str
    hash: str
    specializations: int
    registers: int
    spilled_bytes: int
    shared_bytes: int


def groups_of(jobs: Iterable[Job]) -> dict[tuple[str, str], list[Job]]:
    """Return the jobs by target and kernel."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.target.text, job.name), []).append(job)
    return groups


def hash_of(jobs: Iterable[Job]) -> str:
    """Return the hash of everything that these specialisations depend on."""
    keys = sorted(key_of(job)[1] for job in jobs)
    return hashlib.sha256("".join(keys).encode()).hexdigest()[:16]


def read_known(file: Path) -> dict[tuple[str, str], str]:
    """Return the hashes of a table by target and kernel."""
    rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()[1:]]
    if any(len(row) != len(Known._fields) for row in rows):
        raise InvalidValueError(
            f"kernels: {file} is no table of --write-known; expected the columns "
            f"{', '.join(Known._fields)}"
        )
    return {(row[0], row[1]): row[2] for row in rows}


def write_known(file: Path, jobs: Iterable[Job], rows: Iterable[Row]) -> None:
    """Write the table of what was compiled."""
    records: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        records.setdefault((row.target, row.name), []).append(row.record)
    lines = ["\t".join(Known._fields)]
    for (target, name), group in sorted(groups_of(jobs).items()):
        own = records[target, name]
        most = [
            max(int(record.get(column) or 0) for record in own)
            for column in ("registers", "spilled_bytes", "shared_bytes")
        ]
        lines.append("\t".join(map(str, Known(target, name, hash_of(group), len(own), *most))))
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _compile(arguments: argparse.Namespace) -> int:
    start = time.monotonic()
    folder = arguments.out if arguments.out is not None else packs()[-1].folder
    targets = arguments.target or TARGETS
    jobs = list(jobs_of(arguments.kernels, dict.fromkeys(targets), folder))
    left_out = 0
    if arguments.known is not None:
        known = read_known(arguments.known)
        groups = groups_of(jobs)
        changed = {place for place, group in groups.items() if known.get(place) != hash_of(group)}
        left_out = len(jobs)
        jobs = [job for place, group in groups.items() if place in changed for job in group]
        left_out -= len(jobs)
    if arguments.jobs > 1 and len(jobs) > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(arguments.jobs, len(jobs)), mp_context=context) as pool:
            rows = list(pool.map(compiled, jobs, chunksize=max(1, min(8, len(jobs) // 8))))
    else:
        rows = [compiled(job) for job in jobs]
    seconds = time.monotonic() - start
    bad = [row for row in rows if row.problems]
    if arguments.write_known is not None and not bad:
        write_known(arguments.write_known, jobs, rows)
    if arguments.json:
        print(json.dumps({"seconds": round(seconds, 1), "kernels": [_plain(row) for row in rows]}))
        return 1 if bad else 0
    _print_table([_plain(row) for row in rows])
    for row in bad:
        for problem in row.problems:
            print(f"{row.name} for {row.target}: {problem}")
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("compiled", "kept", "failed"))
    spilled = sum(1 for row in rows if row.record.get("spilled_bytes"))
    if left_out:
        counts += f", {left_out} known"
    print(f"{counts}; {spilled} with spilled registers; {seconds:.1f} s; {folder}")
    return 1 if bad else 0


def _plain(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "target": row.target,
        "state": row.state,
        "problems": row.problems,
        **{name: row.record.get(name) for name in COLUMNS if name in row.record},
    }


COLUMNS = ("registers", "spilled_bytes", "shared_bytes", "threads", "cluster", "triton", "bytes")


def _print_table(rows: list[dict[str, Any]]) -> None:
    columns = ("name", "target", "state", *COLUMNS[:4])
    texts = [columns] + [tuple(str(row.get(column, "")) for column in columns) for row in rows]
    widths = [max(len(text[i]) for text in texts) for i in range(len(columns))]
    for text in texts:
        print(
            "  ".join(part.ljust(width) for part, width in zip(text, widths, strict=True)).rstrip()
        )


def _list(arguments: argparse.Namespace) -> int:
    known = (Pack(arguments.out, False),) if arguments.out is not None else packs()
    rows = []
    for pack in known:
        for file, record in pack.records():
            state = "damaged" if record is None else "shipped" if not pack.writable else "kept"
            rows.append(
                {
                    "name": file.name if record is None else record["name"],
                    "target": file.parent.name,
                    "state": state,
                    "file": str(file),
                    **{n: record[n] for n in COLUMNS if record is not None and n in record},
                }
            )
    if arguments.json:
        print(json.dumps(rows))
    else:
        _print_table(rows)
    return 0
