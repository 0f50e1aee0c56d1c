"""The example's modules and the oracle, importable by name."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
for folder in (TESTS.parents[1] / "examples", TESTS / "oracles"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

import smollm2  # noqa: E402


@pytest.fixture(autouse=True)
def collected() -> None:
    """Start without what earlier tests left to the collector: accounts are compared."""
    gc.collect()


@pytest.fixture(scope="session")
def model_path() -> Path:
    return smollm2.model_path()
