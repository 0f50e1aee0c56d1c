"""Facts of device architectures: one data file each, read when its device opens."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbxtensor import dtype
from nbxtensor._core import Device
from nbxtensor.errors import FileError, InvalidValueError

__all__ = ["Facts", "architectures", "facts_of", "folder", "load", "schema"]

_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "dtypes": (list,),
}
_DTYPES = tuple(name for name in dtype.__all__ if isinstance(getattr(dtype, name), dtype.DType))


@dataclass(frozen=True)
class Facts:
    """What is known of one architecture beyond what its driver reports."""

    kind: str
    architecture: str
    title: str
    alignment_bytes: int
    cache_line_bytes: int
    lanes: int
    compute_dtypes: tuple[str, ...]
    page_bytes: int | None
    path: Path
    all: Mapping[str, Any] = field(repr=False)


def folder() -> Path:
    """Return the folder of the device files: inside the package, or the checkout's."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "devices", package.parents[1] / "devices"):
        if (candidate / "_schema.yml").is_file():
            return candidate
    raise FileError(
        f"facts: no device files in {package / 'devices'} or {package.parents[1] / 'devices'}; "
        "the installation is incomplete: install nbxtensor again"
    )


def _read(path: Path) -> dict[str, Any]:
    import yaml  # slow to import, and needed only when a device opens

    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise FileError(f"facts: {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise FileError(f"facts: {path} holds {type(data).__name__}, expected keys with values")
    return data


@functools.cache
def schema() -> Mapping[str, Mapping[str, Any]]:
    """Return the keys of a device file: type, required, doc."""
    return MappingProxyType(_read(folder() / "_schema.yml"))


def architectures() -> list[tuple[str, str]]:
    """Return (kind, architecture) of every file."""
    return sorted((path.parent.name, path.stem) for path in folder().glob("*/*.yml"))


def _check(path: Path, data: dict[str, Any]) -> None:
    rows = schema()
    for key, value in data.items():
        if key not in rows:
            raise FileError(f"facts: {path}: unknown key {key!r}; known are {', '.join(rows)}")
        expected = _TYPES[rows[key]["type"]]
        if not isinstance(value, expected) or isinstance(value, bool):
            raise FileError(
                f"facts: {path}: {key} must be {rows[key]['type']}, got {value!r} "
                f"({type(value).__name__})"
            )
    missing = [key for key, row in rows.items() if row["required"] and key not in data]
    if missing:
        raise FileError(f"facts: {path}: missing {', '.join(missing)}")
    for key, name in (("kind", path.parent.name), ("architecture", path.stem)):
        if data[key] != name:
            raise FileError(
                f"facts: {path}: {key} is {data[key]!r}; the file's place says {name!r}"
            )
    for key in (key for key, row in rows.items() if row["type"] == "dtypes" and key in data):
        unknown = [name for name in data[key] if name not in _DTYPES]
        if unknown:
            raise FileError(f"facts: {path}: {key} names {unknown}; known are {', '.join(_DTYPES)}")


@functools.cache
def load(kind: str, architecture: str) -> Facts:
    """Read the facts of an architecture.

    Parameters
    ----------
    kind
        Device kind, such as ``"cpu"``.
    architecture
        The driver's name of it, such as ``"x86_64"``.
    """
    path = folder() / kind / f"{architecture}.yml"
    if (kind, architecture) not in architectures():
        known = ", ".join(f"{k}/{a}" for k, a in architectures())
        raise InvalidValueError(
            f"facts: no file for {kind}/{architecture}, expected {path}; known are {known}. "
            "Add the file to use this architecture"
        )
    data = _read(path)
    _check(path, data)
    return Facts(
        kind=data["kind"],
        architecture=data["architecture"],
        title=data["title"],
        alignment_bytes=data["alignment_bytes"],
        cache_line_bytes=data["cache_line_bytes"],
        lanes=data["lanes"],
        compute_dtypes=tuple(data["compute_dtypes"]),
        page_bytes=data.get("page_bytes"),
        path=path,
        all=MappingProxyType(data),
    )


def facts_of(device: Device) -> Facts:
    """Return the facts of an opened device."""
    return load(device.kind, device.architecture)
