"""Everything here needs a card, and runs by ``make test-gpu``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbxtensor as nbx
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> Iterator[nbx.Device]:
    """The first card, without memory that an earlier test left free."""
    found = nbx.devices("cuda") + nbx.devices("hip")
    assert found, f"no GPU can be used: {nbx.report_kinds()}"
    device = found[0]
    nbx.memory.trim(device)
    yield device
    device.synchronize()
