"""A decoder of the llama family, written with nbxtensor's public functions only.

Read it from top to bottom: the numbers of a model, its weights, the memory of what was read, and
the one function that turns token ids into logits. ``generate.py`` runs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import nbxtensor as nbx

# Architectures whose file has the tensors below and whose rope turns neighbouring pairs.
ARCHITECTURES = ("llama",)


@dataclass(frozen=True)
class Config:
    """The numbers of one model, as its file gives them."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_base: float
    eps: float
    context: int

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> Config:
        """Read the numbers; a file keeps them under keys that start with its architecture."""
        family = metadata.get("general.architecture")
        if family not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ValueError(f"general.architecture is {family!r}; this example runs {known}")
        scaling = metadata.get(f"{family}.rope.scaling.type", "none")
        if scaling != "none":
            raise ValueError(f"{family}.rope.scaling.type is {scaling!r}; expected none")

        def number(key: str, default: Any = None, real: bool = False) -> Any:
            value = metadata.get(f"{family}.{key}", default)
            kinds = int | float if real else int
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                expected = "a finite number" if real else "an integer"
                raise ValueError(f"{family}.{key} is {value!r}; expected {expected} above 0")
            return value

        width, heads = number("embedding_length"), number("attention.head_count")
        head_dim = number("attention.key_length", width // heads)
        return cls(
            layers=number("block_count"),
            width=width,
            hidden=number("feed_forward_length"),
            heads=heads,
            kv_heads=number("attention.head_count_kv", heads),
            head_dim=head_dim,
            rotary_dim=number("rope.dimension_count", head_dim),
            rope_base=float(number("rope.freq_base", 10000.0, real=True)),
            eps=float(number("attention.layer_norm_rms_epsilon", real=True)),
            context=number("context_length"),
        )


@dataclass
class Layer:
    """The weights of one block: plain tensors, or quantised ones; `linear` takes both."""

    attn_norm: Any
    attn_q: Any
    attn_k: Any
    attn_v: Any
    attn_output: Any
    ffn_norm: Any
    ffn_gate: Any
    ffn_up: Any
    ffn_down: Any


class KeyValueCache:
    """Keys and values of every position so far, one pair of tensors a layer."""

    def __init__(self, config: Config, context: int, device: Any) -> None:
        shape = (1, config.kv_heads, context, config.head_dim)
        with nbx.memory.tag("kv"):
            self.keys = [nbx.zeros(shape, device=device) for _ in range(config.layers)]
            self.values = [nbx.zeros(shape, device=device) for _ in range(config.layers)]
        self.context = context
        self.length = 0

    def reset(self) -> None:
        """Forget every position; the memory stays."""
        self.length = 0


class Decoder:
    """A model on a device.

    Parameters
    ----------
    file : nbx.io.GgufFile
        The opened model file.
    device : Device or str
        Where the weights go. On the cpu they stay in the file, which is mapped in place.
    """

    def __init__(self, file: Any, device: Any = "cpu") -> None:
        self.config = Config.from_metadata(file.metadata)
        self.device = device
        with nbx.memory.tag("weights"):
            weights = file.load(device=device)
        self.embedding = _take(weights, "token_embd.weight", (None, self.config.width))
        self.layers = [self._layer(weights, index) for index in range(self.config.layers)]
        self.norm = _take(weights, "output_norm.weight", (self.config.width,))
        # Small models use one table for both ends.
        tied = "output.weight" not in weights
        self.head = self.embedding if tied else _take(weights, "output.weight", (None, None))
        if weights:
            raise ValueError(f"{file.path}: this example does not use {', '.join(sorted(weights))}")

    def _layer(self, weights: dict[str, Any], index: int) -> Layer:
        c = self.config
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shapes = {
            "attn_norm": (c.width,),
            "attn_q": (q, c.width),
            "attn_k": (kv, c.width),
            "attn_v": (kv, c.width),
            "attn_output": (c.width, q),
            "ffn_norm": (c.width,),
            "ffn_gate": (c.hidden, c.width),
            "ffn_up": (c.hidden, c.width),
            "ffn_down": (c.width, c.hidden),
        }
        names = [field.name for field in fields(Layer)]
        return Layer(*(_take(weights, f"blk.{index}.{n}.weight", shapes[n]) for n in names))

    def cache(self, context: int) -> KeyValueCache:
        """Return an empty cache for `context` positions."""
        if not 0 < context <= self.config.context:
            raise ValueError(
                f"context is {context}; this model was trained for 1 to {self.config.context}"
            )
        return KeyValueCache(self.config, context, self.device)

    def forward(self, ids: list[int], cache: KeyValueCache, all_logits: bool = False) -> Any:
        """Return the logits of the last id (of every one if asked) and extend the cache.

        The result has shape (1 or len(ids), vocabulary).
        """
        start, end = cache.length, cache.length + len(ids)
        if not ids or end > cache.context:
            raise ValueError(
                f"{len(ids)} ids do not fit: {start} of the cache's {cache.context} positions are "
                "taken"
            )
        with nbx.memory.tag("workspace"):
            positions = nbx.arange(start, end, device=self.device).reshape((1, len(ids)))
            tokens = nbx.asarray(ids, dtype=nbx.int64, device=self.device)
            # Between products numbers stay float32, whatever the file keeps weights in.
            x = nbx.embedding(tokens, self.embedding).to(nbx.float32)
            for index, layer in enumerate(self.layers):
                h = nbx.rms_norm(x, layer.attn_norm, eps=self.config.eps)
                x = x + self._attention(h, layer, cache, index, positions)
                h = nbx.rms_norm(x, layer.ffn_norm, eps=self.config.eps)
                gate, up = nbx.linear(h, layer.ffn_gate), nbx.linear(h, layer.ffn_up)
                x = x + nbx.linear(nbx.silu_mul(gate, up), layer.ffn_down)
            cache.length = end
            # A vocabulary is wide: the product with the head is worth doing for one row only.
            x = x if all_logits else x[-1:]
            return nbx.linear(nbx.rms_norm(x, self.norm, eps=self.config.eps), self.head)

    def _attention(
        self, h: Any, layer: Layer, cache: KeyValueCache, index: int, positions: Any
    ) -> Any:
        c, count = self.config, h.shape[0]
        q = nbx.linear(h, layer.attn_q).reshape((1, count, c.heads, c.head_dim))
        k = nbx.linear(h, layer.attn_k).reshape((1, count, c.kv_heads, c.head_dim))
        v = nbx.linear(h, layer.attn_v).reshape((1, count, c.kv_heads, c.head_dim))
        turn: dict[str, Any] = {
            "base": c.rope_base,
            "interleaved": True,
            "rotary_dim": c.rotary_dim,
        }
        q, k = nbx.rope(q, positions, **turn), nbx.rope(k, positions, **turn)
        # From here on heads come before positions: (1, heads, positions, head_dim).
        keys, values = cache.keys[index], cache.values[index]
        nbx.kv_append(keys, k.permute(0, 2, 1, 3), cache.length)
        nbx.kv_append(values, v.permute(0, 2, 1, 3), cache.length)
        read = nbx.attention(
            q.permute(0, 2, 1, 3), keys, values, causal=True, kv_length=cache.length + count
        )
        return nbx.linear(read.permute(0, 2, 1, 3).reshape((count, -1)), layer.attn_output)


def _take(weights: dict[str, Any], name: str, shape: tuple[int | None, ...]) -> Any:
    """Remove a weight from the dictionary and check it (None: any extent)."""
    if name not in weights:
        raise ValueError(f"the file has no tensor {name!r}")
    weight = weights.pop(name)
    fits = len(weight.shape) == len(shape) and all(
        wanted in (None, got) for got, wanted in zip(weight.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"tensor {name!r} has shape {tuple(weight.shape)}; expected {shape}")
    if weight.dtype.kind != "f":
        raise ValueError(f"tensor {name!r} has dtype {weight.dtype}; expected a floating one")
    return weight
