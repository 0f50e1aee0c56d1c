"""Quantised tensors against the gguf package and float64 products."""

from __future__ import annotations

import pickle
from typing import Any

import gguf
import nbxtensor as nbx
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from nbxtensor import quant

Array = np.ndarray[Any, Any]
KINDS = {
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
NAMES = tuple(KINDS)


def weight(
    rng: np.random.Generator, name: str, shape: tuple[int, int], device: str = "cpu"
) -> tuple[quant.QuantizedTensor, Array]:
    """Blocks made by the gguf package, and what they stand for."""
    values = rng.standard_normal(shape).astype(np.float32)
    blocks = quantize(values, KINDS[name])
    made = quant.QuantizedTensor((nbx.from_numpy(blocks).to(device),), name, shape)
    # The package expands no empty ones.
    return made, dequantize(blocks, KINDS[name]) if values.size else values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (33, 576), (0, 64)])
def test_dequantize(
    rng: np.random.Generator, name: str, device: str, shape: tuple[int, int]
) -> None:
    made, expected = weight(rng, name, shape, device)
    plain = made.dequantize()
    assert (plain.dtype, plain.device.name) == (nbx.float32, device if device != "cpu" else "cpu")
    np.testing.assert_array_equal(plain.cpu().numpy(), expected)
    np.testing.assert_array_equal(made.T.dequantize().cpu().numpy(), expected.T)
    half = made.dequantize(nbx.float16).cpu().numpy()
    np.testing.assert_array_equal(half, expected.astype(np.float16))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_quantize_gives_the_blocks_of_the_package(
    rng: np.random.Generator, name: str, device: str
) -> None:
    values = rng.standard_normal((9, 160)).astype(np.float32)
    values[0, :32] = 0
    values[1, :32] = 3.25
    made = quant.quantize(nbx.from_numpy(values).to(device), name)
    assert (made.shape, made.format.name) == ((9, 160), name)
    got, expected = made.blocks.cpu().numpy(), quantize(values, KINDS[name])
    np.testing.assert_array_equal(got, expected)
    turned = nbx.from_numpy(np.ascontiguousarray(values.T)).T
    np.testing.assert_array_equal(quant.quantize(turned, name).blocks.numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [nbx.float32, nbx.float16, nbx.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_products(rng: np.random.Generator, name: str, dtype: Any, rows: int) -> None:
    made, plain = weight(rng, name, (37, 224))
    x = nbx.from_numpy(rng.standard_normal((2, rows, 224)).astype(np.float32)).to(dtype)
    bias = nbx.from_numpy(rng.standard_normal(37).astype(np.float32)).to(dtype)
    wide = x.to(nbx.float64).numpy()
    expected = wide @ plain.astype(np.float64).T
    bound = 2e-6 if dtype is nbx.float32 else 1e-2
    for got, wanted in (
        (nbx.linear(x, made), expected),
        (x @ made.T, expected),
        (nbx.matmul(x, made.mT), expected),
        (nbx.linear(x, made, bias), expected + bias.to(nbx.float64).numpy()),
        (nbx.linear(x, weight=made, bias=bias), expected + bias.to(nbx.float64).numpy()),
    ):
        assert (got.dtype, got.shape) == (dtype, (2, rows, 37))
        error = np.abs(got.to(nbx.float64).numpy() - wanted).max() / np.abs(wanted).max()
        assert error < bound


@pytest.mark.parametrize("name", NAMES)
def test_embedding(rng: np.random.Generator, name: str) -> None:
    made, plain = weight(rng, name, (50, 64))
    ids = rng.integers(0, 50, (3, 4))
    np.testing.assert_array_equal(nbx.embedding(nbx.from_numpy(ids), made).numpy(), plain[ids])
    with pytest.raises(IndexError, match="50"):
        nbx.embedding(nbx.asarray([50]), made)


def test_the_wrong_way_round(rng: np.random.Generator) -> None:
    made, _ = weight(rng, "q8_0", (32, 64))
    x = nbx.zeros((2, 64))
    with pytest.raises(ValueError, match=r"x @ weight\.T"):
        nbx.matmul(x, made)
    with pytest.raises(ValueError, match="pass the weight itself"):
        nbx.linear(x, made.T)
    with pytest.raises(ValueError, match="does not fit"):
        nbx.linear(nbx.zeros((2, 63)), made)
    with pytest.raises(TypeError):
        nbx.add(x, made)


def test_what_it_says_of_itself(rng: np.random.Generator) -> None:
    made, _ = weight(rng, "q4_1", (6, 96))
    assert made.shape == made.logical_shape == (6, 96)
    assert made.T.shape == made.t().shape == (96, 6)
    assert made.T.logical_shape == (6, 96)
    assert not made.transposed
    assert made.T.transposed
    assert not made.T.T.transposed
    assert made.T.blocks is made.blocks is made.parts[0]
    assert (made.ndim, made.size, made.nbytes) == (2, 576, 6 * 3 * 20)
    assert made.dtype is nbx.float32
    assert made.device.name == "cpu"
    assert repr(made) == "QuantizedTensor(shape=(6, 96), format=q4_1, device=cpu)"


def test_moving(rng: np.random.Generator) -> None:
    made, plain = weight(rng, "q8_0", (6, 96))
    assert made.to("cpu") is made
    there = made.T.to("sim:1")
    assert there.device.name == "sim:1"
    assert there.transposed
    np.testing.assert_array_equal(there.cpu().dequantize().numpy(), plain.T)


def test_pickling(rng: np.random.Generator) -> None:
    made, plain = weight(rng, "q8_0", (6, 96))
    again = pickle.loads(pickle.dumps(made.T))
    np.testing.assert_array_equal(again.dequantize().numpy(), plain.T)


BLOCKS = np.zeros((2, 40), np.uint8)


@pytest.mark.parametrize(
    ("parts", "name", "shape", "error", "expected"),
    [
        ([BLOCKS], "q5_k", (2, 64), ValueError, "format: got 'q5_k'; expected one of q4_1, q8_0"),
        ([BLOCKS], "q4_1", (2, 65), ValueError, "got 65 columns; q4_1 needs a multiple of 32"),
        ([BLOCKS], "q4_1", (2, 64, 1), ValueError, "expected two extents"),
        ([BLOCKS], "q4_1", (-2, 64), ValueError, "expected two extents"),
        ([BLOCKS], "q4_1", (2, 96), ValueError, "needs contiguous uint8 of shape \\(2, 60\\)"),
        ([BLOCKS], "q8_0", (2, 64), ValueError, "needs contiguous uint8 of shape \\(2, 68\\)"),
        ([BLOCKS, BLOCKS], "q4_1", (2, 64), ValueError, "parts: got 2; q4_1 has one"),
        ([], "q4_1", (2, 64), ValueError, "parts: got 0"),
        ([BLOCKS.view(np.int8)], "q4_1", (2, 64), ValueError, "got contiguous int8"),
        ([np.zeros((40, 2), np.uint8)], "T", (2, 64), ValueError, "got strided uint8"),
        ([None], "q4_1", (2, 64), TypeError, "parts\\[0\\]: got NoneType"),
    ],
)
def test_bad_parts(
    parts: list[Any], name: str, shape: Any, error: type[Exception], expected: str
) -> None:
    tensors = [part if part is None else nbx.from_numpy(part) for part in parts]
    if name == "T":
        tensors, name = [tensors[0].T], "q4_1"
    with pytest.raises(error, match=expected):
        quant.QuantizedTensor(tensors, name, shape)


@pytest.mark.parametrize(
    ("values", "error", "expected"),
    [
        (np.zeros((2, 33), np.float32), ValueError, "multiple of 32"),
        (np.zeros(32, np.float32), ValueError, "two axes"),
        (np.zeros((2, 32), np.int32), TypeError, "dtype int32"),
        (np.full((2, 32), np.nan, np.float32), ValueError, "65504"),
        (np.full((2, 32), 1e5, np.float32), ValueError, "65504"),
    ],
)
def test_bad_values(values: Array, error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected):
        quant.quantize(nbx.from_numpy(values), "q8_0")
