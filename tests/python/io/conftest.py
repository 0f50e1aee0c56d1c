"""Tests of the account start without what earlier tests left to the collector."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def collected() -> None:
    gc.collect()
