"""Safetensors files: strict reading over a memory map, and writing."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Final, NamedTuple, overload

from nbxtensor import _core
from nbxtensor._core import UnsupportedError
from nbxtensor.dtype import DTYPES, DType, uint8
from nbxtensor.io._progress import Meter, Progress
from nbxtensor.io._source import Source, Span, check_tiling
from nbxtensor.tensor import Tensor

# The same bound as the format's own library sets.
MAXIMUM_HEADER_BYTES: Final = 100_000_000
MAXIMUM_RANK: Final = 64
_METADATA: Final = "__metadata__"
_FIELDS: Final = {"dtype", "shape", "data_offsets"}
_BY_NAME: Final[dict[str, DType]] = {d.safetensors: d for d in DTYPES if d.safetensors}


class SafetensorsEntry(NamedTuple):
    """Where a tensor lies in its file: `offset` counts from the start of the file."""

    shape: tuple[int, ...]
    dtype: DType
    offset: int
    nbytes: int


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


class SafetensorsFile:
    """An opened safetensors file; `open_safetensors` makes one.

    Attributes
    ----------
    path : str
        The file.
    metadata : dict of str to str
        What the writer noted.
    tensors : dict of str to SafetensorsEntry
        Every tensor by name, in the header's order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._source = Source(path)
        self.path = self._source.path
        header, start = self._read_header()
        notes = header.pop(_METADATA, {})
        if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
            raise self._source.error(f"{_METADATA} is not a dictionary of strings")
        self.metadata: dict[str, str] = notes
        self.tensors: dict[str, SafetensorsEntry] = {}
        for name, fields in header.items():
            self.tensors[name] = self._entry(name, fields, start)
        spans = [
            Span(name, entry.offset - start, entry.offset - start + entry.nbytes)
            for name, entry in self.tensors.items()
        ]
        check_tiling(self._source, spans, start, 1)

    def __repr__(self) -> str:
        return f"SafetensorsFile({self.path!r}, {len(self.tensors)} tensors)"

    def _read_header(self) -> tuple[dict[str, Any], int]:
        source = self._source
        if source.size < 8:
            raise source.error(
                f"has {source.size} bytes; expected at least 8: it is truncated",
                file_bytes=source.size,
            )
        length = int.from_bytes(source.bytes[:8], "little")
        if length > min(source.size - 8, MAXIMUM_HEADER_BYTES):
            raise source.error(
                f"says that its header has {length} bytes; the file has {source.size - 8} after "
                f"the length, and at most {MAXIMUM_HEADER_BYTES} are allowed",
                header_bytes=length,
                file_bytes=source.size,
            )
        text = source.bytes[8 : 8 + length]
        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise source.error(f"the header is not valid JSON: {error}") from None
        if not isinstance(header, dict) or text[:1] != b"{":
            raise source.error("the header is not a JSON object that starts with '{'")
        return header, 8 + length

    def _entry(self, name: str, fields: Any, start: int) -> SafetensorsEntry:
        source = self._source
        if not isinstance(fields, dict) or set(fields) != _FIELDS:
            given = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
            raise source.error(
                f"has the fields {given}; expected {', '.join(sorted(_FIELDS))}", name
            )
        dtype = _BY_NAME.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
        if dtype is None:
            raise source.error(
                f"has dtype {fields['dtype']!r}; expected one of {', '.join(_BY_NAME)}", name
            )
        shape, offsets = fields["shape"], fields["data_offsets"]
        # The bound of a tensor's axes. It also keeps the product of the extents small.
        if isinstance(shape, list) and len(shape) > MAXIMUM_RANK:
            raise source.error(
                f"has {len(shape)} axes; at most {MAXIMUM_RANK} are allowed", name, rank=len(shape)
            )
        if not _naturals(shape):
            raise source.error(f"has shape {shape!r}; expected a list of naturals", name)
        if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise source.error(
                f"has data_offsets {offsets!r}; expected [begin, end] with begin <= end", name
            )
        begin, end = offsets
        needed = math.prod(shape) * dtype.itemsize
        if needed != end - begin:
            raise source.error(
                f"has data_offsets [{begin}, {end}], {end - begin} bytes, but shape {shape} of "
                f"{dtype.safetensors} needs {needed}",
                name,
                needed=needed,
                given=end - begin,
            )
        return SafetensorsEntry(tuple(shape), dtype, start + begin, needed)

    # A str is an iterable of str too, but names one tensor.
    @overload
    def load(  # type: ignore[overload-overlap]
        self, names: str, *, device: Any = None, progress: Progress = None
    ) -> Tensor: ...

    @overload
    def load(
        self,
        names: Iterable[str] | None = None,
        *,
        device: Any = None,
        progress: Progress = None,
    ) -> dict[str, Tensor]: ...

    def load(
        self,
        names: str | Iterable[str] | None = None,
        *,
        device: Any = None,
        progress: Progress = None,
    ) -> Any:
        """Return tensors of the file, as `GgufFile.load` does: in place on the cpu, else copies."""
        target = _core.device(device)
        wanted = (
            [names] if isinstance(names, str) else list(self.tensors if names is None else names)
        )
        for name in wanted:
            if name not in self.tensors:
                some = ", ".join(list(self.tensors)[:4])
                raise KeyError(
                    f"{self.path}: no tensor {name!r} among its {len(self.tensors)} ({some}, ...)"
                )
        meter = Meter(progress, sum(self.tensors[name].nbytes for name in wanted))
        loaded: dict[str, Any] = {}
        try:
            for name in wanted:
                entry = self.tensors[name]
                loaded[name] = self._source.tensor(
                    entry.offset, entry.nbytes, entry.dtype, entry.shape, target
                )
                meter.add(entry.nbytes)
        finally:
            meter.close()
        return loaded[names] if isinstance(names, str) else loaded


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open a safetensors file and check all of its header.

    Raises
    ------
    FormatError
        If the file is truncated or contradicts itself; the text names the file, the tensor and the
        numbers.
    OSError
        If it cannot be read.
    """
    return SafetensorsFile(path)


def load_file(
    path: str | os.PathLike[str], *, device: Any = None, progress: Progress = None
) -> dict[str, Tensor]:
    """Return every tensor of a safetensors file by name."""
    return open_safetensors(path).load(device=device, progress=progress)


def save_file(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors to a safetensors file.

    The file appears under its name when it is complete, or not at all.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Tensors of any device and layout.
    path : str or path-like
        The file; an existing one is replaced.
    metadata : mapping of str to str, optional
        Notes for the reader.
    """
    header = _header_of(tensors, metadata)
    order = [name for name in header if name != _METADATA]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = os.fspath(path)
    # Next to the target, so that the rename stays within one file system.
    partial = f"{target}.{os.getpid()}.partial"
    try:
        with open(partial, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                _write_bytes(file, tensors[name])
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _header_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> dict[str, Any]:
    header: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):
            raise TypeError("metadata: expected a mapping of strings to strings")
        header[_METADATA] = dict(metadata)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensors[{name!r}]: expected a Tensor, got {type(tensor).__name__}")
        if name == _METADATA:
            raise ValueError(f"tensors: the name {_METADATA!r} is reserved by the format")
        if not tensor.dtype.safetensors:
            raise UnsupportedError(
                f"tensors[{name!r}]: the format has no {tensor.dtype}; expected one of "
                f"{', '.join(d.name for d in _BY_NAME.values())}"
            )
    # Wide types first: every tensor then starts at a multiple of its item size.
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        tensor = tensors[name]
        header[name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    return header


def _write_bytes(file: BinaryIO, tensor: Tensor) -> None:
    if tensor.nbytes:
        flat = tensor.contiguous().to("cpu").reshape((-1,))
        file.write(memoryview(flat.view(uint8)))
