"""Random index keys for NumPy and for tensors alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st


def _bound(draw: Any, extent: int) -> int | None:
    return draw(st.one_of(st.none(), st.integers(-extent - 2, extent + 2)))


def _slice(draw: Any, extent: int) -> slice:
    step = draw(st.sampled_from([None, 1, 2, 3, -1, -2, -3, 100, -100]))
    return slice(_bound(draw, extent), _bound(draw, extent), step)


def _integers(draw: Any, extent: int, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    values = draw(
        st.lists(st.integers(-extent, max(extent - 1, -extent)), min_size=count, max_size=count)
    )
    return np.array(values, dtype=draw(st.sampled_from([np.int64, np.int32, np.int8]))).reshape(
        shape
    )


def _mask(draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool).reshape(
        shape
    )


@st.composite
def keys(draw: Any, shape: tuple[int, ...], advanced: bool = True) -> Any:
    """Draw a key for an array of this shape; sometimes one that must be refused."""
    items: list[Any] = []
    axis = 0
    broadcast = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 1), (1, 3), (0,)]))
    used_ellipsis = False
    kinds = ["int", "slice", "slice", "none", "ellipsis"]
    if advanced:
        kinds += ["array", "array", "list", "mask", "bool"]
    while axis < len(shape) and draw(st.integers(0, 5)) > 0:
        kind = draw(st.sampled_from(kinds))
        extent = shape[axis]
        if kind == "int":
            items.append(draw(st.integers(-extent - (extent == 0), max(extent - 1, 0))))
            axis += 1
        elif kind == "slice":
            items.append(_slice(draw, extent))
            axis += 1
        elif kind == "none":
            items.append(None)
        elif kind == "ellipsis" and not used_ellipsis:
            used_ellipsis = True
            items.append(Ellipsis)
            axis = draw(st.integers(axis, len(shape)))
        elif kind in ("array", "list"):
            one = draw(st.sampled_from([broadcast, (1,), ()]))
            indices = _integers(draw, extent, one)
            if indices.ndim == 0:
                items.append(indices[()])  # a NumPy scalar counts as an integer
            else:
                items.append(indices.tolist() if kind == "list" else indices)
            axis += 1
        elif kind == "mask":
            rank = draw(st.integers(1, min(2, len(shape) - axis)))
            extents = shape[axis : axis + rank]
            if used_ellipsis and 0 in extents:
                # It may meet another axis, and NumPy takes empty masks for any extent of 1.
                items.append(slice(None))
                axis += 1
            else:
                items.append(_mask(draw, extents))
                axis += rank
        elif kind == "bool":
            items.append(draw(st.booleans()))
        if len(items) > 8:
            break
    if len(items) == 1 and draw(st.booleans()):
        return items[0]
    return tuple(items)
