"""Options and fixtures that every test file may use."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import hypothesis
import numpy as np
import pytest

FULL = Path(__file__).parent / "full"

# A deadline would make the outcome depend on the machine's load.
# In CI hypothesis would repeat the same inputs in every run.
hypothesis.settings.register_profile("nbxtensor", deadline=None, print_blob=True, derandomize=False)
hypothesis.settings.load_profile("nbxtensor")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="also collect tests/python/full (long, or torch as oracle)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/python/full to `make test-full`: it may import what `make test` lacks."""
    return True if collection_path == FULL and not config.getoption("--full") else None


@pytest.fixture
def seed() -> int:
    """A fresh seed, printed when the test fails; TEST_SEED repeats a run."""
    value = int(os.environ.get("TEST_SEED") or secrets.randbits(32))
    print(f"TEST_SEED={value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A NumPy generator over a fresh, printed seed."""
    return np.random.default_rng(seed)
