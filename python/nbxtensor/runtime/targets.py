"""What kernels are compiled for, and by which Triton: known without importing it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from nbxtensor.errors import UnsupportedError

__all__ = ["Compiled", "Target", "environment", "target_of", "triton_version"]

# Variables of Triton's that change what it compiles.
SETTINGS = (
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "LLVM_EXTRACT_DI_LOCAL_VARIABLES",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_DISABLE_LINE_INFO",
    "TRITON_F32_DEFAULT",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
    "PTXAS_OPTIONS",
)


class Target(NamedTuple):
    """What to compile for."""

    backend: str  # "cuda" or "hip"
    architecture: str  # "sm_90", "gfx942"
    lanes: int

    @property
    def text(self) -> str:
        """The name in packs and tables."""
        return f"{self.architecture}x{self.lanes}" if self.backend == "hip" else self.architecture


class Compiled(NamedTuple):
    """A binary, and what a launch of it needs to know."""

    image: bytes
    record: dict[str, Any]  # of types that JSON has


def target_of(architecture: str, lanes: int) -> Target:
    """Return the target of an architecture; what no supported Triton compiles for is refused."""
    if architecture.startswith("sm_"):
        # A letter behind the number names features that Triton turns on by itself.
        number = architecture[3:-1] if architecture[-1:] in ("a", "f") else architecture[3:]
        if not number.isdecimal() or int(number) < 70:
            raise UnsupportedError(
                f"kernels: Triton compiles for sm_70 and newer, not for {architecture}; "
                "use the cpu there"
            )
        return Target("cuda", f"sm_{number}", 32)
    if architecture.startswith("gfx"):
        return Target("hip", architecture, lanes)
    raise UnsupportedError(
        f"kernels: there is no compiler for {architecture!r}; kernels in Triton's language are "
        "compiled for sm_... and gfx... architectures"
    )


def triton_version() -> str | None:
    """Return the version of the installed Triton without importing it; None if there is none."""
    loaded = sys.modules.get("triton")
    if loaded is not None:
        return str(loaded.__version__)
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    with Path(spec.origin).open(encoding="utf-8") as file:
        text = file.read(4096)
    value = text.partition("__version__")[2].partition("=")[2].partition("\n")[0].strip()
    return value.strip("'\"") or None


def environment() -> list[str]:
    """Return the settings of Triton's that are part of a compiled kernel's identity."""
    return [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
