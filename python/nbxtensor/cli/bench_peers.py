"""What NumPy and torch call the same computation as a row, for ``python -m nbxtensor bench``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nbxtensor.ops.table import Row

__all__ = ["numpy_call", "torch_call"]

Call = Callable[..., Any]


def _every_axis(x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _normal(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def _normal_sum(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    total = x + residual
    return _normal(total, weight), total


def _layer(x: Any, weight: Any, bias: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * weight + bias


def _soft(x: Any) -> Any:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def _log_soft(x: Any) -> Any:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _log_sum(x: Any) -> Any:
    top = x.max()
    return top + np.log(np.exp(x - top).sum())


def _tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _largest(x: Any) -> tuple[Any, Any]:
    places = np.argpartition(x, -8, -1)[..., -8:]
    values = np.take_along_axis(x, places, -1)
    order = np.argsort(-values, -1)
    return np.take_along_axis(values, order, -1), np.take_along_axis(places, order, -1)


def _attend(q: Any, k: Any, v: Any) -> Any:
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    return _soft(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v


# Rows without a function of their name, or with another form. NumPy has no erf: gelu is its
# approximation there.
NUMPY: dict[str, Call] = {
    "attention": _attend,
    "mul": np.multiply,
    "sub": np.subtract,
    "div": np.divide,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "clamp": lambda x: np.clip(x, 0.6, 1.0),
    "neg": np.negative,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _tanh_gelu,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, x * 0.01),
    "mm": np.matmul,
    "bmm": np.matmul,
    "mv": np.matmul,
    "linear": lambda x, w: x @ w.T,
    "softmax": _soft,
    "log_softmax": _log_soft,
    "rms_norm": _normal,
    "rms_norm_add": _normal_sum,
    "layer_norm": _layer,
    "silu_mul": lambda g, u: g * _sigmoid(g) * u,
    "gelu_mul": lambda g, u: _tanh_gelu(g) * u,
    "logsumexp": _log_sum,
    "norm": lambda x: np.sqrt(np.vdot(x, x)),
    "cumsum": lambda x: np.cumsum(x, -1, dtype=x.dtype),
    "cumprod": lambda x: np.cumprod(x, -1, dtype=x.dtype),
    "cummax": lambda x: np.maximum.accumulate(x, -1),
    "cummin": lambda x: np.minimum.accumulate(x, -1),
    "topk": _largest,
}


def _torch(torch: Any) -> dict[str, Call]:
    functional = torch.nn.functional
    return {
        "amax": lambda x: torch.amax(x, _every_axis(x)),
        "amin": lambda x: torch.amin(x, _every_axis(x)),
        "cummax": lambda x: torch.cummax(x, -1),
        "cummin": lambda x: torch.cummin(x, -1),
        "cumprod": lambda x: torch.cumprod(x, -1),
        "cumsum": lambda x: torch.cumsum(x, -1),
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "logsumexp": lambda x: torch.logsumexp(x, _every_axis(x)),
        "clamp": lambda x: torch.clamp(x, 0.6, 1.0),
        "norm": torch.linalg.vector_norm,
        "positive": torch.clone,
        "left_shift": torch.bitwise_left_shift,
        "right_shift": torch.bitwise_right_shift,
        "log_sigmoid": functional.logsigmoid,
        "rms_norm": lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6),
        "layer_norm": lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
        "silu_mul": lambda g, u: functional.silu(g) * u,
        "gelu_mul": lambda g, u: functional.gelu(g) * u,
        "attention": lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, enable_gqa=True
        ),
        "var": lambda x: torch.var(x, correction=0),
        "std": lambda x: torch.std(x, correction=0),
        "topk": lambda x: torch.topk(x, 8),
        "linear": functional.linear,
    }


def numpy_call(row: Row) -> Call | None:
    """Return NumPy's function for a row, None where it has none."""
    return NUMPY.get(row.name) or getattr(np, row.name, None)


def torch_call(row: Row, torch: Any) -> Call | None:
    """Return torch's function for a row, None where it has none."""
    own = _torch(torch).get(row.name)
    return own or getattr(torch, row.name, None) or getattr(torch.nn.functional, row.name, None)
