"""Lowering of kernels that run along the last axis: softmax, normalisations, scans, rope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nbxtensor.dtype import bool_, float64
from nbxtensor.ops.device.elementwise import carrier, parts, run
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
from nbxtensor.ops.device.layout import SMALL, Axes, coalesce
from nbxtensor.ops.plan import Step, Window


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of some operands of one shape, and the tile that walks them."""

    m: int
    k: int
    heads: Axes
    along: tuple[int, ...]
    wide: bool
    rows: int
    block: int

    def arguments(self, letters: str) -> dict[str, Argument]:
        """Return sizes and strides, of each operand under its letter."""
        found: dict[str, Argument] = {
            "m": Whole(self.m, "i64" if self.wide else "i32"),
            "k": Whole(self.k) if self.wide else self.k,
        }
        found |= self.heads.extent_arguments("d", wide=self.wide)
        for i, letter in enumerate(letters):
            found |= self.heads.stride_arguments(i, letter, wide=self.wide)
        for letter, step in zip(letters, self.along, strict=True):
            found[f"along_{letter}"] = (
                Whole(step) if self.heads.general else _step(step, wide=self.wide)
            )
        return found

    def constants(self) -> dict[str, Any]:
        """Return the specialisation of the tile."""
        return {
            "KEPT": len(self.heads.extents),
            "WIDE": self.wide,
            "R": self.rows,
            "BK": self.block,
        }


def _step(step: int, *, wide: bool = False) -> Argument:
    if step in (0, 1):
        return Fixed(step)
    return Whole(step) if wide else step


def rows_of(windows: Sequence[Window], *, block: int = 0) -> Rows:
    """Return the rows of windows of one shape."""
    shape = windows[0].shape
    heads = coalesce(shape[:-1], [w.strides[:-1] for w in windows], reorder=True)
    m, k = math.prod(shape[:-1]), shape[-1]
    along = tuple(w.strides[-1] for w in windows)
    reach = heads.reach() + max((k - 1) * abs(s) for s in along)
    wide = m * max(k, 1) + 8192 > 2**31 or reach >= 2**31
    across = abs(heads.strides[-1][0]) if heads.extents else 2**63
    rows, size = (1, 4096)
    if block:
        rows, size = (1, block)
    elif across < abs(along[-1]) and heads.extents[0] >= 8:
        rows, size = 128, 8
    elif k <= 32:
        rows, size = 32, 32
    elif k <= 256:
        rows, size = 4, 256
    elif k <= 1024:
        rows, size = 1, 1024
    heads = heads.in_general(general=m * max(k, 1) < SMALL)
    return Rows(m, k, heads, along, wide, rows, size)


def _float_carrier(window: Window) -> str:
    if window.dtype.kind != "f":
        raise NotLowered(f"kernels do not normalise {window.dtype}")
    return "float64" if window.dtype is float64 else "float32"


def softmax(low: Lowering, step: Step) -> None:
    """Lower ``norm:softmax`` and ``norm:log_softmax``: [out], [x] along the last axis."""
    out, source = step.windows()
    if out.size == 0:
        return
    rows = rows_of([out, source])
    element, reading = memory_type(source.dtype)
    target, writing = memory_type(out.dtype)
    placed = rows.arguments("ox")
    arguments: dict[str, Argument] = {
        "out": Address(out, target),
        "x": Address(source, element),
        **_in_order(placed, "m k", "d", "xo", "xo"),
    }
    low.launch(
        "norm:softmax",
        (math.ceil(rows.m / rows.rows),),
        arguments,
        {
            "LOG": step.kernel.endswith("log_softmax"),
            "T": _float_carrier(source),
            "KIND": reading,
            "OUT": writing,
            "ONE": rows.k <= rows.block,
            **rows.constants(),
        },
        num_warps=8 if rows.block >= 4096 else 4,
        claims=not rows.heads.general,
    )


def _in_order(
    placed: dict[str, Argument], sizes: str, extents: str, strides: str, along: str
) -> dict[str, Argument]:
    """Return arguments in the order of the kernels' parameters."""
    names = sizes.split()
    names += [f"{extents}{i}" for i in range(7)]
    names += [f"{letter}{i}" for letter in strides for i in range(8)]
    names += [f"along_{letter}" for letter in along]
    return {name: placed[name] for name in names}


def _along(window: Window | None, rows: Rows) -> Argument:
    if window is None:
        return None
    step = window.strides[-1]
    return Whole(step) if rows.heads.general else _step(step)


def normalise(low: Lowering, step: Step) -> None:
    """Lower ``norm:rms``, ``norm:rms_add`` and ``norm:layer``."""
    name = step.kernel.split(":")[1]
    total = residual = bias = None
    out = step.window(0)
    if name == "rms_add":
        total, source, residual, weight = step.window(1), step.window(2), *step.operands[3:]
    else:
        source, weight = step.window(1), step.operands[2]
        bias = step.operands[3] if name == "layer" else None
    if out.size == 0:
        return
    if total is not None and (total.strides != out.strides or residual is None):
        raise NotLowered("the sum must have the layout of the result")
    windows = [out, source, *([] if residual is None else [residual])]
    letters = "ox" if residual is None else "oxy"
    rows = rows_of(windows)
    placed = rows.arguments(letters)
    if residual is None:
        placed |= {f"y{i}": None for i in range(8)} | {"along_y": None}
    placed["along_w"] = _along(weight, rows)
    placed["along_b"] = _along(bias, rows)

    def address(window: Window | None) -> Argument:
        return None if window is None else Address(window, memory_type(window.dtype)[0])

    def reading(window: Window | None) -> str:
        return "" if window is None else memory_type(window.dtype)[1]

    low.launch(
        "norm:normalise",
        (math.ceil(rows.m / rows.rows),),
        {
            "out": address(out),
            "total": address(total),
            "x": address(source),
            "residual": address(residual),
            "weight": address(weight),
            "bias": address(bias),
            "eps": Real(step.scalars[0], "fp64"),
            **_in_order(placed, "m k", "d", "xyo", "xyowb"),
        },
        {
            "CENTER": name == "layer",
            "T": _float_carrier(source),
            "KIND": reading(source),
            "OUT": reading(out),
            "W": reading(weight),
            "B": reading(bias),
            **rows.constants(),
        },
        written=("out",) if total is None else ("out", "total"),
        num_warps=8 if rows.block >= 4096 else 4,
        claims=not rows.heads.general,
    )


def gated(low: Lowering, step: Step) -> None:
    """Lower ``activation:silu_mul`` and ``activation:gelu_mul``: [out], [gate, up], [tanh]."""
    out, gate, up = step.windows()
    op = "silu_mul"
    if step.kernel.endswith("gelu_mul"):
        op = "gelu_tanh_mul" if step.scalars and step.scalars[0] else "gelu_mul"
    held = "float64" if float64 in (gate.dtype, up.dtype) else "float32"
    run(low, "gated", op, out, [gate, up], [held] * 3)


def rope(low: Lowering, step: Step) -> None:
    """Lower ``position:rope``: [out], [x, positions], [base, interleaved, rotary, scale]."""
    out, source, positions = step.windows()
    batch, length, heads, width = source.shape
    if out.size == 0:
        return
    base, interleaved, rotary, scale = step.scalars
    element, reading = memory_type(source.dtype)
    pairs = max(1 << (max(rotary // 2, 1) - 1).bit_length(), 1)
    if pairs > 2048:
        raise NotLowered(f"kernels rotate up to 4096 columns, got {rotary}")
    rest = 0 if rotary == width else 1 << (width - rotary - 1).bit_length()
    block = max(1, min(1024 // pairs, 1 << (heads - 1).bit_length()))

    def strides(window: Window, letter: str) -> dict[str, Argument]:
        general = out.size < SMALL
        return {
            f"{letter}{i}": Whole(s) if general else _step(s) for i, s in enumerate(window.strides)
        }

    low.launch(
        "position:rope",
        (batch * length, math.ceil(heads / block)),
        {
            "out": Address(out, element),
            "x": Address(source, element),
            "positions": Address(positions, positions.dtype.triton),
            "base": Real(base, "fp64"),
            "scale": Real(scale, "fp64"),
            "length": Whole(length, "i32"),
            "heads": Whole(heads, "i32"),
            "width": Whole(width, "i32"),
            "rotary": Whole(rotary, "i32"),
            **strides(source, "x"),
            **strides(out, "o"),
            **strides(positions, "p"),
        },
        {
            "INTERLEAVED": bool(interleaved),
            "T": _float_carrier(source),
            "KIND": reading,
            "WIDE": max(_reach(source), _reach(out)) >= 2**31,
            "REST": rest,
            "BH": block,
            "BP": pairs,
        },
        claims=out.size >= SMALL,
    )


def _reach(window: Window) -> int:
    return sum((e - 1) * abs(s) for e, s in zip(window.shape, window.strides, strict=True))


# Running extrema keep to small tiles: their operator works on pairs.
_EXTREMA_BLOCK: Final = 64


def scan(low: Lowering, step: Step) -> None:
    """Lower ``scan:*``: [out], [x] or [values, places], [x], along the last axis, [compute]."""
    name = step.kernel.split(":")[1]
    compute = step.scalars[0]
    if name in ("cumsum", "cumprod"):
        out, source = step.windows()
        if source.dtype.kind == "c" and name == "cumsum" and out.dtype.kind == "c":
            held = "float32" if compute.bits == 64 else "float64"
            for one, other in zip(parts(out), parts(source), strict=True):
                _cumulate(low, one, other, held, product=False)
            return
        held = "int64" if compute is bool_ else carrier(compute)
        _cumulate(low, out, source, held, product=name == "cumprod")
        return
    values, places, source = step.windows()
    if values.size == 0:
        return
    if values.strides != places.strides:
        raise NotLowered("values and places must have one layout")
    rows = rows_of([values, source], block=_EXTREMA_BLOCK)
    element, reading = memory_type(source.dtype)
    target, writing = memory_type(values.dtype)
    low.launch(
        "scan:extrema",
        (math.ceil(rows.m / rows.rows),),
        {
            "out": Address(values, target),
            "places": Address(places, "i64"),
            "x": Address(source, element),
            **_in_order(rows.arguments("ox"), "m k", "d", "xo", "xo"),
        },
        {
            "GREATEST": name == "cummax",
            "T": "int64" if compute is bool_ else carrier(compute),
            "KIND": reading,
            "OUT": writing,
            **rows.constants(),
        },
        written=("out", "places"),
        claims=not rows.heads.general,
    )


def _cumulate(low: Lowering, out: Window, source: Window, held: str, *, product: bool) -> None:
    if out.size == 0:
        return
    rows = rows_of([out, source])
    if rows.block == 4096:
        rows = rows_of([out, source], block=1024)
    element, reading = memory_type(source.dtype)
    target, writing = memory_type(out.dtype)
    low.launch(
        "scan:cumulate",
        (math.ceil(rows.m / rows.rows),),
        {
            "out": Address(out, target),
            "x": Address(source, element),
            **_in_order(rows.arguments("ox"), "m k", "d", "xo", "xo"),
        },
        {"PRODUCT": product, "T": held, "KIND": reading, "OUT": writing, **rows.constants()},
        claims=not rows.heads.general,
    )
