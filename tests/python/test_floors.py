"""A floor uses only those below it, in C++ and in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "python" / "nbxtensor"

CXX_FLOORS = [
    "core",
    "device",
    "account",
    "stream",
    "pages",
    "heap",
    "arena",
    "storage",
    "tables",
    "launch",
    "io",
    "cpu",
    "bindings",
]
PYTHON_FLOORS = [
    {"_core", "_environment_table", "errors", "env"},
    {"dtype", "facts"},
    {"runtime"},
    {"inspection"},
    {"tensor"},
    {"ops"},
    {"moe", "quant", "random", "io", "memory", "distributed", "testing", "fft", "linalg"},
    {"nbxtensor"},
    {"__main__", "cli"},
]
RANKS = {name: rank for rank, names in enumerate(PYTHON_FLOORS) for name in names}


def cxx_files() -> list[Path]:
    return sorted(p for p in CSRC.rglob("*") if p.suffix in {".h", ".cpp", ".mm"})


def floor_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def bad_includes(path: Path, floor: str, text: str) -> list[str]:
    """Includes of one file that look upwards, at an unknown floor, or past the csrc/ root."""
    bad = []
    for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
        other = target.split("/")[0]
        if "/" not in target or other not in CXX_FLOORS:
            bad.append(f'{path}: "{target}" is not written as "floor/file.h"')
        elif CXX_FLOORS.index(other) > CXX_FLOORS.index(floor):
            bad.append(f"{path}: {floor} is below {other}")
    if floor != "bindings" and re.search(r"#\s*include\s+<(Python\.h|pybind11/)", text):
        bad.append(f"{path}: only bindings/ knows Python")
    return bad


def test_includes_look_down() -> None:
    files = cxx_files()
    assert len(files) > 10
    assert {floor_of(p) for p in files} <= set(CXX_FLOORS)
    bad = [line for p in files for line in bad_includes(p, floor_of(p), p.read_text("utf-8"))]
    assert not bad, "\n".join(bad)


def test_readme_lists_the_floors_in_order() -> None:
    listed = re.findall(r"^\| `(\w+)/` \|", (CSRC / "README.md").read_text("utf-8"), re.MULTILINE)
    assert listed == CXX_FLOORS


def module_name(path: Path) -> str:
    """Dotted name below nbxtensor: "tensor.index"; the package itself is ""."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> list[str]:
    return list(path.relative_to(PACKAGE).parts[:-1])


def exists(parts: list[str]) -> bool:
    base = PACKAGE.joinpath(*parts)
    return bool(parts) and (
        base.is_dir() or base.with_suffix(".py").is_file() or base.with_suffix(".pyi").is_file()
    )


def imported(path: Path, node: ast.stmt) -> Iterator[list[str]]:
    """Yield the parts below nbxtensor of every package module that one statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "nbxtensor":
                yield alias.name.split(".")[1:]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            base = package_of(path)
            base = base[: len(base) - node.level + 1]
        elif (node.module or "").split(".")[0] == "nbxtensor":
            base = []
        else:
            return
        tail = (node.module or "").split(".") if node.module else []
        base = base + (tail if node.level else tail[1:])
        for alias in node.names:
            inner = [*base, alias.name]
            yield inner if exists(inner) or (not base and alias.name in RANKS) else base


def bad_imports(path: Path, text: str) -> list[str]:
    """Imports of one file that look upwards, or hide inside a function."""
    name = module_name(path)
    floor = name.split(".")[0] or "nbxtensor"
    tree = ast.parse(text)
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    bad = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for parts in imported(path, node):
            other = parts[0] if parts else "nbxtensor"
            where = f"{path}:{node.lineno}"
            if other in {"kernels", "devices"}:
                if RANKS[floor] < RANKS["ops"]:
                    bad.append(f"{where}: {floor} imports {other}")
            elif other not in RANKS:
                bad.append(f"{where}: {other} has no floor")
            elif RANKS[other] > RANKS[floor]:
                bad.append(f"{where}: {floor} is below {other}")
            elif id(node) in inner and RANKS[floor] < RANKS["__main__"]:
                bad.append(f"{where}: import of nbxtensor.{'.'.join(parts)} inside a function")
    return bad


def test_python_imports_look_down() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    floors = {module_name(p).split(".")[0] or "nbxtensor" for p in files}
    assert floors <= set(RANKS), f"no floor for {floors - set(RANKS)}"
    bad = [line for p in files for line in bad_imports(p, p.read_text("utf-8"))]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("file", "text", "count"),
    [
        ("tensor/index.py", "from nbxtensor.ops import table", 1),
        ("tensor/index.py", "from ..ops.table import Row", 1),
        ("tensor/index.py", "from .. import ops", 1),
        ("tensor/index.py", "import nbxtensor", 1),
        ("tensor/index.py", "from nbxtensor import runtime, ops", 1),
        ("tensor/index.py", "from nbxtensor.runtime import x\nfrom . import view", 0),
        ("tensor/index.py", "def f():\n    from nbxtensor import errors", 1),
        ("ops/table.py", "from nbxtensor.tensor import Tensor\nimport numpy", 0),
        ("__main__.py", "def f():\n    from nbxtensor import ops", 0),
    ],
)
def test_the_import_check_itself(file: str, text: str, count: int) -> None:
    assert len(bad_imports(PACKAGE / file, text)) == count


@pytest.mark.parametrize(
    ("floor", "text", "count"),
    [
        ("heap", '#include "storage/storage.h"', 1),
        ("heap", '#include "heap.h"', 1),
        ("heap", '#include "../core/error.h"', 1),
        ("heap", "#include <Python.h>", 1),
        ("storage", '#include "heap/heap.h"\n#include <vector>', 0),
    ],
)
def test_the_include_check_itself(floor: str, text: str, count: int) -> None:
    assert len(bad_includes(CSRC / floor / "x.h", floor, text)) == count


@pytest.mark.parametrize(
    ("folder", "files"), [("csrc", CSRC), ("tests/cpp", ROOT / "tests" / "cpp")]
)
def test_every_source_is_listed(folder: str, files: Path) -> None:
    text = (ROOT / folder / "CMakeLists.txt").read_text()
    listed = sorted(re.findall(r"^\s+([\w/]+\.cpp)\)?$", text, re.MULTILINE))
    assert listed == sorted(p.relative_to(files).as_posix() for p in files.rglob("*.cpp"))
