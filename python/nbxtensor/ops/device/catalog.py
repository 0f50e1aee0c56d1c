"""The specialisations that are worth compiling before anybody asks: the rows at their bench shapes.

A row is planned with windows that no tensor stands behind, in the dtypes that models use; what its
steps become is listed. Another shape of the same form needs no other kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nbxtensor.dtype import DType, bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from nbxtensor.ops.device import launches_of
from nbxtensor.ops.device.launches import Launch, NotLowered
from nbxtensor.ops.plan import Builder, Number, Shape, Window, row_major
from nbxtensor.ops.signature import REQUIRED, Kind, Parameter
from nbxtensor.ops.table import TABLE, Row

__all__ = ["specializations"]

Specialization = tuple[str, dict[str, str], dict[str, Any], frozenset[str], dict[str, Any]]

_FLOATS: Final = (float32, bfloat16, float16)
_WHOLE: Final = (int32, int64)
# Families whose rows are compiled in every floating dtype; of the others float32 and bfloat16.
_CORE: Final = ("norm", "matmul", "attention", "position", "quant")
_INDICES: Final = ("ids", "positions", "indices")
_STATIC: Final = {"format": 0, "width": 64, "k": 8, "repetitions": 2, "shift": 1}
# Rows of a model's single steps, which ask for the kernels of small operands too.
_SMALL: Final = ("add", "mul", "silu_mul", "rms_norm", "rms_norm_add", "softmax", "sum", "argmax")
_CASTS: Final = (float32, bfloat16, float16, int32, int64, bool_)


def _dtypes(row: Row) -> tuple[DType, ...]:
    floats = _FLOATS if row.family in _CORE else _FLOATS[:2]
    chosen = tuple(dtype for dtype in floats if dtype in row.dtypes)
    if not chosen or row.name in ("add", "mul", "sub", "sum", "where", "eq", "take"):
        chosen += tuple(dtype for dtype in _WHOLE if dtype in row.dtypes)
    return chosen or row.dtypes[:1]


def _shapes(row: Row) -> Iterator[tuple[Shape, ...]]:
    """Yield shapes of the tensors of a call: the bench's, or those of the row's first samples."""
    if row.bench:
        yield from row.bench
        if row.name in _SMALL:
            yield tuple(tuple(min(extent, 64) for extent in shape) for shape in row.bench[0])
        return
    samples = itertools.islice(row.samples(np.random.default_rng(0)), 4)
    for sample in samples:
        values = (*sample.arguments, *sample.keywords.values())
        yield tuple(value.shape for value in values if isinstance(value, np.ndarray))


def _window(parameter: Parameter, index: int, shape: Shape, dtype: DType) -> Window:
    if parameter.name in _INDICES:
        dtype = int64
    elif parameter.name in ("condition", "mask", "attn_mask"):
        dtype = bool_
    elif parameter.name == "blocks":
        dtype = uint8
    elif parameter.name == "uniforms":
        dtype = float64
    return Window(0, index, dtype, shape, row_major(shape))


def _bound(row: Row, shapes: tuple[Shape, ...], dtype: DType) -> list[Any]:
    left = list(shapes)
    values: list[Any] = []
    tensors = numbers = 0
    for parameter in row.parameters:
        if parameter.kind is Kind.STATIC:
            missing = parameter.default is REQUIRED or parameter.name in ("axis", "dim")
            static = _STATIC.get(parameter.name, -1) if missing else parameter.default
            values.append(static)
        elif parameter.kind is Kind.TENSOR_LIST:
            windows = [_window(parameter, i, shape, dtype) for i, shape in enumerate(left)]
            tensors, left = len(windows), []
            values.append(windows)
        elif parameter.kind is not Kind.SCALAR and left:
            values.append(_window(parameter, tensors, left.pop(0), dtype))
            tensors += 1
        elif parameter.kind in (Kind.OPTIONAL_TENSOR, Kind.OPTIONAL_OPERAND):
            values.append(None)
        else:
            default = 0.0 if parameter.default is REQUIRED else parameter.default
            values.append(Number(numbers, type(default), parameter.name))
            numbers += 1
    return values


def _launches(row: Row, shapes: tuple[Shape, ...], dtype: DType) -> Iterator[Launch]:
    builder = Builder(row.name)
    try:
        row.plan(builder, *_bound(row, shapes, dtype))
        for step in builder.steps:
            yield from launches_of(builder, step)
    except (NotLowered, ValueError, TypeError, IndexError):
        return  # samples that need other arguments: the shapes of these rows are no benchmarks


def _copies() -> Iterator[Launch]:
    shape = (4096, 4096)
    turned = shape[::-1]
    for source, target in itertools.product(_CASTS, _CASTS):
        builder = Builder("copy")
        x = Window(0, 0, source, shape, row_major(shape))
        builder.copy(Window(1, 0, target, shape, row_major(shape)), x)
        if source is target:
            builder.copy(Window(1, 0, target, turned, row_major(turned)), x.permute((1, 0)))
        for step in builder.steps:
            yield from launches_of(builder, step)


def specializations(target: str) -> Iterator[Specialization]:
    """Yield what `kernels compile` compiles: name, types, constants, divisible, options.

    Parameters
    ----------
    target
        Such as ``"sm_90"``; every target gets the same set.
    """
    del target
    seen = set()
    rows = (
        launch
        for row in TABLE.values()
        for dtype in _dtypes(row)
        for shapes in _shapes(row)
        for launch in _launches(row, shapes, dtype)
    )
    for launch in itertools.chain(_copies(), rows):
        key = (
            launch.name,
            tuple(launch.types.items()),
            tuple((name, repr(value)) for name, value in sorted(launch.constants.items())),
            launch.divisible,
            tuple(sorted(launch.options.items())),
        )
        if key not in seen:
            seen.add(key)
            yield launch.name, launch.types, launch.constants, launch.divisible, launch.options
