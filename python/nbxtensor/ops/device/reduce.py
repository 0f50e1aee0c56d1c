"""Lowering of reductions: tiles, pieces of long rows, and passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from nbxtensor.dtype import DType, bool_, float32, float64, int64, uint64
from nbxtensor.ops.device.elementwise import carrier, copy, parts
from nbxtensor.ops.device.launches import (
    Address,
    Argument,
    Lowering,
    NotLowered,
    Real,
    Whole,
    memory_type,
)
from nbxtensor.ops.device.layout import SMALL, Axes, coalesce
from nbxtensor.ops.plan import Step, Window

# Blocks that keep any of today's devices busy. Fixed, so that a result does not depend on the
# device.
_BLOCKS: Final = 1056
_STATES: Final = {"int64": int64, "uint64": uint64, "float32": float32, "float64": float64}


@dataclass(frozen=True, slots=True)
class Shape:
    """How a reduction walks its input."""

    m: int
    k: int
    kept: Axes
    inner: Axes
    wide: bool
    rows: int
    block: int
    piece: int
    pieces: int

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of outputs, and pieces."""
        return math.ceil(self.m / self.rows), self.pieces

    def whole(self) -> Shape:
        """Return the same in one piece."""
        piece = math.ceil(self.k / self.block) * self.block
        return replace(self, piece=piece, pieces=1)

    def arguments(self) -> dict[str, Argument]:
        """Return the sizes and strides as the kernels take them."""
        found: dict[str, Argument] = {}
        found |= self.kept.extent_arguments("d", wide=self.wide)
        found |= self.kept.stride_arguments(0, "x", wide=self.wide)
        found |= self.inner.extent_arguments("r", wide=self.wide)
        found |= self.inner.stride_arguments(0, "s", wide=self.wide)
        return found

    def constants(self) -> dict[str, Any]:
        """Return the specialisation of the tile."""
        return {
            "KEPT": len(self.kept.extents),
            "RANK": len(self.inner.extents),
            "WIDE": self.wide,
            "R": self.rows,
            "BK": self.block,
        }

    def size(self, value: int) -> Argument:
        """Return a size in the width of the indices."""
        return Whole(value, "i64") if self.wide else value


def shape_of(source: Window, axes: int, *, ordered: bool = False) -> Shape:
    """Return how to reduce the last axes of a window."""
    kept = source.rank - axes
    outer = coalesce(source.shape[:kept], [source.strides[:kept]], reorder=False)
    inner = coalesce(source.shape[kept:], [source.strides[kept:]], reorder=not ordered)
    m, k = math.prod(source.shape[:kept]), math.prod(source.shape[kept:])
    wide = m * max(k, 1) + 4096 > 2**31 or outer.reach() + inner.reach() >= 2**31
    small = m * max(k, 1) < SMALL
    across = abs(outer.strides[0][0]) if outer.extents else 2**63
    along = abs(inner.strides[0][0]) if inner.extents else 1
    if across < along and outer.extents[0] >= 8:
        rows, block = 128, 8
    elif k > 256:
        rows, block = 1, 1024
    elif k > 32:
        rows, block = 4, 256
    else:
        rows, block = 32, 32
    blocks = math.ceil(m / rows)
    pieces = 1
    if 0 < blocks < _BLOCKS // 2 and k > 4 * block:
        pieces = max(1, min(_BLOCKS // blocks, math.ceil(k / (4 * block))))
    piece = math.ceil(k / pieces / block) * block
    pieces = max(1, math.ceil(k / piece)) if piece else 1
    outer, inner = outer.in_general(general=small), inner.in_general(general=small)
    return Shape(m, k, outer, inner, wide, rows, block, max(piece, block), pieces)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the input: names of the kernel's functions, and the types."""

    map: str
    combine: str
    finish: str
    elements: str  # carrier of elements
    states: str  # carrier of states


def _launch(
    low: Lowering,
    shape: Shape,
    out: Window,
    source: Window,
    do: Pass,
    count: int,
    shift: Window | None,
    p: Any,
) -> None:
    element, reading = memory_type(source.dtype)
    target, writing = memory_type(out.dtype)
    low.launch(
        "reduce:rows",
        shape.grid,
        {
            "out": Address(out, target),
            "x": Address(source, element),
            "shift": None if shift is None else Address(shift, shift.dtype.triton),
            "m": Whole(shape.m, "i64" if shape.wide else "i32"),
            "k": shape.size(shape.k),
            "piece": shape.size(shape.piece),
            "count": Whole(count) if do.finish in ("mean", "var", "std") else None,
            "p": None if p is None else Real(p, "fp64"),
            **shape.arguments(),
        },
        {
            "MAP": do.map,
            "COMBINE": do.combine,
            "FINISH": do.finish,
            "T": do.elements,
            "S": do.states,
            "KIND": reading,
            "OUT": writing,
            **shape.constants(),
        },
        claims=not shape.inner.general,
    )


def run(
    low: Lowering,
    out: Window,
    source: Window,
    axes: int,
    do: Pass,
    shift: Window | None = None,
    p: Any = None,
) -> None:
    """Add the launches of one pass; `out` is contiguous."""
    if out.size == 0:
        return
    shape = shape_of(source, axes)
    if shape.pieces == 1:
        _launch(low, shape, out, source, do, shape.k, shift, p)
        return
    part = low.builder.temporary((shape.pieces, shape.m), _STATES[do.states])
    first = Pass(do.map, do.combine, "none", do.elements, do.states)
    _launch(low, shape, part, source, first, shape.k, shift, p)
    again = Pass("value", do.combine, do.finish, do.states, do.states)
    merged = shape_of(part.permute((1, 0)), 1)
    _launch(low, merged.whole(), out, part, again, shape.k, shift, p)


_SIMPLE: Final = {
    "sum": ("value", "sum", "none"),
    "prod": ("value", "prod", "none"),
    "mean": ("value", "sum", "mean"),
    "amax": ("value", "max", "none"),
    "amin": ("value", "min", "none"),
    "all": ("zero", "sum", "not"),
    "any": ("nonzero", "sum", "none"),
    "count_nonzero": ("nonzero", "sum", "none"),
}
NAMES: Final[tuple[str, ...]] = (*_SIMPLE, "var", "std", "logsumexp", "norm")


def _number_carrier(dtype: DType) -> str:
    return "int64" if dtype is bool_ else carrier(dtype)


def _truth_carrier(dtype: DType) -> str:
    if dtype.kind == "f":
        return "float64" if dtype is float64 else "float32"
    return "int64"


def reduction(low: Lowering, step: Step) -> None:
    """Lower ``reduce:<name>``: [out], [x], [compute, axes, extra]."""
    name = step.kernel.split(":")[1]
    out, source = step.windows()
    compute, axes = step.scalars[0], step.scalars[1]
    if not out.contiguous:
        raise NotLowered("kernels reduce to contiguous tensors only")
    if source.dtype.kind == "c" and name in ("sum", "mean"):
        if compute.kind != "c" or out.dtype.kind != "c":
            raise NotLowered("kernels do not add up complex numbers as real ones")
        held = "float32" if compute.bits == 64 else "float64"
        for target, part in zip(parts(out), parts(source), strict=True):
            _complex_part(low, target, part, axes, Pass(*_SIMPLE[name], held, held))
        return
    memory_type(source.dtype)
    if name in ("all", "any", "count_nonzero"):
        held = _truth_carrier(source.dtype)
        run(low, out, source, axes, Pass(*_SIMPLE[name], held, "int64"))
        return
    held = _number_carrier(compute)
    if name in _SIMPLE:
        run(low, out, source, axes, Pass(*_SIMPLE[name], held, held))
        return
    if name == "norm":
        run(low, out, source, axes, Pass("norm", "norm", "norm", held, held), p=step.scalars[2])
        return
    shift = low.builder.temporary(out.shape, _STATES[held])
    if name == "logsumexp":
        run(low, shift, source, axes, Pass("value", "max", "shift", held, held))
        run(low, out, source, axes, Pass("exp", "sum", "log", held, held), shift)
        return
    run(low, shift, source, axes, Pass("value", "sum", "mean", held, held))
    run(low, out, source, axes, Pass("distance", "sum", name, held, held), shift, step.scalars[2])


def _complex_part(low: Lowering, out: Window, source: Window, axes: int, do: Pass) -> None:
    """Reduce one part of complex numbers; the output's elements lie two apart."""
    held = low.builder.temporary(out.shape, _STATES[do.states])
    run(low, held, source, axes, do)
    copy(low, Step("copy:strided", (out, held), (), 1))


def place(low: Lowering, step: Step) -> None:
    """Lower ``reduce:argmax`` and ``reduce:argmin``: [out], [x], [compute, axes]."""
    out, source = step.windows()
    if out.size == 0:
        return
    held = _number_carrier(step.scalars[0])
    shape = shape_of(source, step.scalars[1], ordered=True)
    greatest = step.kernel.endswith("argmax")
    if shape.pieces == 1:
        _places(low, shape, out, None, source, None, greatest, held)
        return
    found = low.builder.temporary((shape.pieces, shape.m), int64)
    values = low.builder.temporary((shape.pieces, shape.m), _STATES[held])
    _places(low, shape, found, values, source, None, greatest, held)
    merged = shape_of(values.permute((1, 0)), 1, ordered=True)
    _places(low, merged.whole(), out, None, values, found, greatest, held)


def _places(
    low: Lowering,
    shape: Shape,
    out: Window,
    values: Window | None,
    source: Window,
    known: Window | None,
    greatest: bool,
    held: str,
) -> None:
    element, reading = memory_type(source.dtype)
    low.launch(
        "reduce:places",
        shape.grid,
        {
            "out": Address(out, "i64"),
            "values": None if values is None else Address(values, values.dtype.triton),
            "x": Address(source, element),
            "known": None if known is None else Address(known, "i64"),
            "m": Whole(shape.m, "i64" if shape.wide else "i32"),
            "k": shape.size(shape.k),
            "piece": shape.size(shape.piece),
            **shape.arguments(),
        },
        {"GREATEST": greatest, "T": held, "KIND": reading, **shape.constants()},
        written=("out",) if values is None else ("out", "values"),
        claims=not shape.inner.general,
    )
