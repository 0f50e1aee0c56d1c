"""Limits of the numeric types: finfo and iinfo of the array API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbxtensor.dtype._dtype import DType, as_dtype, complex64, complex128, float32, float64
from nbxtensor.dtype._table import FLOATS


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a floating-point type; of a complex type, those of its parts."""

    dtype: DType
    bits: int
    eps: float  # distance from 1 to the next number
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float

    @property
    def tiny(self) -> float:
        """Another name of `smallest_normal`."""
        return self.smallest_normal


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer type."""

    dtype: DType
    bits: int
    max: int
    min: int


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a floating-point or complex type, or of a tensor's type.

    Raises
    ------
    TypeError
        If it is an integer or boolean type.
    """
    given = as_dtype(getattr(type, "dtype", type))
    dtype = {complex64: float32, complex128: float64}.get(given, given)
    if dtype.kind != "f":
        raise TypeError(f"finfo: got {given!r}; expected a floating-point type, or use iinfo")
    mantissa, exponent, greatest = FLOATS[dtype.name]
    return FloatInfo(
        dtype=dtype,
        bits=dtype.bits,
        eps=2.0**-mantissa,
        max=greatest,
        min=-greatest,
        smallest_normal=2.0**exponent,
        smallest_subnormal=2.0 ** (exponent - mantissa),
    )


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer type, or of a tensor's type.

    Raises
    ------
    TypeError
        If it is no integer type.
    """
    dtype = as_dtype(getattr(type, "dtype", type))
    if dtype.kind not in "iu":
        raise TypeError(f"iinfo: got {dtype!r}; expected an integer type, or use finfo")
    signed = dtype.kind == "i"
    magnitude = 2 ** (dtype.bits - signed)
    return IntegerInfo(
        dtype=dtype, bits=dtype.bits, max=magnitude - 1, min=-magnitude if signed else 0
    )
