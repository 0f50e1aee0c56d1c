"""The example's tokenizer against the oracle's own pair merging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
import smollm2
from tokenizer import TextStream, TextTokenizer

TEXTS = (
    "",
    " ",
    "The capital of France is",
    "  two  spaces\tand\ttabs\n\n\nand lines \n ",
    "It's we're they'll I'd you've o'clock 'quoted'",
    "1234567890 3.14159 0x1F 2nd ½ ²",
    "def f(x):\n    return x ** 2  # comment\n",
    "Grüße aus Köln, façade, naïve, Ångström",
    "日本語のテキスト 中文 한국어 עברית العربية हिन्दी",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 and ∑∫√ → ⇒",
    "<|im_start|>user\nhello<|im_end|>\n",
    "<|im_start|><|im_end|><|endoftext|> <|not_a_token|>",
    "a_b__c___d snake_case CamelCase SHOUT",
    "!!! ??? ... --- ==> <<< >>> @#$%^&*()",
    "\u00a0no-break\u2003em\u200bzero",
    "\x00\x01\x7f control",
)


@pytest.fixture(scope="module")
def metadata(model_path: Path) -> dict[str, Any]:
    return nbx.io.open_gguf(model_path).metadata


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> TextTokenizer:
    return TextTokenizer(metadata)


@pytest.fixture(scope="module")
def oracle(metadata: dict[str, Any]) -> smollm2.Bpe:
    names = ("tokens", "merges", "token_type")
    return smollm2.Bpe(*(metadata[f"tokenizer.ggml.{name}"] for name in names))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_back(tokenizer: TextTokenizer, oracle: smollm2.Bpe, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == oracle.encode(text)
    assert tokenizer.decode(ids) == oracle.decode(ids)
    if "<|" not in text:
        assert tokenizer.decode(ids) == text


def test_random_texts(
    tokenizer: TextTokenizer, oracle: smollm2.Bpe, rng: np.random.Generator
) -> None:
    words = [oracle.decode([i]) for i in rng.integers(17, len(oracle.tokens), 400)]
    letters = "aB z9½_'-.,\n\t é日😀ß"
    for _ in range(200):
        picked = "".join(rng.choice(words, rng.integers(1, 8)))
        noise = "".join(rng.choice(list(letters), rng.integers(1, 20)))
        for text in (picked, noise, picked + noise):
            assert tokenizer.encode(text) == oracle.encode(text), repr(text)


def test_a_stream_gives_whole_characters(tokenizer: TextTokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        stream = TextStream(tokenizer)
        pieces = [stream.push(index) for index in ids]
        assert all("\ufffd" not in piece for piece in pieces)
        assert "".join(pieces) + stream.close() == tokenizer.decode(ids)


def test_a_stream_that_ends_early(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("👩‍👧")
    assert len(ids) > 1
    stream = TextStream(tokenizer)
    assert stream.push(ids[0]) == ""
    assert stream.close() == "\ufffd"
    assert stream.close() == ""


def test_the_chat_template(tokenizer: TextTokenizer, oracle: smollm2.Bpe) -> None:
    text = tokenizer.chat("Hi {{ there }}")
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi {{ there }}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.encode(text) == oracle.encode(text)
    assert tokenizer.stops == {2}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        (
            {"tokenizer.ggml.pre": "other"},
            "pre is 'other'; this example reads gpt-2",
        ),
    ],
)
def test_other_tokenizers_are_refused(
    metadata: dict[str, Any], change: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        TextTokenizer(metadata | change)


def test_no_template(metadata: dict[str, Any]) -> None:
    plain = TextTokenizer({k: v for k, v in metadata.items() if "template" not in k})
    with pytest.raises(ValueError, match="no chat template"):
        plain.chat("Hi")


def test_a_first_token_is_added_where_the_file_says_so(metadata: dict[str, Any]) -> None:
    adds = TextTokenizer(metadata | {"tokenizer.ggml.add_bos_token": True})
    assert adds.encode("Hi")[0] == 1
    assert adds.encode("<|im_start|>Hi").count(1) == 1
