"""Run the tests of kernels with every supported release of Triton, each in a folder of its own.

A release whose wheel the package index does not serve is left out, by name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
# Interpreting loops of run-time bounds wants a newer Triton, or an older NumPy.
TESTS = ("test_kernel_keys.py", "test_kernel_packs.py", "test_kernel_torch.py")


def installed(release: str, folder: Path) -> bool:
    """Install one release without what it depends on; False if there is no wheel of it."""
    if (folder / f"triton-{release}.dist-info").is_dir():
        return True
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:",
               "--target", str(folder), f"triton=={release}"]  # fmt: skip
    return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    """Return how many releases failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=list(RELEASES))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "triton")
    options = parser.parse_args()
    failed = []
    for release in options.releases:
        folder = options.folder / release
        if not installed(release, folder):
            print(f"triton {release}: no wheel for this machine; left out")
            continue
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        tests = [str(ROOT / "tests" / "python" / "runtime" / name) for name in TESTS]
        print(f"triton {release}:", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *tests],
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
            check=False,
        )
        if done.returncode != 0:
            failed.append(release)
    if failed:
        print(f"failed with triton {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
