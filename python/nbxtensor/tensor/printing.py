"""Tensors as text."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.dtype import float32, int8


@dataclasses.dataclass(frozen=True)
class PrintOptions:
    """How tensors are written.

    Attributes
    ----------
    precision : int
        Digits behind the decimal point.
    threshold : int
        Elements above which only the edges are written.
    edgeitems : int
        Elements at each edge.
    linewidth : int
        Columns of a line.
    suppress : bool
        Whether small numbers are written without an exponent.
    """

    precision: int = 4
    threshold: int = 1000
    edgeitems: int = 3
    linewidth: int = 100
    suppress: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("precision", 0),
            ("threshold", 0),
            ("edgeitems", 1),
            ("linewidth", 10),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"printoptions: {name} must be an int of {least} or more, got {value!r}"
                )


_DEFAULT = PrintOptions()
_options: ContextVar[PrintOptions] = ContextVar("nbxtensor_print_options", default=_DEFAULT)


def get_printoptions() -> PrintOptions:
    """Return the options in force in this context."""
    return _options.get()


def set_printoptions(**options: Any) -> PrintOptions:
    """Change options by name and return the former ones."""
    former = _options.get()
    _options.set(dataclasses.replace(former, **options))
    return former


@contextlib.contextmanager
def printoptions(**options: Any) -> Iterator[PrintOptions]:
    """Change options by name inside a ``with`` block."""
    token = _options.set(dataclasses.replace(_options.get(), **options))
    try:
        yield _options.get()
    finally:
        _options.reset(token)


def _edges(tensor: Any, edgeitems: int) -> Any:
    """Return the elements that a summary shows: of long axes the edges and one in between."""
    longest_first = sorted(range(tensor.ndim), key=lambda axis: -tensor.shape[axis])
    for axis in longest_first:
        extent = tensor.shape[axis]
        if extent <= 2 * edgeitems + 1:
            continue
        kept = [*range(edgeitems + 1), *range(extent - edgeitems, extent)]
        tensor = tensor[(slice(None),) * axis + (kept,)]
    return tensor


def _printable(tensor: Any) -> np.ndarray[Any, Any]:
    """Return host elements of a type that NumPy can write without other packages."""
    dtype = tensor.dtype
    if dtype.bits < 8:
        tensor = tensor.to(int8)
    elif "." in dtype.numpy:
        tensor = tensor.to(float32)
    return np.asarray(memoryview(tensor.cpu()))


def tensor_text(tensor: _core.TensorBase) -> str:
    """Return ``tensor([...], dtype=..., device=...)``, summarised when it is long."""
    options = _options.get()
    rest = f"dtype={tensor.dtype}, device={tensor.device}"
    if tensor.size == 0:
        shown = f", shape={tensor.shape}" if tensor.shape != (0,) else ""
        return f"tensor([]{shown}, {rest})"
    summarised = tensor.size > options.threshold
    # Packed types have no strided views; a summary of one needs its elements apart.
    source = tensor.to(int8) if tensor.dtype.bits < 8 else tensor
    text = np.array2string(
        _printable(_edges(source, options.edgeitems) if summarised else source),
        max_line_width=options.linewidth,
        precision=options.precision,
        suppress_small=options.suppress,
        separator=", ",
        prefix="tensor(",
        threshold=0 if summarised else options.threshold + 1,
        edgeitems=options.edgeitems,
    )
    return f"tensor({text}, {rest})"
