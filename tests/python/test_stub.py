"""The committed stubs say what the module and the namespace say."""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
from pathlib import Path

import nbxtensor
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "nbxtensor"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fresh stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    subprocess.run([sys.executable, ROOT / "tools" / "stub.py", "--output", folder], check=True)
    return folder


@pytest.mark.parametrize("name", ["_core.pyi", "__init__.pyi"])
def test_stub_is_current(name: str, written: Path) -> None:
    committed = (PACKAGE / name).read_text("utf-8").splitlines()
    generated = (written / name).read_text("utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(committed, generated, "committed", "module", n=1))
    assert not difference, f"run `make stub` and commit the result\n{difference}"


def test_stub_has_every_public_name() -> None:
    found = set()
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname for alias in node.names if alias.asname}
        elif isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
    assert found == set(nbxtensor.__all__)


def test_stub_knows_what_methods_return() -> None:
    text = (PACKAGE / "_core.pyi").read_text("utf-8")
    assert "def record_event(self, timing: bool = False) -> Event:" in text
    assert " -> ...:" not in text
