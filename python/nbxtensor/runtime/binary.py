"""What compiled kernels take of a device, read from their binaries."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["resources_of"]


class _Section(NamedTuple):
    name: str
    data: bytes


def _sections(image: bytes) -> Iterator[_Section]:
    """Yield the sections of a 64-bit little-endian ELF file."""
    if image[:6] != b"\x7fELF\x02\x01":
        return
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * size) for i in range(count)]
    start = headers[names][4]
    for header in headers:
        at = start + header[0]
        name = image[at : image.index(b"\0", at)].decode("ascii", "replace")
        kind, position, length = header[1], header[4], header[5]
        yield _Section(name, b"" if kind == 8 else image[position : position + length])


def _cubin(image: bytes) -> dict[str, int]:
    """Return registers and stack of the largest function of a cubin.

    `.nv.info` holds records that begin with format 4, an attribute and a size; the values are of
    one function each: 0x2f its registers, 0x12 its least stack.
    """
    registers, stack = 0, 0
    for section in _sections(image):
        if section.name == ".nv.info":
            at = 0
            while at + 4 <= len(section.data):
                form, attribute, size = struct.unpack_from("<BBH", section.data, at)
                at += 4
                if form != 4:
                    continue
                if attribute in (0x12, 0x2F) and size >= 8:
                    (value,) = struct.unpack_from("<I", section.data, at + 4)
                    if attribute == 0x2F:
                        registers = max(registers, value)
                    else:
                        stack = max(stack, value)
                at += size
    return {"registers": registers, "spilled_bytes": stack}


def _assembly(text: str) -> dict[str, int]:
    """Return registers and scratch memory of a thread, from the metadata of AMD's assembly."""

    def most(key: str) -> int:
        return max((int(value) for value in re.findall(rf"\.{key}:\s+(\d+)", text)), default=0)

    registers = most("vgpr_count")  # accumulation registers too
    return {"registers": registers, "spilled_bytes": most("private_segment_fixed_size")}


def resources_of(backend: str, stages: Mapping[str, Any]) -> dict[str, int]:
    """Return the registers of a thread, and the bytes of its stack: registers that were spilled.

    Kernels of Triton's have no other use for a stack.
    """
    if backend == "cuda":
        return _cubin(bytes(stages["cubin"]))
    return _assembly(str(stages["amdgcn"]))
