"""Element types, their promotion, limits and mixed precision."""

from __future__ import annotations

from nbxtensor import _core
from nbxtensor.dtype._dtype import DTYPES as DTYPES
from nbxtensor.dtype._dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from nbxtensor.dtype._dtype import as_dtype as as_dtype
from nbxtensor.dtype._dtype import numpy_dtype as numpy_dtype
from nbxtensor.dtype.info import FloatInfo as FloatInfo
from nbxtensor.dtype.info import IntegerInfo as IntegerInfo
from nbxtensor.dtype.info import finfo, iinfo
from nbxtensor.dtype.policy import Resolution as Resolution
from nbxtensor.dtype.policy import resolve as resolve
from nbxtensor.dtype.promotion import (
    can_cast,
    isdtype,
    promote_types,
    result_type,
)
from nbxtensor.dtype.promotion import default_dtype as default_dtype
from nbxtensor.dtype.promotion import scalar_kind as scalar_kind
from nbxtensor.dtype.promotion import with_scalar as with_scalar

# In the order of their codes: the core answers `tensor.dtype` with these objects.
_core.register_dtypes(list(DTYPES))

# What the package offers to its users; the rest is for the floors above.
__all__ = [
    "DType",
    "bfloat16",
    "bool_",
    "can_cast",
    "complex64",
    "complex128",
    "finfo",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "promote_types",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
