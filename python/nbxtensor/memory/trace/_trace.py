"""A trace in memory: what was allocated and freed, in order, as columns."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.memory.trace._text import TraceError

Integers = npt.NDArray[np.int64]

GRANULE = 512  # of the addresses that a trace without any is given


# Live bytes: their addresses, from anywhere on, stay below 2^63.
MOST_LIVE = 2**62


@dataclass(frozen=True)
class Note:
    """Something that is neither an allocation nor a free: a refusal, a mark, mapped pages."""

    time: int
    position: int  # of the event before which it happened
    action: str  # complete (a freed block's last use is over), map, unmap, steal, refuse, mark,
    # annotate, tag, epoch, sleep, wake
    address: int = 0
    bytes: int = 0
    text: str = ""


@dataclass(frozen=True, eq=False)
class Trace:
    """Allocations and frees in order, one array a column.

    Attributes
    ----------
    time : ndarray of int64
        Nanoseconds, never falling; the number of the event where `clock` is "order".
    op : ndarray of int8
        1 for an allocation, -1 for a free.
    id : ndarray of int64
        The same for an allocation and its free; may come again once it was freed.
    address : ndarray of int64
        0 where it is not known.
    bytes : ndarray of int64
        As requested; the same for an allocation and its free.
    stream, thread : ndarray of int64
    tag, origin : ndarray of int64
        Places in `tags` and `origins`; the first of each is the empty text. The frames of an origin
        are its lines, innermost first.
    notes : tuple of Note
    device : str
    source : str
        The format that it was read from.
    clock : str
        "ns" or "order".
    missing : int
        Events that are known to be absent: overwritten, or frees of what was allocated before.
    """

    time: Integers
    op: npt.NDArray[np.int8]
    id: Integers
    address: Integers
    bytes: Integers
    stream: Integers
    tag: Integers
    thread: Integers
    origin: Integers
    tags: tuple[str, ...] = ("",)
    origins: tuple[str, ...] = ("",)
    notes: tuple[Note, ...] = field(default=())
    device: str = ""
    source: str = ""
    clock: str = "order"
    missing: int = 0

    def __len__(self) -> int:
        return len(self.op)

    def live(self) -> Integers:
        """Return the live bytes after every event."""
        return np.cumsum(self.bytes * self.op, dtype=np.int64)

    def peak(self) -> int:
        """Return the most bytes that were live at one time."""
        return int(self.live().max(initial=0))

    def completions(self) -> dict[int, int]:
        """Return the place in `notes` of the end of a free's last use, by the free's position.

        A free without one is complete at once, as far as anybody knows.
        """
        found = {}
        complete = [i for i, note in enumerate(self.notes) if note.action == "complete"]
        frees: dict[int, list[int]] = {self.notes[i].address: [] for i in complete}
        for position in np.flatnonzero(np.isin(self.address, list(frees))).tolist():
            frees[int(self.address[position])].append(position)
        for i in complete:
            places = frees[self.notes[i].address]
            at = bisect_left(places, self.notes[i].position) - 1
            if at >= 0 and self.op[places[at]] < 0 and places[at] not in found:
                found[places[at]] = i
        return found

    def pairs(self) -> tuple[Integers, Integers]:
        """Return the positions of allocations, in order, and of their frees; -1 for none."""
        order = np.argsort(self.id, kind="stable")
        opened = self.op[order] > 0
        allocations = order[opened]
        frees = np.full(len(allocations), -1, np.int64)
        # An id's events alternate, so that a free stands right behind its allocation.
        follows = np.flatnonzero(opened) + 1
        inside = follows < len(order)
        following = order[np.where(inside, follows, 0)]
        paired = inside & (self.op[following] < 0) & (self.id[following] == self.id[allocations])
        frees[paired] = following[paired]
        place = np.argsort(allocations, kind="stable")
        return allocations[place], frees[place]

    def validate(self, name: str = "trace", lines: Integers | None = None) -> Trace:
        """Check that every free has its allocation, and return the trace.

        Parameters
        ----------
        name
            The file that errors name.
        lines
            The line of every event in it.
        """

        def fail(position: int, column: str, found: str, allowed: str) -> None:
            line = position + 1 if lines is None else int(lines[position])
            raise TraceError(name, found, allowed, line, column)

        order = np.argsort(self.id, kind="stable")
        ids, op, size = self.id[order], self.op[order], self.bytes[order]
        first = np.ones(len(order), bool)
        first[1:] = ids[1:] != ids[:-1]
        before = np.zeros(len(order), np.int8)
        before[1:] = op[:-1]
        before[first] = -1
        wrong = np.flatnonzero(op == before)
        if len(wrong):
            where = wrong[np.argmin(order[wrong])]
            block = int(ids[where])
            if op[where] > 0:
                fail(
                    int(order[where]),
                    "id",
                    f"an allocation of {block}, which is live",
                    "an id that is not live",
                )
            fail(
                int(order[where]),
                "id",
                f"a free of {block}, which is not live",
                "an id that was allocated and not freed",
            )
        differs = np.flatnonzero((op[1:] < 0) & (size[1:] != size[:-1])) + 1
        if len(differs):
            where = differs[np.argmin(order[differs])]
            fail(
                int(order[where]),
                "bytes",
                f"a free of {int(size[where])} bytes",
                f"the {int(size[where - 1])} bytes of its allocation",
            )
        # Integers are exact, and doubles do not wrap.
        roughly = np.cumsum(self.bytes.astype(np.float64) * self.op)
        above = (self.live() > MOST_LIVE) | (roughly > 1.5 * MOST_LIVE)
        if above.any():
            fail(
                int(np.argmax(above)),
                "bytes",
                "more than 2^62 live bytes",
                f"at most {MOST_LIVE} at one time",
            )
        return self

    def addressed(self) -> Trace:
        """Return the trace with an address for every block: its own, or best fit from 2^30 on.

        Its own are taken unless two blocks that are live at one time begin at the same. They may
        overlap for a moment, where threads knew the time only roughly.
        """
        opened = self.op > 0
        if bool((self.address[opened] > 0).all()) and self._begin_apart():
            return self
        return self.placed()

    def placed(self) -> Trace:
        """Return the trace with the addresses that best fit in one space gives."""
        address = _placed(self)
        notes = list(self.notes)
        for free, place in self.completions().items():
            notes[place] = replace(notes[place], address=int(address[free]))
        return replace(self, address=address, notes=tuple(notes))

    def _begin_apart(self) -> bool:
        live: set[int] = set()
        for op, address in zip(self.op.tolist(), self.address.tolist(), strict=True):
            if (op > 0) == (address in live):
                return False
            (live.add if op > 0 else live.remove)(address)
        return True


def _placed(trace: Trace) -> Integers:
    """Give every block an address, best fit in one space."""
    holes: list[tuple[int, int]] = []  # (bytes, address), sorted
    starts: dict[int, int] = {}  # of holes: address -> bytes
    ends: dict[int, int] = {}
    top = 2**30
    live: dict[int, tuple[int, int]] = {}
    result = np.zeros(len(trace), np.int64)

    def add(address: int, size: int) -> None:
        insort(holes, (size, address))
        starts[address] = size
        ends[address + size] = address

    def remove(address: int) -> int:
        size = starts.pop(address)
        del ends[address + size]
        del holes[bisect_left(holes, (size, address))]
        return size

    for i, (op, block, size) in enumerate(
        zip(trace.op.tolist(), trace.id.tolist(), trace.bytes.tolist(), strict=True)
    ):
        if op < 0:
            address, size = live.pop(block)
            result[i] = address
            if address in ends:
                former = ends[address]
                size += remove(former)
                address = former
            if address + size in starts:
                size += remove(address + size)
            if address + size == top:
                top = address
            else:
                add(address, size)
            continue
        size = max(-(-size // GRANULE) * GRANULE, GRANULE)
        at = bisect_left(holes, (size, 0))
        if at < len(holes):
            hole, address = holes[at]
            remove(address)
            if hole > size:
                add(address + size, hole - size)
        else:
            address = top
            top += size
        live[block] = (address, size)
        result[i] = address
    return result


class Builder:
    """Collects events; texts become places in `tags` and `origins`."""

    def __init__(self, source: str, device: str = "", clock: str = "order") -> None:
        self.source = source
        self.device = device
        self.clock = clock
        self.missing = 0
        self.notes: list[Note] = []
        self._rows: list[tuple[int, ...]] = []
        self._tags = {"": 0}
        self._origins = {"": 0}

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        op: int,
        block: int,
        size: int,
        *,
        time: int | None = None,
        address: int = 0,
        stream: int = 0,
        tag: str = "",
        thread: int = 0,
        origin: str = "",
    ) -> None:
        """Append one event; without a time it gets its number."""
        self._rows.append(
            (
                len(self._rows) if time is None else time,
                op,
                block,
                address,
                size,
                stream,
                self._tags.setdefault(tag, len(self._tags)),
                thread,
                self._origins.setdefault(origin, len(self._origins)),
            )
        )

    def prepend(self, events: Builder) -> None:
        """Put the events of another builder before all others."""
        tags = [self._tags.setdefault(tag, len(self._tags)) for tag in events._tags]
        origins = [self._origins.setdefault(text, len(self._origins)) for text in events._origins]
        rows = [(*row[:6], tags[row[6]], row[7], origins[row[8]]) for row in events._rows]
        self._rows[:0] = rows
        self.notes = [replace(note, position=note.position + len(rows)) for note in self.notes]

    def note(self, action: str, time: int, address: int = 0, size: int = 0, text: str = "") -> None:
        """Append one note behind the events so far."""
        self.notes.append(Note(time, len(self._rows), action, address, size, text))

    def times(self) -> Integers:
        """Return the times as they were given."""
        return np.array([row[0] for row in self._rows], np.int64)

    def build(self) -> Trace:
        """Return the trace; times never fall."""
        table = np.array(self._rows, np.int64).reshape(-1, 9)
        return from_columns(
            [table[:, i].copy() for i in range(9)],
            tags=tuple(self._tags),
            origins=tuple(self._origins),
            notes=tuple(self.notes),
            device=self.device,
            source=self.source,
            clock=self.clock,
            missing=self.missing,
        )


def from_columns(columns: Sequence[Integers], **rest: Any) -> Trace:
    """Return a trace of time, op, id, address, bytes, stream, tag, thread, origin."""
    time, op, block, address, size, stream, tag, thread, origin = columns
    return Trace(
        time=np.maximum.accumulate(time) if len(time) else time,
        op=op.astype(np.int8),
        id=block,
        address=address,
        bytes=size,
        stream=stream,
        tag=tag,
        thread=thread,
        origin=origin,
        **rest,
    )
