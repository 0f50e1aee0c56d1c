"""Packs: compiled kernels on disk, one file each, written whole or not at all.

A file is named after the hash of everything that its kernel depends on. Any number of processes
may read and write a pack at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbxtensor import _core, env
from nbxtensor.errors import FileError
from nbxtensor.runtime.targets import Compiled

__all__ = ["FORMAT", "Pack", "key_of", "packs", "text_of"]

FORMAT = 1
_MAGIC = b"NBXKERN\x01"
_HEAD = struct.Struct("<8s32sI")  # magic, hash of the rest, length of the record
SUFFIX = ".kernel"


def text_of(value: object) -> str:
    """Return a text that tells constants apart: 1, True and 1.0 are three."""
    if isinstance(value, tuple):
        return f"({','.join(map(text_of, value))},)"
    return f"{type(value).__name__}:{value!r}"


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the hash of what a compiled kernel depends on."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Pack:
    """A folder of compiled kernels."""

    def __init__(self, folder: Path, writable: bool) -> None:
        self.folder = folder
        self.writable = writable

    def file(self, name: str, target: str, key: str) -> Path:
        """Return where a kernel is kept."""
        readable = "".join(c if c.isalnum() or c in "._" else "-" for c in name)[:80]
        return self.folder / target / f"{readable}-{key[:40]}{SUFFIX}"

    def read(self, name: str, target: str, key: str) -> Compiled | None:
        """Return a kernel; None if it is not there, or with a warning if its file is damaged."""
        file = self.file(name, target, key)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _core.log("warning", f"kernels: {file} cannot be read ({error}); compiled anew")
            return None
        found = _parsed(data)
        if found is None or found.record.get("key") != key:
            _core.log(
                "warning",
                f"kernels: {file} is damaged or of something else; the kernel is compiled anew",
            )
            return None
        return found

    def write(self, name: str, target: str, key: str, compiled: Compiled) -> None:
        """Keep a kernel: under another name first, so that nobody reads half of it."""
        file = self.file(name, target, key)
        record = json.dumps({**compiled.record, "key": key}, sort_keys=True).encode()
        body = record + compiled.image
        head = _HEAD.pack(_MAGIC, hashlib.sha256(body).digest(), len(record))
        temporary = file.with_name(f".{os.getpid()}-{os.urandom(6).hex()}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(head + body)
            temporary.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise FileError(
                f"kernels: {file} cannot be written ({error}); "
                "set NBX_KERNEL_CACHE to a folder that can"
            ) from error

    def versions(self, target: str) -> list[str]:
        """Return the versions of Triton that compiled the kernels for a target, newest first.

        Where no Triton is installed any of them will do.
        """
        found = {
            str(record["triton"])
            for file, record in self.records()
            if record is not None and file.parent.name == target
        }
        return sorted(found, key=_version_parts, reverse=True)

    def records(self) -> Iterator[tuple[Path, dict[str, Any] | None]]:
        """Yield every file with its record; None for a damaged one."""
        for file in sorted(self.folder.glob(f"*/*{SUFFIX}")):
            found = _parsed(file.read_bytes())
            record = None if found is None else {**found.record, "bytes": len(found.image)}
            yield file, record


def _version_parts(text: str) -> list[int]:
    digits = "".join(c if c.isdecimal() else " " for c in text)
    return [int(part) for part in digits.split()]


def _parsed(data: bytes) -> Compiled | None:
    if len(data) < _HEAD.size:
        return None
    magic, digest, length = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or hashlib.sha256(body).digest() != digest or length > len(body):
        return None
    record = json.loads(body[:length])
    return Compiled(body[length:], record) if isinstance(record, dict) else None


def _user_folder() -> Path:
    chosen = env.get("NBX_KERNEL_CACHE")
    if chosen is not None:
        return Path(str(chosen)).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or ""
    # The standard ignores relative paths.
    base = Path(cache) if os.path.isabs(cache) else Path("~/.cache").expanduser()
    return base / "nbxtensor" / "kernels"


@functools.cache
def _shipped() -> tuple[Pack, ...]:
    folder = Path(__file__).parent.parent / "packs"
    return (Pack(folder, False),) if folder.is_dir() else ()


def packs() -> tuple[Pack, ...]:
    """Return the packs in the order in which they are looked at; the last one is written."""
    return (*_shipped(), Pack(_user_folder(), True))
