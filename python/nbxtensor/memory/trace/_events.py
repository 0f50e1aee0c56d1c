"""Events of the recorder's rings, put in one order and given their names.

The layout of an event is that of csrc/account/recorder.h.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbxtensor import _core
from nbxtensor.memory.trace._trace import Builder, Trace

Words = npt.NDArray[np.uint64]
Batch = tuple[Words, Words, int]  # words of n events (n, 4), their threads, how many are missing

ALLOCATE, FREE, FREE_PENDING, FREE_COMPLETED = 2, 3, 4, 5
NOTES = {
    6: "map",
    7: "unmap",
    8: "steal",
    9: "refuse",
    10: "tag",
    11: "mark",
    12: "annotate",
    13: "epoch",
    14: "sleep",
    15: "wake",
}
TEXTS = (11, 12)  # whose origin is the number of a text


class Events(NamedTuple):
    """Events of all threads, unpacked, in the order of their times."""

    time: npt.NDArray[np.int64]  # nanoseconds since 1970
    action: npt.NDArray[np.int64]
    heap: npt.NDArray[np.int64]
    address: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    account: npt.NDArray[np.int64]
    generation: npt.NDArray[np.int64]
    origin: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]

    def take(self, index: Any) -> Events:
        """Return some of the events."""
        return Events(*(column[index] for column in self))


def unpack(words: Words, threads: Words) -> Events:
    """Unpack events and sort them by time; a thread's own order stays."""
    first, first_ns, last, last_ns, wall = (int(value) for value in _core.recorder_clock())
    scale = (last_ns - first_ns) / max(last - first, 1)
    place, extent, owner = words[:, 1], words[:, 2], words[:, 3]
    small = np.uint64(0xFFFFF)
    # From the last reading on: doubles are exact to a nanosecond over months.
    since = words[:, 0].astype(np.int64) - last
    columns = [
        wall + (since * scale).astype(np.int64),
        place & np.uint64(0xFF),
        place >> np.uint64(8) & np.uint64(0xFF),
        place >> np.uint64(16) << np.uint64(4),
        extent >> np.uint64(20),
        extent & small,
        owner >> np.uint64(20) & small,
        owner >> np.uint64(40),
        owner & small,
        threads,
    ]
    events = Events(*(column.astype(np.int64) for column in columns))
    return events.take(np.argsort(words[:, 0], kind="stable"))


def joined(batches: Sequence[Batch]) -> tuple[Words, Words, int]:
    """Join what several readings gave."""
    if not batches:
        return np.empty((0, 4), np.uint64), np.empty(0, np.uint64), 0
    words = np.concatenate([batch[0] for batch in batches])
    threads = np.concatenate([batch[1] for batch in batches])
    return words, threads, sum(batch[2] for batch in batches)


def origin_text(number: int) -> str:
    """Return the frames of an origin, innermost first, one a line."""
    return "\n".join(f"{file}:{line} {name}" for file, line, name in _core.recorder_frames(number))


class _Names:
    """Names by number, each asked for once."""

    def __init__(self, find: Callable[[int], str]) -> None:
        self._find = find
        self._known: dict[int, str] = {}

    def __getitem__(self, number: int) -> str:
        if number not in self._known:
            self._known[number] = self._find(number)
        return self._known[number]


def _tag_of(path: str) -> str:
    """Return a tag: of "sim:0/device/kv" it is "kv", of "sim:0/pinned" "pinned"."""
    parts = path.split("/")[1:]
    return "/".join(parts[1:] if parts[:1] == ["device"] else parts)


def _account_names(device: str) -> _Names:
    try:
        paths = _core.recorder_accounts(device)
    except (ValueError, _core.Error):
        paths = {}  # a heap of no device that can be asked
    return _Names(lambda number: _tag_of(paths.get(number, "")))


def devices_of(events: Events) -> list[str]:
    """Return the names of the heaps that allocate, the busiest first."""
    used, counts = np.unique(events.heap[events.action == ALLOCATE], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [_core.recorder_heap_name(int(heap)) for heap in used[order]]


def build(events: Events, device: str, missing: int) -> Trace:
    """Return one device's events as a trace; times start at the first event.

    Threads know the time only now and then, so that a block's free on one thread may seem earlier
    than its allocation on another. Its generation tells: an event that comes too early waits for
    the one that it needs.
    """
    heaps = [heap for heap in range(256) if _core.recorder_heap_name(heap) == device]
    events = events.take(np.isin(events.heap, heaps) | (events.heap == 0))
    ordered = _Ordered(Builder("recorder", device, "ns"), events, device)
    for row in zip(*(column.tolist() for column in events), strict=True):
        ordered.add(row)
    return ordered.finish(missing)


def _counted(events: Events) -> Counter[tuple[int, int]]:
    """Return how often each (address, generation) is there."""
    return Counter(zip(events.address.tolist(), events.generation.tolist(), strict=True))


class _Ordered:
    """Adds events to a builder, each when what it needs has happened."""

    def __init__(self, builder: Builder, events: Events, device: str) -> None:
        self._builder = builder
        self._start = int(events.time[0]) if len(events.time) else 0
        self._tags = _account_names(device)
        self._origins = _Names(origin_text)
        self._texts = _Names(_core.recorder_text)
        self._live: dict[int, tuple[int, int, int]] = {}  # address -> generation, block, bytes
        self._early: dict[tuple[int, int], tuple[int, ...]] = {}  # frees before their allocation
        self._pending: dict[int, list[tuple[int, ...]]] = {}  # allocations before a free
        allocated = events.action == ALLOCATE
        freed = np.isin(events.action, (FREE, FREE_PENDING))
        # Only what comes at all is worth waiting for.
        self._allocations = _counted(events.take(allocated))
        self._frees = _counted(events.take(freed))

    def add(self, row: tuple[int, ...]) -> None:
        """Take one event in the order of time."""
        action, address, generation = row[1], row[3], row[7]
        if action == ALLOCATE:
            held = self._live.get(address)
            if held is not None and self._frees[address, held[0]] > 0:
                self._pending.setdefault(address, []).append(row)
            else:
                self._allocate(row)
        elif action in (FREE, FREE_PENDING):
            held = self._live.get(address)
            if held is not None and held[0] == generation:
                self._free(row)
            elif self._allocations[address, generation] > 0:
                self._early[address, generation] = row
            else:
                self._builder.missing += 1  # of a block from before
        elif action in NOTES:
            text = self._texts[row[8]] if action in TEXTS else self._tags[row[6]]
            self._builder.note(NOTES[action], row[0] - self._start, address, row[4], text)

    def _allocate(self, row: tuple[int, ...]) -> None:
        address, generation = row[3], row[7]
        held = self._live.pop(address, None)
        if held is not None:  # its free was overwritten
            self._builder.missing += 1
            self._append(-1, held[1], held[2], row, origin=False)
        block = len(self._builder)
        self._live[address] = (generation, block, row[4])
        self._allocations[address, generation] -= 1
        self._append(1, block, row[4], row)
        early = self._early.pop((address, generation), None)
        if early is not None:
            self._free(early)

    def _free(self, row: tuple[int, ...]) -> None:
        address, generation = row[3], row[7]
        _, block, held = self._live.pop(address)
        self._frees[address, generation] -= 1
        self._append(-1, block, held, row)
        waiting = self._pending.get(address)
        if waiting:
            self._allocate(waiting.pop(0))

    def _append(
        self, op: int, block: int, size: int, row: tuple[int, ...], *, origin: bool = True
    ) -> None:
        self._builder.add(
            op,
            block,
            size,
            time=row[0] - self._start,
            address=row[3],
            stream=row[5],
            tag=self._tags[row[6]],
            thread=row[9],
            origin=self._origins[row[8]] if origin and row[8] else "",
        )

    def finish(self, missing: int) -> Trace:
        """Return the trace; what still waits has lost what it waits for."""
        for waiting in self._pending.values():
            for row in waiting:
                self._allocate(row)
        self._builder.missing += missing + len(self._early)
        return self._builder.build()
