"""Functions and methods that torch has too give what torch gives, on random inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
import torch

F = torch.nn.functional
Pair = tuple[Callable[..., Any], Callable[..., Any]]

# Of (5, 7) and (5, 7): written once, called with tensors of either library.
METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda x, y: (x + y) * 2 - x / (y.abs() + 1) + (-x) ** 2,
    "remainder": lambda x, y: x.remainder(y) + x.fmod(y) + x // y,
    "compare": lambda x, y: (x > y) & (x != y) | (x <= 0),
    "rounding": lambda x, y: (3 * x).round() + y.floor() + x.ceil() + y.trunc(),
    "exponential": lambda x, y: x.exp() + y.abs().log1p() + x.expm1() + y.sigmoid().log(),
    "trigonometric": lambda x, y: x.sin() + y.cos() + x.tanh() + x.atan2(y),
    "sums": lambda x, y: x.sum(dim=0, keepdim=True) + y.mean(dim=-1, keepdim=True),
    "softmax": lambda x, y: x.softmax(dim=-1) + y.log_softmax(dim=0),
    "logsumexp": lambda x, y: x.logsumexp(dim=1) - y.amax(dim=1),
    "cumulative": lambda x, y: x.cumsum(dim=1) + y.cumprod(dim=0),
    "running": lambda x, y: x.cummax(dim=1)[0] + y.cummin(dim=0)[1],
    "places": lambda x, y: x.argmax(dim=1) + y.argmin(dim=-1),
    "topk": lambda x, y: x.topk(3, dim=-1)[0] + y.topk(3, dim=-1)[1],
    "matmul": lambda x, y: x @ y.transpose(0, 1),
    "views": lambda x, y: x.view(7, 5).permute(1, 0)[:, 1:6:2].flatten() + y.T[::3].reshape(-1),
    "unfold": lambda x, y: x.unfold(1, 3, 2).sum(dim=-1),
    "gather": lambda x, y: x.gather(1, y.argmax(dim=1).unsqueeze(1)),
    "masked": lambda x, y: x.masked_fill(y > 0, -1.0).clamp(min=-0.5, max=0.5),
    "triangles": lambda x, y: x.tril(1) + y.triu(-2),
    "lerp": lambda x, y: x.lerp(y, 0.3) + x.addcmul(x, y, value=0.5),
    "roll": lambda x, y: x.roll(2, 1) + y.roll((1, 3), (0, 1)),
    "in place": lambda x, y: x.clone().add_(y).mul_(2).sub_(1).clamp_(min=0),
}
FUNCTIONS: dict[str, Pair] = {
    "gelu": (lambda x, y: nbx.gelu(x), lambda x, y: F.gelu(x)),
    "gelu tanh": (
        lambda x, y: nbx.gelu(x, approximate="tanh"),
        lambda x, y: F.gelu(x, approximate="tanh"),
    ),
    "silu": (lambda x, y: nbx.silu(x), lambda x, y: F.silu(x)),
    "mish": (lambda x, y: nbx.mish(x), lambda x, y: F.mish(x)),
    "softplus": (lambda x, y: nbx.softplus(x), lambda x, y: F.softplus(x)),
    "elu": (lambda x, y: nbx.elu(x, 0.7), lambda x, y: F.elu(x, 0.7)),
    "hardswish": (lambda x, y: nbx.hardswish(x), lambda x, y: F.hardswish(x)),
    "layer_norm": (
        lambda x, y: nbx.layer_norm(x, y[0], y[1]),
        lambda x, y: F.layer_norm(x, (7,), y[0], y[1]),
    ),
    "rms_norm": (
        lambda x, y: nbx.rms_norm(x, y[0], eps=1e-6),
        lambda x, y: F.rms_norm(x, (7,), y[0], eps=1e-6),
    ),
    "linear": (lambda x, y: nbx.linear(x, y, y[:, 0]), lambda x, y: F.linear(x, y, y[:, 0])),
    "where": (lambda x, y: nbx.where(x > y, x, 0.5), lambda x, y: torch.where(x > y, x, 0.5)),
    "concat": (lambda x, y: nbx.cat([x, y], dim=1), lambda x, y: torch.cat([x, y], dim=1)),
    "stack": (lambda x, y: nbx.stack([x, y], axis=2), lambda x, y: torch.stack([x, y], dim=2)),
}
PAIRS = {**{name: (f, f) for name, f in METHODS.items()}, **FUNCTIONS}


def check(found: Any, expected: Any, tolerance: float) -> None:
    assert tuple(found.shape) == tuple(expected.shape)
    assert str(expected.dtype) == f"torch.{found.dtype.name}"
    found, expected = found.to("cpu").numpy(), expected.numpy()
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("name", PAIRS)
def test_equals_torch(
    name: str, dtype: str, tolerance: float, device: str, rng: np.random.Generator
) -> None:
    x, y = (rng.standard_normal((5, 7)).astype(dtype) for _ in range(2))
    ours, theirs = PAIRS[name]
    expected = theirs(torch.from_numpy(x.copy()), torch.from_numpy(y.copy()))
    found = ours(nbx.asarray(x, device=device), nbx.asarray(y, device=device))
    check(found, expected, tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_torch(causal: bool, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, h, 9, 16)).astype(np.float32) for h in (4, 2, 2))
    expected = F.scaled_dot_product_attention(
        *(torch.from_numpy(a) for a in (q, k, v)), is_causal=causal, enable_gqa=True
    )
    found = nbx.attention(*(nbx.asarray(a) for a in (q, k, v)), causal=causal)
    check(found, expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_dlpack_and_casts_equal_torch(dtype: torch.dtype, rng: np.random.Generator) -> None:
    x = rng.standard_normal(4096).astype(np.float32)
    name = str(dtype).removeprefix("torch.")
    found = nbx.asarray(x).to(getattr(nbx, name)).view(nbx.int8 if "8_" in name else nbx.int16)
    expected = torch.from_numpy(x).to(dtype)
    check(found, expected.view(torch.int8 if "8_" in name else torch.int16), 0)
