"""Arguments that cannot be: every one is refused by name, and nothing has changed then."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import memory
from nbxtensor.memory import _arguments

DEVICE = "sim:1"

NO_NUMBER = [None, True, 1.5, float("nan"), "x", b"x", [], object(), np.float32(2.0), 1j]
NO_SIZE = [*NO_NUMBER, -1, 2**63, 2**64, 10**30]
NO_FLAG = [1, 0, -1, 1.5, "no", [], object(), np.True_]
NO_TEXT = [1, True, 1.5, b"x", [], object(), "\ud800", "a\0b"]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = memory.stats(DEVICE)
    yield
    gc.collect()  # errors and the frames that hold them are cycles
    after = memory.stats(DEVICE)
    assert (after.allocated, after.budget) == (before.allocated, before.budget)


def planned(**changes: Any) -> object:
    row = {"lower": 0, "upper": 3, "size": 8, "alignment": 1, "gaps": ()} | changes
    return memory.plan([memory.Interval(**row)], seconds=1.0)


def of_slab(key: tuple[Any, ...]) -> object:
    plan = memory.plan([(0, 3, 256)], alignment=256)
    return memory.PlannedSlab([key], plan, DEVICE)


def carver(kind: str) -> Any:
    return getattr(memory, kind)(4096, DEVICE, name="decoder")


def recorded(**given: Any) -> None:
    with memory.record(**given):
        pass


# Who is called, the name that the error gives, the function, and what it refuses.
CASES: list[tuple[str, str, Callable[[Any], object], list[Any]]] = [
    ("trim", "keep", lambda v: memory.trim(DEVICE, v), NO_SIZE),
    ("reserve", "max_bytes", lambda v: memory.reserve(v, DEVICE), [*NO_SIZE, 0]),
    ("reserve", "steady", lambda v: memory.reserve(4096, DEVICE, steady=v), NO_FLAG),
    ("commit", "nbytes", lambda v: memory.reserve(4096, DEVICE).commit(v), NO_SIZE),
    ("decommit", "keep", lambda v: memory.reserve(4096, DEVICE).decommit(v), NO_SIZE),
    ("tensor", "offset", lambda v: memory.reserve(4096, DEVICE).tensor(0, "u1", v), NO_SIZE),
    ("tensor", "shape", lambda v: memory.reserve(4096, DEVICE).tensor(v, "u1"), [None, 1.5, -1]),
    ("sleep", "tag", lambda v: memory.sleep(v, DEVICE), NO_TEXT),
    ("sleep", "keep", lambda v: memory.sleep("t", DEVICE, v), NO_FLAG),
    ("wake", "tag", lambda v: memory.wake(v, DEVICE), NO_TEXT),
    ("sleeping", "tag", lambda v: memory.sleeping(v, DEVICE), NO_TEXT),
    ("tag", "path", lambda v: memory.tag(v), NO_TEXT),
    ("tag", "steady", lambda v: memory.tag("t", v), NO_FLAG),
    ("peak", "tag", lambda v: memory.peak(v, DEVICE), NO_TEXT),
    ("budget", "tag", lambda v: memory.budget(5, DEVICE, v), NO_TEXT),
    ("reclaimer", "cost", lambda v: memory.reclaimer(int, v, DEVICE), [None, True, "x", -1, 1j]),
    ("reclaimer", "tag", lambda v: memory.reclaimer(int, 1.0, DEVICE, v), NO_TEXT),
    ("external", "name", lambda v: memory.external(v, 5, DEVICE), [*NO_TEXT, ""]),
    ("options", "slack", lambda v: memory.options(DEVICE, slack=v), [True, "x", -1, 1j]),
    ("retry", "attempts", lambda v: memory.retry(int, v), [*NO_SIZE, 0]),
    ("retry", "function", lambda v: memory.retry(v), [None, 1, "x"]),
    ("retry", "recover", lambda v: memory.retry(int, 2, v), [1, "x"]),
    ("Arena", "guarded", lambda v: memory.Arena(9, DEVICE, guarded=v), NO_FLAG),
    ("resolve", "address", lambda v: carver("Arena").resolve(v), NO_SIZE),
    ("capacity_for", "total", memory.StepSlab.capacity_for, NO_SIZE),
    ("layout", "alignment", memory.Layout, [*NO_SIZE, 0]),
    ("layout", "name", lambda v: memory.Layout().add(v, 3), NO_TEXT),
    ("layout", "shape", lambda v: memory.Layout().add("w", v), [None, 1.5, "x", -1, (2, "x")]),
    ("layout", "block", lambda v: memory.layout([]).tensors(v), [None, 1, "x"]),
    ("layout", "entries", memory.layout, [None, 1, "x"]),
    ("layout", "entry 0", lambda v: memory.layout([v]), [None, 1, "xyz", (), ("w", 3)]),
    ("plan", "capacity", lambda v: memory.plan([(0, 3, 8)], v), [*NO_SIZE[1:], 0]),
    ("plan", "alignment", lambda v: memory.plan([(0, 3, 8)], None, v), [*NO_SIZE, 0]),
    ("plan", "seconds", lambda v: memory.plan([(0, 3, 8)], seconds=v), [None, True, "x", -1, 1j]),
    ("plan", "cancel", lambda v: memory.plan([(0, 3, 8)], cancel=v), [1, "x"]),
    ("plan", "intervals", memory.plan, [None, 1, "x"]),
    ("plan", "interval 0", lambda v: memory.plan([v]), [None, 1, "x", (1, 2)]),
    ("plan", "lower of interval 0", lambda v: planned(lower=v), [*NO_NUMBER, 2**63, -(2**64)]),
    ("plan", "upper of interval 0", lambda v: planned(upper=v), [*NO_NUMBER, 2**63, -(2**64)]),
    ("plan", "size of interval 0", lambda v: planned(size=v), NO_SIZE),
    ("plan", "alignment of interval 0", lambda v: planned(alignment=v), [*NO_SIZE, 0]),
    ("plan", "gaps of interval 0", lambda v: planned(gaps=v), [None, 1, "x"]),
    ("plan", "gap of interval 0", lambda v: planned(gaps=[v]), [None, 1, "x", (1,)]),
    ("plan", "gap of interval 0", lambda v: planned(gaps=[(1, v)]), NO_NUMBER),
    ("PlannedSlab", "plan", lambda v: memory.PlannedSlab([], v, DEVICE), [None, 1, "x"]),
    ("PlannedSlab", "key 0", of_slab, [None, 1, "xyz", ("a", 0)]),
    ("PlannedSlab", "the ordinal of key 0", lambda v: of_slab(("a", v, 256)), [*NO_SIZE, 2**32]),
    ("PlannedSlab", "the size of key 0", lambda v: of_slab(("a", 0, v)), NO_SIZE),
    ("PlannedSlab", "origin", lambda v: of_slab((v, 0, 256)), [[], {}]),
    ("planned_keys", "requests", memory.planned_keys, [None, 1, "x"]),
    ("planned_keys", "request 0", lambda v: memory.planned_keys([v]), [None, 1, "xy", (1,)]),
    ("record", "limit", lambda v: recorded(limit=v), [*NO_SIZE[1:], 0]),
    ("mark", "text", memory.mark, [None, *NO_TEXT]),
    ("note", "address", lambda v: memory.note(v, "x"), NO_SIZE),
    ("note", "text", lambda v: memory.note(1, v), [None, *NO_TEXT]),
    ("set_events", "count", memory.set_events, NO_SIZE),
    ("set_origins", "frames", memory.set_origins, NO_SIZE),
]
for kind in ("Arena", "StepSlab", "ReplaySlab"):
    CASES += [
        (kind, "capacity", lambda v, k=kind: getattr(memory, k)(v, DEVICE), [*NO_SIZE, 0]),
        (kind, "name", lambda v, k=kind: getattr(memory, k)(9, DEVICE, name=v), [None, *NO_TEXT]),
        ("alloc", "nbytes", lambda v, k=kind: carver(k).alloc(v), NO_SIZE),
        ("empty", "shape", lambda v, k=kind: carver(k).empty(v), [None, 1.5, "x", -1, (2, "x")]),
    ]
for kind in ("StepSlab", "ReplaySlab"):
    CASES.append(("release", "address", lambda v, k=kind: carver(k).release(v), NO_SIZE))


@pytest.mark.parametrize(("function", "name", "call", "refused"), CASES)
def test_what_cannot_be_is_refused_by_name(
    function: str, name: str, call: Callable[[Any], object], refused: list[Any]
) -> None:
    for value in refused:
        with pytest.raises((TypeError, ValueError)) as caught:
            call(value)
        text = str(caught.value)
        assert isinstance(caught.value, nbx.Error), (value, text)
        assert text.startswith(f"{function}: "), (value, text)
        assert name in text, (value, text)
        assert "give" in text, (value, text)
        assert len(text) < 400, (value, text)


SIZES = [True, 1.5, float("nan"), b"x", [], object(), -1, 2**63, "", "x", "-1", "1 XiB", "a\0b"]


@pytest.mark.parametrize("value", [*SIZES, "\ud800", "200%"])
def test_sizes_in_every_form_are_refused_by_name(value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: memory.budget(value, DEVICE),
        lambda: memory.budget(device=DEVICE, soft=value),
        lambda: memory.budget(device=DEVICE, reserve=value),
        lambda: memory.external("lib", value, DEVICE),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError, OverflowError), match=r"give|write") as caught:
            call()
        assert str(caught.value).startswith(("budget: ", "size: "))


def test_numbers_of_numpy_are_numbers() -> None:
    with memory.budget(np.int64(5 << 20), DEVICE) as limit:
        assert limit.bytes == 5 << 20
    arena = memory.Arena(np.uint16(4096), DEVICE)
    assert arena.alloc(np.int32(300)) == arena.base
    assert memory.plan([(np.int64(0), np.int64(3), np.uint32(8))]).peak == 8
    assert memory.Layout().add("w", np.array([2, 3])) == 0


@pytest.mark.parametrize("name", ["cpu\0", "cpu\0x", "sim:0\0", "\ud800"])
def test_names_of_devices_are_whole(name: str) -> None:
    with pytest.raises(ValueError, match=r"device: got .*; give"):
        memory.stats(name)


@pytest.mark.parametrize("history", [0, 1, None, "no"])
def test_a_snapshot_takes_a_flag(history: Any) -> None:
    with pytest.raises(TypeError, match=r"snapshot: history is .*; give True or False"):
        memory.snapshot(DEVICE, history=history)


def test_an_event_cancels_a_plan() -> None:
    cancel = threading.Event()
    cancel.set()
    assert memory.plan([(0, 3, 8)], cancel=cancel).peak == 8


# ---- files of intervals --------------------------------------------------------------------

FAULTS = {
    "no column": (b"id,lower,upper\n1,2,3\n", r"line 1: found the columns .*; allowed"),
    "empty": (b"", r"line 1: found the columns None; allowed"),
    "short": (b"id,lower,upper,size\n1,2\n", r"line 2, column upper: found None; allowed"),
    "no number": (b"id,lower,upper,size\n1,0,9,1.5\n", r"line 2, column size: found '1.5'"),
    "not UTF-8": (b"id,lower,upper,size\n1,0,\xff9,4\n", r"line 2, column upper: found"),
    "long": (b"id,lower,upper,size\n1,0,9," + b"4" * 200_000, r"allowed is a CSV file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_of_intervals_are_read_strictly(tmp_path: Path, fault: str) -> None:
    content, message = FAULTS[fault]
    path = tmp_path / "intervals.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        memory.read_intervals(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", [None, 5, "", "/nowhere/x.csv", "a\0b", "\ud800"])
def test_files_that_cannot_be_read_are_named(path: Any) -> None:
    with pytest.raises(nbx.Error, match=r"cannot be read: .*; give the path of a CSV file"):
        memory.read_intervals(path)


# ---- the readers themselves ----------------------------------------------------------------


def test_names_are_printed_on_one_line() -> None:
    assert _arguments.printable("weights/layer.3 é") == "weights/layer.3 é"
    assert _arguments.printable("a\tb\nc\x1b[0m\u2028") == r"a\tb\nc\x1b[0m\u2028"


def test_values_are_shown_short() -> None:
    assert _arguments.shown("a" * 1000) == "'" + "a" * 75 + "...'"
    assert _arguments.shown("\ud800\n") == r"'\ud800\n'"
