"""Budgets, tags and reports of device memory.

Every byte of a device is counted in a tree of accounts: the device, the kind of memory, and the
path of the tag that was set when the memory was taken.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nbxtensor import _core
from nbxtensor.memory._advice import what_would_have_fit
from nbxtensor.memory._arena import Arena, Layout, ReplaySlab, Resolved, StepSlab, layout
from nbxtensor.memory._plans import (
    Interval,
    Plan,
    PlannedSlab,
    plan,
    planned_keys,
    read_intervals,
)
from nbxtensor.memory._report import Report, Row, rows_of
from nbxtensor.memory._reserved import Reserved, reserve
from nbxtensor.memory._sleep import SleepReport, sleep, sleeping, wake

if TYPE_CHECKING:
    from nbxtensor.memory import trace
    from nbxtensor.memory.trace._record import (
        annotate,
        events,
        mark,
        record,
        set_events,
        set_origins,
    )
    from nbxtensor.memory.trace._state import dump_snapshot, snapshot

__all__ = [
    "Arena",
    "Interval",
    "Layout",
    "Plan",
    "PlannedSlab",
    "ReplaySlab",
    "Report",
    "Reserved",
    "Resolved",
    "Row",
    "SleepReport",
    "Stats",
    "StepSlab",
    "allocated",
    "annotate",
    "budget",
    "dump_snapshot",
    "events",
    "layout",
    "mark",
    "mem_get_info",
    "memory_allocated",
    "peak_allocated",
    "peak_memory_allocated",
    "plan",
    "planned_keys",
    "read_intervals",
    "record",
    "report",
    "reserve",
    "reset_peak",
    "reset_peak_memory",
    "set_events",
    "set_origins",
    "sleep",
    "sleeping",
    "snapshot",
    "stats",
    "tag",
    "trace",
    "trim",
    "wake",
    "what_would_have_fit",
]

# Keeps everything that is parked: a trim to it only looks at what queued work has let go of.
_EVERYTHING = 2**63 - 1

# Names that most programs never use, by the module of `trace` that has them; imported when asked
# for.
_LATER = {
    "annotate": "_record",
    "dump_snapshot": "_state",
    "events": "_record",
    "mark": "_record",
    "record": "_record",
    "set_events": "_record",
    "set_origins": "_record",
    "snapshot": "_state",
}


def __getattr__(name: str) -> Any:
    if name == "trace":
        return importlib.import_module("nbxtensor.memory.trace")
    if name not in _LATER:
        raise AttributeError(f"module 'nbxtensor.memory' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nbxtensor.memory.trace.{_LATER[name]}"), name)


class tag(contextlib.ContextDecorator):  # noqa: N801
    """Count what this thread allocates inside the ``with`` block under a name.

    Also a decorator. The path is absolute: an inner tag takes the place of the outer one.

    Parameters
    ----------
    path : str
        Names joined by single slashes, such as ``"weights/layer.3"``; ``""`` for no tag.

    Examples
    --------
    >>> with memory.tag("kv"):
    ...     cache = nbx.zeros((8, 1024, 64))
    """

    def __init__(self, path: str) -> None:
        if not isinstance(path, str):
            raise TypeError(f"tag: got {path!r}; give a path as text, such as 'weights/layer.3'")
        self._path = path
        # By thread: one object may be entered on several at once.
        self._former: dict[int, list[str]] = {}

    def _recreate_cm(self) -> tag:
        # A decorated function may run on several threads at once.
        return tag(self._path)

    def __enter__(self) -> tag:
        former = _core.memory_set_tag(self._path)
        self._former.setdefault(threading.get_ident(), []).append(former)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = threading.get_ident()
        former = self._former[thread].pop()
        if not self._former[thread]:
            del self._former[thread]
        _core.memory_set_tag(former)


class budget:  # noqa: N801
    """Limit the bytes of a device, or of one tag on it.

    The limit holds from the call on. In a ``with`` statement the former one comes back at the end.
    A limit below what is held frees nothing: nothing more is admitted until it fits.

    Parameters
    ----------
    limit : int, str or None
        Bytes, or a text such as ``"2 GiB"`` or ``"80%"`` (of the device); None for no limit.
    device : device or str, optional
        The default device if not given.
    tag : str, optional
        Limits tensors under this tag path instead of the whole device.

    Attributes
    ----------
    bytes : int or None
        The limit that was set.
    former : int or None
        The limit before.
    """

    def __init__(self, limit: int | str | None, device: Any = None, tag: str | None = None) -> None:
        self._device = device
        self._tag = tag
        self.former: int | None = _core.memory_set_limit(device, tag, limit)
        self.bytes: int | None = _core.memory_limit(device, tag)

    def __enter__(self) -> budget:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _core.memory_set_limit(self._device, self._tag, self.former)


@dataclass(frozen=True)
class Stats:
    """Figures of one device, in bytes unless the name says otherwise.

    ``mapped == live + parked + pending``, and ``allocated == live + in_place + pinned``.
    """

    device: str
    live: int  # of tensors in the heap, rounded to its granule
    parked: int  # free, kept for later
    pending: int  # freed, waits for queued work
    mapped: int  # held from the driver
    peak_live: int
    peak_mapped: int
    allocated: int  # counted: tensors, memory used in place, pinned memory
    peak_allocated: int
    requested: int  # of `allocated`, before rounding
    in_place: int  # files and arrays of others
    pinned: int  # page-locked host memory
    external: int  # used on the device by others
    budget: int | None
    device_free: int
    device_total: int
    objects: int  # count of live storages
    live_blocks: int  # count
    free_blocks: int  # count
    largest_hole: int
    driver_calls: int  # count


def stats(device: Any = None) -> Stats:
    """Return the figures of a device."""
    return Stats(**_core.memory_statistics(device))


def report(device: Any = None) -> Report:
    """Return who holds the memory of a device; printed, it is a table."""
    figures = _core.memory_statistics(device)
    return Report(rows_of(_core.memory_report(device)), figures)


def allocated(device: Any = None) -> int:
    """Return the bytes that are counted on a device."""
    return _core.memory_allocated(device, False)


def peak_allocated(device: Any = None) -> int:
    """Return the most bytes that were counted at one time since the last `reset_peak`."""
    return _core.memory_allocated(device, True)


def reset_peak(device: Any = None) -> None:
    """Lower every peak of a device, and of its tags, to what is held now."""
    _core.memory_reset_peak(device)


def trim(device: Any = None, keep: int = 0) -> int:
    """Give unused memory back to the driver until at most `keep` bytes are parked.

    Returns
    -------
    int
        The bytes that were given back.
    """
    if keep < 0:
        raise ValueError(f"trim: keep is {keep}; give 0 or more bytes")
    return _core.memory_trim(device, min(keep, _EVERYTHING))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes as the device's driver says."""
    return _core.memory_info(device)


memory_allocated = allocated
peak_memory_allocated = peak_allocated
reset_peak_memory = reset_peak
