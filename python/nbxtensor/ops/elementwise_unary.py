"""Elementwise ops of one tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbxtensor.dtype import bool_, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.pointwise import elementwise, unary
from nbxtensor.ops.signature import scalar, static
from nbxtensor.ops.table import COMPLEX, EVERY, FLOATS, INTEGERS, REAL, Sample

WITH_COMPLEX = (*FLOATS, *COMPLEX)
WITH_INTEGERS = (*REAL, *COMPLEX)

_oracle: Any


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sign(x: Any) -> Any:
    if np.iscomplexobj(x):
        return np.where(x == 0, 0, x / np.where(x == 0, 1, np.abs(x)))
    return np.sign(x)


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -np.asarray(x, np.float64)))


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _plan_gelu(builder: Builder, x: Window, approximate: str) -> Any:
    if approximate not in ("none", "tanh"):
        raise builder.error(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    return elementwise("gelu", "transcendental", "biuf")(builder, x, int(approximate == "tanh"))


def _plan_invert(builder: Builder, x: Window) -> Any:
    if x.dtype is bool_:
        return elementwise("logical_not", "predicate")(builder, x)
    return elementwise("bitwise_not", "arithmetic", "iu")(builder, x)


def _plan_positive(builder: Builder, x: Window) -> Window:
    builder.check_kind(x.dtype, "iufc")
    out = builder.output(x.shape, x.dtype)
    builder.copy(out, x)
    return out


def _extras(kernel: str) -> Any:
    """Plan a kernel whose runtime scalars follow its dtype."""

    def plan(builder: Builder, x: Window, *numbers: Number) -> Window:
        builder.check_kind(x.dtype, "biuf")
        types = resolve("transcendental", x.dtype)
        out = builder.result(x.shape, types.output)
        builder.step(f"elementwise:{kernel}", [out], [x], [types.compute, *numbers])
        return out

    return plan


unary(
    "neg",
    np.negative,
    "Negate.",
    policy="arithmetic",
    kinds="iufc",
    dtypes=WITH_INTEGERS,
    aliases=("negative",),
    operator="__neg__",
)
unary(
    "abs",
    np.abs,
    "Absolute value; of complex numbers the real magnitude.",
    planner=elementwise("abs", "arithmetic", "iufc", real_result=True),
    dtypes=WITH_INTEGERS,
    aliases=("absolute",),
    operator="__abs__",
    writes=False,
)
unary(
    "positive",
    np.positive,
    "A copy of a numeric tensor.",
    planner=_plan_positive,
    dtypes=WITH_INTEGERS,
    kernel="copy:strided",
    operator="__pos__",
    writes=False,
)
unary(
    "sign",
    _sign,
    "-1, 0 or 1 by sign; of complex numbers x / |x|.",
    policy="arithmetic",
    kinds="iufc",
    dtypes=WITH_INTEGERS,
)
unary(
    "square",
    np.square,
    "Multiply by itself.",
    policy="arithmetic",
    kinds="iufc",
    dtypes=WITH_INTEGERS,
)
for _name, _oracle, _summary, _domain, _complex in (
    ("exp", np.exp, "e to the power x.", inputs.anything, True),
    ("exp2", np.exp2, "2 to the power x.", inputs.anything, False),
    ("expm1", np.expm1, "exp(x) - 1, exact near zero.", inputs.anything, True),
    ("log", np.log, "Natural logarithm.", inputs.positive, True),
    ("log2", np.log2, "Logarithm to base 2.", inputs.positive, True),
    ("log10", np.log10, "Logarithm to base 10.", inputs.positive, True),
    ("log1p", np.log1p, "log(1 + x), exact near zero.", inputs.positive, True),
    ("sqrt", np.sqrt, "Square root; NaN below zero.", inputs.positive, True),
    ("rsqrt", lambda x: 1 / np.sqrt(x), "1 / sqrt(x).", inputs.positive, False),
    ("reciprocal", lambda x: 1 / x, "1 / x.", inputs.nonzero, True),
    ("sin", np.sin, "Sine.", inputs.anything, True),
    ("cos", np.cos, "Cosine.", inputs.anything, True),
    ("tan", np.tan, "Tangent.", inputs.unit, True),
    ("asin", np.arcsin, "Inverse sine.", inputs.unit, True),
    ("acos", np.arccos, "Inverse cosine.", inputs.unit, True),
    ("atan", np.arctan, "Inverse tangent.", inputs.anything, True),
    ("sinh", np.sinh, "Hyperbolic sine.", inputs.anything, True),
    ("cosh", np.cosh, "Hyperbolic cosine.", inputs.anything, True),
    ("tanh", np.tanh, "Hyperbolic tangent.", inputs.anything, True),
    ("asinh", np.arcsinh, "Inverse hyperbolic sine.", inputs.anything, True),
    ("acosh", np.arccosh, "Inverse hyperbolic cosine.", inputs.above_one, True),
    ("atanh", np.arctanh, "Inverse hyperbolic tangent.", inputs.unit, True),
    ("erf", _erf, "Error function.", inputs.anything, False),
    ("sigmoid", _sigmoid, "1 / (1 + exp(-x)).", inputs.anything, False),
    ("silu", lambda x: x * _sigmoid(x), "x * sigmoid(x).", inputs.anything, False),
    (
        "mish",
        lambda x: x * np.tanh(np.logaddexp(0, x)),
        "x * tanh(log(1 + exp(x))).",
        inputs.anything,
        False,
    ),
    (
        "log_sigmoid",
        lambda x: -np.logaddexp(0, -x),
        "log(sigmoid(x)) without underflow.",
        inputs.anything,
        False,
    ),
    (
        "hardsigmoid",
        lambda x: np.clip(x / 6 + 0.5, 0, 1),
        "min(max(x / 6 + 1 / 2, 0), 1).",
        inputs.anything,
        False,
    ),
    (
        "hardswish",
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        "x * hardsigmoid(x).",
        inputs.anything,
        False,
    ),
):
    unary(
        _name,
        _oracle,
        _summary,
        kinds="biufc" if _complex else "biuf",
        dtypes=WITH_COMPLEX if _complex else FLOATS,
        domain=_domain,
        aliases={"asin": ("arcsin",), "acos": ("arccos",), "atan": ("arctan",)}.get(_name, ()),
    )
for _name, _oracle, _summary in (
    ("floor", np.floor, "Round down."),
    ("ceil", np.ceil, "Round up."),
    ("trunc", np.trunc, "Round towards zero."),
    (
        "round",
        np.rint,
        "Round to the nearest integer, halves to even; of complex numbers both parts.",
    ),
):
    unary(
        _name,
        _oracle,
        _summary,
        policy="arithmetic",
        kinds="iufc" if _name == "round" else "iuf",
        dtypes=WITH_INTEGERS if _name == "round" else REAL,
    )
for _name, _oracle, _summary in (
    ("isnan", np.isnan, "Whether an element is NaN."),
    ("isinf", np.isinf, "Whether an element is infinite."),
    ("isfinite", np.isfinite, "Whether an element is neither infinite nor NaN."),
):
    unary(
        _name,
        _oracle,
        _summary,
        policy="predicate",
        dtypes=(*REAL, *COMPLEX),
        samples=inputs.unary(lambda v: np.where(np.abs(v) > 1, np.where(v > 0, np.inf, np.nan), v))
        if _name != "isnan"
        else inputs.unary(lambda v: np.where(v > 0.5, np.nan, v)),
        writes=False,
    )
unary(
    "logical_not",
    np.logical_not,
    "Whether an element is zero.",
    policy="predicate",
    dtypes=EVERY,
    writes=False,
)
unary(
    "bitwise_not",
    np.invert,
    "Invert every bit; of booleans the logical inverse.",
    planner=_plan_invert,
    dtypes=(*INTEGERS, bool_),
    aliases=("bitwise_invert",),
    operator="__invert__",
)
unary(
    "relu",
    lambda x: np.maximum(x, 0),
    "max(x, 0); NaN stays NaN.",
    policy="arithmetic",
    kinds="iuf",
    dtypes=REAL,
)
unary(
    "gelu",
    _gelu,
    "Gaussian error linear unit; `approximate` is 'none' (erf) or 'tanh'.",
    planner=_plan_gelu,
    extras=(static("approximate", "none"),),
    samples=lambda g: [
        Sample(inputs.normal(g, (5, 7)), {"approximate": mode}) for mode in ("none", "tanh")
    ],
)
unary(
    "softplus",
    lambda x, beta=1.0, threshold=20.0: np.where(
        x * beta > threshold, x, np.logaddexp(0, beta * x) / beta
    ),
    "log(1 + exp(beta x)) / beta, x itself where beta x exceeds `threshold`.",
    planner=_extras("softplus"),
    extras=(scalar("beta", 1.0), scalar("threshold", 20.0)),
    samples=lambda g: [
        Sample(inputs.normal(g, (5, 7))),
        Sample(inputs.normal(g, (31,)), {"beta": 2.0, "threshold": 1.0}),
    ],
)
unary(
    "elu",
    lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "x above zero, alpha (exp(x) - 1) below.",
    planner=_extras("elu"),
    extras=(scalar("alpha", 1.0),),
    samples=lambda g: [Sample(inputs.normal(g, (5, 7)), {"alpha": 0.5})],
)
unary(
    "leaky_relu",
    lambda x, negative_slope=0.01: np.where(x > 0, x, negative_slope * x),
    "x above zero, negative_slope x below.",
    planner=_extras("leaky_relu"),
    extras=(scalar("negative_slope", 0.01),),
    samples=lambda g: [Sample(inputs.normal(g, (5, 7)), {"negative_slope": 0.25})],
)
