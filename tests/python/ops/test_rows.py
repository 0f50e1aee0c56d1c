"""The tests that every row brings along, and the checks of the table itself."""

from __future__ import annotations

import secrets

import pytest
from nbxtensor import _core
from nbxtensor.ops import TABLE
from nbxtensor.testing import Case, cases_of, check_case

DEVICES = ("cpu", "sim")
FAMILIES = sorted({row.family for row in TABLE.values()})
CASES = [case for family in FAMILIES for case in cases_of(family, DEVICES)]


@pytest.fixture
def seed() -> int:
    """A fresh seed, in every message of a failing case."""
    return secrets.randbits(32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_row_equals_its_oracle(case: Case, seed: int) -> None:
    assert check_case(case, seed) > 0


def test_every_kernel_is_used_by_a_row() -> None:
    used = {kernel for row in TABLE.values() for kernel in row.kernels}
    # Kernels of other floors: indexing of tensors, random numbers, conversion of blocks.
    elsewhere = {name for name in _core.host_kernel_names() if name.split(":")[0] in OTHERS}
    assert set(_core.host_kernel_names()) - used - elsewhere == set()


OTHERS = ("index", "random", "quant", "sample")


def test_every_row_names_kernels_that_exist() -> None:
    known = set(_core.host_kernel_names())
    missing = {row.name: set(row.kernels) - known for row in TABLE.values()}
    assert {name: kernels for name, kernels in missing.items() if kernels} == {}


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_row_is_documented(row: object) -> None:
    assert row.summary.endswith((".", "?"))  # type: ignore[attr-defined]
    assert row.docstring()  # type: ignore[attr-defined]
