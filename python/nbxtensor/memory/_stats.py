"""Figures of a device's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbxtensor import _core
from nbxtensor.memory._arguments import whole
from nbxtensor.memory._report import Report, rows_of


@dataclass(frozen=True)
class Stats:
    """Figures of one device, in bytes unless the name says otherwise.

    ``mapped == live + parked + pending + asleep_held``, and
    ``allocated == live + in_place + pinned + registered``.
    """

    device: str
    live: int  # of tensors in the heap, rounded to its granule
    parked: int  # free, kept for later
    pending: int  # freed, waits for queued work
    mapped: int  # held from the driver
    occupied: int  # of `mapped`: pages that hold a live block; the rest can go back
    peak_live: int
    peak_mapped: int
    allocated: int  # counted: tensors, memory used in place, pinned memory, libraries
    peak_allocated: int
    requested: int  # of `allocated`, before rounding
    in_place: int  # files and arrays of others
    pinned: int  # page-locked host memory
    pinned_parked: int  # page-locked, kept for later; in no other figure
    registered: int  # what libraries said they hold
    external: int  # used on the device by others, registered or not
    budget: int | None
    device_free: int
    device_total: int
    objects: int  # count of live storages
    live_blocks: int  # count
    free_blocks: int  # count
    largest_hole: int
    driver_calls: int  # count
    banked: int  # of `parked`: pages that lie under no address
    created_bytes: int  # asked of the driver so far
    stolen_bytes: int  # moved from free blocks to where they were wanted
    remaps: int  # count of allocations that moved pages
    inserted_waits: int  # count: of one stream for another, to reuse its memory
    asleep: int  # of sleeping tensors: neither live nor free
    asleep_held: int  # of `asleep`: in pages that others keep, of `mapped`
    asleep_blocks: int  # count
    asleep_contents: int  # of `asleep`: whose contents the host keeps
    kept: int  # of `parked`: in the caches of threads
    peak_error: int  # by which `peak_allocated` may be too high: threads count bytes ahead
    soft_crossings: int  # count: allocations that crossed the device's soft limit


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

    Page-locked host memory that nobody uses goes back in the same way.

    Returns
    -------
    int
        The bytes that were given back.
    """
    return _core.memory_trim(device, whole("trim", "keep", keep))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes as the device's driver says."""
    return _core.device(device).memory_info()


def new_epoch(device: Any = None) -> int:
    """Make every address void that the device issued so far.

    For a runtime that died and was started again. Tensors of an earlier epoch raise by name when
    they are used, and die without harm; the accounts start at zero; budgets, options and reclaimers
    stay. What the earlier epoch's heap holds goes back to the driver, if that still answers. Call
    it while no other thread works on the device.

    Returns
    -------
    int
        The number of the epoch that begins, from 2 on.

    Raises
    ------
    UnsupportedError
        For the cpu, whose memory is the host's.
    """
    return _core.memory_new_epoch(device)


def epoch(device: Any = None) -> int:
    """Return the number of the device's epoch, from 1 on."""
    return _core.memory_epoch(device)
