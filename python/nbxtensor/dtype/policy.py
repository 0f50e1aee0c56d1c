"""Mixed precision: which types an op of a class computes, adds up and answers in."""

from __future__ import annotations

from typing import NamedTuple

from nbxtensor.dtype._dtype import DTYPES, DType
from nbxtensor.dtype._policy import CLASSES


class Resolution(NamedTuple):
    """The types of one call."""

    compute: DType
    accumulate: DType
    output: DType


def resolve(op_class: str, dtype: DType) -> Resolution:
    """Return the types for an op class and the promoted type of its inputs.

    Raises
    ------
    ValueError
        If the class is unknown; the text lists the classes.
    """
    rows = CLASSES.get(op_class)
    if rows is None:
        raise ValueError(
            f"policy: class {op_class!r} is unknown; expected one of {sorted(CLASSES)}"
        )
    compute, accumulate, output = rows
    return Resolution(
        DTYPES[compute[dtype.code]],
        DTYPES[accumulate[dtype.code]],
        DTYPES[output[dtype.code]],
    )


def op_classes() -> tuple[str, ...]:
    """Return the names of all op classes."""
    return tuple(CLASSES)
