"""Types of mixed expressions: the array API's rules, torch's where the standard leaves a choice."""

from __future__ import annotations

from typing import Any

from nbxtensor.dtype._dtype import (
    DTYPES,
    DType,
    as_dtype,
    bool_,
    complex64,
    complex128,
    float64,
)
from nbxtensor.dtype._table import ARRAY_API_KINDS, DEFAULTS, PROMOTION

_DEFAULTS = {kind: as_dtype(name) for kind, name in DEFAULTS.items()}
_KINDS = {kind: frozenset(map(as_dtype, names)) for kind, names in ARRAY_API_KINDS.items()}
_SCALARS: tuple[type, ...] = (bool, int, float, complex)


def default_dtype(kind: str) -> DType:
    """Return the type of a Python number's kind: ``bool``, ``int``, ``float`` or ``complex``."""
    return _DEFAULTS[kind]


def promote_types(first: Any, second: Any) -> DType:
    """Return the lowest type that holds both, an integer giving way to any float.

    uint64 with a signed integer gives float64, as in NumPy; float16 with bfloat16 gives float32.
    """
    return DTYPES[PROMOTION[as_dtype(first).code][as_dtype(second).code]]


def with_scalar(dtype: DType, kind: type) -> DType:
    """Return the type of a tensor of `dtype` combined with a Python number of type `kind`.

    The number never widens the tensor within its own kind; a number of a higher kind gives the
    default type of that kind (complex keeps the tensor's precision).
    """
    if kind is bool:
        return dtype
    if kind is int:
        return _DEFAULTS["int"] if dtype is bool_ else dtype
    if kind is float:
        return dtype if dtype.kind in "fc" else _DEFAULTS["float"]
    if dtype.kind == "c":
        return dtype
    return complex128 if dtype is float64 else complex64


def scalar_kind(value: object) -> type | None:
    """Return which Python number `value` is (NumPy's float64 counts as float), or None."""
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind
    return None


def result_type(*operands: Any) -> DType:
    """Return the type of an expression over `operands`.

    Parameters
    ----------
    *operands : tensor, DType, name of a type, or Python number
        Numbers are weak: they count by their kind alone.

    Raises
    ------
    TypeError
        If there is no operand, or one is none of these.
    """
    if not operands:
        raise TypeError("result_type: got no operand; expected at least one")
    common: DType | None = None
    kinds: list[type] = []
    for operand in operands:
        kind = scalar_kind(operand)
        if kind is not None:
            kinds.append(kind)
            continue
        dtype = as_dtype(getattr(operand, "dtype", operand))
        common = dtype if common is None else promote_types(common, dtype)
    if common is None:
        return _DEFAULTS[max(kinds, key=_SCALARS.index).__name__]
    for kind in sorted(kinds, key=_SCALARS.index):
        common = with_scalar(common, kind)
    return common


def can_cast(from_: Any, to: Any) -> bool:
    """Return whether promotion turns `from_` (a tensor or type) with `to` into `to`."""
    source = as_dtype(getattr(from_, "dtype", from_))
    target = as_dtype(to)
    return promote_types(source, target) is target


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether `dtype` is of a kind of the array API, of a given type, or of one in a tuple.

    Raises
    ------
    ValueError
        If a kind is unknown; the text lists the kinds.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    own = as_dtype(dtype)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(
                f"isdtype: kind {kind!r} is unknown; expected one of {', '.join(map(repr, _KINDS))}"
            )
        return own in _KINDS[kind]
    return own is as_dtype(kind)
