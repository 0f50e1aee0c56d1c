"""The most that was held during a stretch of time."""

from __future__ import annotations

from typing import Any

from nbxtensor import _core


class peak:  # noqa: N801
    """Note the most that a device, or one tag on it, holds inside the ``with`` block.

    Scopes may nest and overlap, and disturb neither each other nor `peak_allocated`.

    Parameters
    ----------
    tag : str, optional
        Tensors under this tag path instead of the whole device.
    device : device or str, optional
        The default device if not given.

    Attributes
    ----------
    bytes : int
        The most so far; after the block, the most inside it.
    error : int
        By how much `bytes` may be too high, because other threads had counted bytes ahead; 0 for a
        program of one thread.

    Examples
    --------
    >>> with memory.peak() as step:
    ...     forward()
    >>> step.bytes
    """

    def __init__(self, tag: str | None = None, device: Any = None) -> None:
        self._tag = tag
        # The same device at both ends, also if another becomes the default.
        self._device = _core.device(device)
        self._scope: int | None = None
        self._last = (0, 0)

    def __enter__(self) -> peak:
        if self._scope is not None:
            raise RuntimeError("peak: this scope runs already; make another object")
        self._scope = _core.memory_begin_peak(self._device, self._tag)
        return self

    def __exit__(self, *error: object) -> None:
        if self._scope is not None:
            self._last = _core.memory_end_peak(self._device, self._tag, self._scope)
            self._scope = None

    def _figures(self) -> tuple[int, int]:
        if self._scope is None:
            return self._last
        return _core.memory_peak(self._device, self._tag, self._scope)

    @property
    def bytes(self) -> int:
        """The most that was held."""
        return self._figures()[0]

    @property
    def error(self) -> int:
        """By how much the figure may be too high."""
        return self._figures()[1]

    def __repr__(self) -> str:
        what = self._device.name if self._tag is None else repr(self._tag)
        return f"<peak of {what}: {self.bytes} bytes>"
