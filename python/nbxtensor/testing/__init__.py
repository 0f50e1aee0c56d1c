"""Generated tests of ops: cases from the rows, layouts, tolerances, oracles in float64.

Public, so that users test their own rows the same way.
"""

from __future__ import annotations

from nbxtensor.testing import accuracy
from nbxtensor.testing.cases import (
    LAYOUTS,
    Case,
    allowed_error,
    as_layout,
    cases_of,
    check_case,
    to_domain,
    to_numpy,
)

__all__ = [
    "LAYOUTS",
    "Case",
    "accuracy",
    "allowed_error",
    "as_layout",
    "cases_of",
    "check_case",
    "to_domain",
    "to_numpy",
]
