"""Static plans: an offset for each of many buffers whose lifetimes are known."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nbxtensor import _core
from nbxtensor.memory._arena import ALIGNMENT, _Slab
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

    def _row(self) -> _Row:
        gaps = [(int(begin), int(end)) for begin, end in self.gaps]
        return (int(self.lower), int(self.upper), int(self.size), int(self.alignment), gaps)


def _interval(index: int, value: Any) -> Interval:
    interval = value if isinstance(value, Interval) else None
    if interval is None:
        try:
            interval = Interval(*value)
        except TypeError as error:
            raise TypeError(
                f"plan: interval {index} is {value!r}; give an Interval, or a tuple of lower, "
                "upper, size and maybe alignment and gaps"
            ) from error
    if interval.size < 0 or interval.alignment < 1:
        raise ValueError(
            f"plan: interval {index} has size {interval.size} and alignment {interval.alignment}; "
            "give 0 or more bytes and an alignment of 1 or more"
        )
    return interval


def read_intervals(path: str | Path) -> list[Interval]:
    """Read intervals from a CSV file with the columns id, lower, upper, size and maybe others."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            Interval(int(row["lower"]), int(row["upper"]), int(row["size"]), id=row["id"])
            for row in csv.DictReader(file)
        ]


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
        rows = [interval._row() for interval in self.intervals]
        room = self.peak if capacity is None else capacity
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
    if capacity is not None and capacity < 1:
        raise ValueError(f"plan: capacity is {capacity}; give 1 or more bytes, or None")
    if alignment < 1:
        raise ValueError(f"plan: alignment is {alignment}; give 1 or more")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"plan: seconds is {seconds}; give a time of 0 or more")
    listed = [_interval(index, value) for index, value in enumerate(intervals)]
    rows = [interval._row() for interval in listed]
    is_set = None if cancel is None else cancel.is_set
    made = _core.make_plan(rows, capacity or 0, alignment, seconds, is_set)
    fits = capacity is None or made["peak"] <= capacity
    return Plan(**made, fits=fits, alignment=alignment, intervals=listed)


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
        if plan.alignment % ALIGNMENT:
            raise ValueError(
                f"PlannedSlab: the plan has alignment {plan.alignment}; make it with "
                f"alignment={ALIGNMENT}"
            )
        self._origins: dict[Any, int] = {}
        rows = [(self._number(origin), ordinal, size) for origin, ordinal, size in keys]
        self._slab = _core.PlannedSlab(name, rows, list(plan.offsets), device)
        self._core = self._slab

    def _number(self, origin: Any) -> int:
        return self._origins.setdefault(origin, len(self._origins) + 1)

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
        return self._empty(shape, dtype, self._origins.get(origin, 0))

    def alloc(self, nbytes: int, origin: Any = None) -> int | None:
        """Return the address of `nbytes` new bytes, or None if the plan does not serve them."""
        address: int | None = self._slab.alloc(nbytes, self._origins.get(origin, 0))
        return address


def planned_keys(requests: Iterable[tuple[Any, int]]) -> list[tuple[Any, int, int]]:
    """Return the keys of a `PlannedSlab` for the (origin, nbytes) requests of a step."""
    counts: defaultdict[Any, int] = defaultdict(int)
    keys = []
    for origin, nbytes in requests:
        keys.append((origin, counts[origin], nbytes))
        counts[origin] += 1
    return keys
