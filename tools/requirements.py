"""Print requirements from pyproject.toml, one a line: `requirements.py runtime build test`.

`runtime` is the project's own list without triton (a gigabyte that only a GPU needs); any other
name is an extra or a dependency group.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def read_pyproject() -> dict[str, Any]:
    """Parse pyproject.toml, on Python 3.10 with the parser that pip carries."""
    name = "tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli"
    parsed: dict[str, Any] = importlib.import_module(name).loads(PYPROJECT.read_text("utf-8"))
    return parsed


def requirements(name: str, pyproject: dict[str, Any]) -> list[str]:
    """Return the requirement lines that one name stands for."""
    if name == "runtime":
        return [r for r in pyproject["project"]["dependencies"] if not r.startswith("triton")]
    known = {**pyproject["project"]["optional-dependencies"], **pyproject["dependency-groups"]}
    if name not in known:
        raise SystemExit(
            f"requirements.py: unknown name {name!r}, known: runtime, {', '.join(known)}"
        )
    return list(known[name])


if __name__ == "__main__":
    table = read_pyproject()
    print("\n".join(line for name in sys.argv[1:] for line in requirements(name, table)))
