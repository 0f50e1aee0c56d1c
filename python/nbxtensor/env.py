"""The NBX_ environment variables, and the log that NBX_LOG filters."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NamedTuple

from nbxtensor import _core
from nbxtensor._environment_table import VARIABLES
from nbxtensor.errors import InvalidValueError

__all__ = ["Variable", "get", "unknown", "variables"]


class Variable(NamedTuple):
    """One variable: its declaration, and the text it is set to."""

    name: str
    type: str
    default: str
    description: str
    value: str | None

    @property
    def is_set(self) -> bool:
        """Return whether the environment gives a value."""
        return self.value is not None


def variables() -> list[Variable]:
    """Return every variable with its present value, in the order of the table."""
    return [Variable(*row, os.environ.get(row[0]) or None) for row in VARIABLES]


def get(name: str, total: int | None = None) -> str | int | float | bool | None:
    """Return a variable's value, read now.

    Parameters
    ----------
    name
        Such as ``"NBX_DEVICE"``.
    total
        What a percentage is of, for variables that hold bytes.

    Returns
    -------
    str, int, float, bool or None
        By the variable's type; None for empty text.
    """
    for variable in variables():
        if variable.name == name:
            return _typed(variable, total)
    known = ", ".join(row[0] for row in VARIABLES)
    raise InvalidValueError(f"env.get: unknown variable {name!r}; known are {known}")


def _typed(variable: Variable, total: int | None) -> str | int | float | bool | None:
    text = variable.default if variable.value is None else variable.value
    if text == "":
        return None
    try:
        if variable.type == "integer":
            return int(text)
        if variable.type == "real":
            return float(text)
        if variable.type == "bytes":
            return _core.parse_bytes(text, total)
        if variable.type == "flag":
            return {"0": False, "1": True}[text]
    except (ValueError, KeyError) as error:
        raise InvalidValueError(
            f"{variable.name}: expected {variable.type}, got {text!r}; correct it or unset it"
        ) from error
    return text


def unknown() -> list[str]:
    """Return the NBX_ names in the environment that mean nothing."""
    known = {row[0] for row in VARIABLES}
    return sorted(name for name in os.environ if name.startswith("NBX_") and name not in known)


def _warn_about_unknown() -> None:
    names = unknown()
    if not names:
        return
    import difflib  # only to correct a misspelt name

    known = [row[0] for row in VARIABLES]
    for name in names:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else "; `python -m nbxtensor info` lists all"
        _core.log("warning", f"environment: {name} is no variable of nbxtensor{hint}")


def _deliver(level: str, text: str) -> None:
    """Hand a message of the core to logging, or to standard error when nobody listens."""
    import logging  # first message only: most programs never see one

    logger = logging.getLogger("nbxtensor")
    number = getattr(logging, level.upper())
    if logger.level and number < logger.level:
        return
    if logger.hasHandlers():
        # NBX_LOG has filtered already, so that the root logger's level must not filter again.
        logger.handle(logger.makeRecord("nbxtensor", number, "", 0, text, (), None))
    else:
        print(f"nbxtensor: {level}: {text}", file=sys.stderr)


def _stop() -> None:
    _core.set_log_callback(None)


_core.set_log_callback(_deliver)
atexit.register(_stop)
_warn_about_unknown()
_core.deliver_log()
