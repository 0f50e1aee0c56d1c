"""Replays from the command line: naive counts, budgets to the byte, named faults."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GRANULE = 2 << 20  # of a page
UNIT = 256  # of a block


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nbxtensor", "trace", "replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def report_of(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def random_rows(rng: np.random.Generator, count: int) -> list[tuple[str, int, int, int]]:
    """Return rows (op, id, bytes, stream) with ids that come again, some left live."""
    live: dict[int, tuple[int, int]] = {}
    rows = []
    for _ in range(count):
        name = int(rng.integers(150))
        if name in live:
            rows.append(("-", name, *live.pop(name)))
        else:
            live[name] = (int(2 ** rng.uniform(0, 22)), int(rng.integers(3)))
            rows.append(("+", name, *live[name]))
    return rows


def write_rows(path: Path, rows: list[tuple[str, int, int, int]]) -> None:
    lines = ["# op\tid\tbytes\tstream", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def naive(rows: list[tuple[str, int, int, int]], budget: float) -> tuple[int, int, int]:
    """Return (peak, admitted, refused) of bytes counted row by row, in blocks of UNIT."""
    held: dict[int, int] = {}
    peak = admitted = refused = 0
    for op, name, size, _ in rows:
        if op == "-":
            held.pop(name, None)
        elif sum(-(-b // UNIT) * UNIT for b in held.values()) + -(-size // UNIT) * UNIT > budget:
            refused += 1
        else:
            held[name] = size
            admitted += 1
            peak = max(peak, sum(held.values()))
    return peak, admitted, refused


def test_figures_agree_with_a_naive_count(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = random_rows(rng, 3000)
    path = tmp_path / "run.tsv"
    write_rows(path, rows)
    peak, admitted, _ = naive(rows, math.inf)
    report = report_of(str(path), "--repeat", "2")
    assert report["memory"] == -(-2 * peak // GRANULE) * GRANULE
    assert report["streams"] == 3
    assert report["budget"] is None
    assert len(report["passes"]) == 2
    for one in report["passes"]:
        assert (one["peak_live"], one["allocations"], one["refused"]) == (peak, admitted, 0)
        assert one["peak_mapped"] >= one["peak_granted"] >= peak
        assert one["ratio"] == one["peak_mapped"] / peak
    for key in ("remaps", "driver_calls", "stolen_bytes", "waits", "created_bytes"):
        assert report[key] == report["passes"][-1][key]
    assert report["alloc_ns"]["p99"] >= report["alloc_ns"]["p50"] > 0


def test_a_budget_refuses_to_the_byte(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = random_rows(rng, 1500)
    path = tmp_path / "run.tsv"
    write_rows(path, rows)
    budget = naive(rows, math.inf)[0] * int(rng.integers(40, 95)) // 100
    peak, admitted, refused = naive(rows, budget)
    report = report_of(str(path), "--budget", str(budget), "--memory", "64 GiB")
    assert report["memory"] == 64 << 30
    assert report["budget"] == budget
    assert (report["peak_live"], report["allocations"], report["refused"]) == (
        peak,
        admitted,
        refused,
    )
    assert (refused > 0) == (report["first_refusal"] is not None)
    if refused:
        op, _, size, _ = rows[report["first_refusal"]["event"]]
        assert op == "+"
        assert report["first_refusal"]["requested"] == size
    shared = report_of(str(path), "--budget", "50%", "--memory", str(budget * 2), "--streams", "5")
    assert shared["streams"] == 5
    assert shared["budget"] == budget


def test_other_devices_and_options(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = random_rows(rng, 400)
    path = tmp_path / "run.tsv"
    write_rows(path, rows)
    peak = naive(rows, math.inf)[0]
    host = report_of(str(path), "--device", "cpu")
    assert host["device"] == "cpu"
    assert host["peak_live"] == peak
    segments = report_of(str(path), "--segments", "--memory", "1 GiB", "--slack", "0.1")
    assert segments["peak_live"] == peak
    assert segments["remaps"] == 0
    second = report_of(str(path), "--device", "sim:1", "--streams", "2", "--seed", "1")
    assert second["device"] == "sim:1"
    assert second["peak_live"] == peak


def test_the_text_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("id,lower,upper,size\n0,0,2,1048576\n1,1,3,1048576\n2,2,4,4194304\n")
    done = run(str(path), "--budget", "3 MiB", "--memory", "1 GiB", "--repeat", "2")
    assert done.returncode == 0, done.stderr
    assert "sim:0: 1 GiB, budget 3 MiB, 1 stream" in done.stdout
    assert "peak live 2 MiB, mapped 2 MiB (1.0000x)" in done.stdout
    assert "2 allocations, 1 refused" in done.stdout
    assert "first refused: event 3, pass 1, 4 MiB: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:0"], "cuda"),
        (["--device", "sim:77"], "there is no device 77"),
        (["--device", "sim:99999999999"], "sim:99999999999"),
        (["--device", "toaster"], "toaster"),
        (["--device", "cpu", "--memory", "1 GiB"], "--memory: cpu has the memory that it has"),
        (["--memory", "80%"], "--memory: '80%' is a share of nothing"),
        (["--memory", "1 parsec"], "parsec"),
        (["--repeat", "0"], "--repeat: got 0; give 1 to"),
        (["--streams", "-1"], "--streams: got -1; give 0 to"),
        (["--slack", "-0.5"], "slack"),
        (["--work", "nan"], "--work"),
        (["--seed", "-1"], "--seed"),
        (["--paced"], "--paced: needs a trace with times"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = tmp_path / "run.tsv"
    write_rows(path, [("+", 1, 100, 0), ("-", 1, 100, 0)])
    done = run(str(path), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.tsv"
    write_rows(path, [("+", 1, 100, 0), ("-", 2, 100, 0)])
    done = run(str(path))
    assert done.returncode == 2
    assert f"{path}, line 3" in done.stderr
