"""Events of the recorder's rings, put in one order and given their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbxtensor import _core
from nbxtensor.memory.trace._trace import Builder, Trace

Words = npt.NDArray[np.uint64]
Batch = tuple[Words, Words, int]  # words of n events (n, 4), their threads, how many are missing

ACTIONS: dict[str, int] = _core.recorder_actions()
_OF_BLOCKS = tuple(ACTIONS[n] for n in ("allocate", "free", "free_pending", "free_completed"))
ALLOCATE, FREE, FREE_PENDING, FREE_COMPLETED = _OF_BLOCKS
NOTES = {number: name for name, number in ACTIONS.items() if number not in _OF_BLOCKS}
# Whose origin is the number of a text.
TEXTS = tuple(ACTIONS[name] for name in ("tag", "mark", "annotate"))


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
    ticks, *fields = _core.recorder_fields(words)
    # From the last reading on: doubles are exact to a nanosecond over months.
    time = wall + ((ticks - last) * scale).astype(np.int64)
    columns = [time, *fields, threads.astype(np.int64)]
    events = Events(*columns)
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


def account_names(device: str) -> _Names:
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


class Held(NamedTuple):
    """A block that is live when the events end."""

    address: int
    generation: int
    bytes: int
    stream: int
    account: int
    origin: int


def build(events: Events, device: str, missing: int = 0, held: Iterable[Held] = ()) -> Trace:
    """Return one device's events as a trace; times start at the first event.

    What was live before comes first: it is freed in the events, or `held` still has it.

    Threads read the clock only now and then, so that a block's free on one thread may seem earlier
    than its allocation on another. Its generation tells: a thread whose next event comes too early
    waits for the event of another that it needs.
    """
    heaps = [heap for heap in range(256) if _core.recorder_heap_name(heap) == device]
    empty = (events.address == 0) & np.isin(events.action, _OF_BLOCKS)  # of zero bytes: no block
    events = events.take((np.isin(events.heap, heaps) | (events.heap == 0)) & ~empty)
    merge = _Merge(Builder("recorder", device, "ns"), events, device)
    merge.run()
    merge.add_before(held)
    merge.builder.missing += missing
    return merge.builder.build()


def _counted(events: Events) -> Counter[tuple[int, int]]:
    """Return how often each (address, generation) is there."""
    return Counter(zip(events.address.tolist(), events.generation.tolist(), strict=True))


class _Merge:
    """Adds the events of all threads to a builder, each when what it needs has happened."""

    def __init__(self, builder: Builder, events: Events, device: str) -> None:
        self.builder = builder
        self._start = int(events.time[0]) if len(events.time) else 0
        self._tags = account_names(device)
        self._origins = _Names(origin_text)
        self._texts = _Names(_core.recorder_text)
        # By address: generation, block, bytes, stream.
        self._live: dict[int, tuple[int, int, int, int]] = {}
        self._pending: dict[int, int] = {}  # by address: generation of what was freed last
        self._before = Builder("recorder")
        self._seen: set[int] = set()  # addresses
        self._blocks = 0
        # Only what comes at all is worth waiting for.
        self._allocations = _counted(events.take(events.action == ALLOCATE))
        self._frees = _counted(events.take(np.isin(events.action, (FREE, FREE_PENDING))))
        self._ends = _counted(events.take(events.action == FREE_COMPLETED))
        # Allocations to come by address: (generation, thread), falling.
        self._to_come: dict[int, list[tuple[int, int]]] = {}
        opened = events.take(events.action == ALLOCATE)
        columns = (opened.generation.tolist(), opened.thread.tolist(), opened.address.tolist())
        for generation, thread, address in sorted(zip(*columns, strict=True), reverse=True):
            self._to_come.setdefault(address, []).append((generation, thread))
        self._taken: Counter[tuple[int, int, int]] = Counter()
        self._threads = [
            list(zip(*(column.tolist() for column in events.take(events.thread == thread)),
                     strict=True))
            for thread in np.unique(events.thread).tolist()
        ]  # fmt: skip

    def run(self) -> None:
        """Take every event: of the threads that need not wait, the one whose next is oldest."""
        ready = [(rows[0][0], thread, 0) for thread, rows in enumerate(self._threads)]
        heapify(ready)
        waiting: dict[int, list[tuple[int, int, int]]] = {}  # by the address that must change
        while ready or waiting:
            forced = not ready
            if forced:  # what it waits for was overwritten
                address = min(waiting, key=lambda key: min(waiting[key]))
                heappush(ready, waiting[address].pop(waiting[address].index(min(waiting[address]))))
                if not waiting[address]:
                    del waiting[address]
            head = heappop(ready)
            _, thread, at = head
            row = self._threads[thread][at]
            if not forced and self._must_wait(row):
                waiting.setdefault(row[3], []).append(head)
                continue
            self._take(row)
            if at + 1 < len(self._threads[thread]):
                heappush(ready, (self._threads[thread][at + 1][0], thread, at + 1))
            for other in waiting.pop(row[3], ()) if row[1] in _OF_BLOCKS else ():
                heappush(ready, other)

    def _must_wait(self, row: tuple[int, ...]) -> bool:
        action, address, generation = row[1], row[3], row[7]
        held = self._live.get(address)
        if action == ALLOCATE:
            lives = held is not None and self._frees[address, held[0]] > 0
            ends = self._ends[address, self._pending.get(address, -1)] > 0
            return lives or ends or self._follows(address, generation, row[9])
        if action in (FREE, FREE_PENDING):
            lives = held is not None and held[0] == generation
            return not lives and self._allocations[address, generation] > 0
        if action == FREE_COMPLETED:
            return self._frees[address, generation] > 0
        return False

    def _follows(self, address: int, generation: int, thread: int) -> bool:
        """Tell whether another thread has yet to allocate an older block at the address."""
        to_come = self._to_come[address]
        oldest, other = to_come[-1]
        while self._taken[address, oldest, other] > 0:
            self._taken[address, oldest, other] -= 1
            to_come.pop()
            oldest, other = to_come[-1]
        return oldest < generation and other != thread

    def _take(self, row: tuple[int, ...]) -> None:
        action, address, generation = row[1], row[3], row[7]
        if action == ALLOCATE:
            self._allocations[address, generation] -= 1
            self._taken[address, generation, row[9]] += 1
            held = self._live.pop(address, None)
            if held is not None:  # its free was overwritten
                self.builder.missing += 1
                self._append(-1, held[1], held[2], held[3], (*row[:8], 0, *row[9:]))
            block = self._number(address)
            self._live[address] = (generation, block, row[4], row[5])
            self._pending.pop(address, None)
            self._append(1, block, row[4], row[5], row)
        elif action in (FREE, FREE_PENDING):
            self._frees[address, generation] -= 1
            held = self._live.get(address)
            if (held is None or held[0] != generation) and address in self._seen:
                self.builder.missing += 1  # its allocation was overwritten
                return
            if held is None:
                held = self._add_before(row[3], row[4], row[5], row[6], 0)
            self._live.pop(address, None)
            self._pending[address] = generation
            # A block that no queued work uses is freed on no stream.
            self._append(-1, held[1], held[2], row[5] or held[3], row)
        elif action == FREE_COMPLETED:
            # Of a free that is there, and before anything else lies at the address.
            self._ends[address, generation] -= 1
            if self._pending.get(address) == generation:
                self._note("complete", row)
        elif action in NOTES:
            text = self._texts[row[8]] if action in TEXTS else self._tags[row[6]]
            self._note(NOTES[action], row, text)

    def _note(self, action: str, row: tuple[int, ...], text: str = "") -> None:
        self.builder.note(action, row[0] - self._start, row[3], row[4], text)

    def _number(self, address: int) -> int:
        """Return the number of another block."""
        self._seen.add(address)
        self._blocks += 1
        return self._blocks - 1

    def _add_before(
        self, address: int, size: int, stream: int, account: int, origin: int
    ) -> tuple[int, int, int, int]:
        block = self._number(address)
        self._before.add(
            1,
            block,
            size,
            time=0,
            address=address,
            stream=stream,
            tag=self._tags[account],
            origin=self._origins[origin] if origin else "",
        )
        return 0, block, size, stream

    def add_before(self, held: Iterable[Held]) -> None:
        """Put what was live before the events in front of them."""
        for block in held:
            if block.address not in self._seen:
                self._add_before(
                    block.address, block.bytes, block.stream, block.account, block.origin
                )
        self.builder.prepend(self._before)

    def _append(self, op: int, block: int, size: int, stream: int, row: tuple[int, ...]) -> None:
        self.builder.add(
            op,
            block,
            size,
            time=row[0] - self._start,
            address=row[3],
            stream=stream,
            tag=self._tags[row[6]],
            thread=row[9],
            origin=self._origins[row[8]] if row[8] else "",
        )
