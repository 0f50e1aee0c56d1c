"""What a figure was measured on: printed with every result, so that figures stay comparable."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import nbxtensor as nbx

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("numpy", "triton", "torch", "cupy-cuda13x", "cupy-cuda12x")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(": ", 1)[1]
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit; NBX_COMMIT names it where a checkout came without its history."""
    named = os.environ.get("NBX_COMMIT")
    if named:
        return named
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe(device: str | None = None) -> dict[str, Any]:
    """Return the machine, the versions and the commit of a run."""
    machine: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version for name in PEERS if (version := _version(name))},
        "commit": _commit(),
    }
    if device is not None:
        info = nbx.device_info(device)
        machine["device"] = {
            key: info[key] for key in ("name", "architecture", "total_bytes", "page_granularity")
        }
    return machine
