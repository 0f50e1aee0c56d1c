"""Packs of compiled kernels: found, damaged, stale, written by many processes at once."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nbxtensor import errors
from nbxtensor.runtime import compiler, loading, sources, targets
from nbxtensor.runtime.pack import SUFFIX, Pack, key_of, packs, text_of

from .conftest import Package

TYPES = {"x_ptr": "*fp32", "y_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32", "alpha": "fp32"}
TARGET = targets.target_of("sm_90", 32)


def request(package: Package, block: Any = 64, **options: Any) -> loading.Request:
    sources.hash_of.cache_clear()
    sources.file_of.cache_clear()
    name = f"{package.name}.family:add"
    return loading.request_of(name, TYPES, {"BLOCK": block}, frozenset({"x_ptr"}), options)


def files() -> list[Path]:
    return sorted(packs()[-1].folder.glob(f"*/*{SUFFIX}"))


def key(package: Package) -> str:
    return request(package).key(TARGET, "3.9.0")


def test_a_kernel_is_compiled_once(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loading.found(request(package), TARGET)
    assert made.image[:4] == b"\x7fELF"
    assert made.record["slots"] == ["raw8", "raw8", "raw8", "raw4", "float32", "skip"]
    assert made.record["parameters"] == [*TYPES, "BLOCK"]
    assert made.record["threads"] == 128
    assert made.record["hidden_words"] == 2
    assert 0 < made.record["registers"] <= 255
    assert len(files()) == 1
    monkeypatch.setattr(compiler, "compile_kernel", lambda *_, **__: pytest.fail("compiled again"))
    assert loading.found(request(package), TARGET).image == made.image
    # What is found needs neither the function nor Triton.
    assert list(packs()[-1].folder.glob("**/.*")) == [], "nothing temporary is left"


def test_what_a_kernel_depends_on_is_in_its_key(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = key(package)
    assert key(package) == first
    others = {
        request(package, 128).key(TARGET, "3.9.0"),
        request(package, 64.0).key(TARGET, "3.9.0"),
        request(package, num_warps=8).key(TARGET, "3.9.0"),
        request(package).key(targets.target_of("sm_80", 32), "3.9.0"),
        request(package).key(TARGET, "3.8.0"),
    }
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    others.add(key(package))
    monkeypatch.delenv("TRITON_F32_DEFAULT")
    assert len(others | {first}) == 7
    assert len({text_of(value) for value in (1, True, 1.0, "1", (1,), (1, 1), (True,))}) == 7
    assert key_of({"a": 1}) != key_of({"a": "1"})


def test_changed_sources_change_the_key(package: Package) -> None:
    first = key(package)
    (package.folder / "unrelated.py").write_text("x = 1\n")
    assert key(package) == first
    helpers = package.folder / "helpers.py"
    helpers.write_text(helpers.read_text().replace("2.0", "3.0"))
    second = key(package)
    assert second != first
    # Also what a helper imports in turn, in every form.
    for number, line in enumerate(
        (
            "from .deeper import value\n",
            "from . import deeper\n",
            "from . import (\n    deeper,\n)\n",
            f"from {package.name}.deeper import value\n",
            f"import {package.name}.deeper\n",
        )
    ):
        (package.folder / "deeper.py").write_text(f"value = {number}\n")
        helpers.write_text(line)
        before = key(package)
        (package.folder / "deeper.py").write_text(f"value = {number + 100}\n")
        assert key(package) != before, line


def test_stale_sources_are_compiled_anew(package: Package) -> None:
    first = loading.found(request(package), TARGET)
    helpers = package.folder / "helpers.py"
    helpers.write_text(helpers.read_text().replace("2.0", "0.125"))
    for module in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[module]
    second = loading.found(request(package), TARGET)
    assert second.image != first.image
    assert len(files()) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign"])
def test_damaged_files_are_rebuilt_with_one_warning(
    package: Package, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = loading.found(request(package), TARGET)
    (file,) = files()
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[-7] ^= 1
    elif damage == "emptied":
        data.clear()
    else:
        other = request(package, 32)
        loading.found(other, TARGET)
        (theirs,) = [path for path in files() if path != file]
        data = bytearray(theirs.read_bytes())
        theirs.unlink()
    file.write_bytes(data)
    caplog.clear()
    for _ in range(2):
        assert loading.found(request(package), TARGET).image == made.image
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{file} is damaged or of something else" in caplog.text


def test_a_pack_that_cannot_be_written_only_warns(
    package: Package, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (package.folder / "file").touch()
    monkeypatch.setenv("NBX_KERNEL_CACHE", str(package.folder / "file" / "pack"))
    assert loading.found(request(package), TARGET).image
    assert "NBX_KERNEL_CACHE" in caplog.text


def test_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NBX_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packs()[-1].folder == tmp_path / "nbxtensor" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert packs()[-1].folder == tmp_path / "home" / ".cache" / "nbxtensor" / "kernels"
    monkeypatch.setenv("NBX_KERNEL_CACHE", str(tmp_path / "own"))
    assert packs()[-1].folder == tmp_path / "own"


def test_read_only_packs_come_first(
    package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = loading.found(request(package), TARGET)
    shipped, own = Pack(packs()[-1].folder, False), Pack(tmp_path / "own", True)
    monkeypatch.setattr(loading, "packs", lambda: (shipped, own))
    monkeypatch.setattr(compiler, "compile_kernel", lambda *_, **__: pytest.fail("compiled again"))
    assert loading.found(request(package), TARGET).image == made.image
    # A deployment without Triton takes what any version compiled.
    monkeypatch.setattr(targets, "triton_version", lambda: None)
    assert loading.found(request(package), TARGET).image == made.image


WORKER = """
import sys
from nbxtensor.runtime import loading, targets
name, blocks = sys.argv[1], [64, 128, 256]
types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32", "alpha": "fp32"}
for block in blocks:
    request = loading.request_of(name, types, {"BLOCK": block}, frozenset(), {})
    made = loading.found(request, targets.target_of("sm_90", 32))
    print(block, len(made.image), "triton" in sys.modules, name.partition(":")[0] in sys.modules)
"""


def run_worker(package: Package) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(package.folder.parent), os.environ.get("PYTHONPATH", "")]
        ),
    }
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, f"{package.name}.family:add"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_a_pack_and_warm_ones_import_no_compiler(package: Package) -> None:
    cold = [run_worker(package) for _ in range(4)]
    answers = [process.communicate() for process in cold]
    assert [process.returncode for process in cold] == [0] * 4, answers
    sizes = {tuple(line.split()[:2]) for out, _ in answers for line in out.splitlines()}
    assert len(sizes) == 3, "every process got the same three kernels"
    assert all(error == "" for _, error in answers)
    assert len(files()) == 3
    assert list(packs()[-1].folder.glob("**/.*")) == []
    warm = run_worker(package)
    out, error = warm.communicate()
    assert warm.returncode == 0, error
    assert [line.split()[2:] for line in out.splitlines()] == [["False", "False"]] * 3


WARM = """
import sys
import nbxtensor as nbx
before = set(sys.modules)
from declared import scale
from nbxtensor.runtime import loading, sources, targets
request = loading.Request(
    "scale", lambda: scale.function, lambda: sources.hash_of_function(scale.function),
    types={"x": "*fp32", "n": "i32"}, constants={}, hints={},
)
assert len(request.key(targets.target_of("sm_90", 32), str(targets.triton_version()))) == 64
name = sys.argv[1]
loading.found(loading.request_of(name, {types}, {"BLOCK": 64}, frozenset({"x_ptr"}), {}),
              targets.target_of("sm_90", 32))
print(*sorted(set(sys.modules) - before))
"""
# What a process imports that finds its kernels in a pack.
WARM_MODULES = {
    "declared",
    "importlib._abc",
    "importlib.util",
    *(
        f"nbxtensor.runtime.{part}"
        for part in ("calls", "loading", "pack", "signature", "sources", "targets")
    ),
}


def test_a_warm_launch_imports_little(package: Package) -> None:
    loading.found(request(package), TARGET)
    (package.folder.parent / "declared.py").write_text(
        "from nbxtensor import kernel\n\n@kernel\ndef scale(x, n):\n    pass\n"
    )
    path = os.pathsep.join([str(package.folder.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", WARM.replace("{types}", repr(TYPES)), f"{package.name}.family:add"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The package that holds the kernel's file is found by importing it, not the file.
    assert set(done.stdout.split()) <= WARM_MODULES | {package.name}


def test_a_functions_text_is_what_inspect_says(tmp_path: Path) -> None:
    text = '''
def plain(a):
    x = """
at the margin"""
    return (a,
x)


# of the next
@staticmethod
def decorated(
    a, b=(1,
2),
):

    # inside
    return a  # last


def outer():
    def inner(a):
        if a:
            pass
        # at its end

        return a

    return inner


def short(): return 1
end = 2
'''
    file = tmp_path / "texts_of_functions.py"
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    functions = [names["plain"], names["decorated"].__func__, names["outer"], names["outer"]()]
    for function in [*functions, names["short"]]:
        lines, number = inspect.getsourcelines(function)
        assert sources.text_of_function(function) == ("".join(lines), number)


def test_names_that_lead_nowhere(package: Package) -> None:
    def refused(match: str, name: str, **keywords: Any) -> None:
        arguments: dict[str, Any] = {"types": TYPES, "constants": {"BLOCK": 64}, **keywords}
        with pytest.raises(errors.InvalidValueError, match=match):
            loading.found(
                loading.request_of(
                    name,
                    arguments["types"],
                    arguments["constants"],
                    arguments.get("divisible", frozenset()),
                    {},
                ),
                TARGET,
            )

    family = f"{package.name}.family"
    refused("names no kernel; expected 'family:function'", "add")
    refused("no kernel family 'nothing'; known are", "nothing:add")
    refused("no kernel 'nothing'", f"{family}:nothing")
    refused("no kernel 'SHIFT'", f"{family}:SHIFT")
    fewer = {name: text for name, text in TYPES.items() if name != "n"}
    refused("parameter 'n' has neither", f"{family}:add", types=fewer)
    refused("no parameter 'm'", f"{family}:add", constants={"BLOCK": 64, "m": 1})
    refused("unknown type 'f33'", f"{family}:add", types={**TYPES, "alpha": "f33"})
    refused("divisible names 'q'", f"{family}:add", divisible=frozenset({"q"}))
    refused("does not compile for sm_90", f"{family}:wrong", types={"x_ptr": "*fp32"},
            constants={"BLOCK": 4})  # fmt: skip


def test_records_are_listed(package: Package) -> None:
    loading.found(request(package), TARGET)
    ((file, record),) = packs()[-1].records()
    assert record is not None
    assert record["name"] == f"{package.name}.family:add"
    assert file.parent.name == "sm_90"
    json.dumps(record)


def test_targets() -> None:
    assert targets.target_of("sm_90", 32).text == "sm_90"
    assert targets.target_of("sm_90a", 32).text == "sm_90"
    assert targets.target_of("gfx942", 64).text == "gfx942x64"
    for name in ("sm_61", "apple9"):
        with pytest.raises(errors.UnsupportedError, match=name):
            targets.target_of(name, 32)
