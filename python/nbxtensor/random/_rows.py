"""Rows of the random kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype import float32, float64, int64
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.signature import scalar, tensor, written
from nbxtensor.ops.table import NAMES, Row, Sample, register
from nbxtensor.random import _philox

STREAM = (written("out"), scalar("seed"), scalar("offset"))


def _draw(kernel: str) -> Any:
    def plan(builder: Builder, out: Window, *numbers: Number) -> Window:
        # The element's place in row-major order is its counter.
        target = out if out.contiguous else builder.temporary(out.shape, out.dtype)
        builder.step(kernel, [target], [], numbers)
        if target is not out:
            builder.copy(out, target)
        return out

    return plan


def _oracle(function: Any) -> Any:
    def oracle(out: Any, seed: int, offset: int, first: float, second: float) -> Any:
        return function(seed, offset, out.size, first, second).reshape(out.shape)

    return oracle


def _samples(dtype: Any, *ranges: tuple[float, float]) -> Any:
    def samples(generator: np.random.Generator) -> Any:
        for shape in ((), (1,), (0, 3), (5, 7), (1031,)):
            for low, high in ranges:
                seed, offset = (int(v) for v in generator.integers(0, 2**63, 2))
                yield Sample((np.zeros(shape, dtype), seed, offset, low, high))

    return samples


for _name, _function, _parameters, _dtype, _ranges, _summary in (
    (
        "uniform",
        _philox.uniform,
        (scalar("low"), scalar("high")),
        float32,
        ((0.0, 1.0), (-3.0, 5.0)),
        "Write uniform numbers of the half-open range low..high.",
    ),
    (
        "normal",
        _philox.normal,
        (scalar("mean"), scalar("deviation")),
        float32,
        ((0.0, 1.0), (2.0, 0.5)),
        "Write normally distributed numbers.",
    ),
    (
        "integers",
        _philox.integers,
        (scalar("low"), scalar("high")),
        int64,
        ((0, 10), (-(2**62), 2**62), (7, 8)),
        "Write uniform integers of the half-open range low..high.",
    ),
):
    register(
        Row(
            name=f"random_{_name}",
            family="random",
            parameters=(*STREAM, *_parameters),
            plan=_draw(f"random:{_name}"),
            oracle=_oracle(_function),
            samples=_samples(np.int64 if _dtype is int64 else np.float64, *_ranges),
            summary=_summary,
            kernels=(f"random:{_name}",),
            dtypes=(_dtype,),
            tolerance=8.0,
        )
    )


def _plan_sample(
    builder: Builder,
    logits: Window,
    uniforms: Window,
    temperature: Number,
    top_k: Number,
    top_p: Number,
) -> Window:
    builder.check_kind(logits.dtype, "f")
    if logits.rank != 2 or logits.shape[1] == 0:
        raise builder.error(f"logits must be (rows, vocabulary), got shape {logits.shape}")
    out = builder.output(logits.shape[:1], int64)
    builder.step("sample:logits", [out], [logits, uniforms], [temperature, top_k, top_p])
    return out


def _sample_oracle(logits: Any, uniforms: Any, temperature: float, top_k: int, top_p: float) -> Any:
    """Sample rows the plain way: sort, cut, add up, look up."""
    chosen = []
    for row, uniform in zip(np.asarray(logits, np.float64), uniforms, strict=True):
        if temperature <= 0:
            chosen.append(int(np.argmax(row)))
            continue
        scaled = row / temperature
        if 0 < top_k < row.size:
            scaled = np.where(scaled >= np.sort(scaled)[-top_k], scaled, -np.inf)
        weights = np.exp(scaled - scaled.max())
        if top_p < 1:
            order = np.argsort(-weights, kind="stable")
            reached = np.cumsum(weights[order])
            weights[order[1 + int(np.searchsorted(reached, top_p * reached[-1])) :]] = 0
        sums = np.cumsum(weights)
        chosen.append(int(np.searchsorted(sums, uniform * sums[-1], side="right")))
    return np.array(chosen, np.int64)


def _sample_samples(generator: np.random.Generator) -> Any:
    for rows, width in ((1, 1), (3, 17), (2, 1031)):
        for temperature, top_k, top_p in (
            (0.0, 0, 1.0),
            (1.0, 0, 1.0),
            (0.7, 5, 1.0),
            (1.3, 0, 0.8),
            (0.9, 9, 0.9),
        ):
            logits = np.asarray(generator.standard_normal((rows, width)) * 3, np.float32)
            yield Sample((logits, generator.random(rows), temperature, top_k, top_p))


register(
    Row(
        name="sample_logits",
        family="random",
        parameters=(
            tensor("logits"),
            tensor("uniforms"),
            scalar("temperature"),
            scalar("top_k"),
            scalar("top_p"),
        ),
        plan=_plan_sample,
        oracle=_sample_oracle,
        samples=_sample_samples,
        summary="Index drawn from every row of logits by one uniform number each.",
        kernels=("sample:logits",),
        dtypes=(float64,),
    )
)

# Called through the generator.
fill_uniform = NAMES.pop("random_uniform")
fill_normal = NAMES.pop("random_normal")
fill_integers = NAMES.pop("random_integers")
sample_logits = NAMES.pop("sample_logits")
