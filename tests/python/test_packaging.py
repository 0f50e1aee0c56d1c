"""What the wheel carries, and what the build and the tests may rely on."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.resources
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def requirements(*names: str) -> list[str]:
    command = [sys.executable, ROOT / "tools" / "requirements.py", *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[
        :-1
    ]


def test_installed_files() -> None:
    package = importlib.resources.files("nbxtensor")
    for name in (
        "py.typed",
        "_core.pyi",
        "__init__.pyi",
        "kernels/__init__.py",
        "devices/_schema.yml",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("devices/*/*.yml")),
    ):
        assert (package / name).is_file(), name


def test_metadata_declares_what_a_user_needs() -> None:
    declared = importlib.metadata.requires("nbxtensor") or []
    names = {re.split(r"[^\w-]", line)[0] for line in declared if "extra ==" not in line}
    assert names == {"numpy", "pyyaml", "triton"}
    assert not [line for line in declared if line.startswith("torch")]


def test_make_installs_no_torch_and_triton_for_tests_only() -> None:
    lines = requirements("runtime", "build", "examples", "lint")
    assert any(line.startswith("numpy") for line in lines)
    assert not [line for line in lines if re.match(r"torch|triton", line)]
    assert not [line for line in requirements("test") if line.startswith("torch")]


def test_requirements_of_an_unknown_name_are_refused() -> None:
    command = [sys.executable, ROOT / "tools" / "requirements.py", "tset"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "'tset'" in done.stderr
    assert "lint" in done.stderr


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def test_torch_is_an_oracle_of_the_full_tests_and_a_peer_on_cards_only() -> None:
    tests = ROOT / "tests" / "python"
    users_of_torch = {tests / "full", tests / "gpu"}
    folders = (tests, ROOT / "python", ROOT / "kernels", ROOT / "examples", ROOT / "tools")
    files = [
        p
        for folder in folders
        for p in folder.rglob("*.py")
        if users_of_torch.isdisjoint(p.parents)
    ]
    assert len(files) > 20
    users = [str(p.relative_to(ROOT)) for p in files if "torch" in imports(p)]
    assert not users, f"move what needs torch to tests/python/full or gpu: {users}"
