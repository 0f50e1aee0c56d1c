"""What a device file may say: rows of ``_schema.yml``, units, and values with their text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from nbxtensor import dtype
from nbxtensor.errors import FileError

KINDS = ("cuda", "hip", "metal", "cpu", "sim")
DTYPES = tuple(name for name in dtype.__all__ if isinstance(getattr(dtype, name), dtype.DType))
# Inputs of matrix units that no tensor holds: a rounding of float32, and AMD's float8 without -0.
INPUTS = (*DTYPES, "tf32", "float8_e4m3fnuz", "float8_e5m2fnuz")
NAMES = {"dtypes": DTYPES, "inputs": INPUTS}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
UNITS = ("bytes", "threads", "registers", "blocks", "dispatches", "buffers")

Value = int | bool | tuple[str, ...]

_QUANTITY = re.compile(r"([+-]?\d+) ([A-Za-z]+)", re.ASCII)
_KEYS = {"type", "unit", "powers", "kinds", "driver", "property", "written", "doc"}


class Row(NamedTuple):
    """One fact: its type and unit, which kinds of device have it, and who says it."""

    name: str
    type: Literal["count", "flag", "dtypes", "inputs"]
    unit: str | None
    powers: bool
    kinds: Mapping[str, str]
    driver: Mapping[str, str]
    property: str | None
    written: Literal["always", "unreported"]
    doc: str

    def is_written(self, kind: str) -> bool:
        """Return whether the files of this kind hold the fact."""
        return kind in self.kinds and (self.written == "always" or kind not in self.driver)

    def is_required(self, kind: str) -> bool:
        """Return whether the fact must be known of every device of this kind."""
        return self.kinds.get(kind) == "required"


def parse_rows(data: Mapping[str, Any], path: object) -> dict[str, Row]:
    """Read the rows of the schema, or refuse one by name."""
    return {name: _row(name, row, f"facts: {path}: {name}") for name, row in data.items()}


def _choice(where: str, key: str, given: Any, allowed: tuple[Any, ...]) -> Any:
    if given not in allowed:
        shown = ", ".join(map(str, allowed))
        raise FileError(f"{where}: {key} is {given!r}; allowed are {shown}")
    return given


def _row(name: str, row: Any, where: str) -> Row:
    if not isinstance(row, dict) or not {"type", "kinds", "written", "doc"} <= row.keys() <= _KEYS:
        raise FileError(
            f"{where}: expected the keys type, kinds, written, doc and any of unit, powers, "
            f"driver, property; got {row!r}"
        )
    kind_of = _choice(where, "type", row["type"], ("count", "flag", *NAMES))
    units = UNITS if kind_of == "count" else (None,)
    for kind, need in row["kinds"].items():
        _choice(where, "kinds", kind, KINDS)
        _choice(where, f"kinds: {kind}", need, ("required", "optional"))
    for kind in row.get("driver", {}):
        _choice(where, "driver", kind, tuple(row["kinds"]))
    return Row(
        name=name,
        type=kind_of,
        unit=_choice(where, "unit", row.get("unit"), units),
        powers=_choice(where, "powers", row.get("powers", False), (True, False)),
        kinds=row["kinds"],
        driver=row.get("driver", {}),
        property=row.get("property"),
        written=_choice(where, "written", row["written"], ("always", "unreported")),
        doc=row["doc"],
    )


def parse_value(row: Row, given: Any, where: str) -> Value:
    """Return a value of the row's type, or refuse what was given."""
    if row.type == "count":
        return check_count(row, _count(row, given, where), where)
    if row.type == "flag":
        if not isinstance(given, bool):
            raise FileError(f"{where} must be true or false, got {given!r}")
        return given
    known = NAMES[row.type]
    if not isinstance(given, list) or not given:
        raise FileError(f"{where} must be a list of names, got {given!r}; known are {_list(known)}")
    for name in given:
        if name not in known:
            raise FileError(f"{where} names {name!r}; known are {_list(known)}")
        if given.count(name) > 1:
            raise FileError(f"{where} names {name!r} more than once")
    return tuple(given)


def check_count(row: Row, count: int, where: str) -> int:
    """Return the count, or refuse one that its row does not allow."""
    if count <= 0:
        raise FileError(f"{where} must be positive, got {count}")
    if row.powers and count & (count - 1):
        raise FileError(f"{where} must be a power of two, got {count}")
    return count


def _count(row: Row, given: Any, where: str) -> int:
    match = _QUANTITY.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        example = "64 KiB" if row.unit == "bytes" else f"32 {row.unit}"
        raise FileError(
            f"{where} must be a whole number with its unit, such as {example!r}, got {given!r}"
        )
    count, unit = int(match[1]), match[2]
    if row.unit == "bytes":
        allowed: Mapping[str, int] = BYTES
    else:
        allowed = {_unit_text(row.unit, count): 1}
    if unit not in allowed:
        raise FileError(f"{where} is in {unit!r}; its unit is {_list(allowed)}")
    return count * allowed[unit]


def _unit_text(unit: str | None, count: int) -> str:
    text = str(unit)
    if count != 1:
        return text
    return text.removesuffix("es") if text == "dispatches" else text.removesuffix("s")


def value_text(row: Row, value: Value) -> str:
    """Return a value as a device file writes it."""
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if row.unit != "bytes":
        return f"{value} {_unit_text(row.unit, value)}"
    unit = next(name for name in reversed(BYTES) if value % BYTES[name] == 0)
    return f"{value // BYTES[unit]} {unit}"


def _list(names: Any) -> str:
    return ", ".join(names)
