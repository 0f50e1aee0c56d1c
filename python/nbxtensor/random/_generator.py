"""Random streams that are the same on every device."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from nbxtensor._core import is_capturing
from nbxtensor.dtype import as_dtype, float32, float64, iinfo, int64
from nbxtensor.errors import InvalidValueError
from nbxtensor.ops import FUNCTIONS
from nbxtensor.random._rows import fill_integers, fill_normal, fill_uniform, sample_logits
from nbxtensor.tensor import Tensor

_empty = FUNCTIONS["empty"]
_WORDS_PER_BLOCK = 4


class State(NamedTuple):
    """Where a generator is: its key, and the number of blocks that were drawn."""

    seed: int
    offset: int


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if len(shape) == 1 and not isinstance(shape[0], int):
        return tuple(shape[0])
    return shape


class Generator:
    """A random stream: Philox4x32-10 with a 64-bit seed as key and a 64-bit offset as counter.

    The same seed gives the same numbers on every device, for any number of threads. Every draw of n
    elements takes n / 4 steps of the offset, n / 2 for 64-bit types, rounded up. Safe to share
    between threads.

    Parameters
    ----------
    seed : int, optional
        From -2**63 to 2**64 - 1; negative ones count from 2**64. Fresh from the system by default.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.Lock()
        self._seed = 0
        self._offset = 0
        self.manual_seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, offset={self._offset})"

    @property
    def seed(self) -> int:
        """The seed."""
        return self._seed

    @property
    def offset(self) -> int:
        """Blocks drawn so far."""
        return self._offset

    def manual_seed(self, seed: int) -> Generator:
        """Start anew with a seed; returns self."""
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise TypeError(f"seed: got {type(seed).__name__}; expected an integer")
        value = seed.__index__()
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"seed: got {value}; expected -2**63 to 2**64 - 1")
        with self._lock:
            self._seed, self._offset = value % 2**64, 0
        return self

    def get_state(self) -> State:
        """Return where the stream is, for `set_state`."""
        with self._lock:
            return State(self._seed, self._offset)

    def set_state(self, state: State | tuple[int, int]) -> None:
        """Go on where a stream was."""
        seed, offset = state
        for name, value in (("seed", seed), ("offset", offset)):
            if not isinstance(value, int) or not 0 <= value < 2**64:
                raise ValueError(f"state: got {name} {value!r}; expected an integer 0 to 2**64 - 1")
        with self._lock:
            self._seed, self._offset = seed, offset

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.get_state(),)

    def _fill(self, op: Any, out: Tensor, first: float, second: float) -> Tensor:
        lanes = 2 if out.dtype.bits == 64 or out.dtype.kind in "iu" else _WORDS_PER_BLOCK
        blocks = -(-out.size // lanes)
        if is_capturing(out.device):
            raise InvalidValueError(
                f"random: a stream of {out.device.name} is captured, and a graph would give the "
                "same numbers at every replay; draw before the replay and give the tensor as an "
                "input, or give a kernel the seed and offset as memory"
            )
        with self._lock:
            seed, start = self._seed, self._offset
            self._offset = (start + blocks) % 2**64
        filled: Tensor = op(out, seed, start, first, second)
        return filled

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: int | Sequence[int] = (),
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> Tensor:
        """Return uniform numbers of low <= x < high; all equal to low where high equals it.

        Parameters
        ----------
        low, high : float
            The range.
        size : int or sequence of int
            Shape of the result.
        dtype : DType, optional
            float16, bfloat16, float32 (the default) or float64; drawn with as many bits as it has.
        device : Device or str, optional
            The default device by default.
        """
        low, high = float(low), float(high)
        if not low <= high or high - low == float("inf"):
            raise ValueError(f"uniform: got the range {low} to {high}; expected finite low <= high")
        wanted = _floating(float32 if dtype is None else dtype, "uniform")
        return self._fill(fill_uniform, _empty(size, dtype=wanted, device=device), low, high)

    def normal(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        size: int | Sequence[int] = (),
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> Tensor:
        """Return normally distributed numbers; see `uniform` for the arguments."""
        mean, std = float(mean), float(std)
        if not 0 <= std < float("inf"):
            raise ValueError(f"normal: got std {std}; expected a finite number, 0 or more")
        wanted = _floating(float32 if dtype is None else dtype, "normal")
        return self._fill(fill_normal, _empty(size, dtype=wanted, device=device), mean, std)

    def rand(self, *shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """Return uniform numbers of 0 <= x < 1."""
        return self.uniform(0.0, 1.0, _shape(shape), dtype=dtype, device=device)

    def randn(self, *shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """Return numbers of the standard normal distribution."""
        return self.normal(0.0, 1.0, _shape(shape), dtype=dtype, device=device)

    def randint(
        self,
        low: int,
        high: Any = None,
        size: int | Sequence[int] = (),
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> Tensor:
        """Return uniform integers of low <= x < high, or 0 <= x < low where high is left out.

        A value is off its probability by less than (high - low) / 2**64.
        """
        if high is not None and not isinstance(high, int):
            high, size = None, high
        low, high = (0, int(low)) if high is None else (int(low), high)
        wanted = int64 if dtype is None else as_dtype(dtype)
        if wanted.kind not in "iu" or wanted.bits < 8:
            raise TypeError(f"randint: dtype {wanted}; expected an integer of 8 bits or more")
        limits = iinfo(wanted)
        # The kernel takes both ends and their difference in 64 bits.
        fits = high < 2**64 and high - low < 2**64
        if not limits.min <= low < high <= limits.max + 1 or not fits:
            raise ValueError(
                f"randint: got the range {low} to {high}; expected low < high < 2**64, values of "
                f"{wanted} ({limits.min} to {limits.max}), and fewer than 2**64 of them"
            )
        return self._fill(fill_integers, _empty(size, dtype=wanted, device=device), low, high)


def _floating(dtype: Any, name: str) -> Any:
    wanted = as_dtype(dtype)
    if wanted.kind != "f" or wanted.bits < 16:
        raise TypeError(f"{name}: dtype {wanted}; expected float16, bfloat16, float32 or float64")
    return wanted


def _rebuild(state: State) -> Generator:
    generator = Generator(0)
    generator.set_state(state)
    return generator


default_generator = Generator()


def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    generator: Generator | None = None,
) -> Tensor:
    """Return an index drawn from every row of logits.

    Parameters
    ----------
    logits : Tensor
        Floating, of shape (..., vocabulary).
    temperature : float
        Divides the logits; 0 or less takes the greatest.
    top_k : int, optional
        Leaves the k greatest, and those equal to the last of them; None or 0: all.
    top_p : float
        Leaves the most likely ones that together reach this probability.
    generator : Generator, optional
        Gives one number for each row, unless the greatest is taken.

    Returns
    -------
    Tensor
        int64 of shape (...).
    """
    temperature, top_p = float(temperature), float(top_p)
    # More than there are ids keeps all of them; numbers of any size are such a count.
    count = 0 if top_k is None else min(int(top_k), 2**31)
    if not math.isfinite(temperature):
        raise ValueError(f"sample: got temperature {temperature}; expected a finite number")
    if count < 0:
        raise ValueError(f"sample: got top_k {count}; expected a natural number or None")
    if not 0 < top_p <= 1:
        raise ValueError(f"sample: got top_p {top_p}; expected 0 < top_p <= 1")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"sample: got logits of shape {logits.shape}; expected (..., vocabulary)")
    outer = logits.shape[:-1]
    rows = logits.reshape((-1, logits.shape[-1])) if logits.size else logits.reshape((0, 1))
    if temperature <= 0:
        uniforms = _empty(rows.shape[0], dtype=float64, device=logits.device)
        uniforms.fill_(0.0)
    else:
        source = default_generator if generator is None else generator
        uniforms = source.rand(rows.shape[0], dtype=float64, device=logits.device)
    ids: Tensor = sample_logits(rows, uniforms, temperature, count, top_p)
    return ids.reshape(outer)
