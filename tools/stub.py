"""Write python/nbxtensor/_core.pyi from the compiled module; `--output FILE` writes elsewhere."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "python" / "nbxtensor" / "_core.pyi"


def generate() -> str:
    """Return the stub's text: pybind11-stubgen's output."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "pybind11_stubgen", "nbxtensor._core", "-o", folder, "--exit-code"]
        command += [
            "--enum-class-locations",
            ".*:nbxtensor._core",
            "--print-invalid-expressions-as-is",
        ]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        return (Path(folder) / "nbxtensor" / "_core.pyi").read_text("utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=STUB)
    parser.parse_args().output.write_text(generate(), "utf-8")
