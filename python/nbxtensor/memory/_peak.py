"""The most that was held during a stretch of time."""

from __future__ import annotations

from typing import Any

from nbxtensor import _core
from nbxtensor.memory._arguments import tag_path


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
        self._tag = None if tag is None else tag_path("peak", tag)
        # The same device at both ends, also if another becomes the default.
        self._device = _core.device(device)
        self._scope: _core.Peak | None = None
        self._ended = False

    def __enter__(self) -> peak:
        if self._scope is not None and not self._ended:
            raise RuntimeError("peak: this scope runs already; make another object")
        self._scope = _core.Peak(self._device, self._tag)
        self._ended = False
        return self

    def __exit__(self, *error: object) -> None:
        if self._scope is not None:
            self._scope.end()
            self._ended = True

    def _figures(self) -> tuple[int, int]:
        return (0, 0) if self._scope is None else self._scope.figures

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
