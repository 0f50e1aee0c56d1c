"""Arguments, read strictly: an error names the function, what was given and what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from nbxtensor.errors import InvalidTypeError, InvalidValueError

LARGEST = 2**63 - 1


def shown(value: object) -> str:
    """Return a value as it stands in an error: on one line, and short."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def whole(
    function: str,
    name: str,
    value: Any,
    low: int = 0,
    high: int = LARGEST,
    what: str = "bytes",
) -> int:
    """Return a whole number within bounds; those of NumPy are taken too, bool is not."""
    if type(value) is not int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            allowed = "an int" if what.startswith("as ") else f"{what} as an int"
            raise InvalidTypeError(f"{function}: {name} is {shown(value)}; give {allowed}")
        value = number
    if not low <= value <= high:
        limits = f"{_bound(low)} to {_bound(high)}"
        raise InvalidValueError(f"{function}: {name} is {shown(value)}; give {limits} {what}")
    return int(value)


def _bound(value: int) -> str:
    return {LARGEST: "2**63 - 1", -LARGEST - 1: "-2**63"}.get(value, str(value))


def flag(function: str, name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidTypeError(f"{function}: {name} is {shown(value)}; give True or False")
    return value


def real(function: str, name: str, value: Any, what: str) -> float:
    """Return a number of at least 0 that is no bool; NumPy's are taken too."""
    try:
        number = None if isinstance(value, (bool, str, bytes)) else float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise InvalidTypeError(f"{function}: {name} is {shown(value)}; give {what}")
    if not number >= 0:
        raise InvalidValueError(f"{function}: {name} is {shown(value)}; give {what}")
    return number


def text(function: str, name: str, value: Any, example: str) -> str:
    """Return a text that UTF-8 can hold, without NUL."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{function}: {name} is {shown(value)}; give a text, {example}")
    if "\0" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
        raise InvalidValueError(
            f"{function}: {name} is {shown(value)}; give a text without NUL and half characters, "
            f"{example}"
        )
    return value


def tag_path(function: str, value: Any, name: str = "tag") -> str:
    """Return the path of a tag; the core looks at its parts."""
    return text(function, name, value, "a path such as 'weights/layer.3'")


def extents(function: str, shape: Any) -> tuple[int, ...]:
    """Return a shape: one integer, or a sequence of them."""
    try:
        items: tuple[Any, ...] = (operator.index(shape),)
    except TypeError:
        try:
            items = tuple(shape)
        except TypeError:
            raise InvalidTypeError(
                f"{function}: shape is {shown(shape)}; give an int, or a sequence of them"
            ) from None
    return tuple(
        whole(function, f"shape[{i}]", item, what="as its extent") for i, item in enumerate(items)
    )


def parts(function: str, name: str, value: Any, count: int, what: str) -> tuple[Any, ...]:
    """Return a tuple of so many items."""
    try:
        items = tuple(value) if not isinstance(value, (str, bytes)) else ()
    except TypeError:
        items = ()
    if len(items) != count:
        raise InvalidTypeError(f"{function}: {name} is {shown(value)}; give a tuple of {what}")
    return items


def listed(function: str, name: str, value: Any, what: str) -> list[Any]:
    """Return the items of an iterable."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise InvalidTypeError(f"{function}: {name} is {shown(value)}; give {what}")
    return list(value)


def printable(name: str) -> str:
    """Return a name as it can be printed in a table: what would break the line is escaped."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
