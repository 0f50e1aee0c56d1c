"""Products and embeddings of quantised weights, without expanding them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbxtensor.dtype import float32, uint8
from nbxtensor.ops import inputs
from nbxtensor.ops.matmul import flat_rows
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.position import ids_window
from nbxtensor.ops.signature import optional_tensor, static, tensor
from nbxtensor.ops.table import OPS, Row, Sample, register

BLOCKS = tensor("blocks")
FORMAT = static("format")


def _check_blocks(builder: Builder, blocks: Window) -> None:
    if blocks.dtype is not uint8 or blocks.rank != 2 or not blocks.contiguous:
        raise builder.error(
            f"blocks must be contiguous uint8 of shape (rows, bytes), got {blocks.dtype} of shape "
            f"{blocks.shape}"
        )


def _plan_linear(
    builder: Builder, x: Window, blocks: Window, bias: Window | None, format: int, width: int
) -> Window:
    _check_blocks(builder, blocks)
    builder.check_kind(x.dtype, "f")
    if x.rank == 0 or x.shape[-1] != width:
        raise builder.error(
            f"x of shape {x.shape} does not fit weights of shape ({blocks.shape[0]}, {width}), "
            f"expected (..., {width})"
        )
    if bias is not None and bias.shape != blocks.shape[:1]:
        raise builder.error(f"bias must have shape {blocks.shape[:1]}, got {bias.shape}")
    dtype = x.dtype if x.dtype.bits in (16, 32) else float32
    out = builder.output((*x.shape[:-1], blocks.shape[0]), dtype)
    rows = builder.contiguous(flat_rows(builder, builder.cast(x, dtype)))
    target = out.reshape((rows.shape[0], blocks.shape[0]))
    assert target is not None
    offset = None if bias is None else bias.broadcast_to(target.shape)
    builder.step("matmul:quantized", [target], [rows, blocks, offset], [format])
    return out


def _plan_embedding(
    builder: Builder, ids: Window, blocks: Window, format: int, width: int, dtype: Any
) -> Window:
    _check_blocks(builder, blocks)
    out = builder.output((*ids.shape, width), float32 if dtype is None else dtype)
    builder.step("embedding:quantized", [out], [ids_window(builder, ids), blocks], [format])
    return out


def _expand(blocks: Any, format: int, width: int) -> Any:
    """Expand blocks in NumPy, straight from the layout of the formats."""
    count = blocks.shape[0]
    if format == 0:
        parts = blocks.reshape(count, -1, 20)
        scale = parts[..., 0:2].copy().view(np.float16).astype(np.float64)
        offset = parts[..., 2:4].copy().view(np.float16).astype(np.float64)
        codes = np.concatenate([parts[..., 4:] & 15, parts[..., 4:] >> 4], axis=-1)
        return (codes * scale + offset).reshape(count, width)
    parts = blocks.reshape(count, -1, 34)
    scale = parts[..., 0:2].copy().view(np.float16).astype(np.float64)
    return (parts[..., 2:].copy().view(np.int8) * scale).reshape(count, width)


def random_blocks(generator: np.random.Generator, format: int, rows: int, width: int) -> Any:
    """Return valid random blocks of a format."""
    size, halves = ((20, 2), (34, 1))[format]
    blocks = generator.integers(0, 256, (rows, width // 32, size), dtype=np.uint8)
    scales = generator.uniform(0.01, 0.1, (rows, width // 32, halves)).astype(np.float16)
    blocks[..., : 2 * halves] = scales.view(np.uint8).reshape(rows, -1, 2 * halves)
    return blocks.reshape(rows, -1)


def _linear_samples(generator: np.random.Generator) -> Any:
    for shape, rows in (((64,), 3), ((1, 576), 129), ((5, 96), 7), ((2, 17, 64), 33)):
        for format in (0, 1):
            blocks = random_blocks(generator, format, rows, shape[-1])
            x, bias = inputs.normal(generator, shape, (rows,))
            keywords = {"format": format, "width": shape[-1]}
            yield Sample((x, blocks), keywords)
            yield Sample((x, blocks, bias), keywords)


def _embedding_samples(generator: np.random.Generator) -> Any:
    for format in (0, 1):
        blocks = random_blocks(generator, format, 11, 96)
        for shape in ((), (7,), (2, 3)):
            ids = generator.integers(0, 11, shape)
            yield Sample((ids, blocks), {"format": format, "width": 96})


register(
    Row(
        name="linear_quantized",
        family="quant",
        parameters=(
            tensor("x", "input"),
            BLOCKS,
            optional_tensor("bias"),
            FORMAT,
            static("width"),
        ),
        plan=_plan_linear,
        oracle=lambda x, blocks, bias=None, *, format, width: (
            np.matmul(x, _expand(blocks, format, width).T) + (0 if bias is None else bias)
        ),
        samples=_linear_samples,
        summary="x @ weight.T + bias for a weight of `width` columns in quantised blocks.",
        kernels=("matmul:quantized",),
        positional=3,
        tolerance=256.0,
        flops=lambda x, b, *rest: 2.0 * math.prod(x) * b[0],
    )
)
register(
    Row(
        name="embedding_quantized",
        family="quant",
        parameters=(
            tensor("ids", "input"),
            BLOCKS,
            FORMAT,
            static("width"),
            static("dtype", None),
        ),
        plan=_plan_embedding,
        oracle=lambda ids, blocks, *, format, width: _expand(blocks, format, width)[ids],
        samples=_embedding_samples,
        summary="Rows of a table of `width` columns in quantised blocks, chosen by id.",
        kernels=("embedding:quantized",),
        positional=2,
        dtypes=(float32,),
    )
)

_linear = OPS["linear_quantized"]
_embedding = OPS["embedding_quantized"]


def _is_quantized(value: Any) -> bool:
    return hasattr(value, "blocks") and hasattr(value, "logical_shape")


def _code(weight: Any) -> int:
    return int(getattr(weight.format, "code", weight.format))


def _dispatch_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if not _is_quantized(weight):
        return NotImplemented
    rows, width = weight.logical_shape
    if getattr(weight, "transposed", False):
        raise ValueError(
            f"linear: weight is transposed, of shape ({width}, {rows}); pass the weight itself"
        )
    return _linear(x, weight.blocks, bias, format=_code(weight), width=width)


def _dispatch_matmul(x: Any, weight: Any) -> Any:
    if not _is_quantized(weight):
        return NotImplemented
    rows, width = weight.logical_shape
    if not getattr(weight, "transposed", False):
        raise ValueError(
            f"matmul: a quantised weight of shape ({rows}, {width}) multiplies from its columns; "
            "write x @ weight.T"
        )
    return _linear(x, weight.blocks, format=_code(weight), width=width)


def _dispatch_embedding(ids: Any, weight: Any) -> Any:
    if not _is_quantized(weight):
        return NotImplemented
    width = weight.logical_shape[1]
    return _embedding(ids, weight.blocks, format=_code(weight), width=width)


_DISPATCH = {
    "linear": _dispatch_linear,
    "matmul": _dispatch_matmul,
    "mm": _dispatch_matmul,
    "embedding": _dispatch_embedding,
}


def dispatch(op: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Answer for quantised operands of dense ops, or NotImplemented."""
    function = _DISPATCH.get(op.name)
    if function is None or not any(map(_is_quantized, (*arguments, *keywords.values()))):
        return NotImplemented
    return function(*arguments, **keywords)
