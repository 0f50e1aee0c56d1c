"""What a refused allocation could have been instead."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nbxtensor._core import format_bytes


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
        One or two sentences; empty if the error does not carry the figures.
    """
    requested = getattr(oom, "requested", None)
    room = getattr(oom, "would_fit", None)
    if requested is None or room is None or requested <= 0:
        return ""
    device = getattr(oom, "device", "the device")
    total = getattr(oom, "driver_total", None)
    if room >= requested:
        return f"{format_bytes(requested)} would fit on {device} now: try again."
    short = f"{format_bytes(requested)} were asked for on {device}; "
    if room <= 0:
        text = short + "nothing would have fitted."
    else:
        bands = math.ceil(requested / room)
        text = short + (
            f"{format_bytes(room)} would have fitted, {format_bytes(requested - room)} less: "
            f"{bands} pieces of {format_bytes(math.ceil(requested / bands))}."
        )
        if shape is not None:
            text += _cut(tuple(shape), bands)
    if total is not None and requested > total:
        text += f" The whole device has {format_bytes(total)}."
    return text


def _cut(shape: tuple[int, ...], bands: int) -> str:
    """Name the first axis that can be cut into so many pieces that each fits."""
    for axis, extent in enumerate(shape):
        if extent < bands:
            continue
        # Pieces of whole indices: the largest holds `length` of them and must not exceed its share.
        length = extent // bands
        piece = (*shape[:axis], length, *shape[axis + 1 :])
        return f" Cut axis {axis} of {shape} into pieces of {length}: {piece}."
    return f" No axis of {shape} alone can be cut into {bands} pieces."
