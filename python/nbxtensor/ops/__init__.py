"""Ops: one row each, from which functions, methods, tests, documents and benchmarks come."""

from __future__ import annotations

from typing import Any

from nbxtensor.ops import (
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
    views,
)
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

# Defined here and not by the tensor, which stands below the ops.
for _name, _op in METHODS.items():
    if _name not in vars(Tensor):
        setattr(Tensor, _name, _op)

# The functions of the package's namespace.
FUNCTIONS: dict[str, Any] = {**NAMES, **creation.CREATORS, **views.VIEWS}

__all__ = ["FAMILIES", "FUNCTIONS", "METHODS", "NAMES", "OPS", "TABLE", "Row", "register"]


def __getattr__(name: str) -> Any:
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise AttributeError(f"nbxtensor.ops has no function {name!r}") from None
