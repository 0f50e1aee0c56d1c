"""Softmax and the normalisations along the last axis, gated activations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nbxtensor.dtype import as_dtype, promote_types, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.signature import optional_tensor, scalar, static, tensor
from nbxtensor.ops.table import Row, Sample, register
from nbxtensor.tensor import Tensor

X = tensor("x", "input")
WEIGHT = optional_tensor("weight")


class NormAndSum(NamedTuple):
    """The normalised tensor and the sum that it was made from."""

    output: Tensor
    sum: Tensor


def floating(builder: Builder, x: Window) -> Window:
    """Return the window in the dtype that normalising kernels read."""
    builder.check_kind(x.dtype, "biuf")
    return builder.cast(x, resolve("normalise", x.dtype).output)


def _check_row(builder: Builder, x: Window, name: str, row: Window | None) -> Window | None:
    if row is None:
        return None
    if row.shape != x.shape[-1:]:
        raise builder.error(
            f"{name} must have shape {x.shape[-1:]}, one element for each of the last axis of "
            f"{x.shape}, got {row.shape}"
        )
    return floating(builder, row)


def _check_last(builder: Builder, x: Window) -> None:
    if x.rank == 0:
        raise builder.error("x must have at least one axis, got shape ()")


def _softmax(kernel: str) -> Any:
    def plan(builder: Builder, x: Window, axis: int, dtype: Any) -> Window:
        source = x if dtype is None else builder.cast(x, as_dtype(dtype))
        source = floating(builder, source)
        index = builder.axis(axis, x.rank)
        out = builder.output(x.shape, source.dtype)
        if x.rank == 0:
            one, other = out.insert(0), source.insert(0)
        else:
            one, other = out.last(index), source.last(index)
        builder.step(f"norm:{kernel}", [one], [other])
        return out

    return plan


def _plan_rms(builder: Builder, x: Window, weight: Window | None, eps: Number) -> Window:
    _check_last(builder, x)
    source = floating(builder, x)
    gain = _check_row(builder, x, "weight", weight)
    out = builder.output(x.shape, source.dtype)
    builder.step("norm:rms", [out], [source, gain], [eps])
    return out


def _plan_rms_add(
    builder: Builder, x: Window, residual: Window, weight: Window | None, eps: Number
) -> tuple[Window, Window]:
    _check_last(builder, x)
    if residual.shape != x.shape:
        raise builder.error(f"residual must have the shape of x, {x.shape}, got {residual.shape}")
    common = promote_types(floating(builder, x).dtype, floating(builder, residual).dtype)
    gain = _check_row(builder, x, "weight", weight)
    out = builder.output(x.shape, common)
    total = builder.output(x.shape, common)
    builder.step(
        "norm:rms_add",
        [out, total],
        [builder.cast(x, common), builder.cast(residual, common), gain],
        [eps],
    )
    return out, total


def _plan_layer(
    builder: Builder, x: Window, weight: Window | None, bias: Window | None, eps: Number
) -> Window:
    _check_last(builder, x)
    source = floating(builder, x)
    gain = _check_row(builder, x, "weight", weight)
    offset = _check_row(builder, x, "bias", bias)
    out = builder.output(x.shape, source.dtype)
    builder.step("norm:layer", [out], [source, gain, offset], [eps])
    return out


def _gated(kernel: str) -> Any:
    def plan(builder: Builder, gate: Window, up: Window, *modes: str) -> Window:
        for mode in modes:
            if mode not in ("none", "tanh"):
                raise builder.error(f"approximate must be 'none' or 'tanh', got {mode!r}")
        common = promote_types(gate.dtype, up.dtype)
        builder.check_kind(common, "f")
        shape = builder.broadcast(gate.shape, up.shape)
        out = builder.output(shape, common)
        pair = [builder.cast(v, common).broadcast_to(shape) for v in (gate, up)]
        builder.step(f"activation:{kernel}", [out], pair, [int(m == "tanh") for m in modes])
        return out

    return plan


def _softmax_oracle(x: Any, axis: int = -1, dtype: Any = None) -> Any:
    if x.size == 0:
        return x
    shifted = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return shifted / np.sum(shifted, axis=axis, keepdims=True)


def _log_softmax_oracle(x: Any, axis: int = -1, dtype: Any = None) -> Any:
    if x.size == 0:
        return x
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _rms_oracle(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    result = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)
    return result if weight is None else result * weight


def _layer_oracle(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    result = centred / np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def _gelu(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _row_samples(rows: int, *, none: bool = True) -> Any:
    def samples(generator: np.random.Generator) -> Any:
        for shape in ((1,), (5, 7), (2, 3, 64), (3, 1031), (0, 5)):
            values = inputs.normal(generator, shape, *[shape[-1:]] * rows)
            yield Sample(values)
            if none:
                yield Sample(values[:1], {"eps": 0.125})

    return samples


for _name, _oracle, _summary in (
    ("softmax", _softmax_oracle, "exp(x) / sum(exp(x)) along an axis."),
    ("log_softmax", _log_softmax_oracle, "Logarithm of softmax along an axis."),
):
    register(
        Row(
            name=_name,
            family="norm",
            parameters=(X, static("axis", -1, "dim"), static("dtype", None)),
            plan=_softmax(_name),
            oracle=_oracle,
            samples=lambda g: [
                *inputs.along_axis()(g),
                Sample((np.zeros((3, 0)),)),
                Sample((np.zeros((0, 3)),)),
            ],
            summary=_summary,
            kernels=(f"norm:{_name}",),
            methods=(_name,),
            tolerance=16.0,
            bench=(((8192, 8192),),),
        )
    )
register(
    Row(
        name="rms_norm",
        family="norm",
        parameters=(X, WEIGHT, scalar("eps", 1e-6)),
        plan=_plan_rms,
        oracle=_rms_oracle,
        samples=_row_samples(1),
        summary="x / sqrt(mean(x^2) + eps) along the last axis, times weight.",
        kernels=("norm:rms",),
        tolerance=16.0,
        bench=(((8192, 8192), (8192,)),),
    )
)
register(
    Row(
        name="rms_norm_add",
        family="norm",
        parameters=(X, tensor("residual"), WEIGHT, scalar("eps", 1e-6)),
        plan=_plan_rms_add,
        oracle=lambda x, r, w=None, eps=1e-6: (_rms_oracle(x + r, w, eps), x + r),
        samples=lambda g: [
            Sample(inputs.normal(g, shape, shape, shape[-1:])) for shape in ((5, 7), (2, 3, 64))
        ],
        summary="rms_norm of x + residual, and the sum itself for the next residual.",
        kernels=("norm:rms_add",),
        result=NormAndSum,
        tolerance=16.0,
        bench=(((8192, 8192), (8192, 8192), (8192,)),),
    )
)
register(
    Row(
        name="layer_norm",
        family="norm",
        parameters=(X, WEIGHT, optional_tensor("bias"), scalar("eps", 1e-5)),
        plan=_plan_layer,
        oracle=_layer_oracle,
        samples=_row_samples(2),
        summary="(x - mean) / sqrt(var + eps) along the last axis, times weight, plus bias.",
        kernels=("norm:layer",),
        tolerance=32.0,
        bench=(((8192, 8192), (8192,), (8192,)),),
    )
)
register(
    Row(
        name="silu_mul",
        family="norm",
        parameters=(tensor("gate"), tensor("up")),
        plan=_gated("silu_mul"),
        oracle=lambda gate, up: gate / (1 + np.exp(-gate)) * up,
        samples=inputs.binary(number=None),
        summary="silu(gate) * up in one pass.",
        kernels=("activation:silu_mul",),
        tolerance=8.0,
        bench=(((4096, 11008), (4096, 11008)),),
    )
)
register(
    Row(
        name="gelu_mul",
        family="norm",
        parameters=(tensor("gate"), tensor("up"), static("approximate", "none")),
        plan=_gated("gelu_mul"),
        oracle=lambda gate, up, approximate="none": _gelu(gate, approximate) * up,
        samples=lambda g: [
            Sample(inputs.normal(g, (5, 7), (5, 7)), {"approximate": mode})
            for mode in ("none", "tanh")
        ],
        summary="gelu(gate) * up in one pass.",
        kernels=("activation:gelu_mul",),
        tolerance=8.0,
        bench=(((4096, 11008), (4096, 11008)),),
    )
)
