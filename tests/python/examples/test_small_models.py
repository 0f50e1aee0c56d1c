"""Small made-up model files: dense weights, an untied head, and files that do not fit the model."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generate
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


TOKENS = ["a", "b", "ab", *(f"t{i}" for i in range(VOCABULARY - 3))]


def write(
    path: Path,
    tensors: dict[str, Array],
    kinds: dict[str, Any],
    other: dict[str, Any] | None = None,
) -> Path:
    """Write a model; `other` replaces values of its metadata, None leaves one out."""
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
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a b"])
    for key, value in (other or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            kinds_of = gguf.GGUFValueType
            kind = kinds_of.INT64 if isinstance(value, int) else kinds_of.get_type(value)
            writer.add_key_value(key, value, kind)
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


def started(path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr("sys.argv", ["generate.py", "--model", str(path), "--raw", *more])
    return generate.main()


LYING = [
    ({"llama.block_count": 1.5}, "block_count is 1.5; expected an integer above 0"),
    ({"llama.block_count": 2**40}, "no tensor 'blk.2.attn_norm.weight'"),
    ({"llama.embedding_length": 96.0}, "embedding_length is 96.0; expected an integer"),
    ({"llama.attention.head_count": 97}, "key_length is 0; expected an integer"),
    ({"llama.attention.head_count_kv": 3}, "has shape (32, 96); expected (48, 96)"),
    ({"llama.rope.dimension_count": 18}, "rotary_dim must be even and in [0, 16]"),
    ({"llama.rope.freq_base": float("nan")}, "freq_base is nan; expected a finite number"),
    ({"llama.attention.layer_norm_rms_epsilon": float("inf")}, "epsilon is inf; expected a finite"),
    ({"llama.context_length": None}, "context_length is None; expected an integer"),
    ({"tokenizer.ggml.tokens": None}, "tokens is None; expected a list of str"),
    ({"tokenizer.ggml.tokens": [1, 2]}, "tokens has 1 at place 0; expected a list of str"),
    ({"tokenizer.ggml.tokens": TOKENS[:-1]}, "token_type has 61 items; there are 60 tokens"),
    ({"tokenizer.ggml.tokens": ["a"] * 61}, "has 61 items, of which only 1 differ"),
    (
        {"tokenizer.ggml.tokens": TOKENS[:-1], "tokenizer.ggml.token_type": None},
        "token_embd.weight has 61 rows; the vocabulary has 60 tokens",
    ),
    ({"tokenizer.ggml.token_type": "x"}, "token_type is 'x'; expected a list of int"),
    ({"tokenizer.ggml.merges": ["a"]}, "merges has 'a' at place 0"),
    ({"tokenizer.ggml.merges": ["a b", "b a"]}, "merges has 'b a' at place 1"),
    ({"tokenizer.ggml.merges": 7}, "merges is 7; expected a list of str"),
    ({"tokenizer.ggml.pre": ["x"]}, "pre is ['x']; this example reads"),
    ({"tokenizer.ggml.bos_token_id": 61}, "bos_token_id is 61; there are 61 tokens"),
    ({"tokenizer.ggml.eos_token_id": "a"}, "eos_token_id is 'a'; there are 61 tokens"),
]


@pytest.mark.parametrize(("other", "expected"), LYING)
def test_metadata_that_lies(
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    other: dict[str, Any],
    expected: str,
) -> None:
    path = write(tmp_path / "model.gguf", make(rng, {}), {}, other)
    before = nbx.memory.allocated("cpu")
    assert started(path, monkeypatch, "--prompt", "ab", "--max-new", "2") == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("generate.py: ")
    assert expected in said.err
    gc.collect()
    assert nbx.memory.allocated("cpu") == before


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--prompt", "\udcff"), "the text is not valid Unicode"),
        (("--prompt", "ab", "--context", "0"), "context is 0"),
        (("--prompt", "ab", "--top-k", "-1"), "top_k -1"),
        (("--prompt", "ab", "--seed", "9" * 30), "seed: got 9999"),
    ],
)
def test_options_that_cannot_be(
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    expected: str,
) -> None:
    path = write(tmp_path / "model.gguf", make(rng, {}), {})
    assert started(path, monkeypatch, "--max-new", "2", *more) == 1
    assert expected in capsys.readouterr().err
    assert started(path, monkeypatch, "--prompt", "ab", "--max-new", "2", "--top-k", "9" * 30) == 0
