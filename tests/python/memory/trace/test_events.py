"""The recorder's events: unpacked, put in one order, and named."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core
from nbxtensor.memory.trace import Trace, _events, _record, _snapshot
from nbxtensor.memory.trace._events import Held

ALLOCATE, FREE = _events.ALLOCATE, _events.FREE


@pytest.fixture
def heap() -> Iterator[int]:
    """A heap of no device, under a name of its own."""
    number = _core.recorder_open_heap(f"test:{threading.get_ident()}")
    yield number
    _core.recorder_close_heap(number)


def words_of(rows: list[tuple[int, int, int, int, int]], heap: int) -> np.ndarray:
    """Pack (ticks, action, address, bytes, generation) as the core does."""
    words = np.zeros((len(rows), 4), np.uint64)
    for i, (ticks, action, address, size, generation) in enumerate(rows):
        words[i] = (ticks, heap << 56 | address | action, size << 20, generation << 40)
    return words


def build(threads: list[list[tuple[int, int, int, int, int]]], heap: int, **more: object) -> Trace:
    words = np.concatenate([words_of(rows, heap) for rows in threads])
    names = np.repeat(np.arange(1, len(threads) + 1), [len(rows) for rows in threads])
    events = _events.unpack(words, names.astype(np.uint64))
    return _events.build(events, _core.recorder_heap_name(heap), **more)  # type: ignore[arg-type]


def test_every_field_comes_back(heap: int, rng: np.random.Generator) -> None:
    expected = []
    recording = _core.Recording(1 << 20)
    for _ in range(50):
        row = {
            "action": int(rng.integers(2, 16)),
            "address": int(rng.integers(0, 1 << 48)) * 16,
            "bytes": int(rng.integers(0, 1 << 44)),
            "stream": int(rng.integers(0, 1 << 20)),
            "account": int(rng.integers(0, 1 << 20)),
            "generation": int(rng.integers(0, 1 << 24)),
            "origin": int(rng.integers(0, 1 << 20)),
        }
        _core.recorder_note(heap=heap, **row)
        expected.append(row)
    words, threads, missing = recording.stop()
    events = _events.unpack(words, threads)
    mine = events.take(events.heap == heap)
    assert missing == 0
    assert len(mine.time) == 50
    for name in expected[0]:
        assert getattr(mine, name).tolist() == [row[name] for row in expected], name
    assert (np.diff(mine.time) >= 0).all()


def test_a_free_that_seems_too_early_waits(heap: int) -> None:
    # Thread 2 frees what thread 1 allocates, but its clock is behind.
    trace = build(
        [
            [(100, ALLOCATE, 512, 10, 1), (101, ALLOCATE, 1024, 20, 1)],
            [(50, FREE, 512, 10, 1), (51, ALLOCATE, 512, 30, 2), (52, FREE, 1024, 20, 1)],
        ],
        heap,
    )
    assert trace.missing == 0
    assert trace.validate() is trace
    assert sorted(trace.bytes.tolist()) == [10, 10, 20, 20, 30]
    assert int(trace.live()[-1]) == 30


@pytest.mark.parametrize("rising", [True, False])
def test_random_interleavings_are_untangled(
    heap: int, rng: np.random.Generator, rising: bool
) -> None:
    """Three threads share addresses; each event gets the time of one up to 16 events before."""
    threads: list[list[tuple[int, int, int, int, int]]] = [[], [], []]
    stale = [1, 1, 1]
    live: dict[int, tuple[int, int]] = {}
    generations: dict[int, int] = {}
    for step in range(3000):
        thread = int(rng.integers(3)) if step % 40 else step // 40 % 3
        address = 1024 * int(rng.integers(1, 30))
        if len(threads[thread]) % 16 == 0:
            stale[thread] = step + 1
        if address in live:
            size, generation = live.pop(address)
            threads[thread].append((stale[thread], FREE, address, size, generation))
            # Another record may have the address next, with any generation.
            generations[address] = generation + 1 if rising else int(rng.integers(1, 2**24))
        else:
            size, generation = int(rng.integers(1, 1000)), generations.get(address, 1)
            live[address] = size, generation
            threads[thread].append((stale[thread], ALLOCATE, address, size, generation))
    trace = build(threads, heap)
    trace.validate()
    assert int((trace.op > 0).sum()) >= sum(row[1] == ALLOCATE for rows in threads for row in rows)
    if not rising:
        return
    assert trace.missing == 0
    assert len(trace) == 3000
    assert int(trace.live()[-1]) == sum(size for size, _ in live.values())
    # At no time do two blocks share an address.
    assert trace.addressed() is trace


def test_what_was_live_before_comes_first(heap: int) -> None:
    held = [Held(2048, 7, 99, 1, 0, 0), Held(512, 3, 5, 1, 0, 0)]
    rows = [[(10, FREE, 1024, 20, 1), (11, ALLOCATE, 512, 5, 3)]]
    trace = build(rows, heap, held=held)
    assert trace.op.tolist() == [1, 1, -1, 1]
    assert trace.address.tolist() == [1024, 2048, 1024, 512]
    assert trace.missing == 0
    assert int(trace.live()[-1]) == 104


def test_lost_events_are_counted(heap: int) -> None:
    rows = [(10, ALLOCATE, 512, 5, 1), (11, ALLOCATE, 512, 6, 3), (12, FREE, 512, 6, 3),
            (13, FREE, 512, 9, 4)]  # fmt: skip
    trace = build([rows], heap, missing=100)
    assert trace.missing == 100 + 2  # the free of generation 1, the allocation of 4
    assert trace.op.tolist() == [1, -1, 1, -1]


def test_storages_without_bytes_are_no_blocks(heap: int) -> None:
    trace = build([[(1, ALLOCATE, 0, 0, 0), (2, ALLOCATE, 0, 0, 0), (3, FREE, 0, 0, 0)]], heap)
    assert (len(trace), trace.missing) == (0, 0)


def test_the_end_of_a_last_use_is_a_note(heap: int) -> None:
    pending, completed = _events.FREE_PENDING, _events.FREE_COMPLETED
    rows = [
        [
            (10, ALLOCATE, 512, 5, 1),
            (20, pending, 512, 5, 1),
            (40, ALLOCATE, 512, 7, 2),
            (41, FREE, 512, 7, 2),
        ],
        # Another thread sees the end, before its clock says so; one whose free was lost means
        # nothing.
        [(15, completed, 512, 5, 1), (16, completed, 1024, 5, 9)],
    ]
    trace = build(rows, heap)
    assert [(note.action, note.address, note.position) for note in trace.notes] == [
        ("complete", 512, 2)
    ]
    assert trace.completions() == {1: 0}
    events = [(e["action"], e["size"]) for e in _snapshot.events_of(trace)]
    assert events == [
        ("alloc", 5),
        ("free_requested", 5),
        ("free_completed", 5),
        ("alloc", 7),
        ("free_requested", 7),
        ("free_completed", 7),
    ]
    # Of a block that still waits there is no end.
    assert [e["action"] for e in _snapshot.events_of(trace, [512])][-2:] == [
        "alloc",
        "free_requested",
    ]


def test_tags_of_threads_are_notes(heap: int) -> None:
    recording = _core.Recording(1 << 20)
    with nbx.memory.tag("notes/a"), nbx.memory.tag("b"):
        pass
    words, threads, _ = recording.stop()
    trace = _events.build(_events.unpack(words, threads), _core.recorder_heap_name(heap))
    texts = [note.text for note in trace.notes if note.action == "tag"]
    assert texts == ["notes/a", "b", "notes/a", ""]


def test_marks_and_annotations_are_notes(heap: int) -> None:
    recording = _core.Recording(1 << 20)
    _core.recorder_note(ALLOCATE, heap=heap, address=512, bytes=64, generation=1)
    _record.mark("step 1")
    _record.annotate(512, "a mask <b>")
    words, threads, _ = recording.stop()
    trace = _events.build(_events.unpack(words, threads), _core.recorder_heap_name(heap))
    assert [(note.action, note.text, note.position) for note in trace.notes] == [
        ("mark", "step 1", 1),
        ("annotate", "a mask <b>", 1),
    ]


def test_a_bounded_recording_says_what_is_missing(heap: int) -> None:
    former = _core.recorder_set_events(64)
    result = {}

    def work() -> None:
        recording = _core.Recording(64)
        for i in range(1000):
            _core.recorder_note(ALLOCATE, heap=heap, address=512 * (i + 1), generation=1)
        result["events"] = recording.stop()

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        _core.recorder_set_events(former)
    words, _, missing = result["events"]
    assert len(words) + missing == 1000
    assert missing > 0


def test_off_means_off(heap: int) -> None:
    former = _record.set_events(0)
    try:
        _core.recorder_note(ALLOCATE, heap=heap, address=16, bytes=1)
        with pytest.raises(ValueError, match="NBX_MEMORY_EVENTS"):
            _record.record().start()
    finally:
        assert _record.set_events(former) == 0
    words, threads, _ = _core.recorder_events()
    assert heap not in _events.unpack(words, threads).heap.tolist()


def test_origins_name_the_callers_frames() -> None:
    assert _core.recorder_origin() == 0
    former = _record.set_origins(2)
    try:
        one, two = _core.recorder_origin(), _core.recorder_origin()

        def inner() -> int:
            return int(_core.recorder_origin())

        three = [inner() for _ in range(3)]
    finally:
        assert _record.set_origins(former) == 2
    assert one != 0
    assert len(set(three)) == 1  # the same stack has one number
    assert one == two  # on one line
    file, _, name = _core.recorder_frames(three[0])[0]
    assert file.endswith("test_events.py")
    assert name == "inner"
    assert len(_core.recorder_frames(three[0])) == 2
    assert _events.origin_text(three[0]).split("\n")[0].endswith(" inner")
    assert _core.recorder_frames(0) == []
    with pytest.raises(ValueError, match=r"33.*0 \.\. 32"):
        _record.set_origins(33)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        _record.set_events(-1)
    with pytest.raises(ValueError, match="limit is 0"):
        _record.record(limit=0)
    with pytest.raises(ValueError, match="tells no format"):
        _record.record("run.txt")
    with pytest.raises(ValueError, match="has ended"):
        _ = _record.record().trace
