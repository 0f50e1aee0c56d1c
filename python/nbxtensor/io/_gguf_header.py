"""The header of a GGUF file, read without trusting any of its counts."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from nbxtensor.io._source import Source

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAXIMUM_KEY_BYTES: Final = 65535
MAXIMUM_RANK: Final = 4
MAXIMUM_NESTING: Final = 4

_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
# Type code of a metadata value: name, struct code, least bytes of one value.
_VALUES: Final[dict[int, tuple[str, str, int]]] = {
    0: ("uint8", "B", 1),
    1: ("int8", "b", 1),
    2: ("uint16", "H", 2),
    3: ("int16", "h", 2),
    4: ("uint32", "I", 4),
    5: ("int32", "i", 4),
    6: ("float32", "f", 4),
    _BOOL: ("bool", "B", 1),
    _STRING: ("string", "", 8),
    _ARRAY: ("array", "", 12),
    10: ("uint64", "Q", 8),
    11: ("int64", "q", 8),
    12: ("float64", "d", 8),
}
_LENGTH: Final = struct.Struct("<Q")
# An empty key, a type and a byte; an empty name, a rank, a type and an offset.
_LEAST_PAIR_BYTES: Final = 8 + 4 + 1
_LEAST_INFO_BYTES: Final = 8 + 4 + 4 + 8


class TensorInfo(NamedTuple):
    """One tensor as the header lists it: extents fastest first, offset in the data."""

    name: str
    extents: tuple[int, ...]
    type_code: int
    offset: int


class Header(NamedTuple):
    """What a header says, and where it ends."""

    version: int
    metadata: dict[str, Any]
    tensors: list[TensorInfo]
    end: int


class _Reader:
    """A cursor over the file that refuses to pass its end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bytes = source.bytes
        self._size = source.size
        self._at = 0

    @property
    def at(self) -> int:
        return self._at

    def error(self, problem: str, **figures: Any) -> Exception:
        return self._source.error(problem, at=self._at, **figures)

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they start."""
        start = self._at
        if count > self._size - start:
            raise self.error(
                f"{what} at byte {start} needs {count} bytes, but the file ends at {self._size}; "
                "it is truncated or its header lies",
                needed=count,
                file_bytes=self._size,
            )
        self._at = start + count
        return start

    def number(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, self._bytes, self.take(size, what))[0]

    def text(self, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        start = self.take(length, what)
        try:
            return self._bytes[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} at byte {start} is not UTF-8: {error.reason}") from None

    def count(self, least: int, what: str) -> int:
        """Read a count whose items take at least `least` bytes each."""
        count = int(self.number("Q", f"the count of {what}"))
        room = self._size - self._at
        if count * least > room:
            raise self.error(
                f"{count} {what} need at least {count * least} bytes, but the file has {room} "
                f"after byte {self._at}; it is truncated or its header lies",
                count=count,
                room=room,
            )
        return count

    def value(self, code: int, key: str, depth: int = 0) -> Any:
        if code not in _VALUES:
            known = ", ".join(f"{c} ({row[0]})" for c, row in _VALUES.items())
            raise self.error(f"metadata {key!r} has type code {code}; expected one of {known}")
        if code == _STRING:
            return self.text(f"metadata {key!r}")
        if code == _ARRAY:
            return self._array(key, depth)
        number = self.number(_VALUES[code][1], f"metadata {key!r}")
        return self._truth(number, key) if code == _BOOL else number

    def _texts(self, count: int, key: str) -> list[str]:
        # A vocabulary has a hundred thousand of them: no call of ours for a good one.
        texts = []
        unpack, data, size, at = _LENGTH.unpack_from, self._bytes, self._size, self._at
        for _ in range(count):
            if size - at < 8:
                break
            end = at + 8 + unpack(data, at)[0]
            if end > size:
                break
            try:
                texts.append(data[at + 8 : end].decode("utf-8"))
            except UnicodeDecodeError:
                break
            at = end
        self._at = at
        if len(texts) < count:
            self.text(f"item {len(texts)} of metadata {key!r}")  # raises, naming the fault
        return texts

    def _truth(self, number: int, key: str) -> bool:
        if number > 1:
            raise self.error(f"metadata {key!r} is a bool of value {number}; expected 0 or 1")
        return bool(number)

    def _array(self, key: str, depth: int) -> list[Any]:
        if depth == MAXIMUM_NESTING:
            raise self.error(
                f"metadata {key!r} nests arrays more than {MAXIMUM_NESTING} deep, which no "
                "model file does"
            )
        code = self.number("I", f"the item type of metadata {key!r}")
        if code not in _VALUES:
            raise self.error(f"metadata {key!r} has items of type code {code}, which is unknown")
        _, form, least = _VALUES[code]
        count = self.count(least, f"items of metadata {key!r}")
        if code == _STRING:
            return self._texts(count, key)
        if code == _ARRAY:
            return [self.value(code, key, depth + 1) for _ in range(count)]
        start = self.take(count * least, f"metadata {key!r}")
        numbers = struct.unpack_from(f"<{count}{form}", self._bytes, start)
        return [self._truth(n, key) for n in numbers] if code == _BOOL else list(numbers)


def _read_preamble(reader: _Reader, source: Source) -> int:
    magic = source.bytes[reader.take(4, "the magic number") : 4]
    if magic != MAGIC:
        raise source.error(f"starts with {magic!r}; expected {MAGIC!r}: this is no GGUF file")
    version = int(reader.number("I", "the version"))
    if version & 0xFFFF == 0 and version:
        raise source.error("the file is big-endian; convert it to little-endian first")
    if version not in VERSIONS:
        raise source.error(
            f"has version {version}; expected one of {', '.join(map(str, VERSIONS))}",
            version=version,
        )
    return version


def _read_metadata(reader: _Reader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = reader.text("a metadata key")
        if not key or len(key.encode()) > MAXIMUM_KEY_BYTES:
            raise reader.error(
                f"a metadata key has {len(key.encode())} bytes; expected 1 to {MAXIMUM_KEY_BYTES}"
            )
        if key in metadata:
            raise reader.error(f"metadata {key!r} is there twice")
        code = reader.number("I", f"the type of metadata {key!r}")
        metadata[key] = reader.value(code, key)
    return metadata


def _read_tensor(reader: _Reader, source: Source) -> TensorInfo:
    name = reader.text("a tensor name")
    if not name:
        raise reader.error("a tensor has an empty name")
    rank = reader.number("I", f"the rank of tensor {name!r}")
    if rank > MAXIMUM_RANK:
        raise source.error(f"has {rank} axes; the format allows {MAXIMUM_RANK}", name, rank=rank)
    extents = tuple(reader.number("Q", f"an extent of tensor {name!r}") for _ in range(rank))
    code = reader.number("I", f"the type of tensor {name!r}")
    return TensorInfo(name, extents, code, reader.number("Q", f"the offset of tensor {name!r}"))


def read_header(source: Source) -> Header:
    """Read metadata and the list of tensors.

    Raises
    ------
    FormatError
        Naming what is wrong and at which byte; nothing is allocated by a count that the file
        cannot hold.
    """
    reader = _Reader(source)
    version = _read_preamble(reader, source)
    tensor_count = reader.count(_LEAST_INFO_BYTES, "tensors")
    metadata = _read_metadata(reader, reader.count(_LEAST_PAIR_BYTES, "metadata entries"))
    tensors = [_read_tensor(reader, source) for _ in range(tensor_count)]
    return Header(version, metadata, tensors, reader.at)
