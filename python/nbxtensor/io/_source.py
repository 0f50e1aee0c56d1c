"""A model file mapped into memory, and the check that its tensors tile it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from nbxtensor import _core
from nbxtensor.dtype import DType, uint8
from nbxtensor.io._errors import FormatError


class Source:
    """The bytes of one file, mapped for reading.

    The mapping lives as long as this object or any tensor that was made from it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size == 0:
                raise FormatError(self.path, "the file is empty", file_bytes=0)
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # What was mapped counts: the file may have grown or shrunk since.
        self.size = len(self.bytes)

    def error(self, problem: str, tensor: str | None = None, **figures: Any) -> FormatError:
        """Return an error that names the file."""
        return FormatError(self.path, problem, tensor=tensor, **figures)

    def tensor(
        self, offset: int, nbytes: int, dtype: DType, shape: tuple[int, ...], device: Any
    ) -> Any:
        """Return a tensor of file bytes: in place on devices that read host memory, else a copy."""
        if nbytes == 0:
            return _core.empty(shape, dtype, device)
        reads_host = device.host_readable
        place = device if reads_host else _core.device("cpu")
        raw = _core.map_buffer(memoryview(self.bytes)[offset : offset + nbytes], place)
        if dtype is not uint8:
            if offset % dtype.itemsize:
                raw = raw.clone()
            raw = raw.view(dtype)
        found = raw.reshape(shape)
        if reads_host:
            return found
        former = _core.memory_set_steady(True)  # weights stay
        try:
            return found.to(device)
        finally:
            _core.memory_set_steady(former)


class Span(NamedTuple):
    """Bytes of one tensor, counted from the start of the data."""

    name: str
    begin: int
    end: int


def check_tiling(source: Source, spans: Iterable[Span], start: int, alignment: int) -> None:
    """Refuse tensors that overlap, leave the file, or leave bytes that nobody owns.

    Parameters
    ----------
    source : Source
        The file.
    spans : iterable of Span
        The tensors' bytes from the start of the data.
    start : int
        Where the data starts in the file.
    alignment : int
        Tensors start at its multiples: fewer bytes than this between two are padding.
    """
    room = max(source.size - start, 0)
    end, before = 0, "the header"
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        if span.end > room:
            raise source.error(
                f"needs bytes {span.begin}..{span.end} of the data, but the file holds {room} "
                f"after its header of {start} bytes; it is truncated or its header lies",
                span.name,
                begin=span.begin,
                end=span.end,
                data_bytes=room,
            )
        if span.begin < end:
            raise source.error(
                f"starts at byte {span.begin} of the data, inside {before}, which ends at {end}",
                span.name,
                begin=span.begin,
                previous_end=end,
            )
        if span.begin - end >= alignment:
            raise source.error(
                f"starts at byte {span.begin} of the data, but {before} ends at {end}: the "
                f"{span.begin - end} bytes between belong to no tensor",
                span.name,
                begin=span.begin,
                previous_end=end,
            )
        end, before = span.end, f"tensor {span.name!r}"
    if room - end >= alignment:
        raise source.error(
            f"the data hold {room} bytes, but the last tensor ends at {end}: the "
            f"{room - end} bytes after it belong to no tensor",
            data_bytes=room,
            end=end,
        )
