"""Random functions of random tensors under fuse give what their ops give, errors included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import nbxtensor as nbx
import numpy as np
import pytest

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8", "bool")
UNARY = ("neg", "abs", "exp", "silu", "tanh", "floor", "square", "relu", "isnan", "sign")
BINARY = ("add", "mul", "sub", "maximum", "div", "eq", "lt", "logical_and", "pow", "atan2")
REDUCTIONS = ("amax", "any", "all", "argmax", "var", "logsumexp", "sum", "mean", "prod")
LONG = REDUCTIONS[:6]  # of rows that are reduced in pieces, those whose pieces round nothing
NUMBERS = (2, -1, 0.5, 3.25, True)
REFUSALS = (TypeError, ValueError, IndexError, OverflowError)
EXTENTS = (1, 1, 2, 3, 5, 17, 64)


class Call(NamedTuple):
    """One op of a function; operands are counted back from the newest value."""

    kind: str
    name: str
    first: int
    second: int  # below zero: a number instead
    axis: int | None
    keepdims: bool


def calls(rng: np.random.Generator, reductions: tuple[str, ...]) -> list[Call]:
    kinds = rng.choice(["unary", "binary", "to", "reduce"], int(rng.integers(1, 9)),
                       p=[0.35, 0.45, 0.08, 0.12])  # fmt: skip
    names = {"unary": UNARY, "binary": BINARY, "to": DTYPES, "reduce": reductions}
    axes = (None, -1, 0, 1)
    return [
        Call(str(kind), str(rng.choice(names[kind])), int(rng.integers(3)),
             int(rng.integers(-2, 6)), axes[rng.integers(4)], bool(rng.integers(2)))
        for kind in kinds
    ]  # fmt: skip


def apply(call: Call, values: list[Any]) -> Any:
    x = values[-1 - call.first % len(values)]
    if call.kind == "to":
        return x.to(call.name)
    if call.kind == "reduce":
        return getattr(x, call.name)(axis=call.axis, keepdims=call.keepdims)
    function = getattr(nbx, call.name)
    if call.kind == "unary":
        return function(x)
    second = call.second
    return function(x, NUMBERS[second] if second < 0 else values[second % len(values)])


def function_of(
    steps: list[Call], results: list[int], refused: list[type[Exception]]
) -> Callable[..., Any]:
    def body(*arguments: Any) -> Any:
        values = list(arguments)
        for step in steps:
            try:
                values.append(apply(step, values))
            except REFUSALS as error:
                refused.append(type(error))
        chosen = tuple(values[-1 - place % len(values)] for place in results)
        return chosen if len(chosen) > 1 else chosen[0]

    return body


def tensor(rng: np.random.Generator, shape: tuple[int, ...]) -> nbx.Tensor:
    shape = tuple(1 if rng.random() < 0.3 else extent for extent in shape)
    shape = shape[int(rng.integers(len(shape) + 1)) :] if rng.random() < 0.3 else shape
    values = np.asarray(rng.standard_normal(shape) * 3, np.float32)
    dtype = str(rng.choice(DTYPES))
    x = nbx.asarray(np.abs(values) if dtype == "uint8" else values).to(dtype)
    if x.ndim >= 2 and rng.random() < 0.3:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    return x.flip(-1) if x.ndim and rng.random() < 0.2 else x


def same(got: nbx.Tensor, expected: nbx.Tensor) -> None:
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    one, other = (np.asarray(x.to("float64").numpy()) for x in (got, expected))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("number", range(120))
def test_random_functions(number: int, rng: np.random.Generator) -> None:
    rank = int(rng.integers(5))
    shape = tuple(int(rng.choice(EXTENTS)) for _ in range(rank))
    if shape and number % 3 == 0:
        shape = (*shape[-1:], int(rng.choice([300, 8193, 40_000])))
    tensors = [tensor(rng, shape) for _ in range(3)]
    steps = calls(rng, LONG if math.prod(shape) > 8192 else REDUCTIONS)
    results = [int(place) for place in rng.integers(0, 9, int(rng.integers(1, 4)))]
    refused: list[type[Exception]] = []
    traced: list[type[Exception]] = []
    expected = function_of(steps, results, refused)(*tensors)
    body = function_of(steps, results, traced)
    got = nbx.fuse(lambda x, y, z: body(x, y, z))(*tensors)
    assert traced == refused, steps
    pairs = zip(got, expected, strict=True) if len(results) > 1 else [(got, expected)]
    for ours, theirs in pairs:
        same(ours, theirs)
