"""Reads one device file and refuses what the schema does not allow, by file, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nbxtensor.errors import FileError
from nbxtensor.facts._schema import Row, Value, parse_value, value_text

SOURCES = ("document", "measured", "chosen")
DEVICE = "device"  # origin of what an open device reports
_REQUIRED = ("kind", "architecture", "title", "sources", "facts")
_KEYS = (*_REQUIRED, "aliases")


class Fact(NamedTuple):
    """One value, its unit, and where it comes from."""

    value: Value
    unit: str | None
    text: str
    origin: str  # document, measured, chosen, or device
    source: str


class DeviceFile(NamedTuple):
    """What one device file says."""

    path: Path
    kind: str
    architecture: str
    title: str
    aliases: tuple[str, ...]
    facts: Mapping[str, Fact]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the keys of a YAML file; a key that stands twice is refused."""
    import yaml  # slow to import, and needed only when a device opens

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where libyaml is
    try:
        text = path.read_text("utf-8")
        _check_doubles(f"facts: {path}", yaml.compose(text, loader))
        data = yaml.load(text, loader)
    except (OSError, yaml.YAMLError) as error:
        raise FileError(f"facts: {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise FileError(f"facts: {path} holds {type(data).__name__}, expected keys with values")
    return data


def _check_doubles(where: str, node: Any) -> None:
    """Refuse a mapping that holds a key twice, of which YAML keeps the last in silence."""
    if getattr(node, "id", "") != "mapping":
        return
    names = [key.value for key, _ in node.value]
    for key, value in node.value:
        if names.count(key.value) > 1:
            raise FileError(
                f"{where}: key {key.value!r} stands more than once, the last time in line "
                f"{max(k.start_mark.line for k, _ in node.value if k.value == key.value) + 1}"
            )
        _check_doubles(where, value)


def read_device_file(path: Path, rows: Mapping[str, Row]) -> DeviceFile:
    """Read and check the file of one architecture."""
    where = f"facts: {path}"
    data = read_yaml(path)
    _check_keys(where, data, _KEYS, _REQUIRED)
    for key, name in (("kind", path.parent.name), ("architecture", path.stem)):
        if data[key] != name:
            raise FileError(f"{where}: {key} is {data[key]!r}; the file's place says {name!r}")
    sources = _sources(where, data["sources"])
    facts = _facts(where, data["facts"], path.parent.name, rows, sources)
    if unused := sources.keys() - {source for source, _ in facts.values()}:
        raise FileError(
            f"{where}: sources: no fact names {', '.join(sorted(unused))}; leave out what is unused"
        )
    return DeviceFile(
        path=path,
        kind=data["kind"],
        architecture=data["architecture"],
        title=_text(f"{where}: title", data["title"]),
        aliases=_aliases(f"{where}: aliases", data.get("aliases", []), path.stem),
        facts={name: fact for name, (_, fact) in facts.items()},
    )


def _check_keys(where: str, data: Any, known: Any, required: Any) -> None:
    if not isinstance(data, dict):
        raise FileError(f"{where} must hold keys with values, got {data!r}")
    for key in data:
        if key not in known:
            raise FileError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    if missing := [key for key in required if key not in data]:
        raise FileError(f"{where}: missing {', '.join(missing)}")


def _text(where: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise FileError(f"{where} must be text, got {given!r}")
    return given


def _aliases(where: str, given: Any, name: str) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise FileError(f"{where} must be a list of names, got {given!r}")
    names = [name, *(_text(where, alias) for alias in given)]
    for alias in given:
        if names.count(alias) > 1:
            raise FileError(f"{where} names {alias!r}, which leads here already")
    return tuple(given)


def _sources(where: str, given: Any) -> dict[str, tuple[str, str]]:
    if not isinstance(given, dict) or not given:
        raise FileError(
            f"{where}: sources must map short names to document, measured or chosen, got {given!r}"
        )
    found = {}
    for name, source in given.items():
        if not isinstance(source, dict) or len(source) != 1 or next(iter(source)) not in SOURCES:
            raise FileError(
                f"{where}: sources: {name} must hold one of {', '.join(SOURCES)} with its text, "
                f"got {source!r}"
            )
        ((origin, text),) = source.items()
        found[name] = (origin, _text(f"{where}: sources: {name}: {origin}", text))
    return found


def _facts(
    where: str,
    given: Any,
    kind: str,
    rows: Mapping[str, Row],
    sources: Mapping[str, tuple[str, str]],
) -> dict[str, tuple[str, Fact]]:
    """Return the name of the source and the fact for every row that files of this kind hold."""
    _check_keys(f"{where}: facts", given, rows, ())
    for key in given:
        row = rows[key]
        if kind not in row.kinds:
            raise FileError(
                f"{where}: facts: {key} is no fact of {kind} devices, only of "
                f"{', '.join(row.kinds)}; leave it out"
            )
        if not row.is_written(kind):
            raise FileError(
                f"{where}: facts: {key} is reported by {row.driver[kind]} and read from there; "
                "leave it out"
            )
    written = [row for row in rows.values() if row.is_written(kind)]
    _check_keys(f"{where}: facts", given, given, [r.name for r in written if r.is_required(kind)])
    return {
        row.name: _fact(f"{where}: {row.name}", given[row.name], row, sources)
        for row in written
        if row.name in given
    }


def _fact(
    where: str, given: Any, row: Row, sources: Mapping[str, tuple[str, str]]
) -> tuple[str, Fact]:
    if not isinstance(given, dict) or given.keys() - {"value", "source"} or "value" not in given:
        raise FileError(f"{where} must be {{value: ..., source: ...}}, got {given!r}")
    if "source" not in given:
        raise FileError(
            f"{where} has no source; name one of the file's sources: {', '.join(sources)}"
        )
    if given["source"] not in sources:
        raise FileError(
            f"{where}: source is {given['source']!r}; the file's sources are {', '.join(sources)}"
        )
    value = parse_value(row, given["value"], where)
    origin, source = sources[given["source"]]
    return given["source"], Fact(value, row.unit, value_text(row, value), origin, source)
