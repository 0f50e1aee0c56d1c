"""Source archive -> wheel -> bare virtual environment -> a computation without torch or triton."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from requirements import read_pyproject, requirements

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WHEEL_LIMIT = 4 << 20  # bytes; a wheel above it carries something it should not

PROGRAM = """
import importlib.resources, importlib.util, sys
import numpy as np
import nbxtensor as nbx

a = np.arange(12, dtype=np.float32).reshape(3, 4)
x = nbx.asarray(a)
y = np.asarray(nbx.exp(x * 0.125) + nbx.sum(x, axis=1, keepdims=True))
want = np.exp(a * 0.125) + a.sum(axis=1, keepdims=True)
assert np.allclose(y, want, rtol=1e-6), (y, want)
for name in ("torch", "triton"):
    assert importlib.util.find_spec(name) is None, f"{name} is installed: not bare"
    assert name not in sys.modules
root = importlib.resources.files("nbxtensor")
assert (root / "devices" / "_schema.yml").is_file() and (root / "py.typed").is_file()
print("computed on", x.device, "with", nbx.__file__)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run one command outside the checkout's influence; a failure stops the test."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NBX_"))}
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def check_sdist(archive: Path) -> None:
    """Refuse an archive that lacks a folder the build or the tests need, or carries a build."""
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = (
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "csrc/CMakeLists.txt",
        "tests/cpp/CMakeLists.txt",
    )
    missing = [name for name in needed if name not in names]
    missing += [
        f"{folder}/"
        for folder in ("csrc/bindings", "kernels", "devices", "python/nbxtensor", "tests/python")
        if not any(name.startswith(f"{folder}/") for name in names)
    ]
    stray = [
        name for name in names if name.startswith(("build/", ".venv/")) or name.endswith(".so")
    ]
    if missing or stray:
        raise SystemExit(f"wheel-test: {archive.name}: missing {missing}, stray {stray[:5]}")


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel that is too large or lacks a part of the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        declared = archive.read(metadata).decode()
    for dependency in read_pyproject()["project"]["dependencies"]:
        if f"Requires-Dist: {dependency.split('>')[0]}" not in declared:
            raise SystemExit(f"wheel-test: {wheel.name} does not declare {dependency}")
    for part in ("_core.", "py.typed", "_core.pyi", "kernels/__init__.py", "devices/_schema.yml"):
        if not any(name.startswith(f"nbxtensor/{part}") for name in names):
            raise SystemExit(f"wheel-test: {wheel.name} lacks nbxtensor/{part}")
    if wheel.stat().st_size > WHEEL_LIMIT:
        raise SystemExit(
            f"wheel-test: {wheel.name} has {wheel.stat().st_size} bytes, limit {WHEEL_LIMIT}"
        )


def main() -> None:
    """Build both distributions and try the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
        run(*pip, "-w", DIST, sdist, cwd=scratch)
        (wheel,) = DIST.glob("*.whl")
        check_wheel(wheel)
        run(sys.executable, "-m", "venv", scratch / "bare")
        bare = scratch / "bare" / "bin" / "python"
        needs = requirements("runtime", read_pyproject())
        run(bare, "-m", "pip", "install", "-q", *needs, cwd=scratch)
        run(bare, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=scratch)
        run(bare, "-W", "error", "-c", PROGRAM, cwd=scratch)
        size = wheel.stat().st_size
    print(f"wheel-test: {wheel.name}, {size} bytes: passed")


if __name__ == "__main__":
    main()
