"""Facts of device architectures: one data file each, read when its device opens."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nbxtensor._core import Device
from nbxtensor.errors import FileError, InvalidValueError
from nbxtensor.facts._reader import DEVICE, DeviceFile, Fact, read_device_file, read_yaml
from nbxtensor.facts._schema import Row, check_count, parse_rows, value_text

__all__ = [
    "Fact",
    "Facts",
    "Row",
    "architectures",
    "facts_of",
    "find",
    "folder",
    "load",
    "schema",
]


class Facts(NamedTuple):
    """What is known of one architecture; None is a fact that it does not have or that is not known.

    What only a driver reports is None until a device is open: see `facts_of`.
    """

    kind: str
    architecture: str
    title: str
    aliases: tuple[str, ...]
    path: Path
    lanes: int
    compute_dtypes: tuple[str, ...]
    threads_per_block: int | None = None
    shared_bytes_per_block: int | None = None
    registers_per_block: int | None = None
    registers_per_thread: int | None = None
    alignment_bytes: int | None = None
    page_bytes: int | None = None
    cache_line_bytes: int | None = None
    matrix_inputs: tuple[str, ...] | None = None
    cluster_blocks: int | None = None
    dependent_launch: bool | None = None
    tensor_copies: bool | None = None
    argument_buffers: bool | None = None
    dispatches_per_command_buffer: int | None = None
    command_buffers_in_flight: int | None = None
    all: Mapping[str, Fact] = MappingProxyType({})
    disagreements: tuple[str, ...] = ()  # where an open device says something else than its file

    def __repr__(self) -> str:
        return f"nbxtensor.facts.Facts({self.kind}/{self.architecture})"

    @property
    def fp8_inputs(self) -> tuple[str, ...]:
        """The float8 types that the matrix units multiply."""
        return tuple(name for name in self.matrix_inputs or () if name.startswith("float8"))

    def as_dict(self) -> dict[str, Any]:
        """Return everything in types that JSON has."""
        return {
            "architecture": self.architecture,
            "title": self.title,
            "aliases": list(self.aliases),
            "file": str(self.path),
            "values": {
                name: {
                    "value": list(fact.value) if isinstance(fact.value, tuple) else fact.value,
                    "unit": fact.unit,
                    "text": fact.text,
                    "origin": fact.origin,
                    "source": fact.source,
                }
                for name, fact in self.all.items()
            },
            "disagreements": list(self.disagreements),
        }


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


@functools.cache
def schema() -> Mapping[str, Row]:
    """Return the row of every fact."""
    path = folder() / "_schema.yml"
    return MappingProxyType(parse_rows(read_yaml(path), path))


def architectures() -> list[tuple[str, str]]:
    """Return (kind, architecture) of every file, ``"sm_90"`` before ``"sm_100"``."""
    found = [(path.parent.name, path.stem) for path in folder().glob("*/*.yml")]
    return sorted(found, key=lambda pair: (pair[0], len(pair[1]), pair[1]))


@functools.cache
def _file(kind: str, architecture: str) -> DeviceFile:
    return read_device_file(folder() / kind / f"{architecture}.yml", schema())


@functools.cache
def _aliases(kind: str) -> Mapping[str, str]:
    """Return the architecture of every alias; read only when no file bears the name."""
    files = [architecture for which, architecture in architectures() if which == kind]
    found: dict[str, str] = {}
    for architecture in files:
        file = _file(kind, architecture)
        for alias in file.aliases:
            if alias in files or alias in found:
                other = folder() / kind / f"{found.get(alias, alias)}.yml"
                raise FileError(
                    f"facts: {file.path}: aliases names {alias!r}, which leads to {other}; "
                    "a name leads to one file"
                )
            found[alias] = architecture
    return found


def find(kind: str, name: str) -> str:
    """Return the architecture whose file holds the facts of what a driver calls by this name.

    AMD's drivers append features, as in ``"gfx90a:sramecc+:xnack-"``; they are left out.
    """
    known = architectures()
    plain = name.partition(":")[0]
    if (kind, plain) in known:
        return plain
    aliases = _aliases(kind)
    if plain in aliases:
        return aliases[plain]
    names = [architecture for which, architecture in known if which == kind]
    if not names:
        kinds = dict.fromkeys(which for which, _ in known)
        raise InvalidValueError(
            f"facts: nothing is known of the kind {kind!r}; known are {', '.join(kinds)}"
        )
    raise InvalidValueError(
        f"facts: nothing is known of {kind} architecture {plain!r}; known are "
        f"{', '.join([*names, *aliases])}. To use it, write {folder() / kind / plain}.yml, or name "
        "it among the aliases of a file whose facts it shares"
    )


@functools.cache
def load(kind: str, architecture: str) -> Facts:
    """Read the facts of an architecture.

    Parameters
    ----------
    kind
        Device kind, such as ``"cuda"``.
    architecture
        The driver's name of it, such as ``"sm_90"``, or an alias.
    """
    file = _file(kind, find(kind, architecture))
    values: dict[str, Any] = {name: fact.value for name, fact in file.facts.items()}
    return Facts(
        kind=file.kind,
        architecture=file.architecture,
        title=file.title,
        aliases=file.aliases,
        path=file.path,
        all=MappingProxyType(dict(file.facts)),
        **values,
    )


@functools.cache
def facts_of(device: Device) -> Facts:
    """Return the facts of an opened device; what the device itself reports comes first."""
    kind, architecture = device.kind, device.architecture
    if architecture == "sim":
        kind = "sim"  # a dry run simulates the devices of every kind
    facts = load(kind, architecture)
    known = dict(facts.all)
    disagreements = []
    for row in schema().values():
        reported = device.properties[row.property] if row.property else 0
        if not reported or kind not in row.kinds:
            continue
        check_count(row, reported, f"device {device.name}: {row.property}")
        call = f"{row.driver.get(kind, 'the core')} ({row.property})"
        said = Fact(reported, row.unit, value_text(row, reported), DEVICE, call)
        written = known.get(row.name, said)
        if written.value != reported:
            disagreements.append(
                f"{row.name}: {device.name} reports {said.text}, {facts.path} says {written.text}"
            )
        known[row.name] = said
    in_order = {name: known[name] for name in schema() if name in known}
    changed: dict[str, Any] = {name: fact.value for name, fact in in_order.items()}
    return facts._replace(
        all=MappingProxyType(in_order), disagreements=tuple(disagreements), **changed
    )
