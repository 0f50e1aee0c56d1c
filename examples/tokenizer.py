"""Text to token ids and back, with the vocabulary and the chat template of a model file."""

from __future__ import annotations

from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# How text is cut before pairs are merged, by the name that files give it.
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
_SPLITS = {
    "gpt-2": _BYTES,
    "default": _BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTES]),
}
_CONTROL, _USER_DEFINED = 3, 4


class TextTokenizer:
    """The tokenizer that a GGUF file describes: byte-level pair merging.

    Parameters
    ----------
    metadata : dict
        The file's metadata.
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        kind = metadata.get("tokenizer.ggml.model")
        if kind != "gpt2":
            raise ValueError(f"tokenizer.ggml.model is {kind!r}; this example reads gpt2")
        split = metadata.get("tokenizer.ggml.pre", "default")
        if split not in _SPLITS:
            known = ", ".join(_SPLITS)
            raise ValueError(f"tokenizer.ggml.pre is {split!r}; this example reads {known}")
        self.tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(self.tokens))
        merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        self._tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        self._tokenizer.pre_tokenizer = _SPLITS[split]
        self._tokenizer.decoder = decoders.ByteLevel()
        whole = [t for t, k in zip(self.tokens, kinds, strict=True) if k == _CONTROL]
        self._tokenizer.add_special_tokens([AddedToken(t, special=True) for t in whole])
        added = [t for t, k in zip(self.tokens, kinds, strict=True) if k == _USER_DEFINED]
        self._tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])

        self._bos = metadata.get("tokenizer.ggml.bos_token_id")
        self._adds_bos = metadata.get("tokenizer.ggml.add_bos_token", False)
        ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
        self.stops = {index for index in ends if index is not None}
        self._template = metadata.get("tokenizer.chat_template")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; names of control tokens in it become those tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._bos, *ids] if self._adds_bos and ids[:1] != [self._bos] else ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, control tokens left out."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def chat(self, prompt: str) -> str:
        """Return the text that asks the model to answer, by the file's own template."""
        if self._template is None:
            raise ValueError("the file has no chat template; use the raw prompt (--raw)")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        names = {"bos_token": self._bos, "eos_token": min(self.stops, default=None)}
        tokens = {n: "" if i is None else self.tokens[i] for n, i in names.items()}
        return environment.from_string(self._template).render(
            messages=[{"role": "user", "content": prompt}], add_generation_prompt=True, **tokens
        )


class TextStream:
    """Ids in, text out as soon as it is whole: a character may take several tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Add an id and return the text that is complete now."""
        self._pending.append(token)
        text = self._tokenizer.decode(self._pending)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._pending.clear()
        return text

    def close(self) -> str:
        """Return what is left, complete or not."""
        text = self._tokenizer.decode(self._pending)
        self._pending.clear()
        return text
