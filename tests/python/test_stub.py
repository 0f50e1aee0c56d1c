"""The committed stub of the compiled module says what the module says."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "python" / "nbxtensor" / "_core.pyi"


def test_stub_is_current(tmp_path: Path) -> None:
    output = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, ROOT / "tools" / "stub.py", "--output", output], check=True)
    committed = STUB.read_text("utf-8").splitlines()
    generated = output.read_text("utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(committed, generated, "committed", "module", n=1))
    assert not difference, f"run `make stub` and commit the result\n{difference}"
