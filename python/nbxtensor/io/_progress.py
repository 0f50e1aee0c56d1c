"""Progress of a load: a callback, or a line on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int], None] | bool | None

_DELAY_S = 0.3
_WIDTH = 30


class Meter:
    """Counts bytes of a load and shows them.

    Parameters
    ----------
    progress : callable, bool or None
        ``progress(done, total)`` is called after every tensor. None and True draw a line on
        standard error where that is a terminal and the load takes a while; False shows nothing.
    total : int
        Bytes of the whole load.
    """

    def __init__(self, progress: Progress, total: int) -> None:
        if progress not in (None, True, False) and not callable(progress):
            raise TypeError(
                f"progress: got {progress!r}; expected None, a bool or a callable (done, total)"
            )
        self._call = progress if callable(progress) else None
        self._draws = progress in (None, True) and sys.stderr is not None and sys.stderr.isatty()
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._drawn = False

    def add(self, nbytes: int) -> None:
        """Count bytes that are there now."""
        self._done += nbytes
        if self._call is not None:
            self._call(self._done, self._total)
        elif self._draws and time.monotonic() - self._start > _DELAY_S:
            share = self._done / max(self._total, 1)
            bar = "#" * round(share * _WIDTH)
            sys.stderr.write(f"\rloading [{bar:<{_WIDTH}}] {share:4.0%} of {self._total:,} bytes")
            sys.stderr.flush()
            self._drawn = True

    def close(self) -> None:
        """End the line."""
        if self._drawn:
            sys.stderr.write("\n")
            sys.stderr.flush()
