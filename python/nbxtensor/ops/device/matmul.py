"""Lowering of matrix products and of attention."""

from __future__ import annotations

import math
from typing import Any, Final

from nbxtensor.dtype import bfloat16, bool_, float16, float64, uint64
from nbxtensor.ops.device.elementwise import natural_carrier
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
from nbxtensor.ops.plan import Number, Step, Window

_GREATEST_AXIS: Final = 65535
# Up to this many rows of the left operand, weights are read along k once for each.
_FEW: Final = 4
# Products and scores below which one kernel serves all layouts.
_SMALL: Final = 1 << 18


def _step(step: int) -> Argument:
    return Fixed(step) if step in (0, 1) else step


def _address(window: Window | None) -> Argument:
    return None if window is None else Address(window, memory_type(window.dtype)[0])


def _reading(window: Window | None) -> str:
    return "" if window is None else memory_type(window.dtype)[1]


def _sum_carrier(*windows: Window) -> str:
    kinds = {window.dtype.kind for window in windows}
    if "f" in kinds:
        mixed = kinds != {"f"}
        wide = mixed or any(window.dtype is float64 for window in windows)
        return "float64" if wide else "float32"
    unsigned = any(window.dtype is uint64 for window in windows)
    return "uint64" if unsigned else "int64"


def _same_halves(a: Window, b: Window) -> bool:
    return a.dtype is b.dtype and a.dtype in (float16, bfloat16)


def dense(low: Lowering, step: Step) -> None:
    """Lower ``matmul:dense``: [out], [a, b, bias]; batch axes are equal, strides may be 0."""
    out = step.window(0)
    a = step.window(1)
    b = step.window(2)
    bias = step.operands[3]
    if out.size == 0:
        return
    m, n, k = *out.shape[-2:], a.shape[-1]
    held = _sum_carrier(out, a, b)
    used = [w for w in (out, a, b, bias) if w is not None]
    batch = coalesce(out.shape[:-2], [w.strides[:-2] for w in used], reorder=True)
    small = out.size * max(k, 1) < _SMALL
    if batch.size == 1 and m <= _FEW and held in ("float32", "float64"):
        _few(low, out, a, b, bias, held)
        return
    same = _same_halves(a, b) and not low.interpreted
    tile = _tile(m, n, held, same=same)
    grid = _grid(math.ceil(m / tile[0]) * math.ceil(n / tile[1]), batch.size)
    low.launch(
        "matmul:dense",
        grid,
        {
            "out": _address(out),
            "a": _address(a),
            "b": _address(b),
            "bias": _address(bias),
            "m": Whole(m, "i32"),
            "n": Whole(n, "i32"),
            "k": Whole(k, "i32"),
            **batch.extent_arguments("d", wide=True),
            **_batch_strides(batch, used, (a, b, bias, out)),
            **_matrix_strides(out, a, b, bias, wide=small, fixed=not small),
        },
        {
            "T": held,
            "A": _reading(a),
            "B": _reading(b),
            "C": _reading(bias),
            "OUT": _reading(out),
            "RANK": len(batch.extents),
            "SAME": same,
            "BM": tile[0],
            "BN": tile[1],
            "BK": tile[2],
        },
        claims=not small,
        num_warps=4,
        num_stages=3 if same else 2,
    )


def _batch_strides(
    batch: Axes, used: list[Window], windows: tuple[Window | None, ...]
) -> dict[str, Argument]:
    strides: dict[str, Argument] = {}
    for letter, window in zip("abco", windows, strict=True):
        if window is None:
            strides |= {f"{letter}{i}": None for i in range(8)}
        else:
            strides |= batch.stride_arguments(used.index(window), letter, wide=True)
    return strides


def _matrix_strides(
    out: Window,
    a: Window,
    b: Window,
    bias: Window | None,
    *,
    wide: bool = False,
    fixed: bool = True,
) -> dict[str, Argument]:
    def step(window: Window | None, axis: int) -> Argument:
        if window is None:
            return None
        value = window.strides[axis]
        if fixed and value in (0, 1):
            return Fixed(value)
        return Whole(value) if wide else value

    return {
        "a_m": step(a, -2),
        "a_k": step(a, -1),
        "b_k": step(b, -2),
        "b_n": step(b, -1),
        "c_m": step(bias, -2),
        "c_n": step(bias, -1),
        "o_m": step(out, -2),
        "o_n": step(out, -1),
    }


def _tile(m: int, n: int, held: str, *, same: bool) -> tuple[int, int, int]:
    if held in ("int64", "uint64"):
        return 16, 16, 16
    if held == "float64":
        return 32, 32, 16
    if m <= 16:
        return 16, 64, 64
    if same and m > 64 and n > 64:
        return 128, 128, 64
    return 64, 64, 32


def _grid(tiles: int, batches: int) -> tuple[int, ...]:
    if batches <= _GREATEST_AXIS:
        return tiles, batches, 1
    for first in range(_GREATEST_AXIS, 0, -1):
        if batches % first == 0 and batches // first <= _GREATEST_AXIS:
            return tiles, first, batches // first
    raise NotLowered(f"kernels do not multiply {batches} matrices at once")


def _few(low: Lowering, out: Window, a: Window, b: Window, bias: Window | None, held: str) -> None:
    m, n, k = *out.shape[-2:], a.shape[-1]
    windows = [w for w in (out, a, b, bias) if w is not None]
    wide = max(_reach(w) for w in windows) >= 2**31 - 8192
    small = out.size * max(k, 1) < _SMALL
    along = abs(b.strides[-2]) <= abs(b.strides[-1])
    block = (8, 256) if along else (128, 8)

    low.launch(
        "matmul:few",
        (math.ceil(n / block[0]), m),
        {
            "out": _address(out),
            "a": _address(a),
            "b": _address(b),
            "bias": _address(bias),
            "m": Whole(m, "i32"),
            "n": Whole(n, "i32"),
            "k": Whole(k, "i32") if small else k,
            **_matrix_strides(out, a, b, bias, wide=wide or small, fixed=not small),
        },
        {
            "T": held,
            "A": _reading(a),
            "B": _reading(b),
            "C": _reading(bias),
            "OUT": _reading(out),
            "WIDE": wide,
            "BN": block[0],
            "BK": block[1],
        },
        claims=not small,
    )


def _reach(window: Window) -> int:
    return sum((e - 1) * abs(s) for e, s in zip(window.shape, window.strides, strict=True))


def _four_strides(view: Window | None, letter: str, *, general: bool) -> dict[str, Argument]:
    if view is None:
        return {f"{letter}{i}": None for i in range(4)}
    return {f"{letter}{i}": Whole(s) if general else _step(s) for i, s in enumerate(view.strides)}


def _whole(value: Any, otherwise: int) -> Argument:
    absent = value is None or (isinstance(value, Number) and value.none)
    return Whole(otherwise if absent else value)


def attention(low: Lowering, step: Step) -> None:
    """Lower ``attention:forward``: [out], [q, k, v, mask], [scale, causal, window, kv_length]."""
    out = step.window(0)
    q = step.window(1)
    k = step.window(2)
    v = step.window(3)
    mask = step.operands[4]
    if out.size == 0:
        return
    scale, causal, window, length = step.scalars
    batch, heads, queries, width = q.shape
    value_width = v.shape[3]
    reading = memory_type(q.dtype)[1]
    same = q.dtype in (float16, bfloat16) and not low.interpreted
    held = "float64" if q.dtype is float64 else "float32"
    wide = max(16, _power_of_two(width)), max(16, _power_of_two(value_width))
    if max(wide) > 256:
        raise NotLowered(f"kernels attend over widths of up to 256, got {max(width, value_width)}")
    if batch * heads > _GREATEST_AXIS:
        raise NotLowered(f"kernels attend over up to {_GREATEST_AXIS} heads, got {batch * heads}")
    small = out.size * k.shape[2] < _SMALL
    narrow = held == "float64" or max(wide) > 128 or not same
    rows = 16 if queries <= 16 or held == "float64" else 32 if narrow else 64

    low.launch(
        "attention:forward",
        (math.ceil(queries / rows), batch * heads),
        {
            "out": _address(out),
            "q": _address(q),
            "k": _address(k),
            "v": _address(v),
            "mask": _address(mask),
            "heads": Whole(heads, "i32"),
            "group": Whole(heads // k.shape[1], "i32"),
            "queries": Whole(queries, "i32"),
            "length": _whole(length, k.shape[2]),
            "width": Whole(width, "i32"),
            "value_width": Whole(value_width, "i32"),
            "scale": Real(scale, "fp64" if held == "float64" else "fp32"),
            "window": _whole(window, -1),
            **_four_strides(q, "q", general=small),
            **_four_strides(k, "k", general=small),
            **_four_strides(v, "v", general=small),
            **_four_strides(mask, "m", general=small),
            **_four_strides(out, "o", general=small),
        },
        {
            "T": held,
            "KIND": reading,
            "MASK": _reading(mask),
            "CAUSAL": bool(causal),
            "SAME": same,
            "BQ": rows,
            "BKEY": 16 if held == "float64" else 32 if narrow else 64,
            "D": wide[0],
            "DV": wide[1],
        },
        claims=not small,
        num_stages=2,
    )


def _power_of_two(value: int) -> int:
    return 1 << (max(value, 1) - 1).bit_length()


def append(low: Lowering, step: Step) -> None:
    """Lower ``attention:append``: [cache], [new], [position]."""
    cache, new = step.windows()
    if new.size == 0:
        return
    element, reading = memory_type(new.dtype)
    target, writing = memory_type(cache.dtype)
    axes = coalesce(new.shape, [cache.strides, new.strides])
    axes = axes.in_general(general=axes.size < SMALL)
    low.launch(
        "attention:append",
        (math.ceil(axes.size / 1024),),
        {
            "out": Address(cache, target),
            "x": Address(new, element),
            "n": Whole(axes.size),
            "position": Whole(step.scalars[0]),
            "stride": Whole(cache.strides[2]),
            **axes.extent_arguments("d", wide=True),
            **axes.stride_arguments(0, "o", wide=True),
            **axes.stride_arguments(1, "x", wide=True),
        },
        {
            "T": "int64" if new.dtype is bool_ else natural_carrier(new.dtype),
            "KIND": reading,
            "OUT": writing,
            "RANK": len(axes.extents),
            "BLOCK": 1024,
        },
    )
