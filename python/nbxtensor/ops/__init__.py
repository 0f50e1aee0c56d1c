"""Ops: one row each, from which functions, methods, tests, documents and benchmarks come."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.ops import (
    attention,
    creation,
    derived,
    elementwise_binary,
    elementwise_unary,
    host,
    index,
    matmul,
    norm,
    position,
    quant,
    reduce,
    scan,
    shape,
    sort,
    views,
)
from nbxtensor.ops.device import moves
from nbxtensor.ops.fuse import answer, fuse
from nbxtensor.ops.table import METHODS, NAMES, OPS, TABLE, Row, register
from nbxtensor.tensor import Tensor

FAMILIES = (
    attention,
    creation,
    elementwise_binary,
    elementwise_unary,
    index,
    matmul,
    norm,
    position,
    quant,
    reduce,
    scan,
    shape,
    sort,
)


def _array_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
    """Answer NumPy's functions: with tensors and numbers by the op of that name, else in NumPy."""
    plain = method == "__call__" and not keywords and ufunc.__name__ in NAMES
    if plain and not any(isinstance(value, np.ndarray) for value in inputs):
        return NAMES[ufunc.__name__](*inputs)
    arrays = [value.numpy() if isinstance(value, Tensor) else value for value in inputs]
    return getattr(ufunc, method)(*arrays, **keywords)


# Without it a NumPy number on the left would turn the tensor into an array.
Tensor.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]

# Defined here and not by the tensor, which stands below the ops.
for _name, _op in METHODS.items():
    if _name not in vars(Tensor):
        setattr(Tensor, _name, _op)


def _dispatch(op: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Answer for operands that are no tensors: traced ones, then quantised ones."""
    result = answer(op, arguments, keywords)
    return quant.dispatch(op, arguments, keywords) if result is NotImplemented else result


_core.set_op_dispatch(_dispatch)

# The functions of the package's namespace.
FUNCTIONS: dict[str, Any] = {
    **NAMES,
    **creation.CREATORS,
    **views.VIEWS,
    **derived.DERIVED,
    **host.HOST,
}

__all__ = [
    "FAMILIES",
    "FUNCTIONS",
    "METHODS",
    "NAMES",
    "OPS",
    "TABLE",
    "Row",
    "fuse",
    "moves",
    "register",
]


def __getattr__(name: str) -> Any:
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise AttributeError(f"nbxtensor.ops has no function {name!r}") from None
