"""Kernels on a card: values, words, scratch memory, clusters, other libraries' tensors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

from . import kernel_samples as samples

DEVICE = "cuda:0"


@pytest.fixture(autouse=True)
def own_pack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NBX_KERNEL_CACHE", str(tmp_path / "pack"))


def random_pair(rng: np.random.Generator, n: int) -> tuple[nbx.Tensor, nbx.Tensor]:
    x, y = (nbx.asarray(rng.standard_normal(n).astype(np.float32)).to(DEVICE) for _ in range(2))
    return x, y


def grid(meta: dict[str, Any]) -> int:
    return -(-meta["n"] // meta["BLOCK"])


@pytest.mark.parametrize("offset", [0, 1])
def test_values(rng: np.random.Generator, offset: int) -> None:
    n = int(rng.integers(1, 100_000))
    x, y = (t[offset:] for t in random_pair(rng, n + offset))
    expected = x.cpu().numpy() + np.float32(0.5) * y.cpu().numpy()
    for launch in (
        lambda out: samples.add[grid](x, y, out, n, 0.5, BLOCK=1024),
        lambda out: samples.add[grid](x, y, out, n, alpha=0.5, BLOCK=512, num_warps=8),
        lambda out: nbx.launch(samples.foreign_add, grid, x, y, out, n, 0.5, BLOCK=256),
        lambda out: nbx.launch(samples.foreign_tuned, grid, x, y, out, n, 0.5),
    ):
        out = nbx.zeros(n, dtype=nbx.float32, device=DEVICE)
        launch(out)
        np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=1e-6, atol=1e-6)


def test_on_a_stream_of_its_own(rng: np.random.Generator) -> None:
    x, y = random_pair(rng, 5000)
    stream = nbx.Stream(DEVICE)
    stream.wait_stream(nbx.current_stream(DEVICE))
    with nbx.stream(stream):
        for _ in range(10):
            out = nbx.empty(5000, dtype=nbx.float32, device=DEVICE)
            samples.add[grid](x, y, out, 5000, 1.0, BLOCK=128)
    expected = x.cpu().numpy() + y.cpu().numpy()
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def test_every_type_of_number() -> None:
    out = nbx.zeros(7, dtype=nbx.float64, device=DEVICE)
    samples.scalars[1](out, 2**31 - 1, 0.1, 0.1, 0.1, 0.1, 2**40, True)
    expected = [2**31 - 1, np.float32(0.1), 0.1, np.float16(0.1), 0.10009765625, 2**40, 1.0]
    assert out.cpu().numpy().tolist() == [float(value) for value in expected]
    samples.scalars[1](out, 1, -2, 3, 4, 5, 1, False)
    assert out.cpu().numpy().tolist() == [1, -2, 3, 4, 5, 1, 0]


def test_scratch_memory_of_tensor_descriptors(rng: np.random.Generator) -> None:
    x = nbx.asarray(rng.standard_normal((256, 192)).astype(np.float32)).to(DEVICE)
    out = nbx.zeros((256, 192), dtype=nbx.float32, device=DEVICE)
    samples.through_descriptor[4, 3](x, out, 256, 192, BLOCK=64)
    np.testing.assert_array_equal(out.cpu().numpy(), x.cpu().numpy() + np.float32(1))


def test_clusters(rng: np.random.Generator) -> None:
    n = 8192
    x, y = random_pair(rng, n)
    out = nbx.zeros(n, dtype=nbx.float32, device=DEVICE)
    samples.add[grid](x, y, out, n, 1.0, BLOCK=2048, num_ctas=2)
    np.testing.assert_array_equal(out.cpu().numpy(), x.cpu().numpy() + y.cpu().numpy())


def test_attributes_are_those_of_the_driver() -> None:
    x = nbx.zeros(64, dtype=nbx.float32, device=DEVICE)
    samples.add[1](x, x, x, 64, 1.0, BLOCK=64)
    attributes = samples.add.variants[-1].attributes
    assert 0 < attributes["registers"] < 256
    assert attributes["threads_per_block"] >= 128


def test_launches_are_observed() -> None:
    x = nbx.zeros(64, dtype=nbx.float32, device=DEVICE)
    noted: list[nbx.runtime.Launch] = []
    with nbx.observe_launches(noted.append):
        samples.add[1](x, x, x, 64, 1.0, BLOCK=64)
    assert [(note.name, note.device) for note in noted] == [("add", DEVICE)]


def test_tensors_of_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    x = torch.arange(64, dtype=torch.float32, device=DEVICE)
    torch.cuda.synchronize()
    out = nbx.zeros(64, dtype=nbx.float32, device=DEVICE)
    samples.add[1](x, x, out, 64, 1.0, BLOCK=64)
    assert out.cpu().numpy().tolist() == [2.0 * i for i in range(64)]


def test_a_kernel_that_asks_for_too_much_is_refused() -> None:
    x = nbx.zeros(64, dtype=nbx.float32, device=DEVICE)
    with pytest.raises(ValueError, match="at most"):
        samples.add[1, 65536](x, x, x, 64, 1.0, BLOCK=64)
    with pytest.raises(ValueError, match=r"'y_ptr' is on cpu, 'x_ptr' on cuda:0"):
        samples.add[1](x, nbx.zeros(64, device="cpu"), x, 64, 1.0, BLOCK=64)
