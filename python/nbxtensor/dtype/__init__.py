"""Element types, their promotion, limits and mixed precision."""

from __future__ import annotations

from nbxtensor import _core
from nbxtensor.dtype._dtype import (
    DTYPES,
    DType,
    as_dtype,
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
    numpy_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from nbxtensor.dtype.info import FloatInfo, IntegerInfo, finfo, iinfo
from nbxtensor.dtype.policy import Resolution, resolve
from nbxtensor.dtype.promotion import (
    can_cast,
    default_dtype,
    isdtype,
    promote_types,
    result_type,
    scalar_kind,
    with_scalar,
)

# In the order of their codes: the core answers `tensor.dtype` with these objects.
_core.register_dtypes(list(DTYPES))

__all__ = [
    "DTYPES",
    "DType",
    "FloatInfo",
    "IntegerInfo",
    "Resolution",
    "as_dtype",
    "bfloat16",
    "bool_",
    "can_cast",
    "complex64",
    "complex128",
    "default_dtype",
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
    "numpy_dtype",
    "promote_types",
    "resolve",
    "result_type",
    "scalar_kind",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "with_scalar",
]
