"""Static plans: an offset for each of many buffers whose lifetimes are known."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nbxtensor import _core
from nbxtensor.errors import FileError, InvalidTypeError, InvalidValueError
from nbxtensor.memory._arena import ALIGNMENT, _Slab
from nbxtensor.memory._arguments import LARGEST, listed, parts, real, shown, text, whole
from nbxtensor.tensor import Tensor

_Row = tuple[int, int, int, int, list[tuple[int, int]]]


class _Cancel(Protocol):
    """What a `threading.Event` can do."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True)
class Interval:
    """One buffer of a plan.

    Attributes
    ----------
    lower, upper : int
        It is alive at the times ``lower <= t < upper``.
    size : int
        Its bytes.
    alignment : int
        Of its offset.
    gaps : sequence of (int, int)
        Times inside (lower, upper) at which its content does not matter: others may lie there.
    id : object
        A name for the caller's use.
    """

    lower: int
    upper: int
    size: int
    alignment: int = 1
    gaps: Sequence[tuple[int, int]] = ()
    id: Any = None

    def _row(self, index: int) -> _Row:
        def number(name: str, value: Any, low: int, what: str) -> int:
            return whole("plan", f"{name} of interval {index}", value, low, what=what)

        listed_gaps = listed("plan", f"gaps of interval {index}", self.gaps, "(begin, end) pairs")
        pairs = [parts("plan", f"a gap of interval {index}", gap, 2, "begin and end")
                 for gap in listed_gaps]  # fmt: skip
        return (
            number("lower", self.lower, -LARGEST - 1, "as a time"),
            number("upper", self.upper, -LARGEST - 1, "as a time"),
            number("size", self.size, 0, "bytes"),
            number("alignment", self.alignment, 1, "bytes"),
            [(number("begin of a gap", begin, -LARGEST - 1, "as a time"),
              number("end of a gap", end, -LARGEST - 1, "as a time")) for begin, end in pairs],
        )  # fmt: skip


def _interval(index: int, value: Any) -> Interval:
    if isinstance(value, Interval):
        return value
    try:
        return Interval(*(() if isinstance(value, (str, bytes)) else value))
    except TypeError as error:
        raise InvalidTypeError(
            f"plan: interval {index} is {shown(value)}; give an Interval, or a tuple of lower, "
            "upper, size and maybe alignment and gaps"
        ) from error


_COLUMNS = ("id", "lower", "upper", "size")
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def read_intervals(path: str | Path) -> list[Interval]:
    """Read intervals from a CSV file with the columns id, lower, upper, size and maybe others.

    Raises
    ------
    FileError
        If the file cannot be read.
    InvalidValueError
        Naming the line and the column that is not what it must be.
    """
    try:
        # Decoded with what cannot be: the fields say where it is.
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise FileError(
            f"{shown(path)}: cannot be read: {why}; give the path of a CSV file"
        ) from error
    intervals = []
    try:
        rows = csv.DictReader(io.StringIO(text, newline=""))
        absent = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if absent:
            raise InvalidValueError(
                f"{path}, line 1: found the columns {shown(rows.fieldnames)}; allowed are those "
                f"with {', '.join(_COLUMNS)}"
            )
        for row in rows:
            for name in _COLUMNS[1:]:
                if _NUMBER.fullmatch(row[name] or "") is None:
                    raise InvalidValueError(
                        f"{path}, line {rows.line_num}, column {name}: found {shown(row[name])}; "
                        "allowed is a whole number"
                    )
            intervals.append(
                Interval(int(row["lower"]), int(row["upper"]), int(row["size"]), id=row["id"])
            )
    except csv.Error as error:
        raise InvalidValueError(f"{path}: found {error}; allowed is a CSV file") from error
    return intervals


@dataclass(frozen=True)
class Plan:
    """An offset for each interval.

    Attributes
    ----------
    offsets : list of int
        One an interval, in the order given.
    peak : int
        Bytes of the block that holds them all.
    lower_bound : int
        No plan can be smaller. The most bytes alive at one time, or more where it was proven.
    optimal : bool
        Whether the plan is as small as possible for certain.
    fits : bool
        Whether it fits the capacity that was asked for; True without one.
    seconds : float
        Time spent.
    method : str
        What found it: the greedy order, or ``"search"``.
    nodes : int
        Placements that the search tried.
    cancelled : bool
        Whether it was stopped from outside.
    """

    offsets: list[int]
    peak: int
    lower_bound: int
    optimal: bool
    fits: bool
    seconds: float
    method: str
    nodes: int
    cancelled: bool
    alignment: int
    intervals: list[Interval] = field(repr=False)

    def validate(self, capacity: int | None = None) -> None:
        """Prove by an independent sweep that nothing overlaps.

        Parameters
        ----------
        capacity : int, optional
            Bytes to fit into; the plan's peak if not given.

        Raises
        ------
        ValueError
            Naming two intervals that overlap and when, one that ends above the capacity, or one
            that is not aligned.
        """
        rows = [interval._row(index) for index, interval in enumerate(self.intervals)]
        room = self.peak if capacity is None else whole("plan", "capacity", capacity)
        fault = _core.plan_fault(rows, list(self.offsets), room, self.alignment)
        if fault:
            raise ValueError(f"plan: {fault}")


def plan(
    intervals: Iterable[Any],
    capacity: int | None = None,
    alignment: int = 1,
    seconds: float = 60.0,
    cancel: _Cancel | None = None,
) -> Plan:
    """Place buffers of known lifetimes in one block, as low as possible.

    Greedy orders come first; then a branch and bound looks for a plan at the lower bound, or within
    the capacity, and narrows what lies between. The best plan so far is kept when the time is up.
    Other threads run meanwhile, and Ctrl-C is heard.

    Parameters
    ----------
    intervals : iterable of Interval or tuple
        Tuples are (lower, upper, size), and maybe alignment and gaps.
    capacity : int, optional
        The first plan that fits it is the answer. None: as small as possible.
    alignment : int
        Of every offset, besides the intervals' own.
    seconds : float
        Time to spend.
    cancel : threading.Event, optional
        Set by another thread to stop with the best so far.

    Returns
    -------
    Plan

    Examples
    --------
    >>> memory.plan([(0, 3, 4), (3, 9, 4), (0, 9, 4), (9, 21, 4), (0, 21, 4)]).peak
    12
    """
    room = 0 if capacity is None else whole("plan", "capacity", capacity, 1)
    step = whole("plan", "alignment", alignment, 1)
    time = real("plan", "seconds", seconds, "a time of 0 or more")
    if time == math.inf:
        raise InvalidValueError("plan: seconds is inf; give a time of 0 or more")
    is_set = getattr(cancel, "is_set", None)
    if cancel is not None and not callable(is_set):
        raise InvalidTypeError(f"plan: cancel is {shown(cancel)}; give a threading.Event")
    what = "Intervals, or tuples of lower, upper and size"
    given = listed("plan", "intervals", intervals, what)
    placed = [_interval(index, value) for index, value in enumerate(given)]
    rows = [interval._row(index) for index, interval in enumerate(placed)]
    made = _core.make_plan(rows, room, step, time, is_set)
    fits = capacity is None or made["peak"] <= capacity
    return Plan(**made, fits=fits, alignment=step, intervals=placed)


def _hashable(function: str, origin: Any) -> Any:
    try:
        hash(origin)
    except TypeError:
        raise InvalidTypeError(
            f"{function}: origin is {shown(origin)}; give something hashable"
        ) from None
    return origin


class PlannedSlab(_Slab):
    """A plan at run time: memory at the offsets that it says, everything else from the heap.

    A request is known by its origin, its ordinal among the requests of that origin in a step, and
    its size. One that the plan does not know, or whose place is still in use because lifetimes
    changed, is served by the heap and counted.

    Parameters
    ----------
    keys : sequence of (origin, ordinal, nbytes)
        What was planned. Origins are any hashable objects; ordinals count from 0 in each.
    plan : Plan
        Made from the lifetimes of the same requests, in the same order, with ``alignment=256``.
    device : device or str, optional
        The default device if not given.
    name : str
        What it is called in errors.
    """

    _slab: _core.PlannedSlab

    def __init__(
        self,
        keys: Sequence[tuple[Any, int, int]],
        plan: Plan,
        device: Any = None,
        *,
        name: str = "unnamed",
    ) -> None:
        if not isinstance(plan, Plan):
            raise InvalidTypeError(f"PlannedSlab: plan is {shown(plan)}; give what plan() made")
        if plan.alignment % ALIGNMENT:
            raise ValueError(
                f"PlannedSlab: the plan has alignment {plan.alignment}; make it with "
                f"alignment={ALIGNMENT}"
            )
        self._origins: dict[Any, int] = {}
        what = "(origin, ordinal, nbytes) each"
        rows = [
            self._key(i, key) for i, key in enumerate(listed("PlannedSlab", "keys", keys, what))
        ]
        label = text("PlannedSlab", "name", name, "such as 'decoder'")
        self._slab = _core.PlannedSlab(label, rows, list(plan.offsets), device)
        self._core = self._slab

    def _key(self, index: int, key: Any) -> tuple[int, int, int]:
        name = f"key {index}"
        origin, ordinal, size = parts("PlannedSlab", name, key, 3, "origin, ordinal and nbytes")
        number = self._origins.setdefault(_hashable("PlannedSlab", origin), len(self._origins) + 1)
        return (
            number,
            whole("PlannedSlab", f"the ordinal of {name}", ordinal, 0, 2**32 - 1, "as a number"),
            whole("PlannedSlab", f"the size of {name}", size),
        )

    def _origin(self, function: str, origin: Any) -> int:
        return self._origins.get(_hashable(function, origin), 0)

    @property
    def hits(self) -> int:
        """Count of requests that the plan served."""
        return self._slab.hits

    @property
    def misses(self) -> int:
        """Count of requests that the plan does not know, or knows with another size."""
        return self._slab.misses

    @property
    def conflicts(self) -> int:
        """Count of requests whose place was still in use."""
        return self._slab.conflicts

    def begin_step(self) -> None:
        """Count ordinals from 0 again. What is in use stays."""
        self._slab.begin_step()

    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", origin: Any = None
    ) -> Tensor:
        """Return a tensor of undefined contents, at the planned offset if there is one."""
        return self._empty(shape, dtype, self._origin("empty", origin))

    def alloc(self, nbytes: int, origin: Any = None) -> int | None:
        """Return the address of `nbytes` new bytes, or None if the plan does not serve them."""
        address: int | None = self._slab.alloc(
            whole("alloc", "nbytes", nbytes), self._origin("alloc", origin)
        )
        return address


def planned_keys(requests: Iterable[tuple[Any, int]]) -> list[tuple[Any, int, int]]:
    """Return the keys of a `PlannedSlab` for the (origin, nbytes) requests of a step."""
    counts: defaultdict[Any, int] = defaultdict(int)
    keys = []
    given = listed("planned_keys", "requests", requests, "(origin, nbytes) pairs")
    for index, request in enumerate(given):
        origin, nbytes = parts("planned_keys", f"request {index}", request, 2, "origin and nbytes")
        _hashable("planned_keys", origin)
        size = whole("planned_keys", f"the size of request {index}", nbytes)
        keys.append((origin, counts[origin], size))
        counts[origin] += 1
    return keys
