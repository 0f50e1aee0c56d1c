"""The example decoder against the same equations in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
import smollm2
from decoder import Config, Decoder

Array = np.ndarray[Any, Any]

NEW = 40
TOLERANCE = 1e-3
# Below this margin of the reference, rounding may choose the other token.
MARGIN = 0.5
TEXTS = {
    "france": "The capital of France is",
    "sky": "Why is the sky blue?",
    "code": "def fibonacci(n):\n    ",
}


@pytest.fixture(scope="session")
def oracle(model_path: Path) -> smollm2.SmolLM2:
    return smollm2.SmolLM2(model_path, np.float64)


@pytest.fixture(scope="module")
def model(model_path: Path) -> Decoder:
    return Decoder(nbx.io.open_gguf(model_path), "cpu")


@pytest.fixture(scope="session")
def sky(oracle: smollm2.SmolLM2) -> tuple[list[int], Array]:
    """A chat prompt and the oracle's logits of every id."""
    oracle.reset()
    prompt = oracle.tokenizer.encode(oracle.chat(TEXTS["sky"]))
    return prompt, oracle.forward(prompt)


def assert_close(got: Any, expected: Array, what: str) -> None:
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error <= TOLERANCE, f"{what}: {error:.2e} > {TOLERANCE}"


@pytest.mark.parametrize("name", TEXTS)
def test_logits_and_greedy_ids(name: str, model: Decoder, oracle: smollm2.SmolLM2) -> None:
    text = oracle.chat(TEXTS[name]) if name == "sky" else TEXTS[name]
    prompt = oracle.tokenizer.encode(text)
    cache = model.cache(len(prompt) + NEW)
    logits = model.forward(prompt, cache, all_logits=True)
    rows, ids = [logits.numpy()], [int(nbx.argmax(logits[-1]))]
    while len(ids) < NEW:
        logits = model.forward(ids[-1:], cache)
        rows.append(logits.numpy())
        ids.append(int(nbx.argmax(logits[0])))
    # One pass over the whole text gives what the oracle would choose after every prefix of it.
    oracle.reset()
    expected = oracle.forward([*prompt, *ids[:-1]])
    for position, (got, wanted) in enumerate(zip(np.concatenate(rows), expected, strict=True)):
        assert_close(got, wanted, f"{name}: position {position}")
    chosen = expected[len(prompt) - 1 :]
    second, first = np.sort(chosen, axis=-1)[:, -2:].T
    decided = first - second > MARGIN
    np.testing.assert_array_equal(np.array(ids)[decided], chosen.argmax(-1)[decided])
    assert np.count_nonzero(decided) >= NEW // 2


def test_the_last_logits_alone_are_the_same(model: Decoder, sky: tuple[list[int], Array]) -> None:
    prompt, expected = sky
    logits = model.forward(prompt, model.cache(100))
    assert logits.shape == (1, expected.shape[1])
    assert_close(logits[0].numpy(), expected[-1], "sky")


def test_a_prompt_in_pieces_gives_the_same_logits(
    model: Decoder, sky: tuple[list[int], Array]
) -> None:
    prompt, expected = sky
    cache = model.cache(len(prompt))
    for cut in (slice(0, 7), slice(7, 8), slice(8, None)):
        logits = model.forward(prompt[cut], cache)
    assert_close(logits[0].numpy(), expected[-1], "sky")
    cache.reset()
    logits = model.forward(prompt, cache)
    assert_close(logits[0].numpy(), expected[-1], "sky, again")


def test_the_other_device_agrees(model_path: Path, model: Decoder) -> None:
    ids = [504, 3575, 282]
    expected = model.forward(ids, model.cache(8)).numpy()
    other = Decoder(nbx.io.open_gguf(model_path), "sim:0")
    logits = other.forward(ids, other.cache(8))
    assert logits.device.name == "sim:0"
    np.testing.assert_array_equal(logits.cpu().numpy(), expected)


def test_memory_is_counted_and_given_back(model_path: Path) -> None:
    before = nbx.memory.report("cpu")
    file = nbx.io.open_gguf(model_path)
    model = Decoder(file, "cpu")
    cache = model.cache(64)
    logits = model.forward([1, 2, 3], cache)
    report = nbx.memory.report("cpu")
    held = report.by_tag()
    assert sum(held.values()) == report.total == sum(row.own for row in report.rows)
    former = before.by_tag()
    weights = sum(entry.nbytes for entry in file.tensors.values())
    assert held["weights"] - former.get("weights", 0) == weights
    config = model.config
    kv = 2 * config.layers * config.kv_heads * 64 * config.head_dim * 4
    assert held["kv"] - former.get("kv", 0) == kv
    assert held["workspace"] - former.get("workspace", 0) == logits.nbytes
    del model, cache, logits, file
    assert nbx.memory.report("cpu").total == before.total


def test_a_budget_that_does_not_fit(model_path: Path, model: Decoder) -> None:
    before = nbx.memory.allocated("cpu")
    with (
        nbx.memory.budget(before + 2**20, device="cpu"),
        pytest.raises(nbx.OutOfMemoryError) as caught,
    ):
        model.cache(8192)
    assert caught.value.requested == 3 * 8192 * 64 * 4
    assert caught.value.budget == before + 2**20
    caught = None  # type: ignore[assignment]
    assert nbx.memory.allocated("cpu") == before


def test_a_full_cache_and_bad_contexts(model: Decoder) -> None:
    cache = model.cache(4)
    model.forward([1, 2, 3], cache)
    with pytest.raises(ValueError, match="2 ids do not fit: 3 of the cache's 4 positions"):
        model.forward([1, 2], cache)
    with pytest.raises(ValueError, match="0 ids"):
        model.forward([], cache)
    for context in (0, 8193):
        with pytest.raises(ValueError, match=f"context is {context}; .* 1 to 8192"):
            model.cache(context)
    with pytest.raises(IndexError, match="49152"):
        model.forward([49152], model.cache(1))


METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 32,
}


def test_the_config_and_its_defaults() -> None:
    config = Config.from_metadata(METADATA)
    assert (config.kv_heads, config.head_dim, config.rotary_dim) == (4, 16, 16)
    assert config.rope_base == 10000.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"general.architecture": "rwkv"}, "general.architecture is 'rwkv'"),
        ({"general.architecture": None}, "general.architecture is None"),
        ({"llama.block_count": 0}, "llama.block_count is 0"),
        ({"llama.block_count": "two"}, "llama.block_count is 'two'"),
        ({"llama.context_length": None}, "llama.context_length is None"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'"),
    ],
)
def test_bad_metadata(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Config.from_metadata(METADATA | change)
