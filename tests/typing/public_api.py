"""A program over the public names; `make lint` checks it with mypy, strictly, and nothing runs it.

Each `assert_type` fails where a name or a type is lost; each ignore where a mistake goes unseen.
"""

from __future__ import annotations

import nbxtensor as nbx
import numpy as np
from typing_extensions import assert_type


def tensors() -> nbx.Tensor:
    x = nbx.asarray(np.arange(6.0).reshape(2, 3), dtype=nbx.float32, device="cpu")
    y = nbx.zeros(2, 3, dtype="float32") + nbx.ones((2, 3), dtype=np.float32)
    assert_type(x, nbx.Tensor)
    assert_type(x.dtype, nbx.DType)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.device, nbx.Device)
    assert_type(x + 1, nbx.Tensor)
    assert_type(2.0 * x, nbx.Tensor)
    assert_type(x @ y.T, nbx.Tensor)
    assert_type(-x, nbx.Tensor)
    assert_type(x[..., None], nbx.Tensor)
    assert_type(x.view(3, 2).to(nbx.bfloat16), nbx.Tensor)
    assert_type(x.sum(dim=-1, keepdim=True), nbx.Tensor)
    assert_type(x.add(other=y), nbx.Tensor)
    assert_type(x.add_(1), nbx.Tensor)
    assert_type(x == y, nbx.Tensor)
    x += y
    return x


def functions(x: nbx.Tensor, y: nbx.Tensor) -> None:
    assert_type(nbx.add(x, np.float32(2)), nbx.Tensor)
    assert_type(nbx.add(input=x, other=1), nbx.Tensor)
    assert_type(nbx.sum(x, axis=(0, 1)), nbx.Tensor)
    assert_type(nbx.sum(x, dim=0, keepdim=True), nbx.Tensor)
    assert_type(nbx.softmax(nbx.matmul(x, y), axis=-1), nbx.Tensor)
    assert_type(nbx.concat([x, y], axis=0), nbx.Tensor)
    assert_type(nbx.where(x > 0, x, 0), nbx.Tensor)
    assert_type(nbx.clamp(x, min=0), nbx.Tensor)
    assert_type(nbx.rms_norm(x, y, eps=1e-6), nbx.Tensor)
    assert_type(nbx.attention(q=x, k=x, v=x, causal=True, kv_length=4), nbx.Tensor)
    assert_type(nbx.argmax(x, dim=1), nbx.Tensor)
    assert_type(nbx.expand_dims(x, axis=0), nbx.Tensor)
    best = nbx.topk(x, 2)
    assert_type(best.values, nbx.Tensor)
    values, places = x.topk(k=2, dim=-1)
    assert_type((values, places), tuple[nbx.Tensor, nbx.Tensor])
    assert_type(nbx.rms_norm_add(x, y).sum, nbx.Tensor)


def memory_and_devices() -> None:
    with nbx.memory.tag("weights"), nbx.memory.budget("2 GiB", device="cpu"):
        assert_type(nbx.memory.report().by_tag(), dict[str, int])
    assert_type(nbx.memory.stats("cpu").live, int)
    try:
        nbx.empty(1 << 60)
    except nbx.OutOfMemoryError as error:
        print(error)
    stream = nbx.Stream("cpu")
    with nbx.stream(stream):
        event = stream.record_event()
    assert_type(event, nbx.Event)
    assert_type(nbx.devices("cpu"), list[nbx.Device])
    assert_type(nbx.set_num_threads(nbx.get_num_threads()), int)
    assert_type(nbx.__version__, str)
    generator = nbx.random.Generator(0)
    assert_type(generator.randn(2, 3), nbx.Tensor)
    nbx.linear(nbx.ones(1, 32), nbx.quant.quantize(nbx.ones((4, 32)), "q8_0"))
    assert_type(nbx.finfo(nbx.float32).bits, int)


def mistakes(x: nbx.Tensor) -> None:
    nbx.softmaxx(x)  # type: ignore[attr-defined]
    nbx.add(x, "1")  # type: ignore[call-overload]
    nbx.sum(x, axes=1)  # type: ignore[call-overload]
    nbx.exp([1.0])  # type: ignore[call-overload]
    x.topk()  # type: ignore[call-arg]
