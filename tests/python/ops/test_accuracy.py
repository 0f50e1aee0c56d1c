"""Functions of float32 stay within a few units in the last place, on the cpu and interpreted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from nbxtensor import _core
from nbxtensor.testing import accuracy

NAMES = (*accuracy.UNARY, *accuracy.BINARY)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A simulated device that interprets Triton's kernels."""
    monkeypatch.setenv("NBX_SIM_KERNELS", "triton")
    _core.forget_plans()
    yield "sim"
    _core.forget_plans()


@pytest.mark.parametrize("name", NAMES)
def test_on_the_cpu(name: str, rng: np.random.Generator) -> None:
    accuracy.check(name, "cpu", rng)


@pytest.mark.parametrize("name", NAMES)
def test_as_kernels(name: str, interpreted: str, rng: np.random.Generator) -> None:
    accuracy.check(name, interpreted, rng)
