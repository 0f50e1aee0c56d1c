"""Lowering of sorts, selections, sampling, and of what reads quantised blocks."""

from __future__ import annotations

import math
from typing import Any, Final

from nbxtensor.dtype import float64
from nbxtensor.ops.device.elementwise import natural_carrier
from nbxtensor.ops.device.index import offsets
from nbxtensor.ops.device.launches import (
    Address,
    Argument,
    Fixed,
    Lowering,
    NotLowered,
    Real,
    Whole,
    memory_type,
)
from nbxtensor.ops.device.layout import SMALL, coalesce
from nbxtensor.ops.plan import Number, Step, Window

# Up to this many elements are selected one after another; beyond, every element finds its rank.
_SELECTED: Final = 64
_WEIGHTS: Final = 32  # of one block
_BYTES: Final = (20, 34)  # of one block, by format
_FEW: Final = 8


def _rank(
    low: Lowering, values: Window, places: Window, x: Window, kept: int, *, down: bool
) -> None:
    if values.size == 0:
        return
    k = x.shape[-1]
    heads = coalesce(x.shape[:-1], [w.strides[:-1] for w in (x, values, places)])
    heads = heads.in_general(general=heads.size < SMALL)
    element, reading = memory_type(x.dtype)
    held = natural_carrier(x.dtype)
    arguments: dict[str, Argument] = {
        "values": Address(values, element),
        "places": Address(places, "i64"),
        "x": Address(x, element),
        "k": Whole(k),
        "kept": Whole(kept),
        **heads.extent_arguments("d", wide=True),
        **heads.stride_arguments(0, "x", wide=True),
        **heads.stride_arguments(1, "v", wide=True),
        **heads.stride_arguments(2, "i", wide=True),
        "along_x": _step(x.strides[-1]),
        "along_v": _step(values.strides[-1]),
        "along_i": _step(places.strides[-1]),
    }
    constants: dict[str, Any] = {
        "T": "int64" if held == "bool" else held,
        "KIND": reading,
        "DESCENDING": down,
        "KEPT": len(heads.extents),
    }
    if kept <= _SELECTED and kept < k:
        constants["BJ"] = 1024
        low.launch("sort:select", (heads.size,), arguments, constants, ("values", "places"))
        return
    constants |= {"BI": 64, "BJ": 256}
    grid = (heads.size * math.ceil(k / 64),)
    low.launch("sort:ranks", grid, arguments, constants, ("values", "places"))


def _step(step: int) -> Argument:
    return Fixed(step) if step in (0, 1) else Whole(step)


def sort(low: Lowering, step: Step) -> None:
    """Lower ``sort:sort``: [values, places], [x], [descending, stable]."""
    values, places, x = step.windows()
    _rank(low, values, places, x, x.shape[-1], down=bool(step.scalars[0]))


def topk(low: Lowering, step: Step) -> None:
    """Lower ``sort:topk``: [values, places], [x], [k, largest, sorted]."""
    values, places, x = step.windows()
    _rank(low, values, places, x, step.scalars[0], down=bool(step.scalars[1]))


def sample(low: Lowering, step: Step) -> None:
    """Lower ``sample:logits``: [out], [logits, uniforms], [temperature, top_k, top_p]."""
    out, logits, uniforms = step.windows()
    if out.size == 0:
        return
    temperature, top_k, top_p = step.scalars

    def absent(value: Any) -> bool:
        return value is None or (isinstance(value, Number) and value.none)

    element, reading = memory_type(logits.dtype)
    uniform, uniform_reading = memory_type(uniforms.dtype)
    low.launch(
        "sort:sample",
        (logits.shape[0],),
        {
            "out": Address(out, "i64"),
            "logits": Address(logits, element),
            "uniforms": Address(uniforms, uniform),
            "temperature": Real(temperature, "fp64"),
            "top_k": Whole(0 if absent(top_k) else top_k),
            "top_p": Real(1.0 if absent(top_p) else top_p, "fp64"),
            "k": Whole(logits.shape[1]),
            "row_stride": Whole(logits.strides[0]),
            "along": _step(logits.strides[1]),
            "u_stride": Whole(uniforms.strides[0] if uniforms.rank else 0),
            "o_stride": Whole(out.strides[0]),
        },
        {"KIND": reading, "U": uniform_reading, "BJ": 2048},
        num_warps=8,
    )


def _check_blocks(blocks: Window, format_: int, width: int) -> None:
    if not 0 <= format_ < len(_BYTES):
        raise NotLowered(f"there is no format {format_} of quantised weights")
    if blocks.shape[1] * _WEIGHTS != width * _BYTES[format_]:
        raise NotLowered(f"a row of {blocks.shape[1]} bytes does not hold {width} weights")
    if blocks.strides[1] != 1 and blocks.shape[1] > 1:
        raise NotLowered("rows of blocks must be contiguous")


def _expand(low: Lowering, out: Window, blocks: Window, known: Window | None, code: int) -> None:
    if out.size == 0:
        return
    element, writing = memory_type(out.dtype)
    axes = coalesce(out.shape, [out.strides], reorder=False)
    axes = axes.in_general(general=axes.size < SMALL)
    low.launch(
        "quant:rows",
        (math.ceil(axes.size / 1024),),
        {
            "out": Address(out, element),
            "blocks": Address(blocks, "u8"),
            "known": None if known is None else Address(known, "i64"),
            "n": Whole(axes.size),
            "width": Whole(out.shape[-1]),
            "row_bytes": Whole(blocks.strides[0]),
            **axes.extent_arguments("d", wide=True),
            **axes.stride_arguments(0, "o", wide=True),
        },
        {"OUT": writing, "FORMAT": code, "RANK": len(axes.extents), "BLOCK": 1024},
    )


def dequantize(low: Lowering, step: Step) -> None:
    """Lower ``quant:dequantize``: [out], [blocks], [format]."""
    out, blocks = step.windows()
    _check_blocks(blocks, step.scalars[0], out.shape[-1])
    _expand(low, out, blocks, None, step.scalars[0])


def embedding(low: Lowering, step: Step) -> None:
    """Lower ``embedding:quantized``: [out], [ids, blocks], [format]."""
    out, ids, blocks = step.windows()
    if out.size == 0:
        return
    _check_blocks(blocks, step.scalars[0], out.shape[-1])
    rows = blocks.shape[0]
    known = offsets(
        low, [(ids, rows, blocks.strides[0], f"the table's rows 0 to {rows - 1}")], wraps=False
    )
    _expand(low, out, blocks, known, step.scalars[0])


def product(low: Lowering, step: Step) -> None:
    """Lower ``matmul:quantized``: [out], [a, blocks, bias], [format]; matrices."""
    out = step.window(0)
    a = step.window(1)
    blocks = step.window(2)
    bias = step.operands[3]
    if out.size == 0:
        return
    (m, n), k = out.shape, a.shape[1]
    _check_blocks(blocks, step.scalars[0], k)
    if float64 in (out.dtype, a.dtype) or a.strides[1] != 1 or out.strides[1] != 1:
        raise NotLowered("kernels multiply quantised weights with contiguous rows in float32")
    element, reading = memory_type(a.dtype)
    target, writing = memory_type(out.dtype)
    arguments: dict[str, Argument] = {
        "out": Address(out, target),
        "a": Address(a, element),
        "blocks": Address(blocks, "u8"),
        "bias": None if bias is None else Address(bias, memory_type(bias.dtype)[0]),
    }
    sizes: dict[str, Argument] = {
        "n": Whole(n, "i32"),
        "k": Whole(k, "i32"),
        "row_bytes": Whole(blocks.strides[0]),
        "a_m": Whole(a.strides[0]),
        "c_n": None if bias is None else _step(bias.strides[1]),
        "o_m": Whole(out.strides[0]),
    }
    if bias is not None and bias.strides[0] != 0 and m > 1:
        raise NotLowered("the bias must be one row")
    constants: dict[str, Any] = {
        "A": reading,
        "C": "" if bias is None else memory_type(bias.dtype)[1],
        "OUT": writing,
        "FORMAT": step.scalars[0],
    }
    if m <= _FEW:
        constants |= {"BN": 8, "BK": 256}
        low.launch("quant:few", (math.ceil(n / 8), m), arguments | sizes, constants)
        return
    constants |= {"BM": 32, "BN": 64, "BK": 32}
    grid = (math.ceil(m / 32) * math.ceil(n / 64),)
    low.launch("quant:dense", grid, arguments | {"m": Whole(m, "i32")} | sizes, constants)
