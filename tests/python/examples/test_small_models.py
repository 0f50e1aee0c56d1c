"""Small made-up model files: dense weights, an untied head, and files that do not fit the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import nbxtensor as nbx
import numpy as np
import pytest
import smollm2
from decoder import Decoder

Array = np.ndarray[Any, Any]
LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS, DIM, VOCABULARY = 2, 96, 160, 6, 2, 16, 61


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * DIM, WIDTH),
            "attn_k": (KV_HEADS * DIM, WIDTH),
            "attn_v": (KV_HEADS * DIM, WIDTH),
            "attn_output": (WIDTH, HEADS * DIM),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }.items():
            found[f"blk.{i}.{name}.weight"] = shape
    found["output_norm.weight"] = (WIDTH,)
    return found


def make(rng: np.random.Generator, extra: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    tensors = {}
    for name, shape in (shapes() | extra).items():
        scale = 1.0 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1])
        tensors[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    return tensors


def write(path: Path, tensors: dict[str, Array], kinds: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(32)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a"] * VOCABULARY)
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a a"])
    for name, array in tensors.items():
        kind = kinds.get(name)
        if kind is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Q = gguf.GGMLQuantizationType


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("kind", [None, Q.F16, Q.BF16, Q.Q4_1, Q.Q8_0])
@pytest.mark.parametrize("tied", [True, False])
def test_logits(
    tmp_path: Path, rng: np.random.Generator, device: str, kind: Any, tied: bool
) -> None:
    tensors = make(rng, {} if tied else {"output.weight": (VOCABULARY, WIDTH)})
    kinds = {name: kind for name, array in tensors.items() if array.ndim == 2 and kind is not None}
    path = write(tmp_path / "model.gguf", tensors, kinds)
    oracle = smollm2.SmolLM2(path, np.float64)
    ids = rng.integers(0, VOCABULARY, 12).tolist()
    expected = oracle.forward(ids)
    model = Decoder(nbx.io.open_gguf(path), device)
    cache = model.cache(len(ids))
    got = [model.forward(ids[:7], cache, all_logits=True).cpu().numpy()]
    got += [model.forward([index], cache).cpu().numpy() for index in ids[7:]]
    error = np.abs(np.concatenate(got) - expected).max() / np.abs(expected).max()
    assert error <= 1e-3


def refused(
    tmp_path: Path, rng: np.random.Generator, change: Callable[[dict[str, Array]], None]
) -> Callable[[], Decoder]:
    tensors = make(rng, {})
    change(tensors)
    file = nbx.io.open_gguf(write(tmp_path / "model.gguf", tensors, {}))
    return lambda: Decoder(file, "cpu")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t.pop("blk.1.ffn_up.weight"), "no tensor 'blk.1.ffn_up.weight'"),
        (lambda t: t.update(rope=t["output_norm.weight"]), "does not use rope"),
        (
            lambda t: t.update({"output_norm.weight": t["output_norm.weight"][:-1]}),
            "'output_norm.weight' has shape \\(95,\\); expected \\(96,\\)",
        ),
        (
            lambda t: t.update({"blk.0.attn_k.weight": t["blk.0.attn_k.weight"].T.copy()}),
            "'blk.0.attn_k.weight' has shape \\(96, 32\\); expected \\(32, 96\\)",
        ),
    ],
)
def test_files_that_do_not_fit(
    tmp_path: Path, rng: np.random.Generator, change: Any, expected: str
) -> None:
    before = nbx.memory.allocated("cpu")
    build = refused(tmp_path, rng, change)
    with pytest.raises(ValueError, match=expected):
        build()
    assert nbx.memory.allocated("cpu") == before


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "token_embd.weight", "output_norm.weight"])
def test_wrong_dtypes(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    build = refused(tmp_path, rng, lambda t: t.update({name: t[name].astype(np.int32)}))
    before = nbx.memory.allocated("cpu")
    with pytest.raises((TypeError, ValueError), match="has dtype int32; expected a floating one"):
        build()
    assert nbx.memory.allocated("cpu") == before
