"""Rows of the two conversions: blocks to numbers and numbers to blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype import as_dtype, float32, uint8
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.signature import static, tensor
from nbxtensor.ops.table import NAMES, Row, Sample, register
from nbxtensor.quant._formats import FORMATS, Format

Array = np.ndarray[Any, Any]


def _split(blocks: Array, form: Format) -> dict[str, Array]:
    """Return the parts of blocks, each of shape (rows, blocks of a row, elements)."""
    cells = blocks.reshape(blocks.shape[0], blocks.shape[1] // form.bytes, form.bytes)
    parts: dict[str, Array] = {}
    at = 0
    for name, dtype, count in form.parts:
        end = at + np.dtype(dtype).itemsize * count
        parts[name] = np.ascontiguousarray(cells[..., at:end]).view(dtype)
        at = end
    return parts


def expand(blocks: Array, form: Format) -> Array:
    """Return the weights of blocks in float64: scale * code + offset."""
    parts = _split(blocks, form)
    codes = parts["codes"]
    if form.bits == 4:
        codes = np.concatenate([codes & 15, codes >> 4], axis=-1)
    weights = codes.astype(np.float64) * parts["scale"].astype(np.float64)
    if "offset" in parts:
        weights = weights + parts["offset"].astype(np.float64)
    return weights.reshape(blocks.shape[0], weights.shape[1] * form.block)


def contract(values: Array, form: Format) -> Array:
    """Return the blocks of weights: the range of each block, in float32, cut into its codes."""
    cells = np.asarray(values, np.float32).reshape(
        values.shape[0], values.shape[1] // form.block, form.block
    )
    low, high = cells.min(-1, keepdims=True), cells.max(-1, keepdims=True)
    if form.bits == 4:
        scale = (high - low) / np.float32(15)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        codes = np.minimum((cells - low) * inverse + np.float32(0.5), 15).astype(np.uint8)
        half = form.block // 2
        fields = [scale, low, codes[..., :half] | codes[..., half:] << 4]
    else:
        scale = np.abs(cells).max(-1, keepdims=True) / np.float32(127)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        steps = cells * inverse
        codes = (np.sign(steps) * np.floor(np.abs(steps) + np.float32(0.5))).astype(np.int8)
        fields = [scale, codes]
    packed = [
        field.astype(dtype).view(np.uint8)
        for field, (_, dtype, _) in zip(fields, form.parts, strict=True)
    ]
    return np.concatenate(packed, axis=-1).reshape(
        values.shape[0], values.shape[1] // form.block * form.bytes
    )


def _plan_dequantize(
    builder: Builder, blocks: Window, format: int, width: int, dtype: Any
) -> Window:
    wanted = float32 if dtype is None else as_dtype(dtype)
    builder.check_kind(wanted, "f")
    out = builder.output((blocks.shape[0], width), wanted)
    builder.step("quant:dequantize", [out], [blocks], [format])
    return out


def _plan_quantize(builder: Builder, x: Window, format: int) -> Window:
    form = FORMATS[format]
    builder.check_kind(x.dtype, "f")
    if x.rank != 2 or x.shape[1] % form.block:
        raise builder.error(
            f"got shape {x.shape}; {form.name} needs two axes, the last a multiple of "
            f"{form.block}: pad it"
        )
    out = builder.output((x.shape[0], x.shape[1] // form.block * form.bytes), uint8)
    builder.step("quant:quantize", [out], [x], [format])
    return out


def _weights(generator: np.random.Generator) -> Any:
    for form in FORMATS:
        for rows, width in ((1, 32), (7, 96), (3, 576), (0, 64)):
            yield form, np.asarray(generator.standard_normal((rows, width)), np.float32)


def _block_samples(generator: np.random.Generator) -> Any:
    for form, values in _weights(generator):
        keywords = {"format": form.code, "width": values.shape[1]}
        yield Sample((contract(values, form),), keywords)


# The arrays stay float32, so that the test converts nothing and the bytes are exact.
def _value_samples(generator: np.random.Generator) -> Any:
    for form, values in _weights(generator):
        yield Sample((values,), {"format": form.code})


register(
    Row(
        name="dequantize_blocks",
        family="quant",
        parameters=(tensor("blocks"), static("format"), static("width"), static("dtype", None)),
        plan=_plan_dequantize,
        oracle=lambda blocks, *, format, width: expand(blocks, FORMATS[format]),
        samples=_block_samples,
        summary="Numbers of quantised blocks.",
        kernels=("quant:dequantize",),
        dtypes=(float32,),
    )
)
register(
    Row(
        name="quantize_blocks",
        family="quant",
        parameters=(tensor("x"), static("format")),
        plan=_plan_quantize,
        oracle=lambda x, *, format: contract(x, FORMATS[format]),
        samples=_value_samples,
        summary="Quantised blocks of the rows of a matrix.",
        kernels=("quant:quantize",),
        dtypes=(float32,),
        tolerance=0.0,
    )
)

# Called through QuantizedTensor.dequantize and quantize.
dequantize_blocks = NAMES.pop("dequantize_blocks")
quantize_blocks = NAMES.pop("quantize_blocks")
