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


def _listed(metadata: dict[str, Any], name: str, kind: type, default: Any = None) -> list[Any]:
    """Return a list of the file, whose items are all of one kind."""
    key = f"tokenizer.ggml.{name}"
    found = metadata.get(key, default)
    if not isinstance(found, list):
        raise ValueError(f"{key} is {found!r}; expected a list of {kind.__name__}")
    wrong = next((i for i, item in enumerate(found) if type(item) is not kind), None)
    if wrong is not None:
        raise ValueError(
            f"{key} has {found[wrong]!r} at place {wrong}; expected a list of {kind.__name__}"
        )
    return found


def _pairs(merges: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return the pairs that merge; both tokens and what they make must exist."""
    pairs = []
    for index, text in enumerate(merges):
        left, _, right = text.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ValueError(
                f"tokenizer.ggml.merges has {text!r} at place {index}; expected two tokens and a "
                "blank between them, which together are a token too"
            )
        pairs.append((left, right))
    return pairs


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
        if not isinstance(split, str) or split not in _SPLITS:
            known = ", ".join(_SPLITS)
            raise ValueError(f"tokenizer.ggml.pre is {split!r}; this example reads {known}")
        self.tokens: list[str] = _listed(metadata, "tokens", str)
        kinds = _listed(metadata, "token_type", int, [1] * len(self.tokens))
        if len(kinds) != len(self.tokens):
            raise ValueError(
                f"tokenizer.ggml.token_type has {len(kinds)} items; there are {len(self.tokens)} "
                "tokens"
            )
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise ValueError(
                f"tokenizer.ggml.tokens has {len(self.tokens)} items, of which only "
                f"{len(vocabulary)} differ"
            )
        merges = _pairs(_listed(metadata, "merges", str), vocabulary)
        self._tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        self._tokenizer.pre_tokenizer = _SPLITS[split]
        self._tokenizer.decoder = decoders.ByteLevel()
        whole = [t for t, k in zip(self.tokens, kinds, strict=True) if k == _CONTROL]
        self._tokenizer.add_special_tokens([AddedToken(t, special=True) for t in whole])
        added = [t for t, k in zip(self.tokens, kinds, strict=True) if k == _USER_DEFINED]
        self._tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])

        self._bos = self._special(metadata, "bos")
        self._adds_bos = metadata.get("tokenizer.ggml.add_bos_token", False) is True
        ends = (self._special(metadata, name) for name in ("eos", "eot"))
        self.stops = {index for index in ends if index is not None}
        self._template = metadata.get("tokenizer.chat_template")

    def _special(self, metadata: dict[str, Any], name: str) -> int | None:
        """Return the id of a token with a meaning of its own, None where the file has none."""
        key = f"tokenizer.ggml.{name}_token_id"
        index = metadata.get(key)
        if index is not None and (type(index) is not int or not 0 <= index < len(self.tokens)):
            raise ValueError(f"{key} is {index!r}; there are {len(self.tokens)} tokens")
        return index

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; names of control tokens in it become those tokens."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode: {error}") from None
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        bos = self._bos if self._adds_bos else None
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

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
