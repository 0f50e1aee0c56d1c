"""Attention and the cache that it reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nbxtensor.dtype import bool_, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.signature import optional_tensor, scalar, static, tensor, written
from nbxtensor.ops.table import Row, Sample, register


def _check(builder: Builder, query: Window, key: Window, value: Window) -> None:
    for name, window in (("query", query), ("key", key), ("value", value)):
        if window.rank != 4:
            raise builder.error(
                f"{name} must have shape (batch, heads, length, width), got {window.shape}"
            )
        builder.check_kind(window.dtype, "f")
    if key.shape[:3] != value.shape[:3]:
        raise builder.error(
            f"key and value must agree in batch, heads and length, got {key.shape} and "
            f"{value.shape}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise builder.error(
            f"query and key must agree in batch and width, got {query.shape} and {key.shape}"
        )
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise builder.error(
            f"{query.shape[1]} query heads cannot share {key.shape[1]} key heads, expected a "
            "multiple"
        )


def _mask(builder: Builder, mask: Window | None, shape: tuple[int, ...]) -> Window | None:
    if mask is None:
        return None
    if mask.dtype is not bool_ and mask.dtype.kind != "f":
        raise builder.type_error(f"mask must be bool or floating, got {mask.dtype}")
    if builder.broadcast(mask.shape, shape) != shape:
        raise builder.error(f"mask of shape {mask.shape} cannot be broadcast to {shape}")
    return mask.broadcast_to(shape)


def _forward(
    builder: Builder,
    windows: tuple[Window, Window, Window],
    mask: Window | None,
    scale: Number | None,
    causal: bool,
    window: Any,
    kv_length: Any,
) -> Window:
    query, key, value = windows
    _check(builder, query, key, value)
    common = builder.promote(query, key, value)
    dtype = resolve("normalise", common).output
    query, key, value = (builder.cast(v, dtype) for v in (query, key, value))
    out = builder.output((*query.shape[:3], value.shape[3]), dtype)
    scores = (*query.shape[:3], key.shape[2])
    if scale is None or scale.none:
        factor: Any = 1 / math.sqrt(query.shape[3]) if query.shape[3] else 1.0
    else:
        factor = scale
    builder.step(
        "attention:forward",
        [out],
        [query, key, value, _mask(builder, mask, scores)],
        [factor, bool(causal), window, kv_length],
    )
    return out


def _plan_attention(
    builder: Builder,
    query: Window,
    key: Window,
    value: Window,
    mask: Window | None,
    causal: bool,
    scale: Number,
    window: Number,
    kv_length: Number,
) -> Window:
    if key.rank == 4 and not kv_length.none:
        builder.guard(kv_length, 0, key.shape[2], "kv_length")
    if not window.none:
        builder.guard(window, 0, 2**62, "window")
    return _forward(
        builder,
        (query, key, value),
        mask,
        scale,
        causal,
        -1 if window.none else window,
        None if kv_length.none else kv_length,
    )


def _plan_scaled(
    builder: Builder,
    query: Window,
    key: Window,
    value: Window,
    mask: Window | None,
    dropout: float,
    causal: bool,
    scale: Number,
    gqa: bool,
) -> Window:
    if dropout != 0:
        raise builder.error(f"dropout_p must be 0, got {dropout}: nothing is trained here")
    rank = query.rank
    if rank == 3:
        query, key, value = (window.insert(1) for window in (query, key, value))
        if mask is not None and mask.rank == 3:
            mask = mask.insert(1)
    _check(builder, query, key, value)
    if not gqa and query.shape[1] != key.shape[1]:
        raise builder.error(
            f"query has {query.shape[1]} heads and key {key.shape[1]}; pass enable_gqa=True to "
            "share key heads"
        )
    length: Any = None
    if causal:
        # Torch counts positions from the first query and the first key alike.
        if query.shape[2] > key.shape[2]:
            raise builder.error(
                f"is_causal needs at most as many queries as keys, got {query.shape[2]} and "
                f"{key.shape[2]}; pass a mask"
            )
        length = query.shape[2]
    out = _forward(builder, (query, key, value), mask, scale, causal, -1, length)
    if rank == 4:
        return out
    flat = out.reshape((out.shape[0], *out.shape[2:]))
    assert flat is not None
    result = builder.output(flat.shape, flat.dtype)
    builder.copy(result, flat)
    return result


def _plan_append(builder: Builder, cache: Window, new: Window, position: Number) -> Window:
    if cache.rank != 4 or new.rank != 4:
        raise builder.error(
            f"got cache of shape {cache.shape} and new of shape {new.shape}, expected (batch, "
            "heads, length, width) both"
        )
    if (*cache.shape[:2], cache.shape[3]) != (*new.shape[:2], new.shape[3]):
        raise builder.error(
            f"cache of shape {cache.shape} and new of shape {new.shape} must agree in batch, "
            "heads and width"
        )
    room = cache.shape[2] - new.shape[2]
    if room < 0:
        raise builder.error(
            f"new of shape {new.shape} has {new.shape[2]} positions, more than the "
            f"{cache.shape[2]} of the cache"
        )
    builder.check_writable(cache)
    builder.guard(position, 0, room, "position")
    builder.step("attention:append", [cache], [new], [position])
    return cache


def _attention_oracle(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    kv_length: int | None = None,
) -> Any:
    length = k.shape[2] if kv_length is None else kv_length
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, axis=1) for x in (k, v))
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * factor
    position = length - q.shape[2] + np.arange(q.shape[2])[:, None]
    keys = np.arange(k.shape[2])[None, :]
    visible = np.broadcast_to(keys < length, scores.shape)
    if causal:
        visible = visible & (keys <= position)
    if window is not None:
        visible = visible & (keys > position - window)
    if mask is not None:
        if mask.dtype == np.bool_:
            visible = visible & mask
        else:
            scores = scores + mask
    scores = np.where(visible, scores, -np.inf)
    peak = np.max(scores, axis=-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - peak)
    total = np.sum(weights, axis=-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights / np.where(total == 0, 1, total), v)


def _scaled_oracle(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if q.ndim == 3:
        return _scaled_oracle(q[:, None], k[:, None], v[:, None], attn_mask, 0.0, is_causal, scale)[
            :, 0
        ]
    if is_causal:
        attn_mask = np.tril(np.ones((q.shape[2], k.shape[2]), np.bool_))
    return _attention_oracle(q, k, v, attn_mask, False, scale)


def _append_oracle(cache: Any, new: Any, position: int) -> Any:
    result = np.array(cache)
    result[:, :, position : position + new.shape[2]] = new
    return result


def _attention_samples(generator: np.random.Generator) -> Iterator[Sample]:
    def heads(b: int, h: int, kv: int, lq: int, lk: int, d: int) -> Any:
        return inputs.normal(generator, (b, h, lq, d), (b, kv, lk, d), (b, kv, lk, d))

    yield Sample(heads(1, 1, 1, 1, 1, 1))
    yield Sample(heads(2, 4, 2, 5, 5, 8), {"causal": True})
    yield Sample(heads(1, 6, 2, 3, 11, 16), {"causal": True, "scale": 0.5})
    yield Sample(heads(1, 9, 3, 1, 67, 64), {"causal": True, "kv_length": 41})
    yield Sample(heads(1, 2, 1, 7, 13, 8), {"causal": True, "window": 3})
    yield Sample(heads(2, 2, 2, 33, 70, 32), {"kv_length": 50})
    q, k, v = heads(2, 4, 2, 5, 9, 8)
    visible = generator.standard_normal((2, 1, 5, 9)) > -0.5
    visible[0, 0, 2] = False
    yield Sample((q, k, v, visible), {"causal": True})
    yield Sample((q, k, v, inputs.normal(generator, (5, 9))[0]))
    yield Sample(heads(1, 2, 2, 0, 4, 8))


def _scaled_samples(generator: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 3, 5, 8), (3, 5, 8)):
        three = inputs.normal(generator, shape, shape, shape)
        yield Sample(three)
        yield Sample(three, {"is_causal": True})
        yield Sample(three, {"attn_mask": generator.standard_normal((5, 5)) > -1, "scale": 0.25})
    q, k, v = inputs.normal(generator, (1, 4, 3, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    yield Sample((q, k, v), {"is_causal": True, "enable_gqa": True})


QUERY, KEY, VALUE = tensor("query", "q"), tensor("key", "k"), tensor("value", "v")

register(
    Row(
        name="attention",
        family="attention",
        parameters=(
            QUERY,
            KEY,
            VALUE,
            optional_tensor("mask", "attn_mask"),
            static("causal", False, "is_causal"),
            scalar("scale", None),
            scalar("window", None),
            scalar("kv_length", None),
        ),
        plan=_plan_attention,
        oracle=_attention_oracle,
        samples=_attention_samples,
        summary="Softmax attention of (batch, heads, length, width) tensors; several query heads "
        "may share a key head. Only the first `kv_length` keys exist; query i stands at position "
        "kv_length - queries + i, sees keys up to it where `causal`, and of these the last "
        "`window`. A query that sees nothing gives zeros.",
        kernels=("attention:forward",),
        tolerance=64.0,
        flops=lambda q, k, v, *m: 4.0 * math.prod(q) * k[2],
        bench=(((1, 9, 512, 64), (1, 3, 512, 64), (1, 3, 512, 64)),),
    )
)
register(
    Row(
        name="scaled_dot_product_attention",
        family="attention",
        parameters=(
            QUERY,
            KEY,
            VALUE,
            optional_tensor("attn_mask"),
            static("dropout_p", 0.0),
            static("is_causal", False),
            scalar("scale", None),
            static("enable_gqa", False),
        ),
        plan=_plan_scaled,
        oracle=_scaled_oracle,
        samples=_scaled_samples,
        summary="Attention as torch calls it: is_causal counts queries and keys from the first.",
        kernels=("attention:forward", "copy:strided"),
        tolerance=64.0,
    )
)
register(
    Row(
        name="kv_append",
        family="attention",
        parameters=(written("cache"), tensor("new"), scalar("position")),
        plan=_plan_append,
        oracle=_append_oracle,
        samples=lambda g: [
            Sample((*inputs.normal(g, (2, 3, 9, 4), (2, 3, n, 4)), at))
            for n, at in ((1, 0), (1, 8), (4, 5), (9, 0), (0, 9))
        ],
        summary="Write new keys or values into a cache at a position, converted to its dtype, and "
        "return the cache.",
        kernels=("attention:append",),
    )
)
