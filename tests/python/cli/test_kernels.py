"""``kernels compile`` builds what is missing, without a GPU, and holds it against device files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbxtensor import __main__, facts
from nbxtensor.cli import kernels
from nbxtensor.runtime import sources

FAMILY = """
import triton.language as tl
from nbxtensor import kernel

@kernel
def copy(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)

@kernel
def broken(x_ptr):
    tl.store(x_ptr, undefined)
"""

WANTED = """
def specializations(target):
    types = {"x_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32"}
    for block in BLOCKS:
        yield "NAME.family:copy", types, {"BLOCK": block}, frozenset({"x_ptr"}), {"num_warps": 4}
    if BROKEN:
        yield "NAME.family:broken", {"x_ptr": "*fp32"}, {}, frozenset(), {}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "nbx_cli_kernels"
    folder = tmp_path / "packages" / name
    folder.mkdir(parents=True)
    (folder / "family.py").write_text(FAMILY)
    write_wanted(folder, name, (256,), False)
    monkeypatch.syspath_prepend(str(folder.parent))
    sources.hash_of.cache_clear()
    sources.file_of.cache_clear()
    yield name
    forget(name)


def forget(name: str) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def write_wanted(folder: Path, name: str, blocks: tuple[int, ...], broken: bool) -> None:
    text = f"BLOCKS = {blocks}\nBROKEN = {broken}\n" + WANTED.replace("NAME", name)
    (folder / "__init__.py").write_text(text)


def compiled(
    capsys: pytest.CaptureFixture[str], package: str, out: Path, *more: str
) -> tuple[int, list[dict[str, Any]]]:
    arguments = ["kernels", "compile", "--kernels", package, "--out", str(out), "--json", *more]
    status = __main__.main(arguments)
    return status, json.loads(capsys.readouterr().out)["kernels"]


def test_only_what_is_missing_is_compiled(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pack"
    status, rows = compiled(capsys, package, out, "--jobs", "1")
    assert status == 0
    assert [row["target"] for row in rows] == ["sm_80", "sm_90", "sm_100", "gfx90ax64", "gfx942x64"]
    assert {row["state"] for row in rows} == {"compiled"}
    for row in rows:
        assert row["problems"] == []
        assert row["spilled_bytes"] == 0
        assert 0 <= row["shared_bytes"] <= 4096
        assert 0 < row["registers"] < 256
        assert row["threads"] == (128 if row["target"].startswith("sm") else 256)
    forget(package)
    write_wanted(tmp_path / "packages" / package, package, (256, 512), False)
    status, rows = compiled(capsys, package, out, "--target", "sm_90", "--target", "gfx942")
    assert status == 0
    assert [row["state"] for row in rows] == ["kept", "compiled"] * 2
    assert __main__.main(["kernels", "list", "--out", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 7
    assert __main__.main(["kernels", "list", "--out", str(out)]) == 0
    assert capsys.readouterr().out.count("family:copy") == 7


def test_what_a_table_knows_is_left_out_until_it_changes(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.tsv"
    targets = ("--target", "sm_90", "--target", "gfx942", "--jobs", "1")
    status, rows = compiled(capsys, package, tmp_path / "a", *targets, "--write-known", str(table))
    assert status == 0
    header, *lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert header[:4] == ["target", "name", "hash", "specializations"]
    assert [line[0] for line in lines] == ["gfx942x64", "sm_90"]
    assert {int(line[4]) for line in lines} == {row["registers"] for row in rows}
    status, rows = compiled(capsys, package, tmp_path / "b", *targets, "--known", str(table))
    assert (status, rows) == (0, [])
    forget(package)
    write_wanted(tmp_path / "packages" / package, package, (256, 512), False)
    status, rows = compiled(capsys, package, tmp_path / "b", *targets, "--known", str(table))
    assert (status, len(rows)) == (0, 4)
    table.write_text("no table\n1\t2\n")
    with pytest.raises(
        ValueError, match="is no table of --write-known; expected the columns target"
    ):
        kernels.read_known(table)


def test_what_does_not_compile_fails_by_name(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wanted(tmp_path / "packages" / package, package, (256,), True)
    arguments = ["--kernels", package, "--out", str(tmp_path), "--target", "sm_80", "--jobs", "1"]
    assert __main__.main(["kernels", "compile", *arguments]) == 1
    text = capsys.readouterr().out
    assert "broken(x_ptr: *fp32) does not compile for sm_80" in text
    assert "1 compiled, 0 kept, 1 failed; 0 with spilled registers" in text


def test_limits_are_those_of_the_device_files() -> None:
    target = kernels.target_named("sm_90")
    job = kernels.Job("f:k", {}, {}, frozenset(), {}, target, Path())
    known = facts.load("cuda", "sm_90")
    shared = known.shared_bytes_per_block
    assert shared is not None
    fits = {"threads": 1024, "registers": 64, "shared_bytes": shared, "cluster": 8}
    assert kernels.problems_of(job, fits) == []
    for name, value, words in (
        ("threads", 1056, "1056 threads, sm_90 has 1024"),
        ("registers", 65, "66560 registers of a block, sm_90 has 65536"),
        ("shared_bytes", shared + 1, f"{shared + 1} bytes of shared memory, sm_90 has {shared}"),
        ("cluster", 16, "16 blocks of a cluster, sm_90 has 8"),
    ):
        assert words in kernels.problems_of(job, {**fits, name: value})
    job = job._replace(target=kernels.target_named("gfx942"))
    assert kernels.problems_of(job, {**fits, "shared_bytes": 65537, "cluster": 1})


def test_unknown_targets_are_refused(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in ("sm_61", "apple9", "x"):
        arguments = ["kernels", "compile", "--kernels", package, "--out", str(tmp_path)]
        assert __main__.main([*arguments, "--target", target]) == 2
        assert target in capsys.readouterr().err
