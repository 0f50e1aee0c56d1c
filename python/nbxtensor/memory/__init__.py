"""Budgets, tags and reports of device memory.

Every byte of a device is counted in a tree of accounts: the device, the kind of memory, and the
path of the tag that was set when the memory was taken.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbxtensor.memory._advice import annotate, retry, what_would_have_fit
from nbxtensor.memory._arena import Arena, Layout, ReplaySlab, Resolved, StepSlab, layout
from nbxtensor.memory._budget import budget, options
from nbxtensor.memory._check import check
from nbxtensor.memory._peak import peak
from nbxtensor.memory._pinned import is_pinned, pinned
from nbxtensor.memory._plans import (
    Interval,
    Plan,
    PlannedSlab,
    plan,
    planned_keys,
    read_intervals,
)
from nbxtensor.memory._reclaim import external, reclaimer
from nbxtensor.memory._report import Report, Row, rows_of
from nbxtensor.memory._reserved import Reserved, reserve
from nbxtensor.memory._sleep import SleepReport, sleep, sleeping, wake
from nbxtensor.memory._stats import (
    Stats,
    allocated,
    epoch,
    mem_get_info,
    new_epoch,
    peak_allocated,
    report,
    reset_peak,
    stats,
    trim,
)
from nbxtensor.memory._tags import steady, tag

if TYPE_CHECKING:
    from nbxtensor.memory import trace
    from nbxtensor.memory.trace._record import annotate as note
    from nbxtensor.memory.trace._record import events, mark, record, set_events, set_origins
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
    "check",
    "dump_snapshot",
    "epoch",
    "events",
    "external",
    "is_pinned",
    "layout",
    "mark",
    "mem_get_info",
    "memory_allocated",
    "new_epoch",
    "note",
    "options",
    "peak",
    "peak_allocated",
    "peak_memory_allocated",
    "pinned",
    "plan",
    "planned_keys",
    "read_intervals",
    "reclaimer",
    "record",
    "report",
    "reserve",
    "reset_peak",
    "reset_peak_memory",
    "retry",
    "rows_of",
    "set_events",
    "set_origins",
    "sleep",
    "sleeping",
    "snapshot",
    "stats",
    "steady",
    "tag",
    "trace",
    "trim",
    "wake",
    "what_would_have_fit",
]

# Names that most programs never use: the module of `trace` that has them, and their name there;
# imported when asked for.
_LATER = {
    "dump_snapshot": ("_state", "dump_snapshot"),
    "events": ("_record", "events"),
    "mark": ("_record", "mark"),
    "note": ("_record", "annotate"),
    "record": ("_record", "record"),
    "set_events": ("_record", "set_events"),
    "set_origins": ("_record", "set_origins"),
    "snapshot": ("_state", "snapshot"),
}


def __getattr__(name: str) -> Any:
    if name == "trace":
        return importlib.import_module("nbxtensor.memory.trace")
    if name not in _LATER:
        raise AttributeError(f"module 'nbxtensor.memory' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(f"nbxtensor.memory.trace.{module}"), attribute)


memory_allocated = allocated
peak_memory_allocated = peak_allocated
reset_peak_memory = reset_peak
