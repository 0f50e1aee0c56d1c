"""Importing the package imports neither a compiler nor another framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

POISON = "raise AssertionError('import nbxtensor must not import ' + __name__)\n"
HEAVY = ("torch", "triton", "yaml", "ml_dtypes", "tqdm", "gguf", "safetensors", "tokenizers")


def run_python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NBX_")}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, cwd=path, capture_output=True, text=True)


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A folder, first on the path, in which every heavy module raises on import."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(POISON)
    return tmp_path


@pytest.mark.parametrize("name", HEAVY)
def test_the_poison_works(name: str, poisoned: Path) -> None:
    done = run_python(f"import {name}", poisoned)
    assert done.returncode == 1
    assert f"must not import {name}" in done.stderr


def test_import_touches_no_heavy_module(poisoned: Path) -> None:
    done = run_python(
        "import nbxtensor, sys\n"
        f"assert not [m for m in {HEAVY!r} if m in sys.modules]\n"
        "print(nbxtensor.__name__)",
        poisoned,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nbxtensor\n"
    assert done.stderr == ""


def test_import_opens_no_device_and_prints_nothing(tmp_path: Path) -> None:
    code = (
        "import threading, nbxtensor\n"
        "assert threading.active_count() == 1\n"
        "from pathlib import Path\n"
        "maps = Path('/proc/self/maps')\n"
        "loaded = maps.read_text() if maps.exists() else ''\n"
        "assert 'libcuda' not in loaded and 'libamdhip64' not in loaded"
    )
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_kernels_refuse_to_be_a_top_level_package(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "kernels" / "__init__.py"
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text(source.read_text("utf-8"))
    done = run_python("import kernels", tmp_path)
    assert done.returncode == 1
    assert "import nbxtensor.kernels, not 'kernels'" in done.stderr
    done = run_python("import nbxtensor.kernels", tmp_path)
    assert done.returncode == 0, done.stderr
