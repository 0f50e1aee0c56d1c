"""Functions of float32 against NumPy in float64: how many units in the last place they are off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbxtensor.ops import OPS
from nbxtensor.tensor import asarray

__all__ = ["BINARY", "LIMIT", "UNARY", "check"]

Array = np.ndarray[Any, Any]

LIMIT = 4.0  # units
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1e-40, -1e-40, 3.4e38, -3.4e38, 88.7, 89.3,
     -104, 2, -2, 1e-8, 0.41421357, 16777216, 16777217, 3, -3], np.float32,
)  # fmt: skip


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: Array) -> Array:
    e = np.exp(np.minimum(x, 30.0))
    return x * np.where(x > 30.0, 1.0, e * (e + 2) / (e * (e + 2) + 2))


UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "softplus": lambda x: np.where(x > 20.0, x, _softplus(x)),
    "log_sigmoid": lambda x: -_softplus(-x),
    "mish": _mish,
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.where(x > 0.0, 0.0, x))),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "pow": np.power,
    "fmod": np.fmod,
    "remainder": np.remainder,
    # Of infinities the array API wants the quotient itself.
    "floor_divide": lambda x, y: np.where(np.isinf(x) | np.isinf(y), x / y, np.floor_divide(x, y)),
    "atan2": np.arctan2,
    "logaddexp": np.logaddexp,
}


def _bits(rng: np.random.Generator, count: int) -> Array:
    """Return floats of random bits: every exponent, subnormal ones too."""
    return rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)


def _normal(rng: np.random.Generator, count: int, scale: float) -> Array:
    return (rng.standard_normal(count) * scale).astype(np.float32)


def _arguments(rng: np.random.Generator) -> Array:
    return np.concatenate([
        SPECIAL, _bits(rng, 2000), *(_normal(rng, 1000, scale) for scale in (1e-3, 0.3, 1, 10, 50)),
        1 + _normal(rng, 1000, 1e-3), (rng.random(1000) * 2 - 1).astype(np.float32),
    ])  # fmt: skip


def _pairs(rng: np.random.Generator) -> tuple[Array, Array]:
    size = len(SPECIAL)
    first = [np.repeat(SPECIAL, size), _bits(rng, 2000), np.abs(_normal(rng, 2000, 3))]
    second = [np.tile(SPECIAL, size), _bits(rng, 2000), _normal(rng, 2000, 8)]
    first += [_normal(rng, 2000, 10), np.round(_normal(rng, 1000, 30))]
    second += [_normal(rng, 2000, 1), np.round(_normal(rng, 1000, 5))]
    return np.concatenate(first), np.concatenate(second)


def check(name: str, device: Any, rng: np.random.Generator) -> None:
    """Raise AssertionError where the op is off by more than LIMIT, or another kind of number."""
    binary = name in BINARY
    given = _pairs(rng) if binary else (_arguments(rng),)
    if name in ("sin", "cos", "tan"):  # NumPy's own reduction of huge angles is no oracle
        given = (given[0][~(np.abs(given[0]) > 1e5)],)
    with np.errstate(all="ignore"):
        wide = [values.astype(np.float64) for values in given]
        expected = BINARY[name](*wide) if binary else UNARY[name](*wide)
        nearest = expected.astype(np.float32)
    tensors = [asarray(values).to(device) for values in given]
    got = OPS[name](*tensors).to("cpu").numpy()
    both = np.isfinite(nearest) & np.isfinite(got)
    with np.errstate(all="ignore"):
        unit = np.maximum(np.spacing(np.abs(nearest)).astype(np.float64), 2.0**-149)
        off = np.where(both, np.abs(got.astype(np.float64) - expected) / unit, 0.0)
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    # Past the greatest float32 infinity and that float are a unit apart.
    edge = np.abs(np.where(np.isfinite(got), got, nearest)) > 3.4e38
    signs = (got != 0) | (nearest != 0) | (np.signbit(got) == np.signbit(nearest))
    bad = (off > LIMIT) | (~both & ~same & ~edge) | ~signs
    worst = np.flatnonzero(bad)[:5]
    report = [(*(float(v[i]) for v in given), float(got[i]), float(expected[i])) for i in worst]
    assert not report, f"{name}: {bad.sum()} of {bad.size}; (arguments, got, expected): {report}"
