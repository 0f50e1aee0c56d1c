"""What a refused allocation could have been instead, and trying again."""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from nbxtensor import _core
from nbxtensor._core import format_bytes
from nbxtensor.errors import InvalidTypeError, OutOfMemoryError
from nbxtensor.memory._arguments import extents, shown, whole

_Result = TypeVar("_Result")


def what_would_have_fit(oom: BaseException, shape: Sequence[int] | None = None) -> str:
    """Say what would have fitted in place of a refused allocation.

    Parameters
    ----------
    oom : OutOfMemoryError
        The error, with its figures.
    shape : sequence of int, optional
        Shape that was asked for; the axes along which it can be cut are named then.

    Returns
    -------
    str
        A few sentences; empty if the error does not carry the figures.
    """
    requested = getattr(oom, "requested", None)
    room = getattr(oom, "would_fit", None)
    if requested is None or room is None or requested <= 0:
        return ""
    device = getattr(oom, "device", None) or "the device"
    total = getattr(oom, "driver_total", None)
    if room >= requested:
        return f"{format_bytes(requested)} would fit on {device} now: try again."
    text = f"{format_bytes(requested)} were asked for on {device}; "
    if room <= 0:
        text += "nothing would have fitted."
    else:
        bands = math.ceil(requested / room)
        text += (
            f"{format_bytes(room)} would have fitted, {format_bytes(requested - room)} less: "
            f"{bands} pieces of {format_bytes(math.ceil(requested / bands))}."
        )
        if shape is not None:
            text += _cut(extents("what_would_have_fit", shape), bands)
    if total is not None and requested > total:
        text += f" The whole device has {format_bytes(total)}."
    limits = getattr(oom, "fits_if", None) or {}
    if limits:
        # Each of them alone was tried on a copy of the books.
        ways = " or ".join(f"{tag} holds at most {format_bytes(n)}" for tag, n in limits.items())
        text += f" It fits if {ways}."
    return text


def annotate(message: str, cause: BaseException, shape: Sequence[int] | None = None) -> str:
    """Return a message with `what_would_have_fit` added if an `OutOfMemoryError` caused it."""
    if not isinstance(cause, OutOfMemoryError):
        return message
    advice = what_would_have_fit(cause, shape)
    return f"{message} {advice}" if advice else message


def retry(
    function: Callable[[], _Result],
    attempts: int = 2,
    recover: Callable[[OutOfMemoryError], object] | None = None,
) -> _Result:
    """Call a function again after it ran out of memory.

    Between two calls everything that the failed one left behind is let go of: the frames that its
    traceback keeps, and with them their tensors; cycles of Python objects; and what the device's
    heap holds unused.

    Parameters
    ----------
    function : callable
        Called without arguments; it must be able to start over.
    attempts : int
        Calls at most.
    recover : callable, optional
        Called with the error before each further call, outside of the failed one's frames: the
        place to shrink a batch or drop a cache.

    Returns
    -------
    object
        What the function returned.

    Raises
    ------
    OutOfMemoryError
        Of the last call.

    Examples
    --------
    >>> size = [64]
    >>> memory.retry(lambda: run(batch[: size[0]]), 4, lambda error: size.append(size.pop() // 2))
    """
    for name, called in (("function", function), ("recover", recover)):
        if not callable(called) and (called is not None or name == "function"):
            raise InvalidTypeError(f"retry: {name} is {shown(called)}; give something callable")
    for _ in range(whole("retry", "attempts", attempts, 1, what="calls") - 1):
        try:
            return function()
        except OutOfMemoryError as error:
            refused = error
        # Here the handler has ended, so that the error is the only way to the frames.
        _let_go(refused)
        if recover is not None:
            recover(refused)
        del refused
    return function()


def _let_go(error: OutOfMemoryError) -> None:
    """Drop the frames that an error keeps, then the memory that they held."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    gc.collect()
    if error.device is not None:
        _core.memory_trim(error.device.rpartition(" ")[2], 0)


def _cut(shape: tuple[int, ...], bands: int) -> str:
    """Name the first axis, or the fewest, to cut so that each of at least `bands` pieces fits."""
    for axis, extent in enumerate(shape):
        if extent >= bands:
            piece, length = _piece(shape, axis, bands)
            return f" Cut axis {axis} of {shape} into pieces of {length}: {piece}."
    # Axes of one index each, from the first on, until the rest is an ordinary cut.
    cut, missing = list(shape), bands
    for axis, extent in enumerate(shape):
        if extent >= missing:
            piece, _ = _piece(tuple(cut), axis, missing)
            named = ", ".join(str(a) for a in range(axis) if shape[a] > 1)
            return f" Cut axes {named} and {axis} of {shape} into pieces of shape {piece}."
        missing = math.ceil(missing / max(extent, 1))
        cut[axis] = 1
    return f" No cut of {shape} has {bands} pieces."


def _piece(shape: tuple[int, ...], axis: int, bands: int) -> tuple[tuple[int, ...], int]:
    """Return the largest piece of a cut, of whole indices, and its length along the axis."""
    length = shape[axis] // bands
    return (*shape[:axis], length, *shape[axis + 1 :]), length
