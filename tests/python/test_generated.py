"""Files that are generated and committed are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tool", ["generate_tables.py", "docs_tables.py", "allocator_tests.py"])
def test_generated_files_are_current(tool: str) -> None:
    command = [sys.executable, ROOT / "tools" / tool, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make docs-tables`\n{done.stdout}{done.stderr}"
