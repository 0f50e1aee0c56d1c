"""The tests that every row brings along, and the checks of the table itself."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from nbxtensor import _core
from nbxtensor.ops import TABLE, register
from nbxtensor.ops.listing import ops_text
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


# Kernels of the tensor's own indexing, which are no ops.
INDEXING = {"index:put", "index:nonzero"}


def test_every_kernel_is_used_by_a_row() -> None:
    used = {kernel for row in TABLE.values() for kernel in row.kernels}
    assert set(_core.host_kernel_names()) - used - INDEXING == set()


def test_a_row_needs_an_oracle_and_a_free_name() -> None:
    row = TABLE["exp"]
    with pytest.raises(ValueError, match="'exp': the name is already taken"):
        register(row)
    with pytest.raises(ValueError, match="'unproven': expected an oracle"):
        register(replace(row, name="unproven", oracle=None))  # type: ignore[arg-type]
    assert "unproven" not in TABLE


def test_the_listing_knows_every_row() -> None:
    text = ops_text()
    assert all(f" {name}" in text for name in TABLE)
    assert "elementwise:silu" in ops_text("silu")
    with pytest.raises(ValueError, match="there is no op 'softmaks'; close: softmax"):
        ops_text("softmaks")


def test_every_row_names_kernels_that_exist() -> None:
    known = set(_core.host_kernel_names())
    missing = {row.name: set(row.kernels) - known for row in TABLE.values()}
    assert {name: kernels for name, kernels in missing.items() if kernels} == {}


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_row_is_documented(row: object) -> None:
    assert row.summary.endswith((".", "?"))  # type: ignore[attr-defined]
    assert row.docstring()  # type: ignore[attr-defined]
