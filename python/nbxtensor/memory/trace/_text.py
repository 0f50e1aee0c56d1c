"""Strict reading of text: every fault names its file, line and column, and says what is allowed."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from nbxtensor.errors import FileError, InvalidValueError
from nbxtensor.memory._arguments import LARGEST as LARGEST
from nbxtensor.memory._arguments import shown as shown

_DECIMAL = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}", re.ASCII)


class TraceError(InvalidValueError):
    """A file that is not what its format says.

    Attributes
    ----------
    file : str
    line : int or None
        Counted from 1; None in binary files.
    column : str or None
        The name of the field.
    found, allowed : str
    """

    def __init__(
        self,
        file: str,
        found: str,
        allowed: str,
        line: int | None = None,
        column: str | None = None,
    ) -> None:
        where = file if line is None else f"{file}, line {line}"
        if column is not None:
            where += f", column {column}"
        super().__init__(f"{where}: found {found}; allowed is {allowed}")
        self.file = file
        self.line = line
        self.column = column
        self.found = found
        self.allowed = allowed


class Row(NamedTuple):
    """One line of a file, cut into fields."""

    file: str
    line: int
    fields: list[str]

    def fail(self, column: str | None, found: object, allowed: str) -> NoReturn:
        """Raise for one field of this row."""
        raise TraceError(self.file, shown(found), allowed, self.line, column)

    def integer(self, index: int, column: str, low: int = 0, high: int = LARGEST) -> int:
        """Return a field as a decimal number within bounds."""
        text = self.fields[index]
        if _DECIMAL.fullmatch(text) is None or not low <= int(text) <= high:
            self.fail(column, text, f"a whole number within {low} .. {high}")
        return int(text)

    def pointer(self, index: int, column: str) -> int:
        """Return a field as an address, hexadecimal with 0x or decimal."""
        text = self.fields[index]
        if _HEXADECIMAL.fullmatch(text) is not None and int(text, 16) <= LARGEST:
            return int(text, 16)
        if _DECIMAL.fullmatch(text) is None or not 0 <= int(text) <= LARGEST:
            self.fail(column, text, f"an address within 0 .. {LARGEST:#x}")
        return int(text)


def load(path: str | Path) -> bytes:
    """Return a file's bytes, unpacked if it is compressed."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    return unpack(data, str(path))


def unpack(data: bytes, name: str) -> bytes:
    """Return bytes, unpacked if gzip compressed them."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(name, f"damaged gzip data ({error})", "a whole .gz file") from error


def save(path: str | Path, data: bytes) -> None:
    """Write a file, compressed if its name ends in .gz; equal data give equal files."""
    file = Path(path)
    try:
        file.write_bytes(gzip.compress(data, 6, mtime=0) if file.suffix == ".gz" else data)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error


def text_lines(data: bytes, name: str) -> list[str]:
    """Return the lines of a text without their ends."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(
            name, shown(error.object[error.start : error.start + 4]), "UTF-8 text", line
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def numbers(body: bytes, separator: str, count: int) -> npt.NDArray[np.int64] | None:
    """Return rows of `count` plain numbers at once; None for anything else, even if it is legal."""
    field = rb"[0-9]{1,18}"
    line = separator.encode().join([field] * count)
    if re.fullmatch(rb"(?:" + line + rb"\n)+", body) is None:
        return None
    plain = body.decode("ascii").replace(separator, " ")
    return np.fromstring(plain, np.int64, sep=" ").reshape(-1, count)


def rows(
    lines: Sequence[str], name: str, separator: str, count: int, first: int = 1
) -> Iterator[Row]:
    """Yield the rows below a header; all have `count` fields."""
    for number, line in enumerate(lines, first):
        row = Row(name, number, line.split(separator))
        if len(row.fields) != count:
            kind = "tabs" if separator == "\t" else "commas"
            row.fail(None, line, f"{count} fields between {kind}, not {len(row.fields)}")
        yield row
