"""``python -m nbxtensor ops [name]``: the rows as text."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from nbxtensor.ops.table import NAMES, TABLE, Row


def describe(row: Row) -> str:
    """Return what a row says about its op."""
    planner = inspect.unwrap(row.plan)
    lines = [
        f"{row.name}{row.call_form()}",
        f"  {row.summary}",
        f"  family    {row.family}",
        f"  planner   {planner.__module__}",
        f"  kernels   {', '.join(row.kernels)}",
        f"  dtypes    {', '.join(dtype.name for dtype in row.dtypes)}",
    ]
    special = (row.operator, row.reflected, row.in_place, row.in_place_operator)
    names = [*row.aliases, *(name for name in special if name)]
    if names:
        lines.append(f"  also      {', '.join(names)}")
    if row.methods:
        lines.append(f"  methods   {', '.join(row.methods)}")
    if row.differs:
        lines.append(f"  note      {row.differs}")
    return "\n".join(lines)


def listing() -> str:
    """Return the names of all ops by family."""
    families: dict[str, list[str]] = {}
    for row in TABLE.values():
        families.setdefault(row.family, []).append(row.name)
    width = max(map(len, families))
    return "\n".join(f"{name:<{width}}  {' '.join(families[name])}" for name in sorted(families))


def ops_text(name: str | None = None) -> str:
    """Return the listing, or the description of one op.

    Raises
    ------
    ValueError
        If there is no op of this name; the text names close ones.
    """
    if name is None:
        return listing()
    op: Any = NAMES.get(name)
    if op is None:
        close = difflib.get_close_matches(name, NAMES, n=3)
        hint = f"; close: {', '.join(close)}" if close else ""
        raise ValueError(f"ops: there is no op {name!r}{hint}; `ops` without a name lists all")
    return describe(op.row)
