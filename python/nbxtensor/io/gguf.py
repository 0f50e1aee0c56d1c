"""GGUF files: strict reading over a memory map."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, overload

from nbxtensor import _core
from nbxtensor._core import UnsupportedError
from nbxtensor.dtype import DType, uint8
from nbxtensor.io._ggml import DECODED, TYPES
from nbxtensor.io._gguf_header import DEFAULT_ALIGNMENT, TensorInfo, read_header
from nbxtensor.io._progress import Meter, Progress
from nbxtensor.io._source import Source, Span, check_tiling
from nbxtensor.quant import QuantizedTensor


class TensorEntry(NamedTuple):
    """Where a tensor lies in its file.

    Attributes
    ----------
    shape : tuple of int
        Extents, slowest first.
    type : str
        Name of the element type in the format (``"F32"``, ``"Q4_1"``).
    offset, nbytes : int
        Its bytes, counted from the start of the file.
    """

    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


class GgufFile:
    """An opened GGUF file; `open_gguf` makes one.

    Attributes
    ----------
    path : str
        The file.
    version : int
        Version of the format, 2 or 3.
    metadata : dict
        Values by key: numbers, strings, and lists of them.
    tensors : dict of str to TensorEntry
        Every tensor by name, in the file's order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._source = Source(path)
        self.path = self._source.path
        header = read_header(self._source)
        self.version = header.version
        self.metadata: dict[str, Any] = header.metadata
        alignment = self._alignment()
        start = -(-header.end // alignment) * alignment
        self._codes: dict[str, int] = {}
        self.tensors: dict[str, TensorEntry] = {}
        for info in header.tensors:
            self._add(info, start, alignment)
        spans = [
            Span(name, entry.offset - start, entry.offset - start + entry.nbytes)
            for name, entry in self.tensors.items()
        ]
        if self.tensors or self._source.size > start:
            check_tiling(self._source, spans, start, alignment)

    def __repr__(self) -> str:
        return f"GgufFile({self.path!r}, {len(self.tensors)} tensors, version {self.version})"

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < 1
            or value & (value - 1)
        ):
            raise self._source.error(
                f"general.alignment is {value!r}; expected a power of two, such as 32"
            )
        return value

    def _add(self, info: TensorInfo, start: int, alignment: int) -> None:
        source, name = self._source, info.name
        if name in self.tensors:
            raise source.error("the name is there twice", name)
        known = TYPES.get(info.type_code)
        if known is None:
            names = ", ".join(f"{code} ({row.name})" for code, row in TYPES.items())
            raise source.error(
                f"has type code {info.type_code}, which is unknown; expected one of {names}",
                name,
                type_code=info.type_code,
            )
        if info.offset % alignment:
            raise source.error(
                f"starts at byte {info.offset} of the data; expected a multiple of the file's "
                f"alignment, {alignment}",
                name,
                begin=info.offset,
                alignment=alignment,
            )
        row = info.extents[0] if info.extents else 1
        if row % known.block:
            raise source.error(
                f"has rows of {row} elements; {known.name} needs a multiple of {known.block}",
                name,
                row=row,
                block=known.block,
            )
        count = math.prod(info.extents)
        nbytes = count // known.block * known.bytes
        if max(count, nbytes, *info.extents, info.offset) >= 2**63:
            raise source.error(
                f"has shape {info.extents[::-1]}: {count} elements pass 2^63 - 1", name, count=count
            )
        self._codes[name] = info.type_code
        self.tensors[name] = TensorEntry(
            info.extents[::-1], known.name, start + info.offset, nbytes
        )

    @overload
    def load(self, names: str, *, device: Any = None, progress: Progress = None) -> Any: ...

    @overload
    def load(
        self,
        names: Iterable[str] | None = None,
        *,
        device: Any = None,
        progress: Progress = None,
    ) -> dict[str, Any]: ...

    def load(
        self,
        names: str | Iterable[str] | None = None,
        *,
        device: Any = None,
        progress: Progress = None,
    ) -> Any:
        """Return tensors of the file.

        On the cpu they are the file's own pages, mapped in place and read-only, and count as mapped
        memory of the current tag once for every call, so the file must stay as it is meanwhile;
        elsewhere they are copies.

        Parameters
        ----------
        names : str, iterable of str or None
            One tensor, several, or all of them.
        device : Device, str or None
            Where to; None is the current device.
        progress : callable, bool or None
            ``progress(done_bytes, total_bytes)``; None draws a line on a terminal, False nothing.

        Returns
        -------
        Tensor, QuantizedTensor or dict
            One tensor for one name, else a dictionary by name.
        """
        target = _core.device(device)
        wanted = (
            [names] if isinstance(names, str) else list(self.tensors if names is None else names)
        )
        for name in wanted:
            self._check_loads(name)
        meter = Meter(progress, sum(self.tensors[name].nbytes for name in wanted))
        loaded: dict[str, Any] = {}
        try:
            for name in wanted:
                loaded[name] = self._load(name, target)
                meter.add(self.tensors[name].nbytes)
        finally:
            meter.close()
        return loaded[names] if isinstance(names, str) else loaded

    def _check_loads(self, name: str) -> None:
        if name not in self.tensors:
            some = ", ".join(list(self.tensors)[:4])
            raise KeyError(
                f"{self.path}: no tensor {name!r} among its {len(self.tensors)} ({some}, ...)"
            )
        entry = self.tensors[name]
        form = DECODED.get(self._codes[name])
        if form is None:
            known = ", ".join(TYPES[code].name for code in DECODED)
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} is of type {entry.type}, which is not decoded; "
                f"expected one of {known}"
            )
        if not isinstance(form, DType) and len(entry.shape) != 2:
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} is quantised and has shape {entry.shape}; "
                "expected two axes"
            )

    def _load(self, name: str, device: Any) -> Any:
        entry = self.tensors[name]
        form = DECODED[self._codes[name]]
        if isinstance(form, DType):
            return self._source.tensor(entry.offset, entry.nbytes, form, entry.shape, device)
        rows, columns = entry.shape
        row_bytes = columns // form.block * form.bytes
        blocks = self._source.tensor(entry.offset, entry.nbytes, uint8, (rows, row_bytes), device)
        return QuantizedTensor((blocks,), form, (rows, columns))


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Open a GGUF file and check all of its header.

    Raises
    ------
    FormatError
        If the file is truncated, contradicts itself, or is of an unknown version or type; the text
        names the file, the tensor and the numbers.
    OSError
        If it cannot be read.
    """
    return GgufFile(path)
