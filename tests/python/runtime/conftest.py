"""A package of kernels that tests may change, apart from what other tests have loaded."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_numbers = itertools.count()

HELPERS = """
import triton.language as tl
from nbxtensor import kernel

@kernel
def twice(x):
    return x * 2.0
"""

FAMILY = '''
"""Kernels of a test."""
import triton.language as tl
from nbxtensor import kernel
from nbxtensor.runtime.kernels import Kernel

from .helpers import twice
from . import helpers

SHIFT = tl.constexpr(3.0)

@kernel
def add(x_ptr, y_ptr, o_ptr, n, alpha, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(o_ptr + offs, twice(x) + y * alpha, mask=mask)

@kernel(reads=["x_ptr"])
def total(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    tl.store(o_ptr, helpers.twice(tl.sum(acc)) + SHIFT)

@kernel
def spread(pointers, values, o_ptr, optional, flag, wide: tl.int64, real: tl.float64):
    first, second = pointers
    a, b = values
    x = tl.load(first).to(tl.float64) + tl.load(second).to(tl.float64)
    x = x + a + b + wide + real
    if optional is not None:
        x += tl.load(optional).to(tl.float64)
    if flag:
        x = -x
    tl.store(o_ptr, x)

@kernel
def typed(x_ptr, o_ptr, n, TYPE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=offs < n).to(TYPE), mask=offs < n)

@kernel
def wrong(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), undefined_name)
'''


class Package:
    """The folder, and the name under which it is imported."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def family(self, name: str = "family") -> ModuleType:
        return importlib.import_module(f"{self.name}.{name}")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    name = f"nbx_test_kernels_{next(_numbers)}"
    folder = tmp_path / "packages" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "family.py").write_text(FAMILY)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("NBX_KERNEL_CACHE", str(tmp_path / "pack"))
    yield Package(folder, name)
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]
