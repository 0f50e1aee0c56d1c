"""Rotary positions and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype import int32, int64, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.signature import scalar, static, tensor
from nbxtensor.ops.table import EVERY, Row, Sample, register


def ids_window(builder: Builder, ids: Window, name: str = "ids") -> Window:
    """Return ids in a dtype that kernels read."""
    if ids.dtype.kind not in "iu" or ids.dtype.bits < 8:
        raise builder.type_error(f"{name} must be integers, got {ids.dtype}")
    return ids if ids.dtype in (int32, int64) else builder.cast(ids, int64)


def _plan_rope(
    builder: Builder,
    x: Window,
    positions: Window,
    base: Number,
    interleaved: bool,
    rotary_dim: Any,
    position_scale: Number,
) -> Window:
    if x.rank != 4:
        raise builder.error(f"x must have shape (batch, length, heads, width), got {x.shape}")
    builder.check_kind(x.dtype, "f")
    width = x.shape[3] if rotary_dim is None else builder.integer(rotary_dim, "rotary_dim")
    if not 0 <= width <= x.shape[3] or width % 2:
        raise builder.error(
            f"rotary_dim must be even and in [0, {x.shape[3]}], the width of x, got {width}"
        )
    wanted = x.shape[:2]
    fits = positions.rank <= 2 and all(
        own in (1, extent) for own, extent in zip(positions.shape[::-1], wanted[::-1], strict=False)
    )
    if not fits:
        raise builder.error(
            f"positions must have shape {wanted} or one that repeats to it, got {positions.shape}"
        )
    places = ids_window(builder, positions, "positions").broadcast_to(wanted)
    out = builder.output(x.shape, resolve("normalise", x.dtype).output)
    scalars = [base, bool(interleaved), width, position_scale]
    builder.step("position:rope", [out], [x, places], scalars)
    return out


def _plan_embedding(builder: Builder, ids: Window, weight: Window) -> Window:
    if weight.rank != 2:
        raise builder.error(f"weight must have shape (rows, width), got {weight.shape}")
    out = builder.output((*ids.shape, weight.shape[1]), weight.dtype)
    builder.step("embedding:dense", [out], [ids_window(builder, ids), weight])
    return out


def _rope_oracle(
    x: Any,
    positions: Any,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    position_scale: float = 1.0,
) -> Any:
    width = x.shape[3] if rotary_dim is None else rotary_dim
    half = width // 2
    frequency = base ** (-np.arange(half) * 2.0 / max(width, 1))
    angle = (np.broadcast_to(positions, x.shape[:2])[..., None] * position_scale * frequency)[
        :, :, None
    ]
    result = np.array(x)
    first, second = (
        (slice(0, width, 2), slice(1, width, 2))
        if interleaved
        else (slice(0, half), slice(half, width))
    )
    a, b = x[..., first], x[..., second]
    result[..., first] = a * np.cos(angle) - b * np.sin(angle)
    result[..., second] = a * np.sin(angle) + b * np.cos(angle)
    return result


def _rope_samples(generator: np.random.Generator) -> Any:
    for shape, keywords in (
        ((1, 1, 1, 2), {}),
        ((2, 5, 3, 8), {"interleaved": True}),
        ((2, 5, 3, 8), {"interleaved": False, "base": 500.0}),
        ((1, 3, 9, 64), {"interleaved": True, "base": 100000.0}),
        ((1, 7, 2, 16), {"rotary_dim": 6, "position_scale": 0.5}),
        ((1, 0, 2, 16), {}),
    ):
        (x,) = inputs.normal(generator, shape)
        yield Sample((x, generator.integers(0, 40, shape[:2])), keywords)


register(
    Row(
        name="rope",
        family="position",
        parameters=(
            tensor("x", "input"),
            tensor("positions"),
            scalar("base", 10000.0),
            static("interleaved", False),
            static("rotary_dim", None),
            scalar("position_scale", 1.0),
        ),
        plan=_plan_rope,
        oracle=_rope_oracle,
        samples=_rope_samples,
        summary="Rotate the first `rotary_dim` columns of (batch, length, heads, width) by their "
        "positions: neighbouring pairs where `interleaved`, else the two halves.",
        kernels=("position:rope",),
        tolerance=64.0,
        bench=(((1, 512, 9, 64), (1, 512)),),
    )
)
register(
    Row(
        name="embedding",
        family="position",
        parameters=(tensor("ids", "input"), tensor("weight")),
        plan=_plan_embedding,
        oracle=lambda ids, weight: weight[ids],
        samples=lambda g: [
            Sample((g.integers(0, 11, shape), *inputs.normal(g, (11, width))))
            for shape, width in (((), 3), ((7,), 5), ((2, 3), 64), ((0,), 4))
        ],
        summary="Rows of a table, chosen by id.",
        kernels=("embedding:dense",),
        dtypes=EVERY,
        tolerance=0.0,
    )
)
