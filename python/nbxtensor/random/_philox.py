"""The random streams in NumPy: what the kernels must draw."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(seed: int, offset: int, blocks: int) -> Array:
    """Return Philox4x32-10 of the key `seed` at counters offset, offset + 1, ...

    Returns
    -------
    numpy.ndarray
        uint32 of shape (blocks, 4).
    """
    # Python integers carry the counter past 64 bits.
    wide = [(offset + i) for i in range(blocks)] if offset + blocks > 2**64 else None
    if wide is None:
        low = np.arange(blocks, dtype=np.uint64) + np.uint64(offset)
        high = np.zeros(blocks, np.uint64)
    else:
        low = np.array([value % 2**64 for value in wide], np.uint64)
        high = np.array([value >> 64 for value in wide], np.uint64)
    c = [low & _LOW, low >> _SHIFT, high & _LOW, high >> _SHIFT]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        first = np.uint64(0xD2511F53) * c[0]
        second = np.uint64(0xCD9E8D57) * c[2]
        c = [
            (second >> _SHIFT) ^ c[1] ^ key[0],
            second & _LOW,
            (first >> _SHIFT) ^ c[3] ^ key[1],
            first & _LOW,
        ]
        key = [(key[0] + np.uint64(0x9E3779B9)) & _LOW, (key[1] + np.uint64(0xBB67AE85)) & _LOW]
    return np.stack(c, axis=-1).astype(np.uint32)


def words(seed: int, offset: int, count: int) -> Array:
    """Return the first `count` 32-bit words of a draw, in float64."""
    return philox(seed, offset, -(-count // 4)).reshape(-1)[:count].astype(np.float64)


def uniform(seed: int, offset: int, count: int, low: float, high: float) -> Array:
    """Return `count` float32 numbers of a uniform draw, before rounding."""
    return low + np.floor(words(seed, offset, count) / 256) * 2.0**-24 * (high - low)


def normal(seed: int, offset: int, count: int, mean: float, deviation: float) -> Array:
    """Return `count` float32 numbers of a normal draw, before rounding."""
    pairs = words(seed, offset, -(-count // 4) * 4).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((pairs[:, 0] + 0.5) * 2.0**-32))
    angle = 2.0 * np.pi * pairs[:, 1] * 2.0**-32
    values = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return mean + deviation * values.reshape(-1)[:count]


def integers(seed: int, offset: int, count: int, low: int, high: int) -> Array:
    """Return `count` integers of a draw from low..high, high left out."""
    halves = philox(seed, offset, -(-count // 2)).reshape(-1, 2).tolist()
    drawn = [low + ((first << 32 | second) * (high - low) >> 64) for first, second in halves]
    return np.array(drawn[:count], dtype=np.int64)
