"""Lowering of gathers, scatters, sequences, triangles and random numbers."""

from __future__ import annotations

import math
from typing import Any, Final

from nbxtensor.dtype import float64, int64, uint8, uint64
from nbxtensor.ops.device.elementwise import bits_window, number_argument, same_bits
from nbxtensor.ops.device.launches import (
    Address,
    Argument,
    Lowering,
    NotLowered,
    Real,
    Whole,
    memory_type,
)
from nbxtensor.ops.device.layout import SMALL, coalesce
from nbxtensor.ops.plan import Number, Step, Window

_BLOCK: Final = 1024


def offsets(
    low: Lowering,
    places: list[tuple[Window, int, int, str]],
    *,
    wraps: bool,
) -> Window:
    """Return the offsets that index tensors of one shape name: (indices, extent, stride, site)."""
    shape = places[0][0].shape
    out = low.builder.temporary((math.prod(shape),), int64)
    for number, (indices, extent, stride, site) in enumerate(places):
        axes = coalesce(shape, [indices.strides], reorder=False)
        axes = axes.in_general(general=axes.size < SMALL)
        address, code = low.fault(site)
        low.launch(
            "index:offsets",
            (math.ceil(out.size / _BLOCK),),
            {
                "out": Address(out, "i64"),
                "places": Address(indices, memory_type(indices.dtype)[0]),
                "fault": address,
                "n": Whole(out.size),
                "extent": Whole(extent),
                "stride": Whole(stride),
                "site": None if address is None else Whole(code, "i32"),
                **axes.extent_arguments("d", wide=True),
                **axes.stride_arguments(0, "p", wide=True),
            },
            {
                "FIRST": number == 0,
                "WRAPS": wraps,
                "RANK": len(axes.extents),
                "BLOCK": _BLOCK,
            },
        )
    return out


def _move(
    low: Lowering, out: Window, x: Window, known: Window, heads: int, *, put: bool,
    keep: Window | None = None,
) -> None:  # fmt: skip
    """Copy elements between two windows of one shape whose first axes are those of `known`."""
    lead = x if put else out
    row = math.prod(lead.shape[heads:])
    axes = coalesce(lead.shape, [out.strides, x.strides], reorder=False)
    axes = axes.in_general(general=axes.size < SMALL)
    element = memory_type(lead.dtype)[0]
    wide = axes.size + _BLOCK > 2**31 or axes.reach() >= 2**31
    low.launch(
        "index:move",
        (math.ceil(axes.size / _BLOCK),),
        {
            "out": Address(out, element),
            "x": Address(x, element),
            "known": Address(known, "i64"),
            "keep": None if keep is None else Address(keep, "u8"),
            "n": Whole(axes.size) if wide else axes.size,
            "row": Whole(row) if wide else row,
            **axes.extent_arguments("d", wide=wide),
            **axes.stride_arguments(0, "o", wide=wide),
            **axes.stride_arguments(1, "x", wide=wide),
        },
        {"PUT": put, "RANK": len(axes.extents), "WIDE": wide, "BLOCK": _BLOCK},
    )


def _rows_over(window: Window, axes: int, heads: tuple[int, ...]) -> Window:
    """Return a window over the index axes, which move nothing, and the rows."""
    return Window(
        window.source,
        window.index,
        window.dtype,
        (*heads, *window.shape[axes:]),
        (*(0 for _ in heads), *window.strides[axes:]),
        window.offset,
        aligned=window.aligned,
    )


def _sites(step: Step, x: Window, indices: list[Window]) -> list[tuple[Window, int, int, str]]:
    axes = step.scalars[1:]
    return [
        (places, x.shape[i], x.strides[i], f"axis {axes[i]} with size {x.shape[i]}")
        for i, places in enumerate(indices)
    ]


def take(low: Lowering, step: Step) -> None:
    """Lower ``index:take``: [out], [x, indices...], [count, axes...]; indexed axes lead."""
    out, x, *indices = step.windows()
    if out.size == 0:
        return
    count = step.scalars[0]
    if x.dtype.bits < 8:
        raise NotLowered(f"kernels do not take elements of {x.dtype}")
    known = offsets(low, _doubled(_sites(step, x, indices), x), wraps=True)
    target, source = bits_window(out), bits_window(x)
    heads = indices[0].rank
    source = _rows_over(source, count, target.shape[:heads])
    _move(low, target, source, known, heads, put=False)


def _doubled(
    sites: list[tuple[Window, int, int, str]], x: Window
) -> list[tuple[Window, int, int, str]]:
    """Return the sites with strides of the elements that are moved: 16 bytes move as two of 8."""
    if x.dtype.itemsize != 16:
        return sites
    return [(places, extent, 2 * stride, site) for places, extent, stride, site in sites]


def put(low: Lowering, step: Step) -> None:
    """Lower ``index:put``: [out], [values, indices...], [count, axes...]; the last one wins."""
    out, values, *indices = step.windows()
    if values.size == 0:
        return
    count = step.scalars[0]
    if out.dtype.bits < 8 or not same_bits(out.dtype, values.dtype):
        raise NotLowered(f"kernels do not put {values.dtype} into {out.dtype}")
    known = offsets(low, _doubled(_sites(step, out, indices), out), wraps=True)
    keep = low.builder.temporary(known.shape, uint8)
    low.launch(
        "index:latest",
        (math.ceil(known.size / 128),),
        {"out": Address(keep, "u8"), "known": Address(known, "i64"), "n": Whole(known.size)},
        {"BLOCK": 128},
    )
    target, source = bits_window(out), bits_window(values)
    heads = indices[0].rank
    target = _rows_over(target, count, source.shape[:heads])
    _move(low, target, source, known, heads, put=True, keep=keep)


def embedding(low: Lowering, step: Step) -> None:
    """Lower ``embedding:dense``: [out], [ids, table]."""
    out, ids, table = step.windows()
    if out.size == 0:
        return
    if out.dtype is not table.dtype or out.dtype.bits < 8:
        raise NotLowered(f"kernels do not take {out.dtype} from a table of {table.dtype}")
    width = 2 if out.dtype.itemsize == 16 else 1
    rows = table.shape[0]
    known = offsets(
        low,
        [(ids, rows, width * table.strides[0], f"the table's rows 0 to {rows - 1}")],
        wraps=False,
    )
    target, source = bits_window(out), bits_window(table)
    source = _rows_over(source, 1, target.shape[: ids.rank])
    _move(low, target, source, known, ids.rank, put=False)


def _sequence(low: Lowering, out: Window, held: str, start: Any, step: Any, end: Any) -> None:
    if out.size == 0:
        return
    element, writing = memory_type(out.dtype)
    axes = coalesce(out.shape, [out.strides], reorder=False)
    axes = axes.in_general(general=axes.size < SMALL)
    absent = end is None or (isinstance(end, Number) and end.none)
    low.launch(
        "fill:sequence",
        (math.ceil(axes.size / _BLOCK),),
        {
            "out": Address(out, element),
            "start": number_argument(start, held),
            "step": number_argument(step, held),
            "end": None if absent else number_argument(end, held),
            "n": Whole(axes.size),
            **axes.extent_arguments("d", wide=True),
            **axes.stride_arguments(0, "o", wide=True),
        },
        {"OUT": writing, "T": held, "RANK": len(axes.extents), "BLOCK": _BLOCK},
    )


def arange(low: Lowering, step: Step) -> None:
    """Lower ``fill:arange``: [out], [start, step]."""
    out = step.window(0)
    start, by = step.scalars
    kinds = {v.kind if isinstance(v, Number) else type(v) for v in (start, by)}
    if complex in kinds:
        raise NotLowered("kernels do not count in complex numbers")
    held = "float64"
    if kinds <= {bool, int}:
        unsigned = isinstance(start, Number) and start.unsigned
        held = "uint64" if unsigned or out.dtype is uint64 else "int64"
    _sequence(low, out, held, start, by, None)


def linspace(low: Lowering, step: Step) -> None:
    """Lower ``fill:linspace``: [out], [start, step, end]."""
    out = step.window(0)
    _sequence(low, out, "float64", *step.scalars)


def eye(low: Lowering, step: Step) -> None:
    """Lower ``fill:eye``: [out], [k]."""
    out = step.window(0)
    if out.size == 0:
        return
    if out.dtype.kind == "c":
        raise NotLowered(f"kernels do not write {out.dtype}")
    element, writing = memory_type(out.dtype)
    low.launch(
        "fill:eye",
        (math.ceil(out.size / _BLOCK),),
        {
            "out": Address(out, element),
            "n": Whole(out.size),
            "columns": Whole(out.shape[1]),
            "k": Whole(step.scalars[0]),
            "o_m": Whole(out.strides[0]),
            "o_n": Whole(out.strides[1]),
        },
        {"OUT": writing, "BLOCK": _BLOCK},
    )


def triangle(low: Lowering, step: Step) -> None:
    """Lower ``fill:triangle``: [out], [x], [k, upper]."""
    out, x = step.windows()
    if out.size == 0:
        return
    width = 2 if out.dtype.itemsize == 16 else 1
    if width == 2:
        raise NotLowered(f"kernels do not cut triangles of {out.dtype}")
    target, source = bits_window(out), bits_window(x)
    axes = coalesce(target.shape, [target.strides, source.strides], reorder=False)
    axes = axes.in_general(general=axes.size < SMALL)
    element = memory_type(target.dtype)[0]
    low.launch(
        "fill:triangle",
        (math.ceil(axes.size / _BLOCK),),
        {
            "out": Address(target, element),
            "x": Address(source, element),
            "n": Whole(axes.size),
            "rows": Whole(out.shape[-2]),
            "columns": Whole(out.shape[-1]),
            "k": Whole(step.scalars[0]),
            **axes.extent_arguments("d", wide=True),
            **axes.stride_arguments(0, "o", wide=True),
            **axes.stride_arguments(1, "x", wide=True),
        },
        {"UPPER": bool(step.scalars[1]), "RANK": len(axes.extents), "BLOCK": _BLOCK},
    )


def random(low: Lowering, step: Step) -> None:
    """Lower ``random:*``: [out], [seed, offset, first, second]."""
    name = step.kernel.split(":")[1]
    out = step.window(0)
    if out.size == 0:
        return
    element = memory_type(out.dtype)[0]
    seed, offset, first, second = step.scalars
    arguments: dict[str, Argument] = {
        "out": Address(out, element),
        "seed": Whole(seed, "u64"),
        "offset": Whole(offset, "u64"),
    }
    constants: dict[str, Any] = {"BLOCK": _BLOCK}
    if name == "integers":
        arguments |= {"low": Whole(first, "u64"), "high": Whole(second, "u64")}
    else:
        names = ("low", "high") if name == "uniform" else ("mean", "deviation")
        arguments |= {n: Real(v, "fp64") for n, v in zip(names, (first, second), strict=True)}
    if name == "uniform":
        bits = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}
        if element not in bits:
            raise NotLowered(f"kernels do not draw {out.dtype}")
        constants["BITS"] = bits[element]
    elif name == "normal":
        constants["WIDE"] = out.dtype is float64
    arguments["n"] = Whole(out.size)
    low.launch(f"fill:{name}", (math.ceil(out.size / _BLOCK),), arguments, constants)
